"""An orderly consumer keeps the order of each queue, locks its queues, and has a limit of attempts."""

from __future__ import annotations

import asyncio

from batonmq.client.consumer import Consumer
from batonmq.client.push.retries import RetryLater
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeCluster
from .helpers import FIRST, fill, until


async def test_order_is_kept_and_a_failure_holds_its_queue_only() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=2)
        for queue in (0, 1):
            await fill(cluster, 10, queue=MessageQueue("t", "a", queue))
        seen: dict[int, list[int]] = {0: [], 1: []}
        failures = 0

        async def handle(message: MessageExt) -> None:
            nonlocal failures
            if message.queue_id == 0 and message.body == b"4" and failures < 3:
                failures += 1
                raise RetryLater
            await asyncio.sleep(0)
            seen[message.queue_id].append(int(message.body))

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=20)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: sum(map(len, seen.values())) == 20)
            assert set(broker.locks.values()) == {consumer.client_id}
        assert seen == {0: list(range(10)), 1: list(range(10))}
        assert broker.locks == {} and failures == 3 and broker.log.sent_back == []


async def test_ordered_messages_over_the_limit_become_dead_letters() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 3)
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            if message.body == b"1":
                raise RetryLater
            seen.append(message.body)

        consumer = Consumer(
            "g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=10, max_reconsume_times=2
        )
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(seen) == 2)
        assert seen == [b"0", b"2"]
        assert [header.delay_level for header in broker.log.sent_back] == [-1]


async def test_a_queue_locked_by_another_is_left_alone() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        queue = MessageQueue("t", "a", 0)
        broker.locks[queue] = "another"
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=20)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await asyncio.sleep(0.15)
            assert seen == []
            del broker.locks[queue]
            await until(lambda: seen == [b"0"])
