"""The log for a slave that catches up, read by another thread before it is needed.

That far back the log may be out of memory. Touching a page of it then waits for the disk, tens of
milliseconds while the slave writes as fast as it can, and all producers wait with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

PIECE_BYTES = 1024 * 1024
"""Bytes read at a time."""
PIECES = 2
"""Kept in memory for one slave: the next is read while this one is sent."""


class Readable(Protocol):
    """The part of a log that reading ahead needs."""

    @property
    def max_offset(self) -> int: ...
    def reading(self, offset: int, size: int) -> Callable[[], bytes]: ...


class ReadAhead:
    """What one slave will be sent next."""

    __slots__ = ("_failed", "_log", "_on_read", "_pieces", "_reading")

    def __init__(self, log: Readable, on_read: Callable[[], None]) -> None:
        """`on_read` is called when `take` may have something again."""
        self._log = log
        self._on_read = on_read
        self._pieces: deque[tuple[int, memoryview]] = deque()
        """Where each begins; one begins where that before it ends."""
        self._reading: asyncio.Future[bytes] | None = None
        self._failed: tuple[range, BaseException] | None = None
        """Offsets of the last piece that could not be read, and why."""

    def take(self, offset: int, size: int) -> memoryview | None:
        """Up to `size` bytes from `offset` on, which is where the last ones ended as a rule.

        None if they are not there yet: `on_read` is called soon. Raises `OSError` if they cannot be read, and
        `StoreError` for an offset that is not, or no longer, in the log.
        """
        pieces = self._pieces
        while pieces and not 0 <= offset - pieces[0][0] < len(pieces[0][1]):
            pieces.popleft()
        if not pieces and self._failed is not None and offset in self._failed[0]:
            raise self._failed[1].with_traceback(None)
        self._read(pieces[-1][0] + len(pieces[-1][1]) if pieces else offset)
        if not pieces:
            return None
        begin, data = pieces[0]
        return data[offset - begin : offset - begin + size]

    def _read(self, offset: int) -> None:
        if self._failed is not None and offset in self._failed[0]:
            return
        if self._reading is None and len(self._pieces) < PIECES and offset < self._log.max_offset:
            job = self._log.reading(offset, PIECE_BYTES)
            self._reading = asyncio.get_running_loop().run_in_executor(None, job)
            self._reading.add_done_callback(partial(self._has_read, offset))

    def _has_read(self, offset: int, reading: asyncio.Future[bytes]) -> None:
        self._reading = None
        if reading.cancelled():
            return
        if (error := reading.exception()) is not None:
            self._failed = range(offset, offset + PIECE_BYTES), error
        else:
            self._pieces.append((offset, memoryview(reading.result())))
        self._on_read()
