"""Handlers of blocking clients: whatever they raise, and how many run at a time."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import pytest

from batonmq import sync
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.worker_threads import WorkerThreads
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeCluster
from .pop_fakes import PopBroker

WAIT_S = 10.0
"""More than anything here takes, unless it hangs."""
MANY = 40
"""More threads than the executor of an event loop has."""


def cancelled() -> None:
    future: Future[None] = Future()
    future.cancel()
    future.result()


def task_cancelled() -> None:
    raise asyncio.CancelledError


RAISES: dict[str, tuple[Callable[[], object], type[BaseException]]] = {
    "an error": (lambda: {}["key"], KeyError),
    "StopIteration": (lambda: next(iter(())), StopIteration),
    "SystemExit": (lambda: sys.exit(3), SystemExit),
    "a cancelled future": (cancelled, CancelledError),
    "a cancelled task": (task_cancelled, asyncio.CancelledError),
}


@pytest.mark.parametrize("name", RAISES)
async def test_the_caller_gets_an_ordinary_exception(name: str) -> None:
    function, kind = RAISES[name]
    threads = WorkerThreads("test", 1)
    with pytest.raises(Exception) as caught:
        await asyncio.wait_for(threads.calling(lambda argument: function())(1), WAIT_S)
    assert isinstance(caught.value, kind) or isinstance(caught.value.__cause__, kind)
    assert not isinstance(caught.value, StopIteration)
    assert await threads.calling(lambda argument: argument)(2) == 2
    threads.close()


@pytest.mark.parametrize("kind", [sync.Consumer, sync.PopConsumer])
async def test_a_consumer_outlives_whatever_its_handlers_raise(
    kind: type[sync.Consumer | sync.PopConsumer],
) -> None:
    async with FakeCluster() as cluster:
        await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with Producer("p", cluster.namesrv) as producer:
            for name in [*RAISES, "good"]:
                await producer.send(Message("t", name.encode()))
        seen: set[str] = set()

        def handle(message: MessageExt) -> None:
            name = message.body.decode()
            seen.add(name)
            if name in RAISES:
                RAISES[name][0]()

        def blocking() -> None:
            consumer = kind("g", cluster.namesrv, concurrency=1, from_where=ConsumeFromWhere.FIRST_OFFSET)
            consumer.subscribe("t", "*", handle)
            with consumer:
                end = time.monotonic() + WAIT_S
                while "good" not in seen and time.monotonic() < end:
                    time.sleep(0.01)

        await asyncio.to_thread(blocking)
        assert seen == {*RAISES, "good"}


async def test_as_many_handlers_run_as_the_consumer_may() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("p", cluster.namesrv) as producer:
            for _ in range(MANY):
                await producer.send(Message("t", b"x"))
        together = threading.Barrier(MANY)
        met: list[int] = []

        def handle(message: MessageExt) -> None:
            met.append(together.wait(WAIT_S / 2))

        def blocking() -> None:
            consumer = sync.Consumer(
                "g", cluster.namesrv, concurrency=MANY, from_where=ConsumeFromWhere.FIRST_OFFSET
            )
            consumer.subscribe("t", "*", handle)
            with consumer:
                end = time.monotonic() + WAIT_S
                while len(met) < MANY and time.monotonic() < end:
                    time.sleep(0.01)

        await asyncio.to_thread(blocking)
        assert len(met) == MANY
