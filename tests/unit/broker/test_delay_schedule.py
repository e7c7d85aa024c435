"""Delivery of delayed messages: clocks that are set, damaged records, failing disks, a log not confirmed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.broker.conftest import START_MS, Served

from batonmq.broker.delay import schedule as delay_schedule
from batonmq.broker.delay.core import KnownSince, to_schedule_topic
from batonmq.broker.delay.schedule import DelaySchedule
from batonmq.broker.messages.appender import PutStatus, Waiter
from batonmq.protocol.message.layout import POSITIONS
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.results import GetResult, GetStatus

DELAY_MS = 40
DAY_MS = 86_400_000


class Level:
    """A schedule with one level on a real store."""

    def __init__(self, served: Served) -> None:
        self.clock, self.store, self.broker = served.clock, served.store, served.broker
        self.schedule = DelaySchedule(
            (DELAY_MS,), self.store, self.broker.appender, self.broker.role, self.clock
        )
        self.broker.appender.listeners.append(self.schedule.on_visible)

    def send(self, *bodies: bytes) -> list[int]:
        """Commit log offsets of the messages that wait now."""
        waiting = [
            to_schedule_topic(StoredMessage(topic="TopicJ", queue_id=0, body=body), 1, 1) for body in bodies
        ]
        results = self.store.put(waiting)
        self.store.dispatch()
        self.broker.appender.progress()
        return [result.physical_offset for result in results]

    def damage(self, offset: int, field: str) -> None:
        """Overwrite a field of the record at this commit log offset."""
        path = self.store.config.commit_log_path / f"{0:020}"
        with path.open("r+b") as file:
            file.seek(offset + POSITIONS[field])
            file.write(b"\x7f\xff\xff\xf0")

    @property
    def delivered(self) -> int:
        return self.store.queue_bounds("TopicJ", 0).max_offset

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                await asyncio.sleep(0.005)


@pytest.fixture
async def level(served: Served) -> AsyncIterator[Level]:
    subject = Level(served)
    yield subject
    subject.schedule.stop()


async def test_messages_come_in_time_after_the_clock_was_set_back(level: Level) -> None:
    level.schedule.start()
    level.clock.set_wall(START_MS + 30 * DAY_MS)
    level.send(b"before")
    level.clock.set_wall(START_MS)
    level.send(b"after")  # its store time is 30 days ahead as well: store times never go back
    await asyncio.sleep(2 * DELAY_MS / 1_000)
    assert level.delivered == 0, "came early"
    level.clock.advance(DELAY_MS)
    await level.until(lambda: level.delivered == 2)


async def test_what_waited_before_a_start_waits_once_more_at_most(level: Level) -> None:
    level.clock.set_wall(START_MS + 30 * DAY_MS)
    level.send(b"a", b"b")
    level.clock.set_wall(START_MS)
    level.schedule.start()
    level.clock.advance(DELAY_MS)
    await level.until(lambda: level.delivered == 2)


@pytest.mark.parametrize("field", ["size", "magic", "queue_offset", "body_size"])
async def test_a_damaged_record_does_not_hold_back_its_level(
    level: Level, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = level.send(b"a", b"b", b"c", b"d")
    level.damage(offsets[1], field)
    level.clock.advance(DELAY_MS)
    level.schedule.start()
    await level.until(lambda: level.delivered == 3)
    await level.until(lambda: level.schedule.offsets == {1: 4})
    assert [each.message for each in caplog.records if "damaged" in each.message] == [
        "the record of delay level 1 at queue_offset=1 is damaged and is left out"
    ]
    level.send(b"e")
    level.clock.advance(DELAY_MS)
    await level.until(lambda: level.delivered == 4)


async def test_a_disk_that_fails_for_a_while_delays_messages_only(
    level: Level, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(delay_schedule, "RETRY_MS", 1)
    get, failures = level.store.get, [True, True, False]

    def cold(*args: Any) -> GetResult:
        result = get(*args)
        result.fetch = fetch if result.status is GetStatus.FOUND else None
        return result

    def fetch() -> None:
        if failures.pop(0):
            raise OSError(errno.EIO, "Input/output error")

    level.send(b"a")
    level.clock.advance(DELAY_MS)
    monkeypatch.setattr(level.schedule, "_store", Replaced(level.store, get=cold))
    level.schedule.start()
    await level.until(lambda: level.delivered == 1)
    assert len([each for each in caplog.records if "cannot be read" in each.message]) == 1


async def test_a_message_that_is_refused_brings_no_other_one_twice(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that acts as master finds another one for each message, or not."""
    monkeypatch.setattr(delay_schedule, "RETRY_MS", 1)
    appender, attempts, taken = level.broker.appender, 0, False

    def submit(message: StoredMessage, waiter: Waiter) -> None:
        nonlocal attempts
        if message.body in (b"b", b"d") and not taken:
            attempts += 1
            asyncio.get_running_loop().call_soon(waiter.stored, PutStatus.PUT_TO_REMOTE_BROKER_FAIL, None)
        else:
            appender.submit(message, waiter)

    level.send(b"a", b"b", b"c", b"d", b"e")
    level.clock.advance(DELAY_MS)
    monkeypatch.setattr(level.schedule, "_appender", Replaced(appender, submit=submit))
    level.schedule.start()
    await level.until(lambda: attempts > 10)
    assert level.delivered == 3 and level.schedule.offsets == {1: 1}
    taken = True
    await level.until(lambda: level.schedule.offsets == {1: 5})
    assert level.delivered == 5
    assert not level.schedule._ahead[1]


class Replaced:
    """An object with other methods."""

    def __init__(self, inner: Any, **methods: Any) -> None:
        self._inner = inner
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if name in self._methods else getattr(self._inner, name)


async def test_what_is_not_confirmed_yet_is_not_delivered_again(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new master knows from the former one that all three were delivered; it can read two of them."""
    monkeypatch.setattr(delay_schedule, "UNCONFIRMED_MS", 1)
    level.send(b"a", b"b", b"c")
    level.clock.advance(DELAY_MS)
    level.schedule.restore(b'{"offsetTable":{1:3}}')
    hidden = [True]

    def get(topic: str, queue_id: int, offset: int, *limits: int) -> GetResult:
        result = level.store.get(topic, queue_id, offset, *limits)
        if hidden and offset == 3:
            return replace(
                result, status=GetStatus.OFFSET_OVERFLOW_BADLY, next_offset=2, max_offset=2, buffers=[]
            )
        return result

    class Behind(Replaced):
        @property
        def dispatched_offset(self) -> int:
            return level.store.max_offset - len(hidden)

    monkeypatch.setattr(level.schedule, "_store", Behind(level.store, get=get))
    level.schedule.start()
    await asyncio.sleep(0.02)
    assert level.schedule.offsets == {1: 3}
    hidden.clear()
    level.send(b"d")
    level.clock.advance(DELAY_MS)
    await level.until(lambda: level.schedule.offsets == {1: 4})
    assert level.delivered == 1


def test_messages_are_known_since_they_came_or_a_little_later() -> None:
    known = KnownSince(10)
    assert known.known_ms(0, 99) == 0
    for end, time_ms in ((3, 100), (4, 120), (6, 125), (7, 129), (7, 500), (9, 600)):
        known.note(end, time_ms)
    ages = [known.known_ms(offset, 1_000) for offset in range(10)]
    assert ages == [900, 900, 900, 880, 871, 871, 871, 400, 400, 0]
    known.forget_before(7)
    assert [known.known_ms(offset, 1_000) for offset in (7, 8, 9)] == [400, 400, 0]


def test_a_busy_level_takes_bounded_memory() -> None:
    known = KnownSince(10)
    for number in range(10_000):
        known.note(number, number // 10)
    assert len(known._ends) <= 210
