"""Memory as on a machine that has run for a while: full of page cache.

A virtual machine may get its memory from the host at the first touch, and return it once it is free. Then a
program that fills page cache measures the host: here the first touch of 4 KiB took up to 12 µs, and the write
of a message of 256 B, whose other work is 0.5 µs, took 1.4 µs. Where all memory is page cache already, new
pages come from the oldest cached ones, and the host has no part in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

SPARE_BYTES: Final = 1 << 30
"""Left free, for what programs need before the kernel has dropped cached pages."""
WORTH_BYTES: Final = 256 << 20
"""Less free memory than this beyond the spare is not worth filling."""
_PIECE: Final = 4 << 20
_FILE_SIZE: Final = 1 << 40
"""Of a file without content, which is only read; it takes no disk."""


class PageCache:
    """Fills free memory with pages of a file that are dropped first when memory is needed."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._path = directory / "no-content"
        self._say = say
        self._position = 0
        with self._path.open("wb") as file:
            file.truncate(_FILE_SIZE)

    def fill(self) -> None:
        """Call it before each measurement: files deleted since the last one have freed their pages."""
        left = free_bytes() - SPARE_BYTES
        if left < WORTH_BYTES:
            return
        self._say(f"{left >> 20:,} MiB of free memory are filled with page cache")
        piece = memoryview(bytearray(_PIECE))
        with self._path.open("rb", buffering=0) as file:
            for _ in range(left // _PIECE):
                os.preadv(file.fileno(), [piece], self._position % _FILE_SIZE)
                self._position += _PIECE


def free_bytes() -> int:
    """Memory that nothing uses, not even the page cache."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemFree")


@contextmanager
def page_cache(say: Callable[[str], None]) -> Iterator[PageCache]:
    """A `PageCache` with a file in the temporary directory. It must be on a disk: tmpfs has no page cache."""
    with TemporaryDirectory(prefix="batonmq-bench-memory-") as directory:
        yield PageCache(Path(directory), say)
