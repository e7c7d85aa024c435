"""Stores due messages like any other message, and says what became of them.

What delivers the slots (`deliverer.py`) and what delivers messages that waited beside the wheel
(`waiting.py`) have this in common.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.timer.already import AlreadyDelivered
from batonmq.broker.timer.core import delivered, rolled
from batonmq.broker.timer.layout import Unit
from batonmq.common.files import reason
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import PROPERTY_REAL_TOPIC, PROPERTY_UNIQUE_KEY
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_record
from batonmq.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from batonmq.broker.timer.counts import TimerCounts
    from batonmq.broker.timer.state import TimerState
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5
"""Pause after a refusal."""
CONFIRM_S: Final = 0.02
"""Interval at which the log and the wheel are looked at again while they are behind."""
CONFIRM_LOOKS: Final = 100
"""So often it looks before it delivers messages that may have been delivered."""
HOPELESS: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
"""The store will never take such a message; only a RocketMQ broker can have accepted it."""


class Due(NamedTuple):
    """A message that is due, as it is to be stored."""

    message: StoredMessage
    topic: str
    """The real topic, for the counts."""
    unit: Unit


class Flying:
    """Messages on their way into the log together."""

    def __init__(self, due: list[Due]) -> None:
        self.outcomes: list[tuple[Due, PutStatus, PutResult | None]] = []
        """What became of them, in the order in which it was known."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when all outcomes are known."""
        self._count = len(due)
        if not due:
            self.done.set_result(None)

    def add(self, due: Due, status: PutStatus, result: PutResult | None) -> None:
        self.outcomes.append((due, status, result))
        if len(self.outcomes) == self._count and not self.done.done():
            self.done.set_result(None)


class _One:
    """Waits for one message (`Waiter`); a future for each would cost more than the append."""

    __slots__ = ("_due", "_flying", "wait")

    def __init__(self, due: Due, flying: Flying) -> None:
        self._due = due
        self._flying = flying
        self.wait = True

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        self._flying.add(self._due, status, result)


class Storing:
    """What one task needs to store due messages."""

    def __init__(self, state: TimerState, counts: TimerCounts) -> None:
        self._state = state
        self._counts = counts
        self._already: AlreadyDelivered | None = None
        self._failed = False
        """Whether the last attempt failed; the next failure is not logged then."""

    async def _confirmed(self) -> None:
        """Wait until consumers can see what was in the log when this broker became master."""
        store = self._state.broker.store
        goal = store.max_offset
        for _ in range(CONFIRM_LOOKS):
            if store.dispatched_offset >= goal:
                return
            await asyncio.sleep(CONFIRM_S)

    async def _due(self, units: list[Unit], recalled: dict[str, list[str]], matched: set[str]) -> list[Due]:
        """The messages to store for these units; `recalled`: unique key -> real topics of its recalls, of
        which `matched` gets those that stop a message."""
        state = self._state
        due, lost = [], list[int]()
        for unit, record in zip(units, await self._records(units), strict=True):
            if record is None:
                lost.append(unit.physical_offset)
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
                due.append(Due(message, topic, unit))
        if lost:
            log.error(
                "%d timed messages are lost: the log has expired up to them (fileReservedTime), or they are "
                "damaged; the first one was at physical_offset=%d",
                len(lost),
                lost[0],
            )
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

    def _submit(self, due: list[Due]) -> Flying:
        appender, flying = self._state.broker.appender, Flying(due)
        for one in due:
            appender.submit(one.message, _One(one, flying))
        return flying

    async def _outcome(self, flying: Flying) -> tuple[list[Due], PutStatus]:
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
