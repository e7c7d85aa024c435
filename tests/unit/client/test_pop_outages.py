"""Pop consumers while a broker is away: how often they ask for its route, and what they log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from batonmq.client.pop_consumer import PopConsumer
from batonmq.client.push import outages
from batonmq.client.simple_consumer import SimpleConsumer

from .fakes import FakeCluster
from .helpers import FIRST, fill, until
from .pop_fakes import PopBroker


async def lose(broker: PopBroker) -> None:
    broker.kill()
    await broker.server.stop()


async def test_a_pop_consumer_does_not_hammer_name_servers_while_a_broker_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "batonmq.client.consumer")
    monkeypatch.setattr(outages, "QUICK_S", 0.3)
    async with FakeCluster() as cluster:
        a, b = await cluster.broker_of(PopBroker, "a"), await cluster.broker_of(PopBroker, "b")
        cluster.topic("t", a=1, b=1)
        seen: list[bytes] = []
        consumer = PopConsumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await asyncio.sleep(0.2)
            await lose(b)
            await asyncio.sleep(0.7)
            asked, lines = cluster.asked, len(caplog.records)
            await asyncio.sleep(2)
            assert cluster.asked - asked <= 4 and len(caplog.records) - lines <= 2
            back = await cluster.broker_of(PopBroker, "b")
            await fill(cluster, 2)
            await until(lambda: len(seen) == 2 and len(a.acks) + len(back.acks) == 2)


async def test_a_pop_consumer_stops_popping_a_broker_that_left_the_route() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker_of(PopBroker, "a")
        b = await cluster.broker_of(PopBroker, "b")
        cluster.topic("t", a=1, b=1)
        consumer = PopConsumer("g", cluster.namesrv, from_where=FIRST, poll_interval_ms=50)
        seen: list[bytes] = []
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(consumer._looping) == 2)
            cluster.topic("t", a=1)
            await lose(b)
            await until(lambda: [queue.broker_name for queue in consumer._looping] == ["a"])
            asked = cluster.asked
            consumer._session._poll_interval_s = 60
            await asyncio.sleep(1)
            assert cluster.asked - asked <= 4
            cluster.topic("t", a=1, b=1)
            await cluster.broker_of(PopBroker, "b")
            await fill(cluster, 4)
            await until(lambda: len(seen) == 4)
            await until(lambda: len(consumer._looping) == 2)


async def test_a_simple_consumer_does_not_hammer_name_servers_while_a_broker_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outages, "QUICK_S", 0.3)
    async with FakeCluster() as cluster:
        await cluster.broker_of(PopBroker, "a")
        b = await cluster.broker_of(PopBroker, "b")
        cluster.topic("t", a=1, b=1)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            receive = asyncio.create_task(consumer.receive(wait=10))
            await asyncio.sleep(0.2)
            await lose(b)
            await asyncio.sleep(0.7)
            asked = cluster.asked
            await asyncio.sleep(2)
            assert cluster.asked - asked <= 4
            cluster.topic("t", a=1)
            await until(lambda: [queue.broker_name for queue in consumer._sources.queues()] == ["a"])
            await fill(cluster, 1)
            async with asyncio.timeout(0.9):
                assert [message.body for message in await receive] == [b"0"]
