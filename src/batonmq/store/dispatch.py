"""Dispatch: consume queues follow the commit log up to the confirm offset.

What `put` appends is kept as ready units until it is confirmed; anything else is read from the log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.light import LIGHT_MARK
from batonmq.store.commitlog import CommitLog
from batonmq.store.consumequeue import UNIT, ConsumeQueue
from batonmq.store.light import LightQueues
from batonmq.store.policy import DispatchObserver
from batonmq.store.queues import ConsumeQueues, QueueKey
from batonmq.store.scan import NO_UNIT, blank_size, read_records, tags_code

log = logging.getLogger(__name__)

_TRANSACTION_MASK = MessageSysFlag.TRANSACTION_MASK

_MAX_PENDING: Final = 200_000
"""Units kept in memory while they wait for confirmation; beyond that they are read again from the log."""
_MAX_PENDING_BYTES = _MAX_PENDING * UNIT.size
_DISPATCH_STEP: Final = 64 << 20
"""Bytes of log."""

_SHOWN_AT_ONCE: Final = 4096
"""Records that an observer gets in one call."""

PendingUnits = tuple[int, ConsumeQueue | None, int, bytes]
"""Units of consecutive messages of one queue: end of the last record, queue, queue offset of the first,
units. Of a record that enters no queue: its end, None, 0, nothing."""


class QueueDispatcher:
    """How far the consume queues hold the log, and what is to come."""

    __slots__ = (
        "_grown",
        "_light",
        "_log",
        "_observers",
        "_pending",
        "_pending_bytes",
        "_pending_whole",
        "_queues",
        "_stuck",
        "offset",
        "records_end",
        "recreated_topics",
    )

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        observers: Sequence[DispatchObserver] = (),
        light: LightQueues | None = None,
    ) -> None:
        """`light`: the light queues; None if messages enter none."""
        self._log = log
        self._queues = queues
        self._light = light
        self._observers = observers
        self.recreated_topics: set[str] = set()
        """See `MessageStore.recreated_topics`."""
        self._grown: dict[ConsumeQueue, None] = {}
        self._pending: deque[PendingUnits] = deque()
        """All that lies between `offset` and the end, if `_pending_whole`."""
        self._pending_bytes = 0
        """Of the units in `_pending`."""
        self._pending_whole = False
        self._stuck = False
        """The queues could not be written: logged once, not with each message."""
        self.offset = self._end_of_queues()
        """Consume queues hold every message before this commit log offset."""
        self.records_end = self.offset
        """Where the last record ended at the last `count_ahead`: a filler may follow."""

    def _end_of_queues(self) -> int:
        return max(self._queues.end_physical, self._log.min_offset)

    def add(self, units: Sequence[PendingUnits]) -> None:
        """Take note of the records just appended."""
        if self._pending_whole:
            self._pending += units
            for _, _, _, some in units:
                self._pending_bytes += len(some)
            if len(self._pending) > _MAX_PENDING or self._pending_bytes > _MAX_PENDING_BYTES:
                self.forget_pending()

    def forget_pending(self) -> None:
        """The log has changed, or will, by other means than `add`: read it."""
        self._pending.clear()
        self._pending_bytes = 0
        self._pending_whole = False

    def start_at(self, offset: int) -> None:
        """An empty log begins here."""
        self.forget_pending()
        self.offset = offset

    def truncated(self, offset: int) -> None:
        """Log and queues have been cut at `offset`."""
        if self.offset > offset:
            self.offset = self._end_of_queues()

    def dispatch(self) -> int:
        """Build consume queues from the log, up to the confirm offset; returns where they now end in the log.

        On a full disk they stay behind; the next call goes on.
        """
        limit = self._log.confirm_offset
        while self.offset < limit:
            before = self.offset
            # A long way is gone in steps, so that the units of one step fit into memory.
            step = min(limit, before + _DISPATCH_STEP)
            if not self._dispatch_to(step):
                break
            if self.offset == before and (step == limit or not self._dispatch_to(limit)):
                break
            if self.offset == before:
                break
        return self.offset

    def _dispatch_to(self, limit: int) -> bool:
        touched: dict[ConsumeQueue, None] = {}
        try:
            if self._pending_whole:
                position = self._take_pending(limit, touched)
            else:
                position = self._collect_units(limit, touched)
            for queue in touched:
                self._write(queue)
        except OSError as error:
            if not self._stuck:
                log.error("consume queues cannot be written, they end at %d: %s", self.offset, error)
            self._stuck = True
            for queue in touched:
                queue.pending = bytearray()
            self.forget_pending()
            return False
        begin, self.offset = self.offset, position
        if self._stuck and touched:
            self._stuck = False
            log.warning("consume queues are written again, up to %d", position)
        self._grown.update(touched)
        if position == self._log.max_offset and not self._pending_whole:
            self._pending_whole = True
        if self._observers and position > begin:
            self._show(begin, position)
        return True

    def _show(self, begin: int, end: int) -> None:
        """Give the records between two commit log offsets to the observers."""
        files, position = self._log.files, begin
        while position < end and (file := files.file_at(position)) is not None:
            records = read_records(file.map, position - file.base, min(end - file.base, file.size))
            while some := list(islice(records, _SHOWN_AT_ONCE)):
                for observer in self._observers:
                    observer.dispatched(some)
            position = file.base + file.size

    def _write(self, queue: ConsumeQueue) -> None:
        if queue.pending_restarts:  # noted before it is done: half done, it looks like any empty queue
            self.recreated_topics.add(queue.topic)
        queue.write_pending()

    def take_grown(self) -> list[tuple[QueueKey, int]]:
        """Queues that `dispatch` has lengthened since the last call, with their max offset."""
        grown = [((queue.topic, queue.queue_id), queue.max_offset) for queue in self._grown]
        self._grown.clear()
        return grown

    def _take_pending(self, limit: int, touched: dict[ConsumeQueue, None]) -> int:
        pending = self._pending
        position, taken, left = self.offset, 0, 0
        for end, queue, queue_offset, units in pending:
            if end > limit:
                left = _units_before(units, limit)
                if not left:
                    break
                units = units[: left * UNIT.size]
                physical, size, _ = UNIT.unpack_from(units, len(units) - UNIT.size)
                end = physical + size
            position = end
            taken += len(units)
            if queue is not None:
                if not queue.pending:
                    queue.pending_from = queue_offset
                    touched[queue] = None
                queue.pending += units
            if left:
                break
        self._pending_bytes -= taken
        if position == self._log.max_offset:
            pending.clear()
            return position
        while pending and pending[0][0] <= position:
            pending.popleft()
        if left:
            end, queue, queue_offset, units = pending[0]
            pending[0] = (end, queue, queue_offset + left, units[left * UNIT.size :])
        return position

    def _collect_units(self, limit: int, touched: dict[ConsumeQueue, None]) -> int:
        position, stored = self.offset, 0
        files, queues, pack_unit = self._log.files, self._queues.by_key, UNIT.pack
        light = self._light
        while (file := files.file_at(position)) is not None and position < limit:
            data, base = file.map, file.base
            records = read_records(data, position - base, min(limit - base, file.size))
            for physical, size, topic, queue_id, queue_offset, sys_flag, stored_at, properties in records:
                position += size
                if sys_flag & _TRANSACTION_MASK in NO_UNIT:
                    continue
                queue = queues.get((topic, queue_id)) or self._queues.of_record(topic, queue_id, physical)
                if queue is None:
                    continue
                units = queue.pending
                if not units or queue_offset != queue.pending_from + len(units) // UNIT.size:
                    if units:
                        self._write(queue)
                    if not queue.takes(queue_offset):
                        reason = f"has no place for queue offset {queue_offset}"
                        self._queues.cannot_hold(topic, physical, reason)
                        continue
                    units = queue.pending
                    queue.pending_from = queue_offset
                    touched[queue] = None
                unit_code = queue.unit_code
                code = tags_code(properties) if unit_code is None else unit_code(properties, stored_at)
                unit = pack_unit(physical, size, code)
                units += unit
                if stored_at > stored:
                    stored = stored_at
                if light is not None and LIGHT_MARK in properties:
                    for light_queue, light_offset in light.places(topic, properties, physical):
                        self._collect_light(light_queue, light_offset, unit, physical, touched)
            filler = blank_size(data, position - base, min(limit - base, file.size))
            if not filler or position + filler > limit:
                break
            position = base + file.size
        self._log.last_timestamp = max(self._log.last_timestamp, stored)
        return position

    def _collect_light(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        unit: bytes,
        physical_offset: int,
        touched: dict[ConsumeQueue, None],
    ) -> None:
        """As `_collect_units` for the queue of a record's topic."""
        units = queue.pending
        if units and queue_offset != queue.pending_from + len(units) // UNIT.size:
            self._write(queue)
        if not queue.pending:
            if not queue.takes(queue_offset):
                reason = f"has no place for queue offset {queue_offset}"
                self._queues.cannot_hold(queue.topic, physical_offset, reason)
                return
            queue.pending_from = queue_offset
            touched[queue] = None
        queue.pending += unit

    def holds(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
        """See `MessageStore.has_record`."""
        if physical_offset < self.offset:
            queue = self._queues.by_key.get((topic, queue_id))
            if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
                return False
            unit = queue.unit(queue_offset)
            return unit is not None and unit[0] == physical_offset
        position = self.offset
        while (file := self._log.files.file_at(position)) is not None and position <= physical_offset:
            end = min(file.size, self._log.max_offset - file.base)
            for record in read_records(file.map, position - file.base, end):
                if record.physical_offset >= physical_offset:
                    found = (record.physical_offset, record.topic, record.queue_id, record.queue_offset)
                    return found == (physical_offset, topic, queue_id, queue_offset)
                position += record.size
            if not blank_size(file.map, position - file.base, file.size):
                break
            position = file.base + file.size
        return False

    def count_ahead(self) -> int:
        """Make each queue's `next_offset` count the messages that consume queues do not hold yet. Returns
        where the last whole record ends, or the whole filler behind it."""
        for queue in self._queues:
            queue.next_offset = queue.max_offset
        position, max_offset = self.offset, self._log.max_offset
        stored = self._log.last_timestamp
        self.records_end = position
        while (file := self._log.files.file_at(position)) is not None and position < max_offset:
            for record in read_records(
                file.map, position - file.base, min(file.size, max_offset - file.base)
            ):
                position += record.size
                stored = max(stored, record.store_timestamp)
                if record.has_unit:
                    topic, physical = record.topic, record.physical_offset
                    found = self._queues.of_record(topic, record.queue_id, physical)
                    if found is not None:
                        self._count(found, record.queue_offset)
                    if self._light is not None and LIGHT_MARK in record.properties:
                        for queue, queue_offset in self._light.places(topic, record.properties, physical):
                            self._count(queue, queue_offset)
                self.records_end = position
            filler = blank_size(file.map, position - file.base, file.size)
            if not filler or position + filler > max_offset:
                # A filler that came in part is cut: a message appended within it would never be found.
                break
            position = file.base + file.size
        self._log.last_timestamp = stored
        return position

    def _count(self, queue: ConsumeQueue, queue_offset: int) -> None:
        if not queue.takes(queue_offset):
            return
        if not queue_offset and queue.next_offset:
            # From 0 again: the topic was recreated (`ConsumeQueue.pending_restarts`).
            queue.next_offset = 0
            self.recreated_topics.add(queue.topic)
        queue.next_offset = max(queue.next_offset, queue_offset + 1)


def _units_before(units: bytes, limit: int) -> int:
    """How many of these units, the last of which is not among them, are of records that end at or before
    `limit`."""
    if len(units) <= UNIT.size:
        return 0  # nearly always
    return sum(physical + size <= limit for physical, size, _ in UNIT.iter_unpack(units))
