"""A consumer stops pulling while it holds too many messages or bytes."""

from __future__ import annotations

import asyncio
import zlib

from batonmq.client.consumer import Consumer
from batonmq.protocol.compression import CompressionType
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeCluster
from .helpers import FIRST, fill, store_as_sent, until


async def test_flow_control_stops_pulling() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 100)
        gate = asyncio.Event()
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            await gate.wait()
            seen.append(message.body)

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, max_cached_messages=40, concurrency=4)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await asyncio.sleep(0.3)
            assert broker.pulls <= 2 + 1
            gate.set()
            await until(lambda: len(seen) == 100)


async def test_flow_control_counts_inflated_bodies() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        for _ in range(8):
            store_as_sent(cluster, zlib.compress(bytes(100_000)), CompressionType.ZLIB.sys_flag)
        gate = asyncio.Event()
        seen: list[int] = []

        async def handle(message: MessageExt) -> None:
            await gate.wait()
            seen.append(len(message.body))

        consumer = Consumer(
            "g", cluster.namesrv, from_where=FIRST, max_cached_bytes=150_000, pull_batch_size=1
        )
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await asyncio.sleep(0.2)
            assert broker.pulls == 2
            gate.set()
            await until(lambda: seen == [100_000] * 8)
