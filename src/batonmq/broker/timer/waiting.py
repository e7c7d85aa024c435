"""Messages that no master takes from an acting one: they wait beside the wheel, and others continue.

They are *open*: their slots are done but for them. The checkpoint names them, so that nobody else counts them
as delivered.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from batonmq.broker.timer import storing
from batonmq.broker.timer.already import AlreadyDelivered
from batonmq.broker.timer.storing import Due, Storing

if TYPE_CHECKING:
    from batonmq.broker.timer.layout import Unit
    from batonmq.broker.timer.state import TimerState

log = logging.getLogger(__name__)

MOST_OPEN: Final = 4_000
"""Most messages that wait beside the wheel: the checkpoint has them all. Then all later ones wait."""
BATCH: Final = 100
"""Messages delivered together once a master has taken one of their topic."""


class LeftOpen:
    """Messages of the slot under way that are left open when the others are done."""

    def __init__(self, state: TimerState) -> None:
        self._state = state
        self._open: dict[int, list[Due]] = {}
        """By hash of their topic."""

    def follows(self, one: Due) -> bool:
        """Leave a message open whose topic has open ones: it would be refused too, or overtake them."""
        topic_hash = one.unit.topic_hash
        return (topic_hash in self._open or topic_hash in self._state.open) and self.may_wait(one)

    def may_wait(self, one: Due) -> bool:
        """Let later messages pass this one. False if they may not: this broker does not act as master, or too
        many are open."""
        state = self._state
        if not state.broker.role.is_acting:
            return False
        if sum(map(len, self._open.values())) + sum(map(len, state.open.values())) >= MOST_OPEN:
            return False
        self._open.setdefault(one.unit.topic_hash, []).append(one)
        return True

    def leave(self) -> None:
        """The slot is done but for these."""
        state = self._state
        for topic_hash, open_ in self._open.items():
            if topic_hash not in state.open:
                log.warning(
                    "timed messages for topic %s wait, no master takes them; others continue", open_[0].topic
                )
            state.leave_open(one.unit for one in open_)
        self._open.clear()

    def forget(self) -> None:
        """The slot is not done: its messages are still in the wheel."""
        self._open.clear()


class OpenMessages(Storing):
    """Delivers open messages, beside those of the slots. `run` is cancelled at the end of a term."""

    async def run(self) -> None:
        """Deliver the open messages, one topic after the other, each in order."""
        state = self._state
        await self._confirmed()
        if state.open:  # of the broker before, or of this one before its restart
            first_ms = min(unit.slot_ms for unit in state.all_open())
            self._already = AlreadyDelivered(state.broker, first_ms)
        while True:
            if not state.broker.settings.broker.timer_stop_dequeue:
                for topic_hash in list(state.open):
                    await self._deliver_topic(topic_hash)
            await asyncio.sleep(storing.RETRY_S)

    async def _deliver_topic(self, topic_hash: int) -> None:
        state, most = self._state, 1
        waiting = state.open[topic_hash]
        while waiting:
            units = list(takewhile(self._is_due, islice(waiting, most)))
            if not units:
                return
            refused, _ = await self._outcome(self._submit(await self._due(units, {}, set())))
            self._failed = False
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
