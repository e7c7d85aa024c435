"""The few file operations that Raft's storage needs, so that tests can put a crashing disk in their place."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

ALLOCATE_BYTES: Final = 512 << 10
"""Room to make ahead: little enough to be written within one sync, enough for thousands of them."""
TEMPORARY: Final = ".tmp"
"""Files so named are written once, synced and renamed; all others continue growing."""


class AppendFile(Protocol):
    """A file that only grows. Nothing is durable, or to be read, before ``sync`` returns."""

    def write(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """One directory. Names are plain file names in it. All calls block and raise OSError, whose ``filename``
    says where it happened."""

    def names(self) -> list[str]: ...
    def path(self, name: str) -> str:
        """How messages name the file."""
        ...

    def read(self, name: str) -> bytes:
        """All of it. What was made room for and not yet written is zeros at the end."""
        ...

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


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors on a descriptor carry no file name: add it."""
    try:
        yield
    except OSError as e:
        if e.filename is None:
            e.filename = str(path)
        raise


class _OsFile:
    """Keeps what is written until ``sync``, which is then one system call (O_DSYNC) and one way to the disk.

    With ``allocate_bytes`` it writes zeros ahead of the end, so many at a time: overwriting them changes
    neither the file's size nor its blocks, which the file system would have to write to its journal.
    Measured on ext4 with three nodes writing: 0.33 ms a sync instead of 0.61.
    """

    __slots__ = ("_allocate_bytes", "_allocated", "_end", "_fd", "_path", "_waiting")

    def __init__(self, path: Path, allocate_bytes: int) -> None:
        self._path = path
        # The size is synced too, as it is needed to read the data back; times are not.
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o644)
        self._end = self._allocated = os.fstat(self._fd).st_size
        self._allocate_bytes = allocate_bytes
        self._waiting: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._waiting.append(data)

    def sync(self) -> None:
        data = b"".join(self._waiting)
        self._waiting.clear()
        position = self._end
        self._end += len(data)
        if self._end > self._allocated and self._allocate_bytes:
            # Room beyond the data, in the same write.
            self._allocated = self._end + self._allocate_bytes
            data = data.ljust(len(data) + self._allocate_bytes, b"\0")
        view = memoryview(data)
        with _naming(self._path):
            while view:
                written = os.pwrite(self._fd, view, position)
                position += written
                view = view[written:]

    def close(self) -> None:
        with _naming(self._path):
            try:
                if self._allocated > self._end:
                    os.ftruncate(self._fd, self._end)
            finally:
                os.close(self._fd)


class OsDisk:
    """A real directory, created if need be. ``allocate_bytes``: how far ahead room is made for files that
    grow; 0 makes none."""

    def __init__(self, directory: Path, *, allocate_bytes: int = 0) -> None:
        self._directory = directory
        self._allocate_bytes = allocate_bytes
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
        except OSError as e:
            os.close(fd)
            e.filename = str(self._directory)
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
        path = self._directory / name
        with _naming(path):
            return path.read_bytes()

    def open_append(self, name: str) -> AppendFile:
        return _OsFile(self._directory / name, 0 if name.endswith(TEMPORARY) else self._allocate_bytes)

    def truncate(self, name: str, size: int) -> None:
        path = self._directory / name
        fd = os.open(path, os.O_WRONLY)
        try:
            with _naming(path):
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
            with _naming(self._directory):
                os.fsync(fd)
        finally:
            os.close(fd)
