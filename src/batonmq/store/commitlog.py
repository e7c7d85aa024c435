"""The commit log of an open store: its files, and how far they are written, flushed and confirmed.

Lives on the event loop's thread; only `flush` may run in another one.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.message.layout import SIZE_MAGIC
from batonmq.store.errors import StoreError
from batonmq.store.mapped import NOT_OPENED, MappedFile, MappedLog, read_path, sync_path
from batonmq.store.scan import read_records

log = logging.getLogger(__name__)

_LOST = frozenset({errno.EIO, errno.EROFS})
"""Errors of a device, and what file systems make of themselves after one."""


class CommitLog:
    """All offsets are commit log ("physical") offsets."""

    __slots__ = (
        "_confirm",
        "_flush_lock",
        "_synced_file",
        "_wait",
        "_written",
        "failure",
        "files",
        "flushed_offset",
        "last_timestamp",
        "lost_bytes",
        "max_offset",
        "offsets_lock",
        "truncations",
    )

    def __init__(self, directory: Path, file_size: int, *, wait_for_confirm: bool) -> None:
        """The files as they are; where the log ends in them is for recovery to find out (`set_end`)."""
        self.files = MappedLog(directory, file_size)
        self.max_offset = 0
        """After the last byte appended."""
        self.flushed_offset = 0
        """Everything before is on disk."""
        self.last_timestamp = 0
        """Store time in ms of the newest message known; 0 if none was seen since the store was opened."""
        self.lost_bytes = 0
        """What had been on disk and was no longer there when the store was opened: nothing a crash does."""
        self.failure: str | None = None
        """Why no more messages can be accepted."""
        self.truncations = 0
        self.offsets_lock = threading.Lock()
        """Orders the flushing thread's results and truncation; held for moments."""
        self._flush_lock = threading.Lock()
        self._synced_file: MappedFile | None = None
        """The last file whose name in the directory is durable."""
        self._wait = wait_for_confirm
        self._written = 0
        """Where the last `write` ends, or would have ended; 0 after `append`."""
        self._confirm = 0

    @property
    def min_offset(self) -> int:
        """First offset that is still there."""
        return self.files.base

    @property
    def confirm_offset(self) -> int:
        """Messages before it are safe on all replicas that count; the end without `wait_for_confirm`."""
        return min(self._confirm, self.max_offset) if self._wait else self.max_offset

    @confirm_offset.setter
    def confirm_offset(self, offset: int) -> None:
        self._confirm = offset

    def set_end(self, offset: int) -> None:
        """The log ends here, and what is before is on disk."""
        self.max_offset = self.flushed_offset = offset

    # ---------------------------------------------------------------------------------------------- write

    def write(self, segments: Sequence[tuple[int, Sequence[Buffer]]]) -> None:
        """Write pieces at the offsets given, in runs that are each in one file, behind the end of the log.

        Raises `OSError`; `take_back` has to follow then, or after any other failure before `append`.
        """
        for at, pieces in segments:
            # Joined, one piece would be copied.
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._written = at + len(data)
            file = self.files.file_for_write(at)
            file.write(at - file.base, data)

    def append(self, segments: Sequence[tuple[int, Sequence[Buffer]]], end: int, now_ms: int) -> None:
        """`write` the last pieces; the log then ends at `end`. Raises `OSError` as `write` does."""
        self.write(segments)
        self._written = 0
        self.max_offset = end
        self.last_timestamp = now_ms

    def take_back(self, cause: OSError | None) -> None:
        """Overwrite with zeros what `write` left behind the end of the log, so that no recovery takes it for
        messages. `cause`: why it failed, None if the disk did not. A full disk may have room again; others
        are lost.
        """
        end, self._written = self._written, 0
        if end <= self.max_offset:
            return
        if cause is not None and cause.errno in _LOST:
            self.failure = f"the commit log cannot be written: {cause}"
        try:
            self.files.cut(self.max_offset, end)
        except OSError as error:
            self.failure = self.failure or f"cannot clean up after a failed append: {error}"
        if self.failure is not None:
            log.critical("%s; no more messages are accepted", self.failure)

    def append_raw(self, data: Buffer) -> None:
        """Append bytes that need not be whole records. On an `OSError` whole pieces may have been kept."""
        size = self.files.file_size
        view = memoryview(data)
        while view:
            position = self.max_offset % size
            piece = view[: size - position]
            self.files.file_for_write(self.max_offset).write(position, piece)
            self.max_offset += len(piece)
            view = view[len(piece) :]

    def cut(self, offset: int) -> None:
        """Remove everything from `offset` on. Durable on return; raises `OSError`."""
        self.files.cut(offset, self.max_offset)
        last = self.files.file_at(offset)
        if last is not None:
            sync_path(last.path)
        sync_path(self.files.directory)
        self.max_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)

    def remove_files(self) -> None:
        """Delete all files. Durable on return; raises `OSError`."""
        for path in self.files.drop_first(len(self.files.files)):
            path.unlink(missing_ok=True)
        sync_path(self.files.directory)

    def flush(self) -> int:
        """Bring the log to disk; returns the durable offset. Blocking, for the executor.

        If the disk fails, so does every later call, and no further message is accepted: after a failed fsync
        it is unknown what is on disk. With too many open files there was no fsync, and the next call tries
        again.
        """
        with self._flush_lock:
            if self.failure is not None:
                raise OSError(self.failure)
            truncations, target, begin = self.truncations, self.max_offset, self.flushed_offset
            if target <= begin:
                return begin
            files = [f for f in list(self.files.files) if f.base < target and f.base + f.size > begin]
            try:
                for file in files:
                    sync_path(file.path)
                # Not the file's offset: one that was created again after a cut is another file.
                if files and files[-1] is not self._synced_file:
                    sync_path(self.files.directory)
                    self._synced_file = files[-1]
            except OSError as error:
                if error.errno not in NOT_OPENED:
                    self.failure = f"fsync of the commit log failed: {error}"
                raise
            with self.offsets_lock:
                if truncations == self.truncations:
                    self.flushed_offset = target
                return self.flushed_offset

    # ----------------------------------------------------------------------------------------------- read

    def read(self, offset: int, max_bytes: int) -> memoryview:
        """Up to `max_bytes` of the raw log from `offset` on, at most to the end of its file: for replication.
        Empty at the end of the log. Raises `StoreError` for an offset that is not, or no longer, in it."""
        if offset == self.max_offset:
            return memoryview(b"")
        file = self.files.file_at(offset)
        if file is None or offset > self.max_offset:
            raise StoreError(f"offset {offset} is not in the log, {self.min_offset} to {self.max_offset}")
        begin = offset - file.base
        end = min(file.size, self.max_offset - file.base, begin + max_bytes)
        return memoryview(file.map)[begin:end]

    def reading(self, offset: int, size: int) -> Callable[[], bytes]:
        """A job for another thread that returns what `read` would, read without the map: touching a page of
        the map that is out of memory waits for the disk. It raises `OSError` when the disk fails or the file
        is deleted meanwhile; this call itself raises `StoreError` as `read`."""
        size = len(self.read(offset, size))
        file = self.files.file_at(offset)
        assert file is not None
        return partial(read_path, file.path, offset - file.base, size)

    def message_at(self, offset: int) -> memoryview | None:
        """The record at an offset; None if there is none, or it is not confirmed."""
        file = self.files.file_at(offset)
        if file is None or offset >= self.confirm_offset:
            return None
        begin = offset - file.base
        for record in read_records(file.map, begin, min(file.size, self.confirm_offset - file.base)):
            if record.physical_offset == offset:
                return memoryview(file.map)[begin : begin + record.size]
            break
        return None

    def store_time(self, offset: int) -> int:
        """Store time in ms of the record at an offset; -1 if the log does not reach there, or is damaged."""
        file = self.files.file_at(offset)
        if file is None or offset >= self.max_offset:
            return -1
        end = min(file.size, self.max_offset - file.base)
        record = next(read_records(file.map, offset - file.base, end), None)
        return -1 if record is None else record.store_timestamp

    def record_after(self, offset: int) -> int:
        """Where the record behind the one at `offset` begins; the log's first if there is none."""
        file = self.files.file_at(offset) if offset >= self.min_offset else None
        if file is None or offset >= self.max_offset:
            return self.min_offset
        size: int = SIZE_MAGIC.unpack_from(file.map, offset - file.base)[0]
        return offset + max(0, size)
