"""Delivers the messages of the slots that are due, on a master.

A slot is left only when all its messages are acknowledged like any other message, or, on an acting master,
are open: no other master takes them, so they wait beside the wheel, and messages of other topics go on. After
a crash or a switch a message may be delivered twice (`already.py` keeps that rare), but is never lost, and no
error makes this broker give a message up. Source: RocketMQ's `TimerMessageStore.dequeue`, which drops a
message after three attempts.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.timer.already import AlreadyDelivered
from batonmq.broker.timer.core import delivered, rolled
from batonmq.broker.timer.layout import NO_UNIT, Unit
from batonmq.common.files import reason
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELETE_UNIQUE_KEY,
    PROPERTY_UNIQUE_KEY,
)
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_record
from batonmq.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from batonmq.broker.timer.counts import TimerCounts
    from batonmq.broker.timer.state import TimerState
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH: Final = 100
"""Messages delivered together: about 5 ms of the loop's time."""
BATCHES: Final = 8
"""Batches that may wait for replicas and disk while the next one is made."""
WALK: Final = 2_000
"""Units of a slot read before the loop serves other work."""
RETRY_S: Final = 0.5
"""Pause after a refusal."""
LOOK_S: Final = 1.0
"""Longest sleep: the wall clock may be set meanwhile."""
CONFIRM_S: Final = 0.02
"""Interval at which the log and the wheel are looked at again while they are behind."""
CONFIRM_LOOKS: Final = 100
"""So often it looks before it delivers messages that may have been delivered."""
ENQUEUE_LOOKS: Final = 100
"""So often it looks whether messages reach the wheel, before it delivers without them."""
ATTEMPTS: Final = 3
"""So often an acting master tries to find a master for a message before later ones pass it; RocketMQ then
drops it."""
MOST_OPEN: Final = 4_000
"""Most messages that wait beside the wheel: the checkpoint has them all. Then all later ones wait."""
HOPELESS: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
"""The store will never take such a message; only a RocketMQ broker can have accepted it."""


class _Due(NamedTuple):
    message: StoredMessage
    topic: str
    """The real topic, for the counts."""
    unit: Unit


class _Flying:
    """Messages on their way into the log together."""

    def __init__(self, due: list[_Due]) -> None:
        self.outcomes: list[tuple[_Due, PutStatus, PutResult | None]] = []
        """What became of them, in the order in which it was known."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when all outcomes are known."""
        self._count = len(due)
        if not due:
            self.done.set_result(None)

    def add(self, due: _Due, status: PutStatus, result: PutResult | None) -> None:
        self.outcomes.append((due, status, result))
        if len(self.outcomes) == self._count and not self.done.done():
            self.done.set_result(None)


class _One:
    """Waits for one message (`Waiter`); a future for each would cost more than the append."""

    __slots__ = ("_due", "_flying", "wait")

    def __init__(self, due: _Due, flying: _Flying) -> None:
        self._due = due
        self._flying = flying
        self.wait = True

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        self._flying.add(self._due, status, result)


class Deliverer:
    """One per broker; `run` is cancelled at the end of a term."""

    def __init__(
        self, state: TimerState, counts: TimerCounts, beside: Container[int] = frozenset[int]()
    ) -> None:
        """`beside`: places in the log of messages that may be in the wheel, and are open."""
        self._state = state
        self._counts = counts
        self._beside = beside
        self._already: AlreadyDelivered | None = None
        self._already_until_ms = 0
        """Slots from here on cannot have been delivered before."""
        self._failed = False
        self._open: dict[int, list[_Due]] = {}
        """Messages of the slot under way that are left open when the others are done, by hash of their
        topic."""

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
                due.append(_Due(message, record.properties.get(PROPERTY_REAL_TOPIC, ""), unit))
        if due:
            log.info("timer: %d messages that the former master had still to roll are stored again", len(due))
        await self._settle(self._submit(due))
        self._leave_open()

    async def _enqueued(self) -> None:
        """Wait until the wheel has what is in the timer topic now: it may recall what is due. After a start
        or a switch that can be many messages."""
        state, looks = self._state, 0
        goal = state.broker.store.queue_bounds(TIMER_TOPIC, 0).max_offset
        while (offset := state.queue_offset) < goal and looks < ENQUEUE_LOOKS:
            if state.refused or state.broker.settings.broker.timer_stop_enqueue:
                return
            await asyncio.sleep(CONFIRM_S)
            looks = looks + 1 if state.queue_offset == offset else 0

    async def _confirmed(self) -> None:
        """Wait until consumers can see what was in the log when this broker became master."""
        store = self._state.broker.store
        goal = store.max_offset
        for _ in range(CONFIRM_LOOKS):
            if store.dispatched_offset >= goal:
                return
            await asyncio.sleep(CONFIRM_S)

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
            self._leave_open()
        finally:
            self._open.clear()
            state.firing_ms = None
        state.moved()

    async def _wheel(self, work: Callable[[], T]) -> T:
        """Read or write the wheel, again and again while the disk fails."""
        while True:
            try:
                return work()
            except OSError as error:
                self._log_once("the timer wheel cannot be read or written: %s", reason(error))
                await asyncio.sleep(RETRY_S)

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
        flying: deque[_Flying] = deque()
        for at in range(0, len(positions), BATCH):
            read = (timers.log.read(position) for position in positions[at : at + BATCH])
            units = [u for u in read if u is not None and u.physical_offset not in self._beside]
            due = await self._due(units, recalled, matched)
            flying.append(self._submit([one for one in due if not self._follows_open(one)]))
            # The log gets this batch while the one before is replicated, or is on its way to disk.
            await asyncio.sleep(0)
            while flying and (len(flying) > BATCHES or self._failed):
                await self._settle(flying.popleft())
        while flying:
            await self._settle(flying.popleft())
        for key, topics in recalled.items():
            for number, topic in enumerate(topics):
                self._counts.recall_left(topic, matched=key in matched and number == 0)

    async def _due(self, units: list[Unit], recalled: dict[str, list[str]], matched: set[str]) -> list[_Due]:
        """The messages to store for these units; `recalled`: unique key -> real topics of its recalls, of
        which `matched` gets those that stop a message."""
        state = self._state
        due = []
        for unit, record in zip(units, await self._records(units), strict=True):
            if record is None:
                log.error("a timed message is no longer in the log physical_offset=%d", unit.physical_offset)
                continue
            topic = record.properties.get(PROPERTY_REAL_TOPIC, "")
            key = record.properties.get(PROPERTY_UNIQUE_KEY, "")
            if not unit.roll and recalled and key:
                found = {name for name in (key, f"{topic}+{key}") if topic in recalled.get(name, ())}
                if found:
                    matched |= found
                    continue
            try:
                convert = rolled if unit.roll else delivered
                message = convert(record, unit.written_ms, state.now_ms())
            except MessageFormatError as error:
                log.error("a timed message cannot be delivered: %s", error)
                continue
            if message is None:
                log.error("a timed message has no topic queue_offset=%d", record.queue_offset)
            elif self._already is not None and await self._already.take(message):
                self._counts.left(topic)
            else:
                due.append(_Due(message, topic, unit))
        return due

    async def _records(self, units: Sequence[Unit]) -> list[MessageExt | None]:
        """The records of these units; None for one that the log no longer has."""
        store = self._state.broker.store
        while True:
            fetch = store.fetching([(unit.physical_offset, unit.size) for unit in units])
            try:
                if fetch is not None:
                    await asyncio.get_running_loop().run_in_executor(self._state.broker.readers, fetch)
                break
            except OSError as error:
                self._log_once("timed messages cannot be read: %s", reason(error))
                await asyncio.sleep(RETRY_S)
        for unit in units:
            end = unit.physical_offset + unit.size
            while store.confirm_offset < end <= store.max_offset:  # noqa: ASYNC110 -- a switch is rare
                await asyncio.sleep(CONFIRM_S)  # right after a switch
        return [self._record(unit) for unit in units]

    def _record(self, unit: Unit) -> MessageExt | None:
        store = self._state.broker.store
        view = store.message_at(unit.physical_offset)
        if view is None:
            return None
        try:
            record = decode_record(view, inflate=False)
        except MessageFormatError:
            return None
        return record if record.topic == TIMER_TOPIC else None

    # -- storing

    def _submit(self, due: list[_Due]) -> _Flying:
        appender, flying = self._state.broker.appender, _Flying(due)
        for one in due:
            appender.submit(one.message, _One(one, flying))
        return flying

    async def _settle(self, flying: _Flying) -> None:
        """Wait until all messages are acknowledged; those that are refused are stored again, or are open."""
        attempts = 0
        while True:
            refused, refused_with = await self._outcome(flying)
            attempts += 1
            refused = [
                one
                for one in refused
                if not (self._follows_open(one) or (attempts >= ATTEMPTS and self._may_wait(one)))
            ]
            if refused:
                self._log_once("timed messages wait, they cannot be stored: %s", refused_with.value)
                await asyncio.sleep(RETRY_S)
            else:
                self._failed = False
                return
            flying = self._submit(refused)

    async def _outcome(self, flying: _Flying) -> tuple[list[_Due], PutStatus]:
        """Wait until all messages are acknowledged or refused; those that are refused, and why."""
        await flying.done
        refused, refused_with = [], PutStatus.PUT_OK
        for one, status, result in flying.outcomes:
            if result is not None:
                if status is not PutStatus.PUT_OK:
                    await self._safe(result.end_offset)
            elif status is PutStatus.PUT_OK:
                pass  # another master has it
            elif status in HOPELESS:
                log.error("a timed message cannot be stored topic=%s: %s", one.topic, status.value)
            else:
                refused.append(one)
                refused_with = status
                continue
            self._counts.left(one.topic)
        return refused, refused_with

    # -- messages that no master takes

    def _follows_open(self, one: _Due) -> bool:
        """Leave a message open whose topic has open ones: it would be refused too, or overtake them."""
        topic_hash = one.unit.topic_hash
        return (topic_hash in self._open or topic_hash in self._state.open) and self._may_wait(one)

    def _may_wait(self, one: _Due) -> bool:
        """Let later messages pass this one. False if they may not: this broker does not act as master, or too
        many are open."""
        state = self._state
        if not state.broker.role.is_acting:
            return False
        if sum(map(len, self._open.values())) + sum(map(len, state.open.values())) >= MOST_OPEN:
            return False
        self._open.setdefault(one.unit.topic_hash, []).append(one)
        return True

    def _leave_open(self) -> None:
        """The slot is done but for these."""
        state = self._state
        for topic_hash, open_ in self._open.items():
            if topic_hash not in state.open:
                log.warning(
                    "timed messages for topic %s wait, no master takes them; others go on", open_[0].topic
                )
            state.leave_open(one.unit for one in open_)
        self._open.clear()

    async def retry_open(self) -> None:
        """Deliver the open messages, one topic after the other, each in order."""
        state = self._state
        await self._confirmed()
        if state.open:  # of the broker before, or of this one before its restart
            first_ms = min(unit.slot_ms for unit in state.all_open())
            self._already = AlreadyDelivered(state.broker, first_ms)
        while True:
            if not state.broker.settings.broker.timer_stop_dequeue:
                for topic_hash in list(state.open):
                    await self._retry_topic(topic_hash)
            await asyncio.sleep(RETRY_S)

    async def _retry_topic(self, topic_hash: int) -> None:
        state, most = self._state, 1
        waiting = state.open[topic_hash]
        while waiting:
            units = list(takewhile(self._is_due, islice(waiting, most)))
            if not units:
                return
            refused, _ = await self._outcome(self._submit(await self._due(units, {}, set())))
            for _unit in units:
                waiting.popleft()  # others come behind them only
            waiting.extendleft(one.unit for one in reversed(refused))
            if not waiting:
                del state.open[topic_hash]
                log.info("timed messages that no master took have left")
            if len(refused) < len(units):
                state.moved()
            if refused:
                return
            most = BATCH

    def _is_due(self, unit: Unit) -> bool:
        """By the clock of the broker that left the message open it was due, by this one's perhaps not yet."""
        return unit.slot_ms + self._state.wheel.precision_ms <= self._state.now_ms()

    async def _safe(self, end_offset: int) -> None:
        """Wait for a message that is in the log: another attempt would be a second message."""
        while True:
            if self._state.broker.appender.is_acked(end_offset):
                return
            await asyncio.sleep(RETRY_S)

    def _log_once(self, text: str, cause: str) -> None:
        if not self._failed:
            log.warning(text, cause)
        self._failed = True
