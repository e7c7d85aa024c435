"""The files of ``timerlog/``: one unit for each message that entered the wheel, in that order.

A unit points to the record in the commit log and to the unit before it in the same slot. The wheel can be
built from the log at any time (`build`), so a crash costs nothing but this. Source: RocketMQ's `TimerLog`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from batonmq.broker.timer import layout
from batonmq.broker.timer.layout import (
    BLANK,
    BLANK_MAGIC,
    MAGIC_DELETE,
    MAGIC_MASK,
    MAGIC_ROLL,
    SLOT_DTYPE,
    UNIT,
    UNIT_DTYPE,
    Slot,
    Unit,
    decode_unit,
)
from batonmq.store.mapped import MappedFile, MappedLog, sync_path

CHUNK: Final = 8_192
"""Units that are read at once, of 52 bytes each."""


class Built(NamedTuple):
    """The wheel according to the log."""

    slots: npt.NDArray[np.void]
    others: dict[int, Slot]
    """By time in steps: slots whose place in `slots` is taken by another time."""
    by_topic_hash: dict[int, int]
    """Hash of the real topic -> messages that wait."""
    rolling: set[int]
    """Times in steps of the slots in which messages wait to be rolled."""


class TimerLog:
    """The units by position. Blocking, but only `sync` waits for the disk."""

    def __init__(self, directory: Path, file_size: int) -> None:
        """Open the files; `end` is known after `find_end`. Raises `StoreError` and `OSError`."""
        self._files = MappedLog(directory, file_size)
        self._size = file_size
        self.end = self._files.end
        """Position after the last unit."""
        self._next = self.end
        self._buffer = bytearray()

    @property
    def start(self) -> int:
        """Position of the first unit that is still there."""
        return self._files.base

    def close(self) -> None:
        self._files.close()

    # -- appending

    def add(self, unit: Unit) -> int:
        """Append a unit with the next `write`; returns its position. Raises `OSError`."""
        room = self._size - self._next % self._size
        if room < UNIT.size + BLANK.size:
            self._buffer += BLANK.pack(room, 0, BLANK_MAGIC)
            self.write()
            self._next = self.end = self.end - BLANK.size + room
        position = self._next
        self._buffer += unit.encode()
        self._next += UNIT.size
        return position

    def write(self) -> None:
        """Write what `add` collected. Raises `OSError`; nothing of it is then in the log."""
        data, self._buffer = bytes(self._buffer), bytearray()
        if not data:
            return
        try:
            self._files.file_for_write(self.end).write(self.end % self._size, data)
        except OSError:
            self._next = self.end
            raise
        self.end += len(data)
        self._next = self.end

    # -- reading

    def read(self, position: int) -> Unit | None:
        """The unit at a position; None if the log does not have it."""
        file = self._files.file_at(position)
        if file is None or position >= self.end:
            return None
        at = position - file.base
        if at + UNIT.size > file.size:
            return None
        return decode_unit(file.map[at : at + UNIT.size])

    def backwards(self) -> Iterator[tuple[int, Unit]]:
        """Positions and units from the last one on."""
        end = self.end
        for file in reversed(self._files.files):
            count = min(end - file.base, self._size - BLANK.size) // UNIT.size
            for at in range((count - 1) * UNIT.size, -1, -UNIT.size):
                unit = decode_unit(file.map[at : at + UNIT.size])
                if unit is not None:
                    yield file.base + at, unit
            end = min(end, file.base)

    # -- recovery

    def find_end(self, max_physical: int) -> None:
        """Set `end` behind the last whole unit whose record ends at or before the commit log offset
        `max_physical`, and cut the rest. Raises `OSError`."""
        self.end = self._next = self._files.end
        end = self.start
        for file in self._files.files:
            units, whole = self._units(file)
            bad = np.flatnonzero(units["physical"].astype(np.int64) + units["length"] > max_physical)
            if bad.size:
                whole, units = False, units[: bad[0]]
            end = file.base + (self._size if whole else len(units) * UNIT.size)
            if not whole:
                break
        self.cut(end)

    def _units(self, file: MappedFile) -> tuple[npt.NDArray[np.void], bool]:
        """The valid units of a file from its beginning, and whether they fill it.

        Not through the map: on a tmpfs a page of a hole takes room when it is read, and with a full one that
        is a SIGBUS."""
        count = (self._size - BLANK.size) // UNIT.size
        parts, whole = list[npt.NDArray[np.void]](), True
        for begin in range(0, count, CHUNK):
            data = file.read(begin * UNIT.size, min(CHUNK, count - begin) * UNIT.size)
            units = np.frombuffer(data, UNIT_DTYPE)
            valid = (
                (units["size"] == UNIT.size) & ((units["magic"] & ~MAGIC_MASK) == 0) & (units["length"] > 0)
            )
            bad = np.flatnonzero(~valid)
            if bad.size:
                parts.append(units[: bad[0]])
                whole = False
                break
            parts.append(units)
        return np.concatenate(parts or [np.empty(0, UNIT_DTYPE)]), whole and self._blank_at_end(file, count)

    def _blank_at_end(self, file: MappedFile, count: int) -> bool:
        """Whether the file says that no more than `count` units, which it has room for, are in it."""
        size, _, magic = BLANK.unpack(file.read(count * UNIT.size, BLANK.size))
        return bool(magic == BLANK_MAGIC and size == self._size - count * UNIT.size)

    def build(self, precision_ms: int, read_ms: int, all_from: int) -> Built:
        """The wheel of the messages that are not delivered: those in slots from `read_ms` on, and all whose
        units are at or behind the position `all_from`."""
        size = layout.SLOTS
        slots = np.zeros(size, SLOT_DTYPE)
        others: dict[int, Slot] = {}
        by_hash: dict[int, int] = {}
        rolling: set[int] = set()
        for file in self._files.files:
            units, _ = self._units(file)
            units = units[: max(0, self.end - file.base) // UNIT.size]
            times = (units["written"].astype(np.int64) + units["delay"]) // precision_ms
            positions = file.base + np.arange(len(units), dtype=np.int64) * UNIT.size
            waits = (times >= read_ms // precision_ms) | (positions >= all_from)
            waits &= times > 0
            times, positions, units = times[waits], positions[waits], units[waits]
            signs = np.where(units["magic"] & MAGIC_DELETE, -1, 1)
            self._add(slots, others, times, positions, signs)
            rolling.update(np.unique(times[units["magic"] & MAGIC_ROLL != 0]).tolist())
            hashes, inverse = np.unique(units["topic"].astype(np.int64), return_inverse=True)
            for value, count in zip(hashes, np.bincount(inverse, signs, len(hashes)), strict=True):
                by_hash[int(value)] = by_hash.get(int(value), 0) + int(count)
        return Built(slots, others, by_hash, rolling)

    @staticmethod
    def _add(
        slots: npt.NDArray[np.void],
        others: dict[int, Slot],
        times: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        signs: npt.NDArray[np.int64],
    ) -> None:
        """Add units to the slots: their times in steps, ascending positions, and 1, or -1 for a recall."""
        steps, first, inverse = np.unique(times, return_index=True, return_inverse=True)
        last = np.zeros(len(steps), np.int64)
        last[inverse] = np.arange(len(times))  # of equal indices the last one stays
        counts = np.bincount(inverse, signs, len(steps)).astype(np.int64)
        index = steps % len(slots)
        alone = np.zeros(len(steps), bool)
        alone[np.unique(index, return_index=True)[1]] = True
        held = slots["time"][index]
        fresh = alone & (held == 0)
        fits = fresh | (held == steps)
        slots["first"][index[fresh]] = positions[first[fresh]]
        slots["time"][index[fresh]] = steps[fresh]
        slots["last"][index[fits]] = positions[last[fits]]
        slots["count"][index[fits]] += counts[fits].astype(">i4")
        for at in np.flatnonzero(~fits):
            step = int(steps[at])
            known = others.get(step)
            begin = int(positions[first[at]]) if known is None else known.first
            number = int(counts[at]) + (0 if known is None else known.number)
            others[step] = Slot(begin, int(positions[last[at]]), number)

    def cut(self, position: int) -> None:
        """Remove everything from `position` on. Raises `OSError`."""
        self._buffer.clear()
        self._files.cut_unread(position)
        self.end = self._next = position

    # -- files

    def drop_before(self, min_physical: int) -> list[Path]:
        """Detach the files whose records have all left the commit log, which begins at `min_physical`; the
        last file stays. Returns their paths, to be deleted."""
        gone = 0
        for file in self._files.files[:-1]:
            count = (self._size - BLANK.size) // UNIT.size
            last = decode_unit(file.read((count - 1) * UNIT.size, UNIT.size))
            if last is None or not self._blank_at_end(file, count) or last.physical_offset >= min_physical:
                break
            gone += 1
        return self._files.drop_first(gone) if gone else []

    def paths_since(self, position: int) -> list[Path]:
        """Files with units at or behind a position, and their directory."""
        paths = [file.path for file in self._files.files if file.base + self._size > position]
        return [*paths, self._files.directory]


def sync(paths: list[Path]) -> None:
    """fsync files. Blocks; raises `OSError`."""
    for path in paths:
        sync_path(path)
