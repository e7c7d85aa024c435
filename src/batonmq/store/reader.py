"""Reading messages by their place in a consume queue, and finding that place by time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from batonmq.store.columns import candidates
from batonmq.store.commitlog import CommitLog
from batonmq.store.config import StoreConfig
from batonmq.store.consumequeue import FILLER_SIZE, UNIT
from batonmq.store.mapped import MappedFile, fetch_all
from batonmq.store.policy import MessageFilter
from batonmq.store.queues import ConsumeQueues
from batonmq.store.results import Boundary, GetResult, GetStatus, QueueBounds
from batonmq.store.scan import read_properties

MAX_EXAMINED: Final = 1 << 20
"""Bytes of properties that one `get` filters, at least: the caller's event loop waits for it."""
SAMPLE_BYTES: Final = 64 * UNIT.size
"""Units that are looked at one by one before arrays are tried."""
FEW: Final = 4
"""So many of them may pass: with more, enough messages are found soon."""


class Reader:
    """Offsets are queue offsets unless they are called physical."""

    __slots__ = ("_log", "_memory", "_opened_at", "_queues")

    def __init__(self, log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = log
        self._queues = queues
        self._memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._opened_at = log.max_offset
        """What lies before it may be out of memory."""

    def get(
        self,
        config: StoreConfig,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
    ) -> GetResult:
        """See `MessageStore.get`. `config`: as it is now, for its limits can be changed at any time."""
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if queue_offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset >= high:
            over = GetStatus.OFFSET_OVERFLOW_ONE if queue_offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(over, high, low, high)
        max_count = max(1, max_count)
        look_at = max_count
        if message_filter is not None:
            look_at = max(config.max_filter_message_size // UNIT.size, max_count)
        data = queue.read(queue_offset, min(look_at, high - queue_offset))
        if not data:
            size = config.consume_queue_file_size // UNIT.size
            gap = GetResult(GetStatus.OFFSET_FOUND_NULL, queue_offset - queue_offset % size + size, low, high)
            return gap
        return self._collect(config, data, queue_offset, low, high, max_count, max_bytes, message_filter)

    def _collect(
        self,
        config: StoreConfig,
        units: bytes,
        next_offset: int,
        low: int,
        high: int,
        max_count: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
    ) -> GetResult:
        by_code = by_properties = one_property = None
        weight = 1
        if message_filter is not None:
            by_code, by_properties = message_filter.by_code, message_filter.by_properties
            weight, one_property = message_filter.weight, message_filter.one_property
        files, max_offset = self._log.files, self._log.max_offset
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, next_offset, low, high)
        near = max_offset - self._memory * config.access_message_in_memory_max_ratio // 100
        most_near = min(max_count, config.max_transfer_count_on_message_in_memory)
        most_far = min(max_count, config.max_transfer_count_on_message_in_disk)
        bytes_near = min(max_bytes, config.max_transfer_bytes_on_message_in_memory)
        bytes_far = min(max_bytes, config.max_transfer_bytes_on_message_in_disk)
        runs: list[tuple[MappedFile, int, int]] = []
        total = count = examined = 0
        begin = end = -1
        file = looked = None
        rest = b""
        if one_property is not None and by_code is None and weight == 1:
            # Where few messages pass, arrays find these faster; whether few pass is seen first. They ask for
            # each value, so a filter that is much work is asked one by one, up to `MAX_EXAMINED`.
            units, rest = units[:SAMPLE_BYTES], units[SAMPLE_BYTES:]
        # If only some of `all_units` are looked at, `places` says which; `place` is -1 as long as all are.
        first_offset, places, place = next_offset, [0], -1
        all_units = units
        full = False
        while True:
            for physical_offset, size, code in UNIT.iter_unpack(units):
                if place >= 0:
                    next_offset = first_offset + places[place]
                    place += 1
                if count:
                    is_near = physical_offset >= near
                    most, most_bytes = (most_near, bytes_near) if is_near else (most_far, bytes_far)
                    if count >= most or total + size > most_bytes:
                        full = True
                        break
                if examined > MAX_EXAMINED:
                    full = True
                    break
                next_offset += 1
                if by_code is not None and not by_code(code):
                    continue
                if by_properties is not None:
                    # Most records lie in the file of the one before.
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
                        if not count:
                            result.status = GetStatus.MESSAGE_WAS_REMOVING
                        continue
                    if file is not None:
                        runs.append((file, begin - file.base, end - begin))
                    file, begin, end = found, physical_offset, physical_offset + size
                total += size
                count += 1
            if full:
                break
            if place >= 0:
                next_offset = first_offset + len(all_units) // UNIT.size
            if not rest:
                break
            units, all_units, rest = rest, rest, b""
            first_offset, place = next_offset, -1
            if count <= FEW and one_property is not None and looked is not None:
                picked = candidates(
                    units, looked.map, looked.base, max_offset, one_property.mark, one_property.answer
                )
                if picked is not None:
                    places, place = picked, 0
                    units = b"".join([units[n * UNIT.size : (n + 1) * UNIT.size] for n in picked])
        if file is not None:
            runs.append((file, begin - file.base, end - begin))
            result.buffers = [memoryview(file.map)[at : at + length] for file, at, length in runs]
            result.status = GetStatus.FOUND
            result.suggest_slave = end < near
            first, at, _ = runs[0]
            if first.base + at < max(near, self._opened_at):
                result.fetch = partial(fetch_all, runs)
        result.next_offset, result.count, result.size = next_offset, count, total
        return result

    def fetching(self, config: StoreConfig, records: Sequence[tuple[int, int]]) -> Callable[[], None] | None:
        """See `MessageStore.fetching`."""
        max_offset = self._log.max_offset
        near = max_offset - self._memory * config.access_message_in_memory_max_ratio // 100
        near = max(near, self._opened_at)
        runs: list[tuple[MappedFile, int, int]] = []
        for offset, size in records:
            file = self._log.files.file_at(offset) if offset < near else None
            if file is not None and offset + size <= max_offset:
                runs.append((file, offset - file.base, size))
        return partial(fetch_all, runs) if runs else None

    def bounds(self, topic: str, queue_id: int) -> QueueBounds:
        """First offset and the offset after the last; 0 and 0 for a queue that nothing was put into."""
        queue = self._queues.by_key.get((topic, queue_id))
        return QueueBounds(queue.min_offset, queue.max_offset) if queue else QueueBounds(0, 0)

    def tags_codes(self, topic: str, queue_id: int, begin: int, count: int) -> list[int]:
        """See `MessageStore.tags_codes`."""
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None:
            return []
        begin = max(begin, queue.min_offset)
        return queue.tags_codes(begin, max(0, min(count, queue.max_offset - begin)))

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time in ms of one message, -1 if it is not there."""
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        unit = queue.unit(queue_offset)
        return self._log.store_time(unit[0]) if unit else -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary) -> int:
        """See `MessageStore.offset_by_time`."""
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None or queue.min_offset >= queue.max_offset:
            return queue.max_offset if queue else 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            unit = queue.unit(middle)
            stored = self._log.store_time(unit[0]) if unit else -1
            if stored < timestamp_ms or (boundary is Boundary.UPPER and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return low if boundary is Boundary.LOWER else max(low - 1, queue.min_offset)
