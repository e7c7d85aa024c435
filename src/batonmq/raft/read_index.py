"""Linearizable reads: which index a read must see, and when that is certain (6.4)."""

from __future__ import annotations

from batonmq.raft.heartbeats import Heartbeats
from batonmq.raft.messages import ReadReply, ReadRequest
from batonmq.raft.pending_reads import PendingReads
from batonmq.raft.replication import Replication
from batonmq.raft.server import Server
from batonmq.raft.state import ReadContext, Role


class ReadIndex:
    """A leader answers from its lease or after a round of heartbeats; a follower asks its leader."""

    def __init__(self, server: Server, replication: Replication, heartbeats: Heartbeats) -> None:
        self._server = server
        self._replication = replication
        self._heartbeats = heartbeats
        self.pending = PendingReads()
        self.always_confirm = False
        """Ask a majority for each read, even with a lease."""

    # -- this node's reads

    def ask(self, number: int) -> None:
        """A read of this node."""
        server = self._server
        if server.role is Role.LEADER:
            self.read(number)
        elif server.leader_id is not None:
            self.pending.forward(number)
            server.outbox.send(server.leader_id, ReadRequest(server.term, number))
        else:
            self.pending.done(number, None)

    def forget(self, number: int) -> None:
        """The caller gave up."""
        self.pending.forget(number)

    def on_read_reply(self, sender: str, message: ReadReply) -> None:
        self.pending.answered(message.id, message.index or None)

    # -- the leader's side

    def on_read_request(self, sender: str, message: ReadRequest) -> None:
        self.read((sender, message.id))

    def refuse_read_request(self, sender: str, message: ReadRequest) -> None:
        """This node does not lead."""
        self._server.outbox.send(sender, ReadReply(self._server.term, message.id, 0))

    def read(self, context: ReadContext) -> None:
        server = self._server
        if server.commit_index < server.term_start_index:
            # It may not know yet what earlier leaders committed.
            self.pending.early.append(context)
        elif server.is_alone() or (
            server.config.lease_read and not self.always_confirm and self._heartbeats.has_lease
        ):
            self._answer(context, server.commit_index)
        else:
            self.pending.new.append(context)

    def term_committed(self) -> None:
        """The leader committed the first entry of its term: reads that waited for this go on."""
        if self.pending.early:
            for context in self.pending.take_early():
                self.read(context)

    def confirm_new(self) -> None:
        """One heartbeat round confirms all reads of a turn."""
        if self.pending.new:
            self.pending.begin_round(self._heartbeats.confirm(), self._server.commit_index)

    def answer_confirmed(self) -> None:
        """A member answered a round of heartbeats."""
        if self.pending.in_rounds:
            for context, index in self.pending.confirmed(self._heartbeats.confirmed_round()):
                self._answer(context, index)

    def _answer(self, context: ReadContext, index: int | None) -> None:
        if isinstance(context, int):
            self.pending.done(context, index)
        else:
            server = self._server
            peer, number = context
            progress = server.peers.get(peer)
            if progress is not None:
                self._replication.notify_commit(peer, progress)  # the read waits until that is applied
            server.outbox.send(peer, ReadReply(server.term, number, index or 0))

    def refuse_all(self) -> None:
        """The leader changed: no waiting read can be confirmed."""
        for context in self.pending.take_unconfirmed():
            self._answer(context, None)
        self.pending.refuse_forwarded()
