"""Which voter reaches more of the others than the leader does: the leadership moves to it.

Links between single nodes can be down. A voter that reaches a follower but not the leader asks that follower
for pre-votes in vain, because the follower sticks to its leader. So each follower reports to the leader who
asked it, and the leader hands over (3.10) to a follower that reaches them all.
"""

from __future__ import annotations

from typing import Final

from batonmq.raft.server import Server
from batonmq.raft.transfer import Transfer

ASKED_TIMEOUTS: Final = 2
"""A voter without leader asks again within so many election timeouts."""
SILENT_TIMEOUTS: Final = 3
"""So many election timeouts without an answer, and the leader does not reach a voter."""
STAY_TIMEOUTS: Final = 5
"""So many election timeouts a leader stays, and waits after an attempt: a bad link costs little."""


class Reach:
    """Who asked this node for pre-votes, and what a leader makes of its followers' reports."""

    def __init__(self, server: Server, transfer: Transfer) -> None:
        self._server = server
        self._transfer = transfer
        self._asked_ms: dict[str, int] = {}
        """Voter -> when it last asked."""
        self._stay_until_ms = 0

    def begin(self) -> None:
        """This node was elected."""
        self._stay()

    def asked(self, voter: str) -> None:
        """A pre-vote of `voter` arrived."""
        if voter in self._server.members.voters:
            self._asked_ms[voter] = self._server.now_ms

    def askers(self) -> list[str]:
        """Voters that asked lately: this node hears them, and they follow nobody."""
        if not self._asked_ms:
            return []
        server = self._server
        since = server.now_ms - ASKED_TIMEOUTS * server.config.election_timeout_ms
        voters = server.members.voters
        self._asked_ms = {v: at for v, at in self._asked_ms.items() if at > since and v in voters}
        return sorted(v for v in self._asked_ms if v != server.leader_id)

    def move(self) -> None:
        """Hand over to a follower that reaches more voters than this leader, if there is one."""
        server = self._server
        if server.now_ms < self._stay_until_ms or self._transfer.target is not None:
            return
        better = self._better()
        if better is not None:
            self._stay()
            self._transfer.begin(better)

    def _stay(self) -> None:
        server = self._server
        self._stay_until_ms = server.now_ms + STAY_TIMEOUTS * server.config.election_timeout_ms

    def _better(self) -> str | None:
        server = self._server
        timeout = server.config.election_timeout_ms
        voters, peers, own = server.members.voters, server.peers, self.askers()
        silent_since = server.now_ms - SILENT_TIMEOUTS * timeout
        # A voter that asks this node is reached by it at least one way: another leader might fare no better.
        reached = [v for v in voters if v == server.id or v in own or peers[v].contact_ms > silent_since]
        if len(reached) == len(voters):
            return None
        best, most = None, len(reached)
        for voter in voters:
            if voter == server.id or peers[voter].contact_ms <= server.now_ms - timeout:
                continue
            size = len(({voter, server.id} | peers[voter].asked_by) & voters.keys())
            if size > most and 2 * size > len(voters):
                best, most = voter, size
        return best
