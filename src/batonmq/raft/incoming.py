"""A snapshot on its way from the leader, chunk by chunk (5)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from batonmq.raft.config import RaftConfig
from batonmq.raft.log import RaftLog
from batonmq.raft.messages import InstallSnapshot, Snapshot, SnapshotMeta

MAX_INDEX_STEP = 1 << 48
"""No log is further ahead of another of its group. An index is kept for good, so one beyond that, which only
a forged message can have, is not taken over: a few of them would use up all numbers."""


def implausible(message: InstallSnapshot, log: RaftLog, commit_index: int, config: RaftConfig) -> str | None:
    """Why a node with this log does not even gather the snapshot; None if it may be what it says.

    It ends beyond ``commit_index``.
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
class Incoming:
    """What has come of one snapshot so far."""

    meta: SnapshotMeta
    total: int
    checksum: int
    data: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, message: InstallSnapshot) -> Incoming:
        return cls(message.meta, message.total, message.checksum)

    def continues(self, message: InstallSnapshot) -> bool:
        """Whether ``message`` is a chunk of this very snapshot."""
        return (self.meta, self.total, self.checksum) == (message.meta, message.total, message.checksum)

    def take(self, message: InstallSnapshot) -> bool:
        """Add a chunk, unless it came out of turn; whether all is there."""
        if message.offset == len(self.data):
            self.data += message.data
        return len(self.data) >= self.total

    def finish(self) -> Snapshot | None:
        """The whole; None if it is damaged."""
        data = bytes(self.data)
        return Snapshot(self.meta, data) if zlib.crc32(data) == self.checksum else None
