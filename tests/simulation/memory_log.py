"""A commit log in memory, as replication sees a store: what a crash and a power cut leave of it is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from batonmq.protocol.message.layout import BODY_POSITION_V4, MAGIC_V1, fields_struct

HEAD: Final = fields_struct("size", "magic", "queue_offset", "physical_offset")
SIZES: Final = (BODY_POSITION_V4 + 12, 800)
"""Least and most bytes of a record."""


def record(number: int, offset: int, size: int) -> bytes:
    """A record of `size` bytes at the physical `offset`; its queue offset is its `number`."""
    head = HEAD.pack(size, MAGIC_V1, number, offset)
    return head + bytes([number % 251]) * (size - len(head))


def whole_records(log: bytearray, start: int, end: int) -> int:
    """Where the last record ends that is whole within ``[start, end)``. One begins at `start`, which is the
    result if none is whole.

    Raises AssertionError if something else begins there.
    """
    while end - start >= HEAD.size:
        size, magic, _, offset = HEAD.unpack_from(log, start)
        if size < HEAD.size or magic != MAGIC_V1 or offset != start:
            raise AssertionError(f"at {start} of {len(log)} bytes no record begins")
        if start + size > end:
            break
        start += size
    return start


class MemoryLog:
    """Implements `ReplicatedLog`. Offsets are physical, in bytes; the log begins at 0."""

    min_offset = 0

    def __init__(self, on_confirm: Callable[[MemoryLog, int], None]) -> None:
        """`on_confirm` is called with each new confirm offset."""
        self.data = bytearray()
        self.flushed_offset = 0
        self._confirm_offset = 0
        self._on_confirm = on_confirm
        self._whole = 0
        """A record ends, or the log begins, here: where `whole` begins to look."""
        self.cuts = 0
        """How often it lost bytes to follow a master."""

    @property
    def max_offset(self) -> int:
        return len(self.data)

    @property
    def confirm_offset(self) -> int:
        return min(self._confirm_offset, len(self.data))

    @confirm_offset.setter
    def confirm_offset(self, offset: int) -> None:
        self._confirm_offset = offset
        self._on_confirm(self, self.confirm_offset)

    def whole(self, offset: int) -> int:
        """Where the last record ends that is whole before `offset`."""
        self._whole = whole_records(self.data, self._whole if self._whole <= offset else 0, offset)
        return self._whole

    def put(self, number: int, size: int) -> int:
        """Append a record; returns where it ends."""
        self.data += record(number, len(self.data), size)
        return len(self.data)

    # -- `ReplicatedLog`

    def confirmable(self, offset: int) -> int:
        return offset

    def last_record_begin(self) -> int:
        return max(0, len(self.data) - SIZES[1])

    def append_raw(self, offset: int, data: memoryview) -> None:
        if offset != len(self.data):
            raise AssertionError(f"bytes of {offset} for a log that ends at {len(self.data)}")
        self.data += data

    def read(self, offset: int, max_bytes: int) -> memoryview:
        return memoryview(bytes(self.data[offset : offset + max_bytes]))

    def reading(self, offset: int, size: int) -> Callable[[], bytes]:
        return lambda: bytes(self.data[offset : offset + size])

    def truncate(self, offset: int) -> None:
        if offset < len(self.data):
            self.cuts += 1
        del self.data[offset:]
        self._whole = self._whole if self._whole <= offset else 0
        self.flushed_offset = min(self.flushed_offset, offset)
        self._confirm_offset = min(self._confirm_offset, offset)

    def discard(self) -> None:
        self.truncate(0)

    def cut_torn_tail(self) -> int:
        return self._cut_torn_record()

    def _cut_torn_record(self) -> int:
        end = whole_records(self.data, 0, len(self.data))
        del self.data[end:]
        self.flushed_offset = min(self.flushed_offset, end)
        self._confirm_offset = min(self._confirm_offset, end)
        return end

    def dispatch(self) -> int:
        return 0

    def flush(self) -> int:
        self.flushed_offset = len(self.data)
        return self.flushed_offset

    # -- the end of a process

    def recover(self, chance: random.Random, *, power_cut: bool) -> None:
        """What the next process finds. A killed process leaves all it wrote; a power cut takes at random of
        what was not flushed. A torn record at the end is cut, and the confirm offset is one from before."""
        self._whole = 0
        if power_cut:
            del self.data[chance.randint(self.flushed_offset, len(self.data)) :]
        self._cut_torn_record()
        self.flushed_offset = len(self.data)
        self._confirm_offset = chance.randint(0, self.confirm_offset)
