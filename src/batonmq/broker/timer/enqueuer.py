"""Puts the messages of the timer topic into the wheel, as they become visible to consumers.

A master puts all of them. A slave puts those that its master has put, so that its wheel and the master's
checkpoint (`Checkpoint`) belong together. Source: RocketMQ's `TimerMessageStore.enqueue` and `doEnqueue`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from batonmq.broker.timer.core import Wheel, parking_slot, parse_long, write_time
from batonmq.broker.timer.layout import MAGIC_DEFAULT, MAGIC_DELETE, MAGIC_ROLL, NO_UNIT
from batonmq.broker.timer.timer_store import Entry, unit_of
from batonmq.common.files import reason
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.properties import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELETE_UNIQUE_KEY,
    PROPERTY_TIMER_OUT_MS,
    find_property,
)
from batonmq.protocol.names import TIMER_TOPIC
from batonmq.store.results import GetResult, GetStatus
from batonmq.store.scan import Record, read_records

if TYPE_CHECKING:
    from batonmq.broker.timer.counts import TimerCounts
    from batonmq.broker.timer.state import TimerState

log = logging.getLogger(__name__)

BATCH: Final = 256
"""Messages put into the wheel before the loop serves other work: about 4 ms."""
RETRY_S: Final = 1.0
"""Pause after the disk has refused, and between looks at `timerStopEnqueue`."""
_OUT: Final = PROPERTY_TIMER_OUT_MS.encode()
_TOPIC: Final = PROPERTY_REAL_TOPIC.encode()
_DELETE: Final = PROPERTY_TIMER_DELETE_UNIQUE_KEY.encode()


def records_of(buffers: Iterable[memoryview]) -> Iterable[Record]:
    """The records in buffers that hold whole ones; of each buffer only those before the first damaged one."""
    for view in buffers:
        yield from read_records(view, 0, len(view))


def entry_of(record: Record, wheel: Wheel) -> tuple[Entry, str] | None:
    """A record of the timer topic as an entry of the wheel, and its real topic. None if it has no time or
    topic: a client may store anything in the timer topic. RocketMQ stops at such a record for ever."""
    out, topic = find_property(record.properties, _OUT), find_property(record.properties, _TOPIC)
    if out is None or topic is None:
        return None
    try:
        out_ms = parse_long(out.decode("utf-8", "replace"))
    except ValueError:
        return None
    slot_ms, roll = parking_slot(out_ms, record.store_timestamp, wheel)
    magic = MAGIC_DEFAULT | (MAGIC_ROLL if roll else 0)
    if find_property(record.properties, _DELETE) is not None:
        magic |= MAGIC_DELETE
    name = topic.decode("utf-8", "replace")
    written_ms = write_time(record.store_timestamp, slot_ms, wheel)
    entry = Entry(slot_ms, magic, written_ms, record.physical_offset, record.size, java_hash(name))
    return entry, name


class Enqueuer:
    """Follows the timer topic's consume queue."""

    def __init__(self, state: TimerState, counts: TimerCounts) -> None:
        self._state = state
        self._counts = counts
        self._grown = asyncio.Event()

    def wake(self) -> None:
        """The queue has grown, or the master has put more messages into its wheel."""
        self._grown.set()

    async def run(self) -> None:
        """Put messages into the wheel until cancelled."""
        while True:
            self._grown.clear()
            if self._state.broker.settings.broker.timer_stop_enqueue:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                more = await self.put_some()
            except OSError as error:
                if not self._state.refused:
                    log.error("timed messages wait outside the timer wheel: %s", reason(error))
                self._state.refused = True
                await asyncio.sleep(RETRY_S)
                continue
            self._state.refused = False
            if more:
                await asyncio.sleep(0)
            else:
                await self._grown.wait()

    async def put_some(self) -> bool:
        """Put up to `BATCH` messages; False if there are none. Raises `OSError`."""
        state, store = self._state, self._state.broker.store
        self.take_back()
        if not state.leading:
            state.forget_delivered()
        offset = state.queue_offset
        entries: list[Entry] = []
        topics: list[tuple[str, int]] = []
        stored_ms = 0
        while len(entries) < BATCH:
            most = BATCH - len(entries)
            if not state.leading:
                most = min(most, state.done.master_queue_offset - offset)
                if most <= 0:
                    break
            result = store.get(TIMER_TOPIC, 0, offset, most)
            if result.fetch is not None:
                await asyncio.get_running_loop().run_in_executor(state.broker.readers, result.fetch)
                if self.take_back():
                    return True
            records = list(records_of(result.buffers))
            if len(records) != result.count and result.count > 1:  # which one is damaged?
                result = store.get(TIMER_TOPIC, 0, offset, 1)
                records = list(records_of(result.buffers))
            following = self._following(result, offset)
            if following == offset:
                break
            if len(records) != result.count:
                log.error("the record of %s at queue_offset=%d is damaged, left out", TIMER_TOPIC, offset)
            for record in records:
                stored_ms = record.store_timestamp
                found = entry_of(record, state.wheel)
                if found is None:
                    log.warning("no timed message: queue_offset=%d of %s", record.queue_offset, TIMER_TOPIC)
                elif not self._is_done(record.queue_offset, found[0].slot_ms):
                    entries.append(found[0])
                    topics.append((found[1], found[0].magic))
                elif found[0].magic & MAGIC_ROLL:
                    state.doubt(unit_of(found[0], NO_UNIT))
            offset = following
        if offset == state.queue_offset:
            state.behind_since_ms = None
            return False
        offset = self._put(entries, topics, offset)
        state.behind_since_ms = stored_ms or None
        return True

    def _put(self, entries: list[Entry], topics: list[tuple[str, int]], offset: int) -> int:
        state = self._state
        state.timers.put(entries)
        state.queue_offset = offset
        if state.leading:
            state.moved()
            for topic, magic in topics:
                self._counts.enqueued(topic, recalls=magic & MAGIC_DELETE != 0)
        if entries:
            state.filled.set()
        return offset

    def _following(self, result: GetResult, offset: int) -> int:
        """Where to continue: behind what was read, or over a gap; `offset` itself if there is nothing."""
        store = self._state.broker.store
        if result.status is GetStatus.OFFSET_OVERFLOW_BADLY:
            # Before the log is confirmed again, after a start, the queue only seems to end before.
            return result.max_offset if store.dispatched_offset >= store.max_offset else offset
        if result.status in (
            GetStatus.FOUND,
            GetStatus.OFFSET_TOO_SMALL,
            GetStatus.OFFSET_FOUND_NULL,
            GetStatus.MESSAGE_WAS_REMOVING,
            GetStatus.NO_MATCHED_MESSAGE,
        ):
            return result.next_offset
        return offset

    def _is_done(self, queue_offset: int, slot_ms: int) -> bool:
        done = self._state.done
        return queue_offset < done.master_queue_offset and slot_ms < done.read_ms

    def take_back(self) -> bool:
        """Take back what the commit log has lost since the last call; False if nothing. Raises `OSError`."""
        state = self._state
        cut = state.broker.store.take_cut()
        if cut is None:
            return False
        state.cut(cut)
        state.queue_offset = min(state.queue_offset, queue_offset_after(state))
        return True


def queue_offset_after(state: TimerState) -> int:
    """Queue offset behind the message of the last unit; 0 if there is none, or its message is gone."""
    for _, unit in state.timers.log.backwards():
        record = state.record(unit)
        return 0 if record is None else record.queue_offset + 1
    return 0
