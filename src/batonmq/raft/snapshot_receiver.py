"""A follower's side of a snapshot transfer: chunk by chunk from the leader to the state machine (5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from zlib_ng.zlib_ng import crc32

from batonmq.raft.config import RaftConfig
from batonmq.raft.election import Election
from batonmq.raft.log import RaftLog
from batonmq.raft.messages import AppendReply, InstallReply, InstallSnapshot, Snapshot, SnapshotMeta
from batonmq.raft.server import Server
from batonmq.raft.state import Offer, Role

MAX_INDEX_STEP = 1 << 48
"""No log is further ahead of another of its group. An index is kept for good, so one beyond that, which only
a forged message can have, is not taken over: a few of them would use up all numbers."""


def implausible(message: InstallSnapshot, log: RaftLog, commit_index: int, config: RaftConfig) -> str | None:
    """Why a node with this log refuses the snapshot from its first chunk on; None if it does not.

    The snapshot ends beyond ``commit_index``.
    """
    meta, committed = message.meta, log.term(commit_index) or 0
    if message.total > config.max_snapshot_bytes:
        return f"it has {message.total} bytes, at most {config.max_snapshot_bytes} are taken"
    if meta.index > log.last_index + MAX_INDEX_STEP:
        return f"it ends at index {meta.index}, which no group that is at {log.last_index} here has reached"
    if meta.term < committed:
        return (
            f"it ends at index {meta.index} in term {meta.term}, but index {commit_index}, which is "
            f"committed, is of term {committed}"
        )
    return None


@dataclass(slots=True)
class PartialSnapshot:
    """The chunks of one snapshot that have arrived so far."""

    meta: SnapshotMeta
    total: int
    checksum: int
    data: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, message: InstallSnapshot) -> PartialSnapshot:
        return cls(message.meta, message.total, message.checksum)

    def continues(self, message: InstallSnapshot) -> bool:
        """Whether ``message`` is a chunk of this very snapshot."""
        return (self.meta, self.total, self.checksum) == (message.meta, message.total, message.checksum)

    def take(self, message: InstallSnapshot) -> bool:
        """Add a chunk, unless it is not the next one; returns whether all are there."""
        if message.offset == len(self.data):
            self.data += message.data
        return len(self.data) >= self.total

    def finish(self) -> Snapshot | None:
        """The whole snapshot; None if it is damaged."""
        data = bytes(self.data)
        return Snapshot(self.meta, data) if crc32(data) == self.checksum else None


class SnapshotReceiver:
    """Collects the snapshot that a leader sends, and offers it to the shell once it is complete."""

    def __init__(self, server: Server, election: Election) -> None:
        self._server = server
        self._election = election
        self.partial: PartialSnapshot | None = None
        self.offer: Offer | None = None
        """Complete, and not yet taken."""
        self.refused: list[tuple[str, str]] = []

    def discard(self) -> None:
        """This node was elected: no leader sends it a snapshot."""
        self.partial = None

    def on_install(self, sender: str, message: InstallSnapshot) -> None:
        self._election.leader_contact(sender)
        server = self._server
        meta = message.meta
        if meta.index <= server.commit_index:
            self.partial = None
            server.outbox.send_durable(sender, AppendReply(server.term, server.commit_index))
            return
        why = implausible(message, server.log, server.commit_index, server.config)
        if why is not None:
            self.refuse(sender, meta, why)
            return
        partial = self.partial
        if partial is None or not partial.continues(message):
            partial = self.partial = PartialSnapshot.of(message)
        if partial.take(message):
            self.partial = None
            snapshot = partial.finish()
            if snapshot is not None:
                self.offer = Offer(sender, snapshot)
                return
            server.outbox.send(sender, InstallReply(server.term, meta.index, 0))
            return
        server.outbox.send(sender, InstallReply(server.term, meta.index, len(partial.data)))

    def take_offer(self) -> Offer | None:
        """The complete snapshot, unless what arrived after it made it needless."""
        offer, self.offer = self.offer, None
        server = self._server
        if offer is None or server.role is not Role.FOLLOWER:
            return None
        meta = offer.snapshot.meta
        if server.log.term(meta.index) == meta.term:
            # The log already reaches so far and agrees (5.4): only the commit index was behind.
            server.commit(meta.index)
        if meta.index > server.commit_index:
            return offer
        server.outbox.send_durable(offer.sender, AppendReply(server.term, server.commit_index))
        return None

    def refuse(self, sender: str, meta: SnapshotMeta, why: str) -> None:
        self.partial = None
        self.refused.append((sender, why))
        self._server.outbox.send(sender, InstallReply(self._server.term, meta.index, 0, refused=True))

    def take_refused(self) -> list[tuple[str, str]]:
        """(sender, why) of the snapshots refused since the last call."""
        refused, self.refused = self.refused, []
        return refused
