"""Handlers that end, or do not end, in ways that no consumer wishes for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.pop import settling
from batonmq.client.pop_consumer import PopConsumer
from batonmq.client.push import tasks
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeCluster
from .helpers import FIRST, fill, until
from .pop_fakes import PopBroker


async def await_something_cancelled() -> None:
    """Raises CancelledError though nobody cancels the task that runs this."""
    shared = asyncio.ensure_future(asyncio.sleep(60))
    shared.cancel()
    await shared


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_that_awaited_something_cancelled_has_failed(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 4)
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            if message.body == b"0":
                await await_something_cancelled()
            seen.append(message.body)

        options: dict[str, Any] = {"orderly": True, "suspend_ms": 10} if orderly else {"concurrency": 1}
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, max_reconsume_times=1, **options)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(seen) == 3)
        assert seen == [b"1", b"2", b"3"]
        assert [header.delay_level for header in broker.log.sent_back] == [-1 if orderly else 0]
        assert "handler failed" in caplog.text


async def test_a_pop_handler_that_awaited_something_cancelled_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "RETRY_DELAYS_S", (0.05,))
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        attempts: list[int] = []

        async def handle(message: MessageExt) -> None:
            attempts.append(message.reconsume_times)
            if len(attempts) == 1:
                await await_something_cancelled()

        consumer = PopConsumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(broker.acks) == 1)
        assert attempts == [0, 1]


async def test_a_task_that_ends_though_nobody_cancelled_it_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    running: set[asyncio.Task[None]] = set()
    tasks.spawn(await_something_cancelled(), running)
    tasks.spawn(asyncio.sleep(60), running)
    await asyncio.sleep(0.01)
    await tasks.cancel(running)
    (record,) = caplog.records
    assert "nobody cancelled" in record.getMessage()


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("for_ever", [False, True])
async def test_stop_ends_though_a_handler_suppresses_its_cancellation(
    orderly: bool, for_ever: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "CANCEL_WAIT_S", 0.2)
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 2)
        begun, released = asyncio.Event(), asyncio.Event()
        calls = 0

        async def handle(message: MessageExt) -> None:
            nonlocal calls
            calls += 1
            begun.set()
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()
                if not for_ever:
                    return

        consumer = Consumer(
            "g", cluster.namesrv, from_where=FIRST, orderly=orderly, concurrency=1, stop_timeout_s=0.1
        )
        consumer.subscribe("t", "*", handle)
        await consumer.start()
        await begun.wait()
        async with asyncio.timeout(3):
            await consumer.stop()
        assert ("suppresses CancelledError" in caplog.text) == for_ever
        released.set()
        await asyncio.sleep(0.05)
        assert calls == 1
