"""The snapshot that a leader sends to peers whose entries are compacted, chunk by chunk (5)."""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

from batonmq.raft.messages import InstallSnapshot, Snapshot


class OutgoingSnapshot:
    """Read from the disk when a peer needs it, and kept for as long as one does."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._checksum = 0
        self.wanted = False
        """The shell is to read the newest snapshot from the disk."""

    @property
    def index(self) -> int | None:
        """Index of the snapshot; None if none is loaded."""
        return self._snapshot.meta.index if self._snapshot is not None else None

    def reaches(self, base_index: int) -> bool:
        """Whether the loaded snapshot reaches the base of the log; if not, a newer one is wanted."""
        if self._snapshot is None or self._snapshot.meta.index < base_index:
            self._snapshot = None
            self.wanted = True
            return False
        return True

    def loaded(self, snapshot: Snapshot) -> None:
        self.wanted = False
        self._snapshot = snapshot
        self._checksum = crc32(snapshot.data)

    def chunk(self, term: int, offset: int, size: int) -> InstallSnapshot:
        assert self._snapshot is not None
        data = self._snapshot.data
        return InstallSnapshot(
            term, self._snapshot.meta, len(data), self._checksum, offset, data[offset : offset + size]
        )

    def release(self) -> None:
        """No peer needs one now."""
        self._snapshot = None
        self.wanted = False
