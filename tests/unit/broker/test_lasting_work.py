"""One failure of a broker's background work, an error of the disk or a bug, does not end that work."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.broker.conftest import Served

from batonmq.broker.messages.internal import put
from batonmq.broker.monitoring import part as monitoring
from batonmq.broker.monitoring.part import MonitoringPart
from batonmq.broker.part import Part
from batonmq.broker.statictopic import expiry
from batonmq.broker.statictopic.part import StaticTopicPart
from batonmq.broker.tables import part as tables_part
from batonmq.broker.tables.part import TablesPart
from batonmq.broker.timer import service as timer_service
from batonmq.broker.timer.deliverer import Deliverer
from batonmq.broker.timer.enqueuer import Enqueuer
from batonmq.broker.timer.part import TimerPart
from batonmq.broker.transaction.part import TransactionPart
from batonmq.broker.transaction.recovery import Recovery
from batonmq.broker.upkeep import pace
from batonmq.broker.upkeep.part import UpkeepPart
from batonmq.common import tasks
from batonmq.protocol.bodies.static_topics import TopicQueueMappingDetail
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage

pytestmark = pytest.mark.pure

DISK = OSError(errno.EIO, "Input/output error")
BUG = RuntimeError("a bug")


class Fails:
    """A method that fails the first few times; `works` counts the calls that reach it."""

    def __init__(self, method: Callable[..., Any], error: Exception, failures: int = 3) -> None:
        self._method, self._error, self._failures = method, error, failures
        self.works = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._failures:
            self._failures -= 1
            raise self._error
        self.works += 1
        return self._method(*args, **kwargs)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.001)
    monkeypatch.setattr(tasks, "AGAIN_MOST_S", 0.002)
    for module in (monitoring, tables_part):
        monkeypatch.setattr(module, "SAMPLE_INTERVAL_MS", 1)
    monkeypatch.setattr(timer_service, "EXPIRY_S", 0.001)
    monkeypatch.setattr(pace, "INDEX_DELAY_S", 0.001)
    monkeypatch.setattr(expiry, "PERIOD_S", 0.001)
    yield


def part_of(served: Served, kind: type[Part]) -> Any:
    (part,) = (each for each in served.parts if isinstance(each, kind))
    return part


def soon(served: Served) -> None:
    settings = served.broker.settings
    settings.broker = replace(settings.broker, timer_flush_interval_ms=10)
    settings.store = replace(
        settings.store,
        flush_interval_consume_queue=10,
        clean_resource_interval=10,
        delete_when=";".join(map(str, range(24))),
    )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("error", [DISK, BUG], ids=["disk", "bug"])
@pytest.mark.parametrize(
    ("kind", "owner", "method"),
    [
        (MonitoringPart, lambda served: served.broker.stats, "sample"),
        (TablesPart, lambda served: served.broker.tables.locks, "drop_expired"),
        (UpkeepPart, lambda served: served.store, "flush_queues"),
        (UpkeepPart, lambda served: served.store, "delete_expired"),
        (UpkeepPart, lambda served: served.store, "build_index"),
        (StaticTopicPart, lambda served: part_of(served, StaticTopicPart).expired, "forget"),
        (TimerPart, lambda served: part_of(served, TimerPart).service, "flush"),
        (TimerPart, lambda served: part_of(served, TimerPart).state.timers.log, "drop_before"),
    ],
)
async def test_what_fails_continues_and_is_logged_once(
    served: Served,
    kind: type[Part],
    owner: Callable[[Served], Any],
    method: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    soon(served)
    if kind is StaticTopicPart:  # without static topics it does nothing
        served.broker.tables.mappings.update(TopicQueueMappingDetail(topic="Static", bname="b"))
    part = part_of(served, kind)
    await part.start()
    target = type(owner(served))
    fails = Fails(getattr(target, method), error)
    monkeypatch.setattr(target, method, lambda *args, **more: fails(*args, **more))
    served.put(0, b"x", key="k")
    part.records_visible([])
    await until(lambda: fails.works > 0)
    monkeypatch.undo()
    await part.stop()
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert 1 <= len(errors) <= (3 if method == "delete_expired" else 1)


@pytest.mark.parametrize(("owner", "method"), [(Enqueuer, "put_some"), (Deliverer, "_deliver_slot")])
async def test_timers_continue(
    served: Served,
    owner: type[Any],
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = Fails(getattr(owner, method), BUG)
    monkeypatch.setattr(owner, method, lambda *args: fails(*args))
    part = part_of(served, TimerPart)
    await part.start()
    served.broker.appender.listeners.append(part.records_visible)
    part.role_changed(served.broker.role)
    properties = {"TIMER_DELAY_MS": "1000", "UNIQ_KEY": "k"}
    message = StoredMessage(topic="TopicJ", queue_id=0, body=b"x", properties=encode_properties(properties))
    stored = served.broker.redirects.apply(message, properties)
    assert stored is not None
    await put(served.broker.appender, stored)
    served.clock.advance(5_000)
    await until(lambda: served.store.queue_bounds("TopicJ", 0).max_offset == 1)
    await part.stop()
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1


async def test_transactions_begin_though_their_recovery_failed_at_first(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it every END_TRANSACTION would wait until another broker is master."""
    fails = Fails(Recovery.run, BUG)
    monkeypatch.setattr(Recovery, "run", lambda recovery: fails(recovery))
    part = part_of(served, TransactionPart)
    part.role_changed(served.broker.role)
    await until(lambda: part.term.ready.done())
    await part.stop()
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1
