"""Timed messages on a real store while clocks are set and brokers are away: each comes once, in its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from tests.unit.broker.conftest import START_MS, Served

from batonmq.broker.messages.internal import put
from batonmq.broker.timer import deliverer
from batonmq.broker.timer.layout import SLOTS
from batonmq.broker.timer.part import TimerPart
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_records

DAY_MS = 86_400_000
REACH_MS = SLOTS * 1_000


class Timed:
    """The timer of a broker that is not started as a whole."""

    def __init__(self, served: Served) -> None:
        self.clock, self.store, self.broker = served.clock, served.store, served.broker
        (self.part,) = (part for part in served.parts if isinstance(part, TimerPart))
        self.state = self.part.state
        self.broker.appender.listeners.append(self.part.records_visible)

    def lead(self) -> None:
        self.part.role_changed(self.broker.role)

    def deliver(self, on: bool) -> None:
        settings = self.broker.settings
        settings.broker = replace(settings.broker, timer_stop_dequeue=not on)

    async def send(self, name: str, delay_ms: int, **more: str) -> None:
        properties = {"UNIQ_KEY": name, "TIMER_DELAY_MS": str(delay_ms), **more}
        message = StoredMessage(
            topic="TopicJ", queue_id=0, body=name.encode(), properties=encode_properties(properties)
        )
        stored = self.broker.redirects.apply(message, properties)
        outcome = await put(self.broker.appender, stored or message)
        assert outcome.ok
        await self.until(lambda: self.state.queue_offset == self.waiting_end)

    @property
    def waiting_end(self) -> int:
        return self.store.queue_bounds("rmq_sys_wheel_timer", 0).max_offset

    def delivered(self) -> list[str]:
        found = self.store.get("TopicJ", 0, 0, 32)
        return [record.body.decode() for view in found.buffers for record in decode_records(view)]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                await asyncio.sleep(0.002)

    async def settled(self) -> list[str]:
        """What is delivered by now."""
        for _ in range(20):  # some looks of the deliverer
            await asyncio.sleep(0.005)
        return self.delivered()


@pytest.fixture
async def timed(served: Served, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Timed]:
    monkeypatch.setattr(deliverer, "LOOK_S", 0.002)
    monkeypatch.setattr(deliverer, "CONFIRM_S", 0.001)
    subject = Timed(served)
    await subject.part.start()
    yield subject
    await subject.part.stop()


@pytest.mark.parametrize("days", [1, 3, 30, 400])
async def test_a_clock_that_was_set_back_delays_and_hastens_no_message(timed: Timed, days: int) -> None:
    """Store times stay where they were: in the future."""
    timed.lead()
    timed.clock.set_wall(START_MS + days * DAY_MS)
    await put(timed.broker.appender, StoredMessage(topic="TopicJ", queue_id=1, body=b"x"))
    timed.clock.set_wall(START_MS)
    await timed.send("soon", 3_000)
    await timed.send("tomorrow", DAY_MS // 2)
    assert await timed.settled() == []
    timed.clock.advance(2_000)
    assert await timed.settled() == []
    timed.clock.advance(2_000)
    assert await timed.settled() == ["soon"]
    timed.clock.advance(DAY_MS)
    assert await timed.settled() == ["soon", "tomorrow"]
    assert timed.state.timers.waiting == 0


async def test_messages_of_a_time_ahead_and_of_now_do_not_displace_each_other(timed: Timed) -> None:
    timed.lead()
    ahead_ms = REACH_MS - DAY_MS
    timed.clock.set_wall(START_MS + ahead_ms)
    await timed.send("ahead", DAY_MS + 60_000)
    timed.clock.set_wall(START_MS)
    await timed.send("now", 60_000)  # the same place in the file
    timed.clock.advance(61_000)
    assert await timed.settled() == ["now"]
    timed.clock.advance(REACH_MS - 2_000)
    assert await timed.settled() == ["now"]
    timed.clock.advance(2_000)
    assert await timed.settled() == ["now", "ahead"]


async def test_after_a_long_absence_the_old_messages_come_and_displace_no_new_one(timed: Timed) -> None:
    timed.lead()
    await timed.send("old", DAY_MS)
    await timed.send("older", DAY_MS // 2)
    timed.part.role_ending()
    timed.clock.set_wall(START_MS + REACH_MS)
    # As for a broker that has much to deliver, the new message comes before the old ones are through.
    timed.deliver(False)
    timed.lead()
    await timed.send("new", DAY_MS)
    timed.deliver(True)
    assert await timed.settled() == ["older", "old"]
    timed.clock.advance(DAY_MS + 1_000)
    assert await timed.settled() == ["older", "old", "new"]


@pytest.mark.parametrize("recall_after_ms", [1_000, DAY_MS // 10, DAY_MS // 2])
async def test_a_recall_holds_after_a_long_absence(timed: Timed, recall_after_ms: int) -> None:
    """Message and recall were rolled, at different times, and are stored again at different times."""
    timed.lead()
    out_ms = START_MS + 5 * DAY_MS // 2
    await timed.send("recalled", out_ms - START_MS)
    await timed.send("kept", out_ms - START_MS)
    timed.clock.advance(recall_after_ms)
    left_ms = out_ms - timed.clock.now_ms()
    await timed.send("recall", left_ms, TIMER_DEL_UNIQKEY="TopicJ+recalled")
    timed.part.role_ending()
    timed.clock.advance(9 * DAY_MS)
    timed.lead()
    looks = 0
    while timed.state.timers.waiting or timed.state.queue_offset < timed.waiting_end:
        timed.clock.advance(1_000)  # each of them is stored again in a second of its own
        await asyncio.sleep(0.01)
        looks += 1
        assert looks < 300
    assert await timed.settled() == ["kept"]


async def test_what_came_while_the_clock_was_ahead_does_not_come_again_at_a_restart(timed: Timed) -> None:
    timed.lead()
    await timed.send("a", DAY_MS)
    timed.clock.set_wall(START_MS + 2 * DAY_MS)
    assert await timed.settled() == ["a"]
    timed.clock.set_wall(START_MS + 1_000)
    await timed.send("b", 3_000)
    for _ in range(2):
        await timed.part.service.close(failed=False)
        await timed.part.start()
        timed.lead()
        assert await timed.settled() == ["a"]
    timed.clock.advance(5_000)
    assert await timed.settled() == ["a", "b"]
    timed.clock.advance(DAY_MS)
    assert await timed.settled() == ["a", "b"]
