"""Handing the leadership over to another voter (3.10)."""

from __future__ import annotations

from batonmq.raft.errors import MembershipRefused
from batonmq.raft.messages import TimeoutNow
from batonmq.raft.server import Server


class Transfer:
    """The transfer that a leader has under way, if any."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.target: str | None = None
        self._deadline_ms = 0
        self.offered = False
        """TimeoutNow was sent in this term. The target may be elected while other followers still hear from
        this leader: its lease is void, even if the transfer is given up and the message arrives late."""

    def reset(self) -> None:
        """This node was elected."""
        self.offered = False

    def give_up(self) -> None:
        self.target = None

    def begin(self, target: str) -> None:
        """Raises MembershipRefused; given up after one election timeout."""
        server = self._server
        if target not in server.members.voters or target == server.id:
            raise MembershipRefused(f"{target} is not another voter of this group")
        self.target = target
        self._deadline_ms = server.now_ms + server.config.election_timeout_ms
        self.proceed()

    def proceed(self) -> None:
        """Tell the target to stand for election once it holds the whole log."""
        server, target = self._server, self.target
        if target is not None and server.peers[target].match == server.log.last_index:
            self.offered = True
            server.outbox.send(target, TimeoutNow(server.term))

    def expire(self) -> None:
        if self.target is not None and self._server.now_ms >= self._deadline_ms:
            self.target = None
