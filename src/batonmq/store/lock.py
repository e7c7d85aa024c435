"""The ``lock`` file: a store directory is open in one place only. As Java's `FileLock` on byte 0."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from batonmq.store.errors import StoreLocked

_held: set[Path] = set()
"""POSIX locks do not exclude the process that holds them, so it keeps its own account."""


class StoreLock:
    """Held from construction until `release`; raises `StoreLocked`."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        if self._path in _held:
            raise StoreLocked(f"{path.parent} is open in this process already")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            os.close(self._fd)
            raise StoreLocked(f"{path.parent} is in use by another process") from error
        os.pwrite(self._fd, b"lock", 0)
        _held.add(self._path)

    def release(self) -> None:
        """Let go; further calls do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            _held.discard(self._path)
