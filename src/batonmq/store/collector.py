"""Picking the messages for one answer out of units of a consume queue. No I/O but page faults."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from batonmq.store.columns import candidates
from batonmq.store.commitlog import CommitLog
from batonmq.store.consumequeue import FILLER_SIZE, UNIT
from batonmq.store.mapped import MappedFile, fetch_all
from batonmq.store.policy import MessageFilter, OneProperty
from batonmq.store.results import GetResult, GetStatus
from batonmq.store.scan import read_properties

MAX_EXAMINED: Final = 1 << 20
"""Bytes of properties that one answer filters, at least: the caller's event loop waits for it."""
SAMPLE_BYTES: Final = 16 * UNIT.size
"""Units that are looked at one by one before arrays are tried."""
FEW: Final = 2
"""So many of them may pass: with more, enough messages are found soon."""
RARE: Final = 8
"""Where one of so many passes, or fewer do, the next answer goes without a sample."""


class Limits(NamedTuple):
    """What one answer may have. The first message is given out whatever its size."""

    near: int
    """Physical offset from which on messages count as in memory."""
    in_memory: tuple[int, int]
    """Messages and bytes, while messages are in memory."""
    on_disk: tuple[int, int]


class Collector:
    """Messages of one queue for one answer."""

    __slots__ = (
        "_begin",
        "_count",
        "_end",
        "_examined",
        "_file",
        "_filter",
        "_full",
        "_limits",
        "_log",
        "_looked",
        "_one",
        "_removed",
        "_runs",
        "_total",
    )

    def __init__(self, log: CommitLog, limits: Limits, message_filter: MessageFilter | None) -> None:
        self._log = log
        self._limits = limits
        self._filter = message_filter
        self._one: OneProperty | None = None
        """The filter, if arrays can be tried. They ask for each value, so a filter that is much work is asked
        one by one, up to `MAX_EXAMINED`."""
        if message_filter is not None and message_filter.by_code is None and message_filter.weight == 1:
            self._one = message_filter.one_property
        self._runs: list[tuple[MappedFile, int, int]] = []
        """Complete runs of neighbouring records: file, place and length in it. The last run is `_begin` to
        `_end` (physical offsets) in `_file`."""
        self._file: MappedFile | None = None
        self._begin = self._end = -1
        self._count = self._total = self._examined = 0
        self._looked: MappedFile | None = None
        """Where the last properties were read: most records lie in the file of the one before."""
        self._full = self._removed = False

    def collect(self, units: bytes) -> int:
        """Look at `units`; returns how many of them are done with, all unless the answer is full."""
        one = self._one
        if one is None:
            return self._look(units)
        done = 0
        if not one.rare:
            sample, units = units[:SAMPLE_BYTES], units[SAMPLE_BYTES:]
            done = self._look(sample)
            if self._full or not units:
                return done
            one.rare = self._count <= FEW
        places = self._candidates(one, units) if one.rare else None
        if places is None:
            return done + self._look(units)
        count = len(units) // UNIT.size
        one.rare = len(places) * RARE <= count
        found = self._look(b"".join([units[n * UNIT.size : (n + 1) * UNIT.size] for n in places]))
        return done + (places[found] if found < len(places) else count)

    def _candidates(self, one: OneProperty, units: bytes) -> list[int] | None:
        """See `candidates`."""
        file = self._looked or self._log.files.file_at(UNIT.unpack_from(units)[0])
        if file is None:
            return None
        return candidates(units, file.map, file.base, self._log.max_offset, one.mark, one.answer)

    def _look(self, units: bytes) -> int:
        """As `collect`, one by one."""
        by_code = by_properties = None
        weight = 1
        if self._filter is not None:
            by_code, by_properties = self._filter.by_code, self._filter.by_properties
            weight = self._filter.weight
        files, max_offset = self._log.files, self._log.max_offset
        near, (most_near, bytes_near), (most_far, bytes_far) = self._limits
        file, begin, end, looked = self._file, self._begin, self._end, self._looked
        count, total, examined = self._count, self._total, self._examined
        done = 0
        for physical_offset, size, code in UNIT.iter_unpack(units):
            if count:
                is_near = physical_offset >= near
                most, most_bytes = (most_near, bytes_near) if is_near else (most_far, bytes_far)
                if count >= most or total + size > most_bytes:
                    self._full = True
                    break
            if examined > MAX_EXAMINED:
                self._full = True
                break
            done += 1
            if by_code is not None and not by_code(code):
                continue
            if by_properties is not None:
                if looked is None or not looked.base <= physical_offset < looked.base + looked.size:
                    looked = files.file_at(physical_offset)
                properties = None
                if looked is not None and physical_offset + size <= max_offset:
                    at = physical_offset - looked.base
                    properties = read_properties(looked.map, at, at + size)
                if properties is not None:
                    examined += len(properties) * weight
                    if not by_properties(properties):
                        continue
            if physical_offset == end and file is not None and end + size <= file.base + file.size:
                end += size
            else:
                found = files.file_at(physical_offset) if size != FILLER_SIZE else None
                if found is None or physical_offset + size > max_offset:
                    self._removed = self._removed or not count
                    continue
                if self._removed and not count:
                    # The answer says that messages are gone, and the next one begins here: else a reader
                    # with a filter would take them for messages that it does not want.
                    self._full = True
                    done -= 1
                    break
                if file is not None:
                    self._runs.append((file, begin - file.base, end - begin))
                file, begin, end = found, physical_offset, physical_offset + size
            total += size
            count += 1
        self._file, self._begin, self._end, self._looked = file, begin, end, looked
        self._count, self._total, self._examined = count, total, examined
        return done

    def result(self, next_offset: int, low: int, high: int, opened_at: int) -> GetResult:
        """The answer; `low` and `high` are the bounds of the queue. What lies before the physical offset
        `opened_at` may be out of memory."""
        if self._file is None:
            status = GetStatus.MESSAGE_WAS_REMOVING if self._removed else GetStatus.NO_MATCHED_MESSAGE
            return GetResult(status, next_offset, low, high)
        near = self._limits.near
        runs = [*self._runs, (self._file, self._begin - self._file.base, self._end - self._begin)]
        result = GetResult(GetStatus.FOUND, next_offset, low, high)
        result.buffers = [memoryview(file.map)[at : at + length] for file, at, length in runs]
        result.count, result.size = self._count, self._total
        result.suggest_slave = self._end < near
        first, at, _ = runs[0]
        if first.base + at < max(near, opened_at):
            result.fetch = partial(fetch_all, runs)
        return result
