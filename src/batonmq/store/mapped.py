"""Files of one fixed size that together form one long run of bytes, named by the offset they begin at.

Writes go through ``pwrite`` and reads through a read-only map: both see the same page cache, and a full disk
is an `OSError` on the write, where a store through a writable map of a sparse file would kill the process
with SIGBUS. A map that is dropped stays alive as long as somebody holds a view of it.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from batonmq.protocol.buffers import Buffer
from batonmq.store.errors import StoreError

ALLOCATE_STEP: Final = 16 << 20
"""Blocks are asked for in steps this large, in bytes: writing into allocated blocks costs a fifth."""
FETCH_BYTES: Final = 1 << 20
"""Read at once by `MappedFile.fetch`, which has to have room for it."""
_NAME = re.compile(r"\d{20}")


def file_name(base: int) -> str:
    """20 digits: the offset of the file's first byte."""
    return f"{base:020d}"


def list_bases(directory: Path) -> list[int]:
    """First offsets of the files in `directory`, ascending; other names are left alone."""
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if _NAME.fullmatch(path.name))


def write_all(fd: int, data: Buffer, position: int) -> None:
    """``pwrite`` until everything is written; raises `OSError`."""
    written = os.pwrite(fd, data, position)
    if written < len(data):
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(fd, view[written:], position + written)


def read_path(path: Path, position: int, size: int) -> bytes:
    """`size` bytes of a file through a descriptor of its own, so that no thread shares one. Waits for the
    disk, which is asked for what comes next, too. Raises `OSError`, also if the file has fewer."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, position, 2 * size, os.POSIX_FADV_WILLNEED)
        data = os.pread(fd, size, position)
    finally:
        os.close(fd)
    if len(data) < size:
        raise OSError(errno.EIO, f"only {len(data)} of {size} bytes at {position}", str(path))
    return data


NOT_OPENED: Final = (errno.EMFILE, errno.ENFILE)
"""Too many open files: `sync_path` did not sync the file at all, and may do it later."""
FILES_PATIENCE_S: Final = 3.0
"""How long a stop waits for files to close where too many are open."""
FILES_AGAIN_S: Final = 0.1
"""Pause between its attempts."""


def sync_path(path: Path) -> None:
    """fsync a file or directory through a descriptor of its own, so that no thread shares one. A file that
    has been removed meanwhile needs none."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class MappedFile:
    """One file: full size from the start, sparse, blocks allocated ahead of the writes."""

    __slots__ = ("_allocated", "_fd", "base", "map", "path", "size")

    def __init__(self, path: Path, size: int, *, writable: bool = True) -> None:
        self.path = path
        self.base = int(path.name)
        self.size = size
        self._fd = os.open(path, (os.O_RDWR | os.O_CREAT) if writable else os.O_RDONLY, 0o644)
        try:
            length = os.fstat(self._fd).st_size
            if length == 0 and writable:
                os.ftruncate(self._fd, size)
            elif length != size:
                raise StoreError(f"{path} has {length} bytes, the configured file size is {size}")
            self.map = mmap.mmap(self._fd, size, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._fd)
            raise
        self._allocated = 0

    def write(self, position: int, data: Buffer) -> None:
        """Write `data` at `position` within the file; raises `OSError` on a full or read-only disk."""
        end = position + len(data)
        if end > self._allocated:
            self._allocate(position, end)
        write_all(self._fd, data, position)

    def _allocate(self, position: int, end: int) -> None:
        begin = max(self._allocated, position)
        self._allocated = min(self.size, max(end, begin + ALLOCATE_STEP))
        try:
            os.posix_fallocate(self._fd, begin, self._allocated - begin)
        except OSError:
            # Only a hint to the file system: the write itself fails if there is no room.
            self._allocated = end

    def zero(self, position: int, end: int) -> None:
        """Overwrite with zeros what was written from `position` to `end`. Pages that were not are left alone:
        writing them could need room on a disk that has none."""
        while position < end:
            upto = min(end, position - position % 4096 + 4096)
            # Not through the map: on a full tmpfs even reading a hole through one ends in SIGBUS.
            written = len(os.pread(self._fd, upto - position, position).rstrip(b"\0"))
            if written:
                write_all(self._fd, bytes(written), position)
            position = upto

    def zero_rest(self, position: int) -> None:
        """Make everything from `position` on read as zeros. The file keeps its size at every moment: one that
        a crash left shorter would not open again."""
        while position < self.size:
            try:
                position = os.lseek(self._fd, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # nothing but a hole
                raise
            end = os.lseek(self._fd, position, os.SEEK_HOLE)
            self.zero(position, end)
            position = end

    def is_zero(self, position: int, size: int) -> bool:
        """Whether `size` bytes from `position` on are zero, read without the map (see `zero`)."""
        return not os.pread(self._fd, size, position).strip(b"\0")

    def read(self, position: int, size: int) -> bytes:
        """Bytes within the file, without the map (see `zero`). Raises `OSError`."""
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                raise OSError(errno.EIO, f"only {len(data)} of {size} bytes at {position}", str(self.path))
            data += more
        return data

    def fetch(self, position: int, size: int) -> None:
        """Have these bytes in memory; waits for the disk. For other threads than the one that owns the file,
        too: raises `OSError` when it has been closed meanwhile."""
        end = position + size
        page = bytearray(min(size, FETCH_BYTES))
        while position < end:
            read = os.preadv(self._fd, [memoryview(page)[: end - position]], position)
            if not read:
                return
            position += read

    def modified_ms(self) -> int:
        """Time of the last write, ms since the epoch."""
        return os.fstat(self._fd).st_mtime_ns // 1_000_000

    def close(self) -> None:
        """Close the file. The map goes when the last view of it does."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def fetch_all(runs: Sequence[tuple[MappedFile, int, int]]) -> None:
    """`MappedFile.fetch` of several parts: file, position, size."""
    for file, position, size in runs:
        file.fetch(position, size)


class MappedLog:
    """The files of one directory as one run of bytes."""

    __slots__ = ("_bases", "directory", "file_size", "files", "writable")

    def __init__(self, directory: Path, file_size: int, *, writable: bool = True) -> None:
        """Open what is there; raises `StoreError` for files of another size or with one missing between."""
        self.directory = directory
        self.file_size = file_size
        self.writable = writable
        self.files: list[MappedFile] = []
        self._bases: list[int] = []
        bases = list_bases(directory)
        if writable:
            directory.mkdir(parents=True, exist_ok=True)
        while bases and (directory / file_name(bases[-1])).stat().st_size == 0:
            # It was created, then the disk was full, or the machine stopped.
            empty = directory / file_name(bases.pop())
            if writable:
                empty.unlink()
        for before, base in pairwise(bases):
            if base != before + file_size:
                raise StoreError(f"{directory}: {file_name(base)} does not follow {file_name(before)}")
        try:
            for base in bases:
                self._add(MappedFile(directory / file_name(base), file_size, writable=writable))
        except BaseException:
            self.close()
            raise

    def _add(self, file: MappedFile) -> None:
        self.files.append(file)
        self._bases.append(file.base)

    @property
    def base(self) -> int:
        """Offset of the first byte; 0 if there are no files."""
        return self._bases[0] if self._bases else 0

    @property
    def end(self) -> int:
        """Offset after the last file's last byte; 0 if there are no files."""
        return self._bases[-1] + self.file_size if self._bases else 0

    def file_at(self, offset: int) -> MappedFile | None:
        """The file that holds `offset`."""
        index = bisect_right(self._bases, offset) - 1
        if index < 0 or offset >= self._bases[index] + self.file_size:
            return None
        return self.files[index]

    def file_for_write(self, offset: int) -> MappedFile:
        """The file that holds `offset`, created if it is the next one; raises `OSError`."""
        file = self.file_at(offset)
        if file is None:
            base = offset - offset % self.file_size
            if self._bases and base != self.end:
                raise StoreError(f"{self.directory}: {file_name(base)} would leave a gap after {self.end}")
            self.directory.mkdir(parents=True, exist_ok=True)
            file = MappedFile(self.directory / file_name(base), self.file_size)
            self._add(file)
        return file

    def cut(self, offset: int, written_end: int) -> None:
        """Remove everything from `offset` on, of which at most up to `written_end` was ever written: later
        files first, so that a crash in between leaves a shorter log, not one with a hole. A first file that
        begins at `offset` stays, for its name keeps the offset."""
        bases = self._bases
        while bases and (bases[-1] > offset or (bases[-1] == offset and len(bases) > 1)):
            file = self.files.pop()
            bases.pop()
            file.close()
            file.path.unlink(missing_ok=True)
        last = self.file_at(offset)
        if last is not None:
            last.zero(offset - last.base, min(last.size, max(0, written_end - last.base)))

    def cut_unread(self, offset: int) -> None:
        """As `cut`, without knowing what was written."""
        self.cut(offset, offset)
        last = self.file_at(offset)
        if last is not None:
            last.zero_rest(offset - last.base)

    def drop_first(self, count: int) -> list[Path]:
        """Detach the first `count` files; their paths are for the caller to unlink, in this order."""
        dropped, self.files = self.files[:count], self.files[count:]
        del self._bases[:count]
        for file in dropped:
            file.close()
        return [file.path for file in dropped]

    def close(self) -> None:
        """Close all files; maps live on while views of them do."""
        for file in self.files:
            file.close()
        self.files.clear()
        self._bases.clear()
