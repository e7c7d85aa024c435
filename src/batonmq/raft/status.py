"""What a node reports of itself as it changes: role, term, leader, members, its own removal."""

from __future__ import annotations

import logging
from collections.abc import Callable

from batonmq.raft.core import RaftCore
from batonmq.raft.messages import Members
from batonmq.raft.state import Role

log = logging.getLogger(__name__)


class Status:
    """Compares the core with what was reported last; ``name`` is how log lines name the node."""

    def __init__(self, name: str, set_peers: Callable[[dict[str, str]], None]) -> None:
        self.on_role_change: Callable[[Role, int, str | None], None] | None = None
        """Called with (role, term, leader id) after each change of any of the three."""
        self.on_removed: Callable[[int], None] | None = None
        """Called with the index when the node learns that it was removed from the group."""
        self._name = name
        self._set_peers = set_peers
        self._reported: tuple[Role, int, str | None] = (Role.FOLLOWER, 0, None)
        self._members: Members | None = None
        self._removed_at: int | None = None

    def report(self, core: RaftCore) -> int | None:
        """Report what changed since the last call. Returns the term of a leadership that this node lost."""
        if core.members is not self._members:
            if self._members is not None:
                learners = f", learners {', '.join(core.members.learners)}" if core.members.learners else ""
                log.info("%s: the members are %s%s", self._name, ", ".join(core.members.voters), learners)
            self._members = core.members
            self._set_peers(core.members.all())
        if core.removed_at != self._removed_at:
            self._removed_at = core.removed_at
            if core.removed_at is not None and self.on_removed is not None:
                self.on_removed(core.removed_at)
        now = (core.role, core.term, core.leader_id)
        if now == self._reported:
            return None
        role, term, _ = self._reported
        self._reported = now
        log.info("%s is %s term=%d leader=%s", self._name, now[0].value, now[1], now[2])
        if self.on_role_change is not None:
            self.on_role_change(*now)
        return term if role is Role.LEADER and core.role is not Role.LEADER else None
