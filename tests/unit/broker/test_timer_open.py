"""Timed messages that no master takes from an acting one: they wait, and the others go on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from tests.unit.broker.conftest import START_MS, Served
from tests.unit.broker.fakes import become_slave
from tests.unit.broker.test_timer_clock import Timed

from batonmq.broker.messages.appender import PutStatus, Waiter
from batonmq.broker.messages.internal import put
from batonmq.broker.timer import deliverer, storing, waiting
from batonmq.broker.timer.layout import CHECKPOINT, NO_UNIT, Checkpoint, Unit, decode_checkpoint
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage

STUCK = "TopicStuck"


class Elsewhere:
    """The other masters: none of them takes messages of the topics in `without`."""

    def __init__(self, *without: str) -> None:
        self.without = set(without)
        self.taken: list[str] = []
        self.refused: Counter[str] = Counter()

    def escape(self, messages: list[StoredMessage], waiters: list[Waiter]) -> None:
        for message, waiter in zip(messages, waiters, strict=True):
            name = bytes(message.body).decode()
            if message.topic in self.without:
                self.refused[name] += 1
                waiter.stored(PutStatus.PUT_TO_REMOTE_BROKER_FAIL, None)
            else:
                self.taken.append(name)
                waiter.stored(PutStatus.PUT_OK, None)


class Acting(Timed):
    """A slave that acts as master, with what it got from the former master."""

    def __init__(self, served: Served) -> None:
        super().__init__(served)
        self.served = served
        self.elsewhere = Elsewhere(STUCK)
        self.broker.tables.topics.update(TopicConfig(topic_name=STUCK, read_queue_nums=4, write_queue_nums=4))

    async def send_to(self, topic: str, name: str, delay_ms: int) -> None:
        properties = {"UNIQ_KEY": name, "TIMER_DELAY_MS": str(delay_ms)}
        message = StoredMessage(
            topic=topic, queue_id=0, body=name.encode(), properties=encode_properties(properties)
        )
        stored = self.broker.redirects.apply(message, properties)
        assert (await put(self.broker.appender, stored or message)).ok
        await self.until(lambda: self.state.queue_offset == self.waiting_end)

    def act(self) -> None:
        self.part.role_ending()
        become_slave(self.broker)
        self.broker.role.set_acting(True)
        self.broker.appender.escape = self.elsewhere.escape
        self.part.role_changed(self.broker.role)

    async def leave_three_open(self) -> None:
        """Act as master; three messages that are due, b, d and f, find no master that takes them."""
        self.act()
        self.served.clock.advance(6_000)
        await self.until(lambda: self.open == 3 and self.state.read_ms >= self.clock.now_ms() - 1_000)

    async def stop_acting(self) -> None:
        self.part.role_ending()
        self.broker.role.set_acting(False)
        self.part.role_changed(self.broker.role)
        await asyncio.sleep(0.01)  # what was on its way is refused

    def master(self) -> None:
        self.part.role_ending()
        role = self.broker.role
        role.set_master(address="", ha_address="", epoch=0, replicates=False, log_start=0)
        self.part.role_changed(role)

    @property
    def open(self) -> int:
        return sum(map(len, self.state.open.values()))


@pytest.fixture
async def acting(served: Served, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Acting]:
    monkeypatch.setattr(deliverer, "LOOK_S", 0.002)
    for name in ("CONFIRM_S", "RETRY_S"):
        monkeypatch.setattr(storing, name, 0.002)
    subject = Acting(served)
    await subject.part.start()
    subject.lead()
    for topic, name, delay_ms in (
        ("TopicJ", "a", 1_000),
        (STUCK, "b", 2_000),
        ("TopicJ", "c", 2_000),
        (STUCK, "d", 3_000),
        ("TopicJ", "e", 3_000),
        (STUCK, "f", 3_000),
        ("TopicJ", "g", 9_000),
    ):
        await subject.send_to(topic, name, delay_ms)
    yield subject
    await subject.part.stop()


async def test_later_messages_pass_those_that_no_master_takes(
    acting: Acting, caplog: pytest.LogCaptureFixture
) -> None:
    acting.act()
    acting.served.clock.advance(6_000)
    await acting.until(lambda: acting.elsewhere.taken == ["a", "c", "e"] and acting.open == 3)
    assert acting.elsewhere.refused["b"] >= deliverer.ATTEMPTS
    assert not acting.elsewhere.refused["d"] and not acting.elsewhere.refused["f"], "they would overtake it"
    acting.served.clock.advance(6_000)
    await acting.until(lambda: "g" in acting.elsewhere.taken)
    acting.elsewhere.without.clear()
    await acting.until(lambda: acting.elsewhere.taken == ["a", "c", "e", "g", "b", "d", "f"])
    await acting.until(lambda: not acting.state.open)
    assert acting.state.checkpoint().open == ()
    lines = [line for line in caplog.messages if "wait, no master takes them" in line]
    assert len(lines) == 1 and STUCK in lines[0]


async def test_a_master_that_returns_delivers_them_and_nothing_else_again(acting: Acting) -> None:
    await acting.leave_three_open()
    data = acting.part.service.checkpoint()
    await acting.stop_acting()
    assert decode_checkpoint(acting.part.service.checkpoint()).open == decode_checkpoint(data).open
    # The same log at the former master, whose wheel has all of them.
    acting.part.service.replace(data)
    acting.master()
    await acting.until(lambda: not acting.state.open)
    stuck = acting.store.get(STUCK, 0, 0, 32)
    assert stuck.count == 3 and await acting.settled() == []


async def test_a_slave_that_acts_again_has_them_still(acting: Acting) -> None:
    """Its wheel does not; the master in between was killed before it could deliver them."""
    await acting.leave_three_open()
    await acting.stop_acting()
    early = Checkpoint(acting.state.done.read_ms - 5_000, 0, 7, 7)
    acting.part.service.replace(early.encode())  # a master that took nothing over
    acting.elsewhere.without.clear()
    acting.act()
    await acting.until(lambda: acting.elsewhere.taken[3:] == ["b", "d", "f"])


@pytest.mark.parametrize(("put", "kept"), [(1, "bdf"), (3, "df"), (5, "f")])
async def test_what_a_master_had_not_put_into_its_wheel_it_has_not_delivered(
    acting: Acting, put: int, kept: str
) -> None:
    """It hung before it could, and is killed right after its next checkpoint, before it delivers them."""
    await acting.leave_three_open()
    await acting.stop_acting()
    acting.part.service.replace(Checkpoint(acting.clock.now_ms(), 0, put, put).encode())
    acting.elsewhere.without.clear()
    acting.act()
    await acting.until(lambda: acting.elsewhere.taken[3:] == list(kept))
    await acting.settled()
    assert acting.elsewhere.taken[3:] == list(kept)


async def test_those_that_the_master_has_delivered_wait_no_more(acting: Acting) -> None:
    await acting.leave_three_open()
    await acting.stop_acting()
    acting.part.service.replace(Checkpoint(acting.clock.now_ms(), 0, 1, 1).encode())
    acting.part.service.replace(Checkpoint(acting.clock.now_ms(), 0, 7, 7).encode())
    assert acting.state.done.open == ()


async def test_a_master_whose_clock_is_behind_delivers_each_in_its_time_and_once(acting: Acting) -> None:
    await acting.leave_three_open()
    await acting.part.service.flush()
    file = acting.part.service.encode()
    await acting.part.stop()
    # Killed again and again, before it writes a checkpoint.
    for passed_ms, expected in ((1_900, 0), (2_500, 1), (2_600, 1), (3_100, 3), (3_200, 3)):
        acting.served.clock.set_wall(START_MS + passed_ms)
        again = Acting(acting.served)
        again.part.service.restore(file)
        await again.part.start()
        again.master()
        await again.settled()
        assert again.store.get(STUCK, 0, 0, 32).count == expected
        await again.part.service.close(failed=True)


async def test_one_that_is_not_due_yet_holds_back_no_earlier_one(acting: Acting) -> None:
    """What a slave had left open comes behind what another one has left open since."""
    await acting.leave_three_open()
    await acting.stop_acting()
    acting.state.done = acting.state.done._replace(open=acting.state.done.open[::-1])
    acting.served.clock.set_wall(START_MS + 2_500)
    acting.master()
    await acting.until(lambda: acting.store.get(STUCK, 0, 0, 32).count == 1)


@pytest.mark.parametrize("orderly", [True, False])
async def test_what_is_not_due_yet_by_a_later_clock_outlives_a_restart(acting: Acting, orderly: bool) -> None:
    """Its slot was done at the slave. A new message has it now, and the wheel leads to that one only."""
    await acting.leave_three_open()
    await acting.part.service.close(failed=False)
    file = acting.part.service.encode()
    acting.served.clock.set_wall(START_MS + 500)
    for new in ("h", ""):
        again = Acting(acting.served)
        again.part.service.restore(file)
        await again.part.start()
        again.master()
        if new:
            await again.send_to("TopicJ", new, 1_500)
            await again.part.service.flush()
        else:
            acting.served.clock.advance(9_000)
        await again.settled()
        assert again.store.get(STUCK, 0, 0, 32).count == (0 if new else 3)
        await again.part.service.close(failed=not orderly)
        file = again.part.service.encode()


async def test_an_acting_slave_whose_clock_was_set_back_delivers_them_once(acting: Acting) -> None:
    """A restart finds them in the wheel, too."""
    await acting.leave_three_open()
    await acting.part.service.close(failed=False)
    file = acting.part.service.encode()
    acting.served.clock.set_wall(START_MS + 500)
    for taken in ([], ["b", "d", "f"]):
        again = Acting(acting.served)
        again.part.service.restore(file)
        await again.part.start()
        again.elsewhere.without.clear()
        again.act()
        await again.settled()
        await again.part.service.flush()
        assert [name for name in again.elsewhere.taken if name in "bdf"] == taken
        await again.part.service.close(failed=True)
        file = again.part.service.encode()
        acting.served.clock.advance(9_000)


async def test_so_many_wait_and_no_more(acting: Acting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_OPEN", 2)
    acting.act()
    acting.served.clock.advance(12_000)
    await acting.until(lambda: acting.open == 1 and acting.elsewhere.refused["f"] > 3)
    assert await settled_taken(acting) == ["a", "c", "e"]
    acting.elsewhere.without.clear()
    await acting.until(lambda: sorted(acting.elsewhere.taken) == sorted("abcdefg"))


async def settled_taken(acting: Acting) -> list[str]:
    await acting.settled()
    return acting.elsewhere.taken


async def test_a_message_that_a_real_master_cannot_store_is_passed_by_none(acting: Acting) -> None:
    """There all messages are refused for the same reason, and come in order once it has passed."""
    acting.broker.role.is_master = False
    acting.served.clock.advance(6_000)
    await acting.settled()
    assert not acting.state.open
    acting.broker.role.is_master = True
    await acting.until(lambda: acting.delivered() == ["a", "c", "e"])


async def test_after_a_restart_they_are_delivered(acting: Acting) -> None:
    await acting.leave_three_open()
    await acting.part.service.flush()
    file = acting.part.service.encode()
    await acting.part.stop()
    again = Acting(acting.served)
    again.part.service.restore(file)
    await again.part.start()
    again.elsewhere.without.clear()
    again.act()
    await again.until(lambda: again.elsewhere.taken == ["b", "d", "f"])
    await again.settled()
    assert again.elsewhere.taken == ["b", "d", "f"]


UNITS = tuple(Unit(NO_UNIT, 1, 4_000, slot, 100 * slot, 200, 7) for slot in (5_000, 6_000))


def test_a_checkpoint_with_open_messages_is_one_for_rocketmq_too() -> None:
    whole = Checkpoint(9_000, 52, 3, 3, open=UNITS)
    data = whole.encode()
    assert decode_checkpoint(data) == whole
    assert decode_checkpoint(data[: CHECKPOINT.size]).read_ms == 5_000, "it delivers from there on"
    # RocketMQ writes into the file, and leaves what is behind.
    later = Checkpoint(12_000, 52, 3, 3).encode() + data[CHECKPOINT.size :]
    assert decode_checkpoint(later) == Checkpoint(12_000, 52, 3, 3)
    assert decode_checkpoint(data[: CHECKPOINT.size] + bytes(4040)).open == ()
    with pytest.raises(ValueError, match="2 open messages"):
        decode_checkpoint(data[:-1])
