"""A consumer goes on at a new master, also one that is behind for a moment."""

from __future__ import annotations

import asyncio

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.push import pulling
from batonmq.protocol.bodies.common import MessageQueue

from .fakes import FakeCluster
from .helpers import FIRST, fill, until


async def test_pulling_continues_from_the_new_master() -> None:
    async with FakeCluster() as cluster:
        master = await cluster.broker("a")
        slave = await cluster.broker("a", 1)
        cluster.topic("t", a=2)
        await fill(cluster, 10)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 10)
            stop = asyncio.ensure_future(master.server.stop())
            master.kill()
            await asyncio.sleep(0.05)
            cluster.addresses["a"] = {0: slave.address}
            async with Producer("p", cluster.namesrv) as producer:
                for number in range(10, 20):
                    await producer.send(Message("t", b"%d" % number))
            await until(lambda: len(seen) == 20)
            await stop
        assert sorted(map(int, seen)) == list(range(20))
        assert slave.log.offsets["g", MessageQueue("t", "a", 0)] == 10


async def test_a_new_master_that_is_behind_for_a_moment_does_not_turn_us_back() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        queue = MessageQueue("t", "a", 0)
        await fill(cluster, 5)
        kept = broker.log.records[queue][:]
        del broker.log.records[queue][2:]
        broker.log.offsets["g", queue] = 5
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: broker.pulls >= 2)
            broker.log.records[queue][:] = kept
            await fill(cluster, 1)
            await until(lambda: len(seen) == 1)
        assert broker.log.offsets["g", queue] == 6


async def test_an_offset_beyond_the_end_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "MOVED_BACK_PATIENCE_S", 0.3)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        queue = MessageQueue("t", "a", 0)
        await fill(cluster, 2)
        broker.log.offsets["g", queue] = 50
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await asyncio.sleep(1.0)
            await fill(cluster, 1)
            await until(lambda: len(seen) == 1)
        assert broker.log.offsets["g", queue] == 3
