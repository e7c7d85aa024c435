"""Frames of the replication port in groups without controllers, and readers that cut them.

All integers are big-endian. Source: RocketMQ's DefaultHAClient (REPORT_HEADER_SIZE) and DefaultHAConnection
(TRANSFER_HEADER_SIZE).

    slave -> master   report      max offset i64
    master -> slave   transfer    offset i64, body size i32, then the bytes of the log

Where both sides have a shared secret (`ha/proof.py`), its frames come first, and then the slave says which
replica it is:

    slave -> master   hello       broker id i64
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from batonmq.protocol.ha_frames import Body, HAFrameError, begins_with_proof

_REPORT = struct.Struct(">q")
_TRANSFER = struct.Struct(">qi")

REPORT_SIZE = _REPORT.size
TRANSFER_HEADER_SIZE = _TRANSFER.size
MAX_BODY_SIZE: Final = 1 << 30
"""Largest body of one transfer frame: RocketMQ's largest commit log file."""


def report(max_offset: int) -> bytes:
    """A slave's report of the end of its log. The first one says where transfer begins; a hello has the same
    layout."""
    return _REPORT.pack(max_offset)


def transfer_header(offset: int, body_size: int) -> bytes:
    """Header of a piece of log; with `body_size` 0 a heartbeat."""
    return _TRANSFER.pack(offset, body_size)


class ClassicTransfer(NamedTuple):
    """Header of a piece of log; with `body_size` 0 a heartbeat. The body follows, cut into `Body` pieces."""

    offset: int
    body_size: int


class ReportReader:
    """Cuts what a slave sends into numbers; at most 7 bytes wait for their rest."""

    __slots__ = ("_first", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._first = True

    def feed(self, data: bytes) -> list[int]:
        """Numbers that are complete now. Raises `HAFrameError`."""
        buffer = self._rest + data
        if self._first and len(buffer) >= 4:
            self._first = False
            if begins_with_proof(buffer):
                raise HAFrameError("the slave has a haSecret, and none is set here")
        end = len(buffer) - len(buffer) % REPORT_SIZE
        numbers = [value for (value,) in _REPORT.iter_unpack(buffer[:end])]
        self._rest = buffer[end:]
        if numbers and min(numbers) < 0:
            raise HAFrameError(f"report of offset {min(numbers)}")
        return numbers


class TransferReader:
    """Cuts what a master sends into frames. Bodies are handed on as they arrive, never collected."""

    __slots__ = ("_body_left", "_body_offset", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._body_offset = 0
        self._body_left = 0

    def feed(self, data: bytes) -> list[ClassicTransfer | Body]:
        """Frames, and pieces of bodies, that `data` brings; at most 11 bytes wait for their rest. Raises
        `HAFrameError`."""
        frames: list[ClassicTransfer | Body] = []
        if self._rest:
            data = self._rest + data
            self._rest = b""
        view = memoryview(data)
        size, position = len(data), 0
        while True:
            if self._body_left:
                piece = min(self._body_left, size - position)
                if piece:
                    frames.append(Body(self._body_offset, view[position : position + piece]))
                    self._body_offset += piece
                    self._body_left -= piece
                    position += piece
                if self._body_left:
                    return frames
            if size - position < TRANSFER_HEADER_SIZE:
                break
            offset, body_size = _TRANSFER.unpack_from(data, position)
            if offset < 0 or not 0 <= body_size <= MAX_BODY_SIZE:
                raise HAFrameError(f"transfer of {body_size} bytes at offset {offset}")
            frames.append(ClassicTransfer(offset, body_size))
            position += TRANSFER_HEADER_SIZE
            self._body_offset, self._body_left = offset, body_size
        self._rest = data[position:]
        return frames
