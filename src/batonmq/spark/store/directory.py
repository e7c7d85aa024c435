"""A store directory: its commit log files, where the log and its confirmed part end, where to cut.

Files are read with ``pread``, never through a map: a broker that truncates a file while somebody reads it
through a map kills the reader (SIGBUS). Nothing is written and no lock is taken. A file that a running broker
deletes between two steps counts as one that was never there.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from batonmq.protocol.message.layout import MAGIC_V1, MAGIC_V2, SIZE_MAGIC
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.config import UNIT_SIZE
from batonmq.store.consumequeue import FILLER_SIZE, UNIT
from batonmq.store.errors import StoreError
from batonmq.store.mapped import file_name, list_bases
from batonmq.store.scan import SECTOR, Damage, blank_size, check_record

EPOCH_FILE, IDENTITY_FILE = "epochFileCheckpoint", "brokerIdentity"
WINDOW = 256 << 10
"""Bytes read at a time where records are checked one by one."""
_QUEUES_FOR_CUTS = 8
"""Consume queues that are asked where a record begins near a cut: the longest ones."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the commit log."""

    path: str
    base: int
    """Commit log offset of its first byte."""
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLog:
    """The commit log of one store directory."""

    root: str
    broker: str
    """Name of the broker set."""
    files: tuple[LogFile, ...]
    end: int
    """Where the last whole record ends."""
    confirm: int
    """Confirm offset: what is before it, no failover removes."""
    torn: str | None
    """What lies behind the last whole record and is none, or that consume queues point behind it; None for
    nothing, or zeros."""
    missing: tuple[str, ...]
    """Files that should be between others and are not there."""


def store_roots(paths: Sequence[str]) -> list[Path]:
    """The directories that paths and patterns name, each once, whatever links lead to it. Raises `StoreError`
    for a path that names none."""
    roots: dict[Path, Path] = {}
    for path in paths:
        path = path.removeprefix("file://")
        whole = Path(path)
        pattern = not whole.exists() and any(sign in path for sign in "*?[")
        try:
            found = (
                sorted(Path(whole.anchor).glob(str(whole.relative_to(whole.anchor)))) if pattern else [whole]
            )
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from None
        directories = [directory for directory in found if directory.is_dir()]
        if not directories:
            raise StoreError(f"{path}: there is no such directory")
        for directory in directories:
            roots.setdefault(directory.resolve(), directory)
    return list(roots.values())


def broker_name(root: Path, given: str | None) -> str:
    """The option, or what the identity file of controller mode says (``cluster#brokerName#id``), or the
    directory's name."""
    if given is not None:
        return given
    try:
        parts = (root / IDENTITY_FILE).read_text(encoding="utf-8").strip().split("#")
    except (FileNotFoundError, UnicodeDecodeError):
        parts = []
    return parts[1] if len(parts) >= 3 and parts[1] else root.resolve().name


def log_files(root: Path) -> tuple[LogFile, ...]:
    """The files of the commit log, in order. Raises `StoreError` if there are none."""
    directory = root / "commitlog"
    files = []
    for base in list_bases(directory):
        path = directory / file_name(base)
        if (size := _size(path)) is not None:
            files.append(LogFile(str(path), base, size))
    if not files:
        raise StoreError(f"{directory}: there is no commit log file (named by 20 digits)")
    return tuple(files)


def inspect(root: Path, given_name: str | None = None) -> StoreLog:
    """Find the end of the log and of its confirmed part. Raises `StoreError`, `OSError`.

    In controller mode (there is an epoch file) the confirm offset is the checkpoint's, or the end of the last
    record that a consume queue points to: brokers dispatch what is confirmed, and write the checkpoint less
    often. Without an epoch file brokers have no confirm offset, and let readers read to the end of the log.
    """
    pointed = _last_pointed(root)  # first: the log of a running broker continues meanwhile
    files = log_files(root)
    missing = tuple(
        f"{Path(before.path).parent / file_name(before.end)}"
        for before, after in pairwise(files)
        if before.end != after.base
    )
    end, damage = _find_end(files, pointed)
    confirm = end
    # RocketMQ renames the epoch file to .bak before it renames the new one: a copy may have that alone.
    if any((root / name).exists() for name in (EPOCH_FILE, f"{EPOCH_FILE}.bak")):
        # Rounded to a record below: the last unit is of a whole record, and so is what was confirmed.
        confirmed = Checkpoint.load(root / "checkpoint").confirm_offset
        confirm = min(max(confirmed, sum(pointed)), end)
    torn = None
    if damage is not None and damage.reason != "zeros":
        path = next((f.path for f in files if f.base <= damage.physical_offset < f.end), files[-1].path)
        torn = f"{path}: no whole record at {damage.physical_offset}: {damage.reason}; the log ends there"
    elif sum(pointed) > end:
        torn = (
            f"{files[-1].path}: the log ends at {end}, but a consume queue has a message up to "
            f"{sum(pointed)}: the end of the log is lost, or was copied before the consume queues"
        )
    return StoreLog(
        root=str(root),
        broker=broker_name(root, given_name),
        files=files,
        end=end,
        confirm=confirm,
        torn=torn,
        missing=missing,
    )


# -- the end of the log


def _find_end(files: Sequence[LogFile], pointed: tuple[int, int]) -> tuple[int, Damage | None]:
    """Where the last whole record ends, and why nothing follows.

    The walk begins at the last record that a consume queue points to, or with the last file that has one."""
    starts = [number for number, file in enumerate(files) if _begins_with_record(file)]
    number = starts[-1] if starts else 0
    position = files[number].base
    for i, file in enumerate(files):
        if file.base <= pointed[0] < file.end and i >= number - 1:
            found, _ = walk_file(file, pointed[0], records=1)
            if found > pointed[0]:
                number, position = i, pointed[0]
            break
    while True:
        file = files[number]
        position, damage = walk_file(file, position)
        if damage is not None or position < file.end or number + 1 == len(files):
            return position, damage
        number += 1
        if files[number].base != position:
            return position, None  # a file is missing, which `StoreLog.missing` says


def _begins_with_record(file: LogFile) -> bool:
    try:
        head = read_at(file.path, 0, SIZE_MAGIC.size)
    except FileNotFoundError:  # it has expired in between
        return False
    return len(head) == SIZE_MAGIC.size and any(head)


def walk_file(file: LogFile, position: int, records: int | None = None) -> tuple[int, Damage | None]:
    """Check record by record from commit log offset `position` on, `records` at most.

    Returns where the last whole one ends, and what is behind it: None at the file's end or filler."""
    window, count = WINDOW, 0
    while position < file.end:
        # From a sector's beginning: whether zeros are a lost write depends on where sectors begin.
        begin = position - (position - file.base) % SECTOR
        data = read_at(file.path, begin - file.base, window)
        last = begin + len(data) >= file.end or len(data) < window
        at, first = position - begin, position
        while True:
            if count == records:
                return position, None
            size = check_record(data, at, len(data), position, crc=True)
            if isinstance(size, Damage):
                break
            at, position, count = at + size, position + size, count + 1
        if blank_size(data, at, len(data)):
            return file.end, None
        # Else a larger window would read the rest of a large file into memory.
        if last or not _is_cut(data, at, file.end - position):
            return (position, size) if position < file.end else (position, None)
        window = WINDOW if position > first else window * 4
    return position, None


def _is_cut(data: bytes, at: int, room: int) -> bool:
    """Whether there may be a whole record at `at`, of at most `room` bytes, that `data` has a part of."""
    held = len(data) - at
    if held < SIZE_MAGIC.size:
        return True
    size, magic = SIZE_MAGIC.unpack_from(data, at)
    return held < size <= room and magic in (MAGIC_V1, MAGIC_V2)


def read_at(path: str, position: int, size: int) -> bytes:
    """At most `size` bytes of a file. Raises `OSError` with the file's name."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, size, position)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


# -- consume queues


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One file of a consume queue."""

    path: str
    topic: str
    queue_id: int
    first: int
    """Queue offset of its first unit."""
    units: int
    """Units that it has room for."""


def queue_files(root: Path) -> Iterator[list[QueueFile]]:
    """The files of each consume queue, in order."""
    queues = [queue for topic in _children(root / "consumequeue") for queue in _children(topic)]
    for queue in sorted(queues):
        if not queue.name.isdigit() or not queue.is_dir():
            continue
        files, bases = [], list[int]()
        with suppress(FileNotFoundError):  # of a topic that is deleted in between
            bases = list_bases(queue)
        for base in bases:
            path = queue / file_name(base)
            if (size := _size(path)) is not None:
                units = size // UNIT_SIZE
                files.append(
                    QueueFile(str(path), queue.parent.name, int(queue.name), base // UNIT_SIZE, units)
                )
        if files:
            yield files


def topics_of(root: Path) -> set[str]:
    """Topics that have a consume queue; none where only the log was copied."""
    return {path.name for path in _children(root / "consumequeue")}


def _size(path: Path) -> int | None:
    """Of a file that was listed; None if it has expired in between. Raises `OSError` for a link that leads
    nowhere."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return None


def _children(path: Path) -> list[Path]:
    """What is in a directory; nothing if it is none, or is deleted in between."""
    try:
        return list(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


class Units:
    """The units of one file, read one by one: physical offsets ascend, and behind the last one are zeros."""

    def __init__(self, file: QueueFile) -> None:
        self._units = file.units
        self._fd: int | None = None
        try:
            self._fd = os.open(file.path, os.O_RDONLY)
        except FileNotFoundError:  # it has expired in between
            self._units = 0

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def __len__(self) -> int:
        return self._units

    def __getitem__(self, number: int) -> int:
        """A number that ascends: physical offset of a unit, -1 for a filler, a huge one behind the last."""
        physical, size, _ = self.unit(number)
        if size == FILLER_SIZE:
            return -1
        return physical if size > 0 else 1 << 63

    def unit(self, number: int) -> tuple[int, int, int]:
        assert self._fd is not None, "a file that is gone has no units"
        data = os.pread(self._fd, UNIT_SIZE, number * UNIT_SIZE)
        return UNIT.unpack(data) if len(data) == UNIT_SIZE else (0, 0, 0)


def _last_pointed(root: Path) -> tuple[int, int]:
    """Physical offset and size of the last record that a consume queue points to; (0, 0) without one."""
    best = (0, 0)
    for files in queue_files(root):
        for file in reversed(files):
            units = Units(file)
            try:
                count = bisect_left(units, 1 << 63)
                found = units.unit(count - 1) if count else (0, 0, 0)
            finally:
                units.close()
            if count and found[1] != FILLER_SIZE:
                best = max(best, (found[0], found[1]))
                break
    return best


def beginnings(root: Path, wanted: Sequence[int]) -> list[int]:
    """For commit log offsets, ascending: where a record begins at or after each, as far as the longest
    consume queues know; without one, the offset is left out."""
    queues = sorted(queue_files(root), key=lambda files: -files[-1].first - files[-1].units)
    nearest: dict[int, int] = {}
    for files in queues[:_QUEUES_FOR_CUTS]:
        for file in files:
            units = Units(file)
            try:
                first = units[0] if len(units) else 1 << 63
                for at in wanted:
                    if at < first and file is not files[0]:
                        continue
                    number = bisect_left(units, at)
                    found = units[number] if number < len(units) else 1 << 63
                    if found < 1 << 63:
                        nearest[at] = min(found, nearest.get(at, found))
            finally:
                units.close()
    return sorted(set(nearest.values()))
