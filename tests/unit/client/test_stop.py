"""Stopping a consumer: handlers that run, a handler that never ends, two calls of stop."""

from __future__ import annotations

import asyncio

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.pop_consumer import PopConsumer
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeCluster
from .helpers import FIRST, fill, until
from .pop_fakes import PopBroker


@pytest.mark.parametrize("kind", [Consumer, PopConsumer])
async def test_all_calls_of_stop_return_when_the_consumer_has_left(
    kind: type[Consumer] | type[PopConsumer],
) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        begun, gate = asyncio.Event(), asyncio.Event()

        async def handle(message: MessageExt) -> None:
            begun.set()
            await gate.wait()

        consumer = kind("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        await consumer.start()
        await begun.wait()
        cancelled = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert consumer.client_id not in broker.left
        stops = [asyncio.create_task(consumer.stop()) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert not any(stop.done() for stop in stops)
        gate.set()
        await asyncio.wait(stops, return_when=asyncio.FIRST_COMPLETED)
        await until(lambda: consumer.client_id in broker.left)
        await asyncio.gather(*stops, consumer.stop())
        assert broker.left.count(consumer.client_id) == 1


async def test_stop_waits_for_handlers_and_commits_what_they_did() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        began = asyncio.Event()
        ended = False

        async def handle(message: MessageExt) -> None:
            nonlocal ended
            began.set()
            await asyncio.sleep(0.1)
            ended = True

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        await consumer.start()
        await began.wait()
        await consumer.stop()
        assert ended and broker.log.offsets["g", MessageQueue("t", "a", 0)] == 1
        await consumer.stop()


async def test_a_handler_that_never_ends_is_cut_off_uncommitted() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        began = asyncio.Event()

        async def handle(message: MessageExt) -> None:
            began.set()
            await asyncio.sleep(60)

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, stop_timeout_s=0.1)
        consumer.subscribe("t", "*", handle)
        await consumer.start()
        await began.wait()
        await consumer.stop()
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 0
