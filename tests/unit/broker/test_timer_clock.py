"""Timed messages on a real store while clocks are set and brokers are away: each comes once, in its time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
from tests.unit.broker.conftest import START_MS, Served
from tests.unit.broker.fakes import become_slave

from batonmq.broker.messages.internal import put
from batonmq.broker.timer import deliverer, storing
from batonmq.broker.timer.core import parking_slot
from batonmq.broker.timer.layout import SLOTS, Checkpoint
from batonmq.broker.timer.part import TimerPart
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_records
from batonmq.protocol.names import TIMER_TOPIC

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
    monkeypatch.setattr(storing, "CONFIRM_S", 0.001)
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
        timed.clock.advance(1_000)  # each of them is stored again in a separate second
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


async def test_what_was_due_before_the_last_checkpoint_outlives_two_restarts(timed: Timed) -> None:
    """The clock was ahead at the checkpoint; the second restart begins from a checkpoint of no master."""
    timed.lead()
    timed.clock.set_wall(START_MS + 60_000)
    await timed.part.service.flush()
    before = timed.part.service.encode()
    timed.deliver(False)
    timed.clock.set_wall(START_MS)
    await timed.send("early", 2_000)
    timed.clock.set_wall(START_MS + 70_000)
    await timed.part.service.close(failed=True)
    timed.part.service.restore(before)
    await timed.part.start()
    await timed.part.service.close(failed=False)
    await timed.part.start()
    timed.deliver(True)
    timed.lead()
    assert await timed.settled() == ["early"]


class Following(Timed):
    """A slave whose master parks messages later than it does itself, as RocketMQ's do."""

    OUT_MS = START_MS + 3 * DAY_MS

    def replicate(self, name: str, **properties: str) -> None:
        """The log gets a message that is to be rolled."""
        encoded = encode_properties(
            {
                "UNIQ_KEY": name,
                "TIMER_OUT_MS": str(self.OUT_MS),
                "REAL_TOPIC": "TopicJ",
                "REAL_QID": "0",
                **properties,
            }
        )
        self.store.put([StoredMessage(topic=TIMER_TOPIC, queue_id=0, body=name.encode(), properties=encoded)])
        self.broker.appender.progress()

    def follow(self) -> None:
        become_slave(self.broker)
        self.part.role_changed(self.broker.role)

    def receive_checkpoint(self, read_ms: int, queue_offset: int) -> None:
        """From the master."""
        checkpoint = Checkpoint(read_ms, 0, queue_offset, queue_offset)
        self.part.service.replace(checkpoint.encode())

    def take_over(self) -> None:
        self.part.role_ending()
        self.broker.role.set_master(
            address=self.broker.address,
            ha_address="",
            epoch=2,
            replicates=False,
            log_start=self.store.max_offset,
            broker_id=0,
        )
        self.lead()

    def in_log(self) -> list[tuple[str, str]]:
        """Messages of the timer topic, and how often they were rolled."""
        found = self.store.get(TIMER_TOPIC, 0, 0, 32)
        return [
            (record.body.decode(), record.properties.get("TIMER_ROLL_TIMES", ""))
            for view in found.buffers
            for record in decode_records(view)
        ]


@pytest.mark.parametrize("late", [False, True], ids=["in-the-wheel", "not-yet-in-the-wheel"])
async def test_what_the_former_master_had_still_to_roll_is_rolled(
    served: Served, timed: Timed, late: bool
) -> None:
    following = Following(served)
    following.follow()
    following.replicate("a")
    following.replicate("b")
    slot_ms, roll = parking_slot(Following.OUT_MS, START_MS, following.state.wheel)
    assert roll
    if not late:
        following.receive_checkpoint(START_MS, 2)
        await following.until(lambda: following.state.timers.waiting == 2)
    # The master parked both a second later. It has rolled b.
    following.clock.set_wall(slot_ms + 2_000)
    following.replicate("b", TIMER_ROLL_TIMES="1")
    following.receive_checkpoint(slot_ms + 1_000, 2)
    await following.until(lambda: following.state.queue_offset == 2)
    await following.until(lambda: not following.state.timers.waiting)
    following.take_over()
    await following.until(lambda: len(following.in_log()) == 4)
    assert await following.settled() == []
    assert following.in_log() == [("a", ""), ("b", ""), ("b", "1"), ("a", "1")]
    following.clock.set_wall(Following.OUT_MS + 2_000)
    assert sorted(await following.settled()) == ["a", "b"]


@pytest.mark.parametrize(("exact", "rolled"), [(True, []), (False, [("a", "1")])])
async def test_what_a_slave_has_rolled_elsewhere_is_rolled_again_only_after_rocketmqs(
    served: Served, timed: Timed, exact: bool, rolled: list[tuple[str, str]]
) -> None:
    """A slave of ours that acted parks messages in the same slots as its master that returns."""
    following = Following(served)
    following.follow()
    following.replicate("a")
    following.receive_checkpoint(START_MS, 1)
    await following.until(lambda: following.state.timers.waiting == 1)
    slot_ms, _ = parking_slot(Following.OUT_MS, START_MS, following.state.wheel)
    following.clock.set_wall(slot_ms + 2_000)
    version = DataVersion(counter=1 << 20)
    acted = Checkpoint(slot_ms + 1_000, 0, 1, 1, version)
    assert following.part.service.take_back(acted.encode(), exact=exact)
    following.take_over()
    await following.until(lambda: not following.state.timers.waiting)
    await following.settled()
    assert following.in_log() == [("a", ""), *rolled]


async def test_what_was_rolled_long_ago_is_not_looked_at_again(served: Served, timed: Timed) -> None:
    following = Following(served)
    following.follow()
    following.replicate("a")
    following.receive_checkpoint(START_MS, 1)
    await following.until(lambda: following.state.timers.waiting == 1)
    slot_ms, _ = parking_slot(Following.OUT_MS, START_MS, following.state.wheel)
    following.receive_checkpoint(slot_ms + 11_000, 1)
    await following.until(lambda: not following.state.timers.waiting)
    assert not following.state.doubtful
