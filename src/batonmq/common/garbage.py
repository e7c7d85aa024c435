"""Python's garbage collector and glibc's allocator, set for programs that serve for a long time."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Names of glibc's settings (`malloc.h`)."""
KEPT_BYTES: Final = 16 << 20
"""Freed memory that a program keeps at most at the end of its heap."""
_LARGE_BYTES: Final = 1 << 20
"""A block with more is never kept by a server."""


def settle() -> None:
    """Make garbage collection rare, and keep a little freed memory. Called once a program serves, and after a
    change of what it serves.

    The objects that exist then stay, and reference counts free nearly all later ones. A search for cycles
    after every 700 objects, Python's default, costs a few percent of a send.
    """
    gc.unfreeze()  # what an earlier call froze may have become garbage
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    keep_freed_memory(_LARGE_BYTES)


def keep_freed_memory(large: int) -> None:
    """Keep up to `KEPT_BYTES` of freed memory, from blocks of at most `large` bytes.

    Blocks of some 100 KB come and go all the time. By default glibc gives their memory back to the kernel,
    which has to find pages for the next ones: a third of the time that a store needs for a large batch.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, large)
