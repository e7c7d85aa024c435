"""The checkpoint file: how far the parts of the store are known to be on disk.

RocketMQ's five numbers fill the first 40 bytes of a 4096-byte file: store time of the last flushed message,
of the last flushed consume queue unit, of the index, the master's flushed offset, the confirm offset (times
in ms). Behind them, at 64, stands what only BatonMQ writes: the *safe offset*, below which commit log and
consume queues are known to be on disk, so that recovery need not walk whole files. It counts only while the
40 bytes are the ones it was written with, so a store that Java has run on meanwhile is recovered without it.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

from batonmq.store.mapped import write_all

_FIELDS = struct.Struct(">5q")
_SAFE = struct.Struct(">4sIq")
_SAFE_POSITION = 64
_SAFE_MAGIC = b"BMQ1"
_FILE_SIZE = 4096


class Checkpoint:
    """Contents of the file; `save` writes them."""

    __slots__ = (
        "confirm_offset",
        "index_timestamp",
        "logics_timestamp",
        "master_flushed_offset",
        "path",
        "physic_timestamp",
        "safe_offset",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.physic_timestamp = 0
        self.logics_timestamp = 0
        self.index_timestamp = 0
        self.master_flushed_offset = 0
        self.confirm_offset = 0
        self.safe_offset = -1
        """-1 when nothing is known."""

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read `path`; all zero and no safe offset if it is missing or short."""
        checkpoint = cls(path)
        data = path.read_bytes() if path.is_file() else b""
        if len(data) < _FIELDS.size:
            return checkpoint
        (
            checkpoint.physic_timestamp,
            checkpoint.logics_timestamp,
            checkpoint.index_timestamp,
            checkpoint.master_flushed_offset,
            checkpoint.confirm_offset,
        ) = _FIELDS.unpack_from(data)
        if len(data) >= _SAFE_POSITION + _SAFE.size:
            magic, crc, safe = _SAFE.unpack_from(data, _SAFE_POSITION)
            if magic == _SAFE_MAGIC and crc == _crc(data[: _FIELDS.size], safe):
                checkpoint.safe_offset = safe
        return checkpoint

    @property
    def min_timestamp(self) -> int:
        """What was stored up to then is on disk with its units; RocketMQ's rule: 3 s before the older."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - 3000)

    def save(self) -> None:
        """Write and fsync; raises `OSError`."""
        fields = _FIELDS.pack(
            self.physic_timestamp,
            self.logics_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        )
        page = fields.ljust(_SAFE_POSITION, b"\0")
        page += _SAFE.pack(_SAFE_MAGIC, _crc(fields, self.safe_offset), self.safe_offset)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size < _FILE_SIZE:
                os.ftruncate(fd, _FILE_SIZE)
            # One write within a sector: after a crash it is there or not, never half.
            write_all(fd, page, 0)
            os.fsync(fd)
        finally:
            os.close(fd)


def _crc(fields: bytes, safe: int) -> int:
    return zlib.crc32(fields + safe.to_bytes(8, "big", signed=True))
