"""The few file operations that Raft's storage needs, so that tests can put a crashing disk in their place."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Protocol


class AppendFile(Protocol):
    """A file that only grows. Nothing is durable before ``sync`` returns."""

    def write(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """One directory. Names are plain file names in it. All calls block and raise OSError."""

    def names(self) -> list[str]: ...
    def path(self, name: str) -> str:
        """How messages name the file."""
        ...

    def read(self, name: str) -> bytes: ...
    def open_append(self, name: str) -> AppendFile:
        """Open, creating it if need be, to write at its end."""
        ...

    def truncate(self, name: str, size: int) -> None:
        """Cut to ``size`` bytes, durably."""
        ...

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def sync_names(self) -> None:
        """Make creations, renames and removals durable."""
        ...


class _OsFile:
    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        # The size is synced too, as it is needed to read the data back; times are not.
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class OsDisk:
    """A real directory, created if need be."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1
        directory.mkdir(parents=True, exist_ok=True)

    def lock(self) -> None:
        """Keep every other process, and every other lock of this one, out until `unlock`: two nodes in one
        directory would vote twice. Raises OSError when somebody else has it."""
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise OSError(errno.EBUSY, "is in use by another process", str(self._directory)) from None
        except OSError:
            os.close(fd)
            raise
        self._lock = fd

    def unlock(self) -> None:
        """Let others in; does nothing without a lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self._directory.iterdir())

    def path(self, name: str) -> str:
        return str(self._directory / name)

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def open_append(self, name: str) -> AppendFile:
        return _OsFile(self._directory / name)

    def truncate(self, name: str, size: int) -> None:
        fd = os.open(self._directory / name, os.O_WRONLY)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        (self._directory / old).rename(self._directory / new)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
