"""The snapshot that a leader sends to peers whose entries are compacted, chunk by chunk (5)."""

from __future__ import annotations

import zlib

from batonmq.raft.messages import InstallSnapshot, Snapshot


class Outgoing:
    """Read from the disk when a peer needs it, and kept for as long as one does."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._checksum = 0
        self.asked = False
        """The shell is to read the newest one."""

    @property
    def index(self) -> int | None:
        """Of the snapshot, if there is one at hand."""
        return self._snapshot.meta.index if self._snapshot is not None else None

    def reaches(self, base_index: int) -> bool:
        """Whether there is one at hand from which a log with this base goes on; else one is asked for."""
        if self._snapshot is None or self._snapshot.meta.index < base_index:
            self._snapshot = None
            self.asked = True
            return False
        return True

    def loaded(self, snapshot: Snapshot) -> None:
        self.asked = False
        self._snapshot = snapshot
        self._checksum = zlib.crc32(snapshot.data)

    def chunk(self, term: int, offset: int, size: int) -> InstallSnapshot:
        assert self._snapshot is not None
        data = self._snapshot.data
        return InstallSnapshot(
            term, self._snapshot.meta, len(data), self._checksum, offset, data[offset : offset + size]
        )

    def forget(self) -> None:
        """Nobody needs one now."""
        self._snapshot = None
        self.asked = False
