"""A snapshot on its way from the leader, chunk by chunk (5)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from batonmq.raft.messages import InstallSnapshot, Snapshot, SnapshotMeta


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
