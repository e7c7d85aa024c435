"""Delivers the messages of the slots that are due, on a master.

A slot is left only when all its messages are acknowledged like any other message, or, on an acting master,
are open: no other master takes them, so they wait beside the wheel, and messages of other topics continue.
After a crash or a switch a message may be delivered twice (`already.py` keeps that rare), but is never lost.
No error makes this broker give a message up. Source: RocketMQ's `TimerMessageStore.dequeue`, which drops a
message after three attempts.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from batonmq.broker.timer import storing
from batonmq.broker.timer.already import AlreadyDelivered
from batonmq.broker.timer.core import rolled
from batonmq.broker.timer.layout import NO_UNIT, Unit
from batonmq.broker.timer.storing import Due, Flying, Storing
from batonmq.broker.timer.waiting import LeftOpen
from batonmq.common.files import reason
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import PROPERTY_REAL_TOPIC, PROPERTY_TIMER_DELETE_UNIQUE_KEY
from batonmq.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from batonmq.broker.timer.counts import TimerCounts
    from batonmq.broker.timer.state import TimerState

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH: Final = 100
"""Messages delivered together: about 5 ms of the loop's time."""
BATCHES: Final = 8
"""Batches that may wait for replicas and disk while the next one is made."""
WALK: Final = 2_000
"""Units of a slot read before the loop serves other work."""
LOOK_S: Final = 1.0
"""Longest sleep: the wall clock may be set meanwhile."""
ENQUEUE_LOOKS: Final = 100
"""So often it looks whether messages reach the wheel, before it delivers without them."""
ATTEMPTS: Final = 3
"""So often an acting master tries to find a master for a message before later ones pass it; RocketMQ then
drops it."""


class Deliverer(Storing):
    """One per broker; `run` is cancelled at the end of a term."""

    def __init__(
        self, state: TimerState, counts: TimerCounts, beside: Container[int] = frozenset[int]()
    ) -> None:
        """`beside`: places in the log of messages that may be in the wheel, and are open."""
        super().__init__(state, counts)
        self._beside = beside
        self._left_open = LeftOpen(state)
        self._already_until_ms = 0
        """Slots from here on cannot have been delivered before."""

    async def run(self, since_ms: int, doubtful: Sequence[Unit] = ()) -> None:
        """Deliver until cancelled. `since_ms`: slots before it are delivered. `doubtful`: messages in earlier
        slots that the former master may not have rolled."""
        state = self._state
        await self._confirmed()
        store = state.broker.store
        if doubtful:
            since_ms = min(since_ms, doubtful[0].slot_ms)
        self._already = AlreadyDelivered(state.broker, since_ms)
        self._already_until_ms = max(state.now_ms(), store.last_timestamp)
        for at in range(0, len(doubtful), BATCH):
            await self._roll(doubtful[at : at + BATCH], self._already)
        while True:
            state.filled.clear()
            due_ms = state.timers.next_ms
            if due_ms is None:
                await state.filled.wait()
                continue
            wait_ms = due_ms + state.wheel.precision_ms - state.now_ms()
            if wait_ms > 0 or state.broker.settings.broker.timer_stop_dequeue:
                wait_s = min(LOOK_S, wait_ms / 1_000) if wait_ms > 0 else LOOK_S
                try:
                    await asyncio.wait_for(state.filled.wait(), wait_s)
                except TimeoutError:
                    continue
            else:
                await self._enqueued()
                if state.timers.next_ms != due_ms:
                    continue
                if due_ms >= self._already_until_ms:
                    self._already = None
                await self._deliver_slot(due_ms)

    async def _roll(self, units: Sequence[Unit], already: AlreadyDelivered) -> None:
        """Store doubtful messages again, unless the log has what the former master has rolled."""
        due = []
        for unit, record in zip(units, await self._records(units), strict=True):
            if record is None:
                continue
            try:
                message = rolled(record, unit.written_ms, self._state.now_ms())
            except MessageFormatError as error:
                log.error("a timed message cannot be stored again: %s", error)
                continue
            if not await already.take(message):
                due.append(Due(message, record.properties.get(PROPERTY_REAL_TOPIC, ""), unit))
        if due:
            log.info("timer: %d messages that the former master had still to roll are stored again", len(due))
        await self._settle(self._submit(due))
        self._left_open.leave()

    async def _enqueued(self) -> None:
        """Wait until the wheel has what is in the timer topic now: it may recall what is due. After a start
        or a switch that can be many messages."""
        state, looks = self._state, 0
        goal = state.broker.store.queue_bounds(TIMER_TOPIC, 0).max_offset
        while (offset := state.queue_offset) < goal and looks < ENQUEUE_LOOKS:
            if state.refused or state.broker.settings.broker.timer_stop_enqueue:
                return
            await asyncio.sleep(storing.CONFIRM_S)
            looks = looks + 1 if state.queue_offset == offset else 0

    # -- one slot

    async def _deliver_slot(self, slot_ms: int) -> None:
        state, timers = self._state, self._state.timers
        state.firing_ms = slot_ms
        try:
            done = NO_UNIT
            # Messages may come while others are delivered.
            while (newest := await self._wheel(partial(timers.newest, slot_ms))) > done:
                await self._deliver_chain(slot_ms, done)
                done = newest
            # To deliver the messages again would be no better than to try this again.
            await self._wheel(partial(timers.done, slot_ms))
            self._left_open.leave()
        finally:
            self._left_open.forget()
            state.firing_ms = None
        state.moved()

    async def _wheel(self, work: Callable[[], T]) -> T:
        """Read or write the wheel, again and again while the disk fails."""
        while True:
            try:
                return work()
            except OSError as error:
                self._log_once("the timer wheel cannot be read or written: %s", reason(error))
                await asyncio.sleep(storing.RETRY_S)

    async def _deliver_chain(self, slot_ms: int, until: int) -> None:
        """Deliver the messages of a slot whose units are behind the position `until`, oldest first."""
        timers = self._state.timers
        positions: array[int] = array("q")
        recalls: list[Unit] = []
        begin: int | None = None
        while begin != NO_UNIT:
            found, begin = await self._wheel(partial(timers.chain, slot_ms, until, WALK, begin))
            for position in found:
                unit = timers.log.read(position)
                if unit is not None and unit.recalls:
                    recalls.append(unit)
                else:
                    positions.append(position)
            await asyncio.sleep(0)
        recalled: dict[str, list[str]] = {}
        for at in range(0, len(recalls), BATCH):
            for record in await self._records(recalls[at : at + BATCH]):
                if record is not None and (key := record.properties.get(PROPERTY_TIMER_DELETE_UNIQUE_KEY)):
                    recalled.setdefault(key, []).append(record.properties.get(PROPERTY_REAL_TOPIC, ""))
        matched: set[str] = set()
        positions.reverse()
        flying: deque[Flying] = deque()
        for at in range(0, len(positions), BATCH):
            read = (timers.log.read(position) for position in positions[at : at + BATCH])
            units = [u for u in read if u is not None and u.physical_offset not in self._beside]
            due = await self._due(units, recalled, matched)
            flying.append(self._submit([one for one in due if not self._left_open.follows(one)]))
            # The log gets this batch while the one before is replicated, or is on its way to disk.
            await asyncio.sleep(0)
            while flying and (len(flying) > BATCHES or self._failed):
                await self._settle(flying.popleft())
        while flying:
            await self._settle(flying.popleft())
        for key, topics in recalled.items():
            for number, topic in enumerate(topics):
                self._counts.recall_left(topic, matched=key in matched and number == 0)

    # -- storing

    async def _settle(self, flying: Flying) -> None:
        """Wait until all messages are acknowledged; those that are refused are stored again, or are open."""
        left_open, attempts = self._left_open, 0
        while True:
            refused, refused_with = await self._outcome(flying)
            attempts += 1
            refused = [
                one
                for one in refused
                if not (left_open.follows(one) or (attempts >= ATTEMPTS and left_open.may_wait(one)))
            ]
            if refused:
                self._log_once("timed messages wait, they cannot be stored: %s", refused_with.value)
                await asyncio.sleep(storing.RETRY_S)
            else:
                self._failed = False
                return
            flying = self._submit(refused)
