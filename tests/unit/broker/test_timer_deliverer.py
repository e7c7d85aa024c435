"""Due messages on their way into the log: each is stored once, whatever the appender says."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.broker.context import Broker
from batonmq.broker.messages.appender import PutStatus, Waiter
from batonmq.broker.timer import already, storing
from batonmq.broker.timer.already import AlreadyDelivered
from batonmq.broker.timer.counts import TimerCounts
from batonmq.broker.timer.deliverer import Deliverer
from batonmq.broker.timer.layout import MAGIC_DEFAULT, NO_UNIT, Unit
from batonmq.broker.timer.state import TimerState
from batonmq.broker.timer.storing import Due
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record
from batonmq.store.results import PutResult
from batonmq.store.results import PutStatus as StorePutStatus

OK = PutResult(StorePutStatus.PUT_OK, physical_offset=0, queue_offset=0)


class Log:
    """Answers each message with the next outcome for its body; PUT_OK when there is none left."""

    def __init__(self, **outcomes: list[tuple[PutStatus, PutResult | None]]) -> None:
        self._outcomes = outcomes
        self.stored: list[str] = []
        self.safe = False

    def submit(self, message: StoredMessage, waiter: Waiter) -> None:
        body = bytes(message.body).decode()
        left = self._outcomes.get(body)
        status, result = left.pop(0) if left else (PutStatus.PUT_OK, OK)
        if result is not None:
            self.stored.append(body)
        asyncio.get_running_loop().call_soon(waiter.stored, status, result)

    def is_acked(self, end_offset: int) -> bool:
        safe, self.safe = self.safe, True
        return safe


async def deliver(log: Log, *bodies: str) -> list[str]:
    """Topics that were counted as delivered."""
    left: list[str] = []
    role = SimpleNamespace(is_acting=False)
    state = SimpleNamespace(broker=SimpleNamespace(appender=log, role=role), open={})
    counts = SimpleNamespace(left=left.append)
    subject = Deliverer(cast(TimerState, state), cast(TimerCounts, counts))
    unit = Unit(NO_UNIT, MAGIC_DEFAULT, 0, 1_000, 0, 100, 7)
    due = [Due(StoredMessage(topic="T", queue_id=0, body=body.encode()), body, unit) for body in bodies]
    async with asyncio.timeout(5):
        await subject._settle(subject._submit(due))
    return left


class FailingQueue:
    """A queue with one delivered message, whose disk fails at the first reads."""

    def __init__(self, failures: int) -> None:
        properties = encode_properties({"UNIQ_KEY": "k", "TIMER_OUT_MS": "1"})
        message = StoredMessage(topic="T", queue_id=0, body=b"x", properties=properties)
        self.record = encode_record(message, queue_offset=0, physical_offset=0, store_timestamp=1)
        self.message = message
        self.failures = failures

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        return 0

    def get(self, topic: str, queue_id: int, offset: int, count: int) -> Any:
        buffers = [memoryview(self.record)] if offset == 0 else []
        return SimpleNamespace(next_offset=1, fetch=self.fetch, buffers=buffers)

    def fetch(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(("failures", "found"), [(already.ATTEMPTS - 1, True), (already.ATTEMPTS, False)])
async def test_a_disk_that_fails_does_not_end_all_deliveries(
    failures: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(already, "RETRY_S", 0.001)

    queue = FailingQueue(failures)
    broker = SimpleNamespace(store=queue, readers=None)
    assert await AlreadyDelivered(cast(Broker, broker), 0).take(queue.message) is found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "RETRY_S", 0.001)


async def test_nothing_is_due() -> None:
    assert await deliver(Log()) == []


async def test_refused_messages_are_stored_again_and_the_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal: Any = (PutStatus.SERVICE_NOT_AVAILABLE, None)
    log = Log(b=[refusal, refusal], d=[refusal])
    assert sorted(await deliver(log, "a", "b", "c", "d")) == ["a", "b", "c", "d"]
    assert sorted(log.stored) == ["a", "b", "c", "d"]
    assert len([each for each in caplog.records if "SERVICE_NOT_AVAILABLE" in each.message]) == 1


async def test_a_message_that_is_not_safe_yet_is_waited_for_and_not_stored_again() -> None:
    log = Log(a=[(PutStatus.FLUSH_SLAVE_TIMEOUT, OK)])
    assert await deliver(log, "a") == ["a"]
    assert log.stored == ["a"] and log.safe


async def test_another_master_or_no_store_at_all_ends_the_matter() -> None:
    log = Log(a=[(PutStatus.PUT_OK, None)], b=[(PutStatus.MESSAGE_ILLEGAL, None)])
    assert sorted(await deliver(log, "a", "b")) == ["a", "b"]
    assert log.stored == []


async def test_messages_that_have_expired_before_they_were_due_are_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject = Deliverer(cast(TimerState, SimpleNamespace()), cast(TimerCounts, None))
    subject._records = lambda units: asyncio.sleep(0, [None] * len(units))  # type: ignore[method-assign]
    units = [Unit(NO_UNIT, MAGIC_DEFAULT, 0, 1_000, 100 * number, 100, 7) for number in range(1, 51)]
    assert await subject._due(units, {}, set()) == []
    assert caplog.messages == [
        "50 timed messages are lost: the log has expired up to them (fileReservedTime), or they are damaged; "
        "the first one was at physical_offset=100"
    ]
