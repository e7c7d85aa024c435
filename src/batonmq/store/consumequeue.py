"""Consume queues: per queue one unit of 20 bytes a message, in the order of their queue offsets.

A unit is physical offset (8), size (4), tags code (8), big endian. Files hold a fixed number of units and are
named by the byte offset of their first. A queue whose first message is not number 0 begins with filler units
(offset 0, size 2^31-1), as in RocketMQ. Units are read and written with pread and pwrite: thousands of queues
need neither maps nor open files for it.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from batonmq.store.config import UNIT_SIZE
from batonmq.store.mapped import file_name, list_bases, write_all
from batonmq.store.policy import UnitCode

log = logging.getLogger(__name__)

UNIT = struct.Struct(">qiq")
FILLER_SIZE: Final = 0x7FFFFFFF
Unit = tuple[int, int, int]
"""Physical offset, size, tags code."""
_FILLER = UNIT.pack(0, FILLER_SIZE, 0)
_RUN: Final = 4096
"""Units read at a time where fillers are passed over."""
_FILLER_RUN = _FILLER * _RUN
assert UNIT.size == UNIT_SIZE
_NAME_MAX: Final = 255
"""Bytes of a file's name on Linux."""
_MAX_GAP_FILES: Final = 16
_MAX_QUEUE_OFFSET = (1 << 63) // UNIT_SIZE - (1 << 32)
"""So that no file's name goes beyond what a signed 64 bit offset can say."""


class OpenFiles:
    """File descriptors by path, the least recently used closed first. Used by the event loop only."""

    __slots__ = ("_fds", "_limit")

    def __init__(self, limit: int = 256) -> None:
        self._fds: OrderedDict[str, int] = OrderedDict()
        self._limit = limit

    def get(self, path: str, *, create_size: int = 0) -> int:
        """Descriptor of `path`, created with `create_size` bytes if that is given; raises `OSError`."""
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        if create_size:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if os.fstat(fd).st_size < create_size:
                    os.ftruncate(fd, create_size)
            except BaseException:
                os.close(fd)
                raise
        else:
            fd = os.open(path, os.O_RDWR)
        if len(self._fds) >= self._limit:
            os.close(self._fds.popitem(last=False)[1])
        self._fds[path] = fd
        return fd

    def drop(self, path: str) -> None:
        """Close the descriptor of `path` if it is open."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        """Close all."""
        while self._fds:
            os.close(self._fds.popitem()[1])


def no_queue_reason(topic: str, queue_id: int) -> str | None:
    """Why this topic and queue id cannot be directories of a store; None if they can.

    Clients are held to RocketMQ's rule for topics (`protocol/names.py`). Records of a log may have names that
    only brokers give (RocketMQ's pop retry topics have a ``+``), but never such as leave the store.
    """
    if topic in ("", ".", ".."):
        return "is no name"
    if "/" in topic or "\0" in topic:
        return "would leave the directory of the consume queues"
    if len(topic.encode("utf-8", "surrogatepass")) > _NAME_MAX:
        return f"is longer than {_NAME_MAX} bytes"
    if queue_id < 0:
        return f"has no queue {queue_id}"
    return None


class ConsumeQueue:
    """One queue of one topic."""

    __slots__ = (
        "_bases",
        "_dirty",
        "_dirty_path",
        "_files",
        "_size",
        "_tail",
        "directory",
        "end_physical",
        "is_dirty",
        "max_offset",
        "min_offset",
        "next_offset",
        "pending",
        "pending_from",
        "queue_id",
        "topic",
        "unit_code",
    )

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue_id: int,
        file_size: int,
        files: OpenFiles,
        dirty: deque[tuple[ConsumeQueue | None, str]],
        unit_code: UnitCode | None = None,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.queue_id = queue_id
        self.unit_code = unit_code
        """See `StorePolicy`; None: the hash of the tags."""
        self.min_offset = 0
        """First queue offset that can be read."""
        self.max_offset = 0
        """Queue offset after the last unit."""
        self.end_physical = 0
        """Where the last unit's record ends in the commit log; 0 if there is none."""
        self.next_offset = 0
        """Queue offset of the next message, once `QueueDispatcher.count_ahead` has set it: ahead of
        `max_offset` while some wait for confirmation, behind it while the units are still those of a deleted
        topic."""
        self.pending = bytearray()
        """Units that `QueueDispatcher` collects here in one turn, to be written with `write_pending`."""
        self.pending_from = 0
        self.is_dirty = False
        self._size = file_size
        self._files = files
        self._dirty = dirty
        self._dirty_path = ""
        self._bases = list_bases(directory)
        self._tail = (-1, "")

    # -- loading and cutting

    def drop_short(self) -> None:
        """Delete the first file that is shorter than it was made, and those behind it, last one first: then
        `lost_end` says from where on the queue has to be rebuilt. The process was killed while it made or cut
        the file, or the file was damaged."""
        sizes = (Path(self._path(base)).stat().st_size for base in self._bases)
        short = next((at for at, size in enumerate(sizes) if size < self._size), len(self._bases))
        while len(self._bases) > short:
            Path(self._path(self._bases.pop())).unlink()

    def hole(self) -> int | None:
        """Where in the commit log the last record ends before a file that is missing between others, 0 if the
        units do not say; None if the files are one run."""
        gap = self._gap()
        if gap is None:
            return None
        last = self.unit((self._bases[gap - 1] + self._size) // UNIT_SIZE - 1)
        return last[0] + last[1] if last is not None and last[1] != FILLER_SIZE else 0

    def lost_end(self) -> int | None:
        """As `hole`, if files behind the last one may be missing: that one is full, and a full one has a
        successor (`_begin_next`), or the directory is empty. None if the last file has room. RocketMQ leaves
        a full last file, too; such a queue is checked once."""
        if not self._bases:
            return 0 if self.directory.is_dir() and not any(self.directory.iterdir()) else None
        last = self.unit((self._bases[-1] + self._size) // UNIT_SIZE - 1)
        if last is None or last[1] == 0:
            return None
        return 0 if last[1] == FILLER_SIZE else last[0] + last[1]

    def forget_directory(self) -> None:
        """Delete the directory if it is empty: the queue has lost its files, or never gets any."""
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()

    def close_hole(self, *, keep_newer: bool) -> None:
        """Delete the files on one side of the hole: those before it if `keep_newer`, else those behind it."""
        gap = self._gap()
        goes = self._bases[:gap] if keep_newer else self._bases[gap:]
        self._bases = self._bases[gap:] if keep_newer else self._bases[:gap]
        for base in goes:
            path = self._path(base)
            self._files.drop(path)
            Path(path).unlink()

    def _gap(self) -> int | None:
        """Index in `_bases` of the first file that does not begin where the one before it ends."""
        pairs = enumerate(pairwise(self._bases), 1)
        return next((at for at, (one, next_one) in pairs if next_one != one + self._size), None)

    def load(self, safe_end: int, *, trusted: bool, holds: Callable[[int, int, int], bool]) -> None:
        """Find the end: the units whose records end at or before commit log offset `safe_end` are kept, all
        later ones, and any damage after them, are cut. `trusted`: zeros after them are the end, no damage.

        ``holds(physical offset, size, queue offset)`` says whether the log has this queue's record there: a
        unit of which a power cut left a part may look like one from before `safe_end`."""
        first = self._bases[0] // UNIT_SIZE if self._bases else 0
        high = (self._bases[-1] + self._size) // UNIT_SIZE if self._bases else 0
        self.min_offset = first
        while True:
            low = self._end_of(first, high, lambda unit: unit[1] > 0 and unit[0] + unit[1] <= safe_end)
            last = self.unit(low - 1) if low > first else None
            if trusted or last is None or last[1] == FILLER_SIZE or holds(last[0], last[1], low - 1):
                break
            high = low - 1
        following = self.unit(low)
        self._set_end(low)
        if following is not None and not (trusted and following[1] == 0):
            self._cut(low)
        if self._bases and low * UNIT_SIZE == self._bases[-1] + self._size:
            self._begin_next()
        self.next_offset = self.max_offset

    def last_on_disk(self) -> tuple[int, int]:
        """Where the record of the last unit on disk ends, and its size, going by the units alone; 0 and 0
        without units."""
        for base in reversed(self._bases):
            low, high = base // UNIT_SIZE, (base + self._size) // UNIT_SIZE
            first = low
            while low < high:
                middle = (low + high) // 2
                unit = self.unit(middle)
                if unit is not None and unit[1] > 0:
                    low = middle + 1
                else:
                    high = middle
            if low > first:
                unit = self.unit(low - 1)
                return (unit[0] + unit[1], unit[1]) if unit and unit[1] != FILLER_SIZE else (0, 0)
        return 0, 0

    def truncate(self, physical_offset: int) -> None:
        """Forget every unit whose record does not end at or before `physical_offset`."""
        first, end = self.first_index(), self.max_offset
        self._cut(self._end_of(first, end, lambda unit: unit[0] + unit[1] <= physical_offset))

    def _cut(self, queue_offset: int) -> None:
        at = queue_offset * UNIT_SIZE
        stays = 1 if at and self._bases[:1] == [at] else 0  # empty: its name keeps the queue's place
        while len(self._bases) > stays and self._bases[-1] >= at:
            path = self._path(self._bases.pop())
            self._files.drop(path)
            Path(path).unlink()
        if self._bases:
            base = self._bases[-1]
            if at < base + self._size:
                fd = self._files.get(self._path(base))
                os.ftruncate(fd, at - base)
                os.ftruncate(fd, self._size)
                self._mark_dirty(self._path(base))
            elif at == base + self._size:
                self._begin_next()
        self._set_end(queue_offset)

    def _set_end(self, queue_offset: int) -> None:
        self.max_offset = queue_offset
        self.min_offset = min(self.min_offset, queue_offset)
        last = self.unit(queue_offset - 1) if self._bases else None
        self.end_physical = last[0] + last[1] if last and last[1] != FILLER_SIZE else 0

    # -- writing

    def takes(self, queue_offset: int) -> bool:
        """Whether a unit may have this queue offset. A gap is filled up: one that no loss of messages leaves
        would fill the disk."""
        if not self._bases:
            return 0 <= queue_offset <= _MAX_QUEUE_OFFSET
        return 0 <= queue_offset <= self.max_offset + _MAX_GAP_FILES * (self._size // UNIT_SIZE)

    @property
    def pending_restarts(self) -> bool:
        """Whether `pending` counts from 0 again, further on in the log than what is here: the topic was
        deleted and created again."""
        if self.pending_from or not self.pending or not self.max_offset or not self.end_physical:
            return False
        physical: int = UNIT.unpack_from(self.pending)[0]
        return physical >= self.end_physical

    def write_pending(self) -> None:
        """Write the units collected in `pending`, the first of which has queue offset `pending_from`.

        Units already there are passed over; but where `pending_restarts`, the new units replace the former
        ones. `pending` is emptied in any case; raises `OSError`.
        """
        units, begin, restarts = self.pending, self.pending_from, self.pending_restarts
        self.pending = bytearray()
        if restarts:
            self._restart()
        if begin < self.max_offset:
            units = units[(self.max_offset - begin) * UNIT_SIZE :]
            begin = self.max_offset
        if units:
            self._write(begin, units)

    def _restart(self) -> None:
        log.info("queue %d of %s starts at 0 again: the topic was recreated", self.queue_id, self.topic)
        counted = self.next_offset  # a master may have given out more than is in the queue
        self.remove()
        self.next_offset = counted

    def _write(self, queue_offset: int, units: bytearray) -> None:
        at, size = queue_offset * UNIT_SIZE, len(units)
        base = self._bases[-1] if self._bases else -1
        if queue_offset == self.max_offset and 0 <= base <= at <= base + self._size - size:
            path = self._path(base)
            write_all(self._files.get(path), units, at - base)
            self._mark_dirty(path)
        else:
            self._write_across(queue_offset, units)
        if at + size == self._bases[-1] + self._size:
            self._begin_next()
        if self.max_offset == self.min_offset:
            self.min_offset = queue_offset
        self.max_offset = queue_offset + size // UNIT_SIZE
        offset, record_size, _ = UNIT.unpack_from(units, size - UNIT_SIZE)
        self.end_physical = offset + record_size

    def _write_across(self, queue_offset: int, units: bytearray) -> None:
        """Write units that need a new file, several, or fillers before them."""
        at = queue_offset * UNIT_SIZE
        fillers = 0
        if not self._bases and queue_offset:
            fillers = at % self._size // UNIT_SIZE
        elif queue_offset > self.max_offset:
            fillers = queue_offset - self.max_offset
        data = _FILLER * fillers + units
        at -= fillers * UNIT_SIZE
        done = 0
        while done < len(data):
            base = at - at % self._size
            path = self._path(base)
            if not self._bases or base > self._bases[-1]:
                self.directory.mkdir(parents=True, exist_ok=True)
                fd = self._files.get(path, create_size=self._size)
                self._bases.append(base)
                for parent in (self.directory, self.directory.parent, self.directory.parent.parent):
                    self._dirty.append((None, str(parent)))
            else:
                fd = self._files.get(path)
            room = min(base + self._size - at, len(data) - done)
            write_all(fd, data[done : done + room], at - base)
            self._mark_dirty(path)
            at += room
            done += room

    def _begin_next(self) -> None:
        """Make the file that follows the last one, which is full: a missing last file shows thereby."""
        base = self._bases[-1] + self._size
        self._files.get(self._path(base), create_size=self._size)
        self._bases.append(base)
        self._dirty.append((None, str(self.directory)))

    def _mark_dirty(self, path: str) -> None:
        """Announce a write that has happened. The flushing thread lowers `is_dirty` before it syncs, so a
        write is either synced by it or announced again."""
        if not self.is_dirty or path is not self._dirty_path:
            self.is_dirty = True
            self._dirty_path = path
            self._dirty.append((self, path))

    # -- reading

    def first_index(self) -> int:
        """Queue offset of the first unit in the files, readable or not."""
        return self._bases[0] // UNIT_SIZE if self._bases else self.max_offset

    def unit(self, queue_offset: int) -> Unit | None:
        """(physical offset, size, tags code) in the files at `queue_offset`, or None beyond them."""
        data = self.read(queue_offset, 1)
        return UNIT.unpack(data) if data else None

    def read(self, queue_offset: int, count: int) -> bytes:
        """Up to `count` units from `queue_offset` on, as bytes; at most to the end of the file."""
        at = queue_offset * UNIT_SIZE
        base = at - at % self._size
        if not self._bases or not self._bases[0] <= base <= self._bases[-1]:
            return b""
        count = min(count, (base + self._size - at) // UNIT_SIZE)
        return os.pread(self._files.get(self._path(base)), count * UNIT_SIZE, at - base)

    def units(self, begin: int, end: int) -> Iterator[Unit]:
        """The units from queue offset `begin` up to, not including, `end`."""
        while begin < end:
            data = self.read(begin, min(end - begin, 4096))
            if not data:
                return
            yield from UNIT.iter_unpack(data)
            begin += len(data) // UNIT_SIZE

    def tags_codes(self, begin: int, count: int) -> list[int]:
        """The tags codes of up to `count` units from queue offset `begin`; at most to the end of the file."""
        return [code for _, _, code in UNIT.iter_unpack(self.read(begin, count))]

    def _divide(self, begin: int, end: int, early: Callable[[Unit], bool]) -> tuple[int, int]:
        """Units from queue offset `begin` to `end`, of which those that are `early` come first: the queue
        offset behind the last of them, and that of the first other one. Fillers are neither."""
        low, high = behind, other = begin, end
        while low < high:
            middle = (low + high) // 2
            found = self._first_unit(middle, high)
            if found is None:
                high = middle
            elif early(found[1]):
                low = behind = found[0] + 1
            else:
                high, other = middle, found[0]
        return behind, other

    def _end_of(self, begin: int, end: int, early: Callable[[Unit], bool]) -> int:
        """Where the queue ends if only the units that are `early` stay. Fillers in front of all stay, too:
        they keep its place, for its next message is not number 0."""
        behind, other = self._divide(begin, end, early)
        return behind if behind > begin else other

    def _first_unit(self, begin: int, end: int) -> tuple[int, Unit] | None:
        """The first from `begin` on, before `end`, that is no filler, and its queue offset."""
        count = 1
        while begin < end and (data := self.read(begin, min(count, end - begin))):
            if data != _FILLER_RUN[: len(data)]:
                for place, unit in enumerate(UNIT.iter_unpack(data), begin):
                    if unit[1] != FILLER_SIZE:
                        return place, unit
            begin += len(data) // UNIT_SIZE
            count = _RUN
        return None

    # -- expiry

    def set_min_physical(self, offset: int) -> list[Path]:
        """The commit log now begins at `offset`: move `min_offset` behind units before it and detach files
        that hold none other. The last file stays, for its name keeps the queue's place. Returns the paths to
        unlink."""
        first, end = max(self.min_offset, self.first_index()), self.max_offset
        _, low = self._divide(first, end, lambda unit: unit[0] < offset)
        self.min_offset = low
        paths = []
        while len(self._bases) > 1 and (self._bases[0] + self._size) // UNIT_SIZE <= low:
            path = self._path(self._bases.pop(0))
            self._files.drop(path)
            paths.append(Path(path))
        return paths

    def remove(self) -> None:
        """Delete all files."""
        for base in self._bases:
            self._files.drop(self._path(base))
            Path(self._path(base)).unlink(missing_ok=True)  # of a try that failed
        self._bases.clear()
        self.min_offset = self.max_offset = self.next_offset = self.end_physical = 0
        self.forget_directory()

    def _path(self, base: int) -> str:
        if self._tail[0] != base:
            self._tail = (base, f"{self.directory}/{file_name(base)}")
        return self._tail[1]
