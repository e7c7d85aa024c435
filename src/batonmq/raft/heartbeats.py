"""A leader's heartbeats, and what their answers prove: that it still leads (6.2), for how long (6.4.1)."""

from __future__ import annotations

from typing import Final

from batonmq.raft.messages import Heartbeat, HeartbeatReply
from batonmq.raft.progress import Progress
from batonmq.raft.quorum import majority, reached_by_majority
from batonmq.raft.reach import Reach
from batonmq.raft.replication import Replication
from batonmq.raft.server import Server
from batonmq.raft.state import Role
from batonmq.raft.transfer import Transfer

ASK_ALL_MS: Final = 10
"""How long a round that asks a bare majority may take; then all are asked. Between data centres of one region
a round trip takes 1 or 2 ms."""


class Heartbeats:
    """Rounds of heartbeats. A round that a majority answered confirms the leader as of its beginning."""

    def __init__(self, server: Server, replication: Replication, transfer: Transfer, reach: Reach) -> None:
        self._server = server
        self._replication = replication
        self._transfer = transfer
        self._reach = reach
        self._due_ms = server.now_ms
        self._round = 0
        self._full_round = 0
        """The last round that asked all members, or the first of those that nobody has answered yet."""
        self._quick: list[str] = []
        """Members in the order in which they answered it, or a later round."""
        self._ask_all_ms: int | None = None

    def begin(self) -> None:
        """This node was elected: the first round is due now."""
        self._due_ms = self._server.now_ms
        self._ask_all_ms = None
        self._full_round = self._round + 1
        self._quick.clear()
        self._reach.begin()

    @property
    def deadline_ms(self) -> int:
        """When ``tick`` must be called at the latest."""
        return self._due_ms if self._ask_all_ms is None else min(self._ask_all_ms, self._due_ms)

    def tick(self) -> None:
        server = self._server
        if self._ask_all_ms is not None and server.now_ms >= self._ask_all_ms:
            self._ask_all_ms = None
            if self.confirmed_round() < self._round:
                self.start_round()
        if server.now_ms < self._due_ms:
            return
        config = server.config
        self._transfer.expire()
        if not server.is_alone():
            contact = reached_by_majority(
                server.now_ms if voter == server.id else server.peers[voter].contact_ms
                for voter in server.members.voters
            )
            if server.now_ms - contact >= config.election_timeout_ms:
                # Check-quorum (6.2): a leader that cannot commit must not keep clients waiting.
                server.become_follower(server.term, None)
                return
        self._due_ms = server.now_ms + config.heartbeat_interval_ms
        self.start_round()
        for progress in server.peers.values():
            progress.retransmit(server.now_ms, config)
        self._reach.move()

    def start_round(self) -> None:
        """Send a round of heartbeats to all members."""
        self._round += 1
        if self._quick:
            self._full_round = self._round
            self._quick.clear()
        self.broadcast(self._round)

    def confirm(self) -> int:
        """Begin the round that is to confirm this leader, and return its number.

        It asks no more voters than it needs, because a round costs as much as 30 reads: those who answered
        the last full round first. If they have not answered after ``ASK_ALL_MS``, all are asked.
        """
        server = self._server
        voters = server.members.voters
        needed = majority(len(voters)) - (server.id in voters)
        quick = [voter for voter in self._quick if voter in voters][:needed]
        if len(quick) < needed:
            self.start_round()
            return self._round
        self._round += 1
        for voter in quick:
            self._send(voter, server.peers[voter], self._round)
        if self._ask_all_ms is None:
            self._ask_all_ms = server.now_ms + ASK_ALL_MS
        return self._round

    def broadcast(self, round_number: int) -> None:
        """Round 0 asks for no answers: it only carries the commit index."""
        for peer, progress in self._server.peers.items():
            if peer != self._server.id:
                self._send(peer, progress, round_number)

    def _send(self, peer: str, progress: Progress, round_number: int) -> None:
        server = self._server
        commit = server.peer_commit(progress)
        progress.sent_commit = max(progress.sent_commit, commit)
        server.outbox.send(peer, Heartbeat(server.term, commit, round_number, server.now_ms))

    def on_reply(self, sender: str, message: HeartbeatReply) -> bool:
        """Returns whether ``sender`` is a member, whose answer counts."""
        progress = self._replication.contact(sender)
        if progress is None:
            return False
        progress.acked_round = max(progress.acked_round, message.round)
        if message.round >= self._full_round and sender not in self._quick:
            self._quick.append(sender)
        progress.asked_by = frozenset(message.asked_by)
        if message.promise_ms:
            length = int(message.promise_ms * (1 - self._server.config.max_clock_drift))
            progress.lease_until_ms = max(progress.lease_until_ms, message.sent_ms + length)
        return True

    def confirmed_round(self) -> int:
        """The newest round that a majority answered."""
        server = self._server
        return reached_by_majority(
            self._round if voter == server.id else server.peers[voter].acked_round
            for voter in server.members.voters
        )

    @property
    def has_lease(self) -> bool:
        """Whether no other leader can exist now, given the bound on clock drift (6.4.1)."""
        server = self._server
        if server.role is not Role.LEADER or self._transfer.offered:
            return False
        if server.is_alone():
            return True
        if server.id not in server.members.voters:
            # It leads until the group without it is committed. If that is one node, that one needs no votes.
            return False
        return server.now_ms < reached_by_majority(
            server.now_ms + 1 if voter == server.id else server.peers[voter].lease_until_ms
            for voter in server.members.voters
        )
