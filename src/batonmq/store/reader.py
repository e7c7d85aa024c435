"""Reading messages by their place in a consume queue, and finding that place by time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from batonmq.store.collector import Collector, Limits
from batonmq.store.commitlog import CommitLog
from batonmq.store.config import StoreConfig
from batonmq.store.consumequeue import UNIT
from batonmq.store.mapped import MappedFile, fetch_all
from batonmq.store.policy import MessageFilter
from batonmq.store.queues import ConsumeQueues
from batonmq.store.results import Boundary, GetResult, GetStatus, QueueBounds


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
        if high == 0 and (queue_offset <= 0 or queue_offset > queue.next_offset):
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if queue_offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset >= high:
            # After a switch a reader may be ahead of the confirm offset, by messages that are in the log.
            in_log = queue_offset <= max(high, queue.next_offset)
            if in_log:
                found = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
                found.log_max_offset = queue.next_offset if queue_offset < queue.next_offset else 0
                return found
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        max_count = max(1, max_count)
        most = max_count
        if message_filter is not None:
            most = max(config.max_filter_message_size // UNIT.size, max_count)
        collector = Collector(self._log, self._limits(config, max_count, max_bytes), message_filter)
        data = queue.read(queue_offset, min(most, high - queue_offset))
        if not data:
            size = config.consume_queue_file_size // UNIT.size
            gap = GetResult(GetStatus.OFFSET_FOUND_NULL, queue_offset - queue_offset % size + size, low, high)
            return gap
        next_offset = queue_offset + collector.collect(data)
        return collector.result(next_offset, low, high, self._opened_at)

    def _limits(self, config: StoreConfig, max_count: int, max_bytes: int) -> Limits:
        return Limits(
            self._near(config),
            (
                min(max_count, config.max_transfer_count_on_message_in_memory),
                min(max_bytes, config.max_transfer_bytes_on_message_in_memory),
            ),
            (
                min(max_count, config.max_transfer_count_on_message_in_disk),
                min(max_bytes, config.max_transfer_bytes_on_message_in_disk),
            ),
        )

    def _near(self, config: StoreConfig) -> int:
        """Physical offset of the first byte that counts as in memory."""
        return self._log.max_offset - self._memory * config.access_message_in_memory_max_ratio // 100

    def fetching(self, config: StoreConfig, records: Sequence[tuple[int, int]]) -> Callable[[], None] | None:
        """See `MessageStore.fetching`."""
        max_offset = self._log.max_offset
        near = max(self._near(config), self._opened_at)
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
