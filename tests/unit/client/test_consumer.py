"""The consumer against brokers in memory: topics and tags, where a group begins, sharing, broadcasting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
    MessageModel,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError

from .fakes import FakeCluster
from .helpers import FIRST, fill, until


async def test_all_messages_once_and_their_offsets_committed() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=3)
        await fill(cluster, 30)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 30)
            assert len(consumer.assigned) == 3
        assert sorted(map(int, seen)) == list(range(30))
        assert sum(broker.log.offsets["g", MessageQueue("t", "a", number)] for number in range(3)) == 30
        assert broker.left[-1] == consumer.client_id and broker.clients["g"] == []
        beat = broker.heartbeats[-2].consumer_data_set or broker.heartbeats[-1].consumer_data_set
        assert {data.topic for data in beat[0].subscription_data_set} == {"t", "%RETRY%g"}


async def test_only_the_tags_that_were_asked_for() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        for tag in "abc":
            await fill(cluster, 2, tags=tag)
        seen: list[str | None] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "a || c", lambda message: seen.append(message.tags))
        async with consumer:
            await until(lambda: len(seen) == 4)
        assert sorted(map(str, seen)) == ["a", "a", "c", "c"]


WHERE = [
    (ConsumeFromWhere.FIRST_OFFSET, 0, 5),
    (ConsumeFromWhere.TIMESTAMP, 2000, 3),
    (ConsumeFromWhere.LAST_OFFSET, 0, 0),
]


@pytest.mark.parametrize(("where", "timestamp", "count"), WHERE)
async def test_where_a_new_group_begins(where: ConsumeFromWhere, timestamp: int, count: int) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 5)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=where, from_timestamp_ms=timestamp)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: broker.pulls >= 2)
            await until(lambda: len(seen) >= count)
        assert len(seen) == count


async def test_a_committed_offset_goes_before() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 5)
        broker.log.offsets["g", MessageQueue("t", "a", 0)] = 3
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 2)
        assert sorted(seen) == [b"3", b"4"]


async def test_batches_of_messages() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 20)
        sizes: list[int] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda messages: sizes.append(len(messages)), batch_size=8)
        async with consumer:
            await until(lambda: sum(sizes) == 20)
        assert max(sizes) == 8


async def test_two_members_share_the_queues() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=4)
        seen: list[bytes] = []

        def member() -> Consumer:
            consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
            consumer.subscribe("t", "*", lambda message: seen.append(message.body))
            return consumer

        first, second = member(), member()
        async with first:
            await until(lambda: len(first.assigned) == 4)
            async with second:
                await until(lambda: (len(first.assigned), len(second.assigned)) == (2, 2))
                assert not set(first.assigned) & set(second.assigned)
                await fill(cluster, 20)
                await until(lambda: len(seen) == 20)
            await until(lambda: len(first.assigned) == 4)
        assert sorted(map(int, seen)) == list(range(20))


async def test_broadcasting_gives_everything_to_everybody_and_remembers(tmp_path: Path) -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=2)
        await fill(cluster, 6)
        for expected in (6, 0):
            seen: list[bytes] = []
            consumer = Consumer(
                "g",
                cluster.namesrv,
                from_where=FIRST,
                model=MessageModel.BROADCASTING,
                offsets_dir=str(tmp_path),
            )
            consumer.subscribe("t", "*", lambda message, seen=seen: seen.append(message.body))  # type: ignore[misc]
            async with consumer:
                assert len(consumer.assigned) == 2
                await until(lambda seen=seen, expected=expected: len(seen) >= expected)  # type: ignore[misc]
                await asyncio.sleep(0.1)
            assert len(seen) == expected
        (tmp_path / "g.json").write_text("{broken")
        consumer = Consumer("g", cluster.namesrv, model=MessageModel.BROADCASTING, offsets_dir=str(tmp_path))
        with pytest.raises(OSError, match=r"g\.json"):
            await consumer._offsets.read(MessageQueue("t", "a", 0))
        await consumer._session.close()


async def test_what_cannot_be_subscribed() -> None:
    consumer = Consumer("g", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="subscribe"):
        await consumer.start()
    consumer.subscribe("t", "*", lambda message: None)
    with pytest.raises(ValueError, match="already"):
        consumer.subscribe("t", "*", lambda message: None)
    with pytest.raises(MQError, match="illegal"):
        consumer.subscribe("a b", "*", lambda message: None)
    with pytest.raises(ValueError, match="batch_size is 0"):
        consumer.subscribe("u", "*", lambda messages: None, batch_size=0)
    with pytest.raises(NetError):
        await consumer.start()
    with pytest.raises(MQError, match="illegal"):
        Consumer("a b", "127.0.0.1:1")


async def test_a_topic_that_does_not_exist_is_waited_for() -> None:
    """As with RocketMQ's consumer: the other topics are consumed, and this one once it is created."""
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("there", a=1)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, poll_interval_ms=50)
        consumer.subscribe("missing", "*", lambda message: seen.append(message.body))
        consumer.subscribe("there", "*", lambda message: seen.append(message.body))
        async with consumer, Producer("p", cluster.namesrv) as producer:
            await producer.send(Message("there", b"1"))
            await until(lambda: seen == [b"1"])
            cluster.topic("missing", a=1)
            await producer.send(Message("missing", b"2"))
            await until(lambda: seen == [b"1", b"2"])


async def test_a_consumer_whose_only_topic_comes_later_joins_its_group_then() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, poll_interval_ms=50)
        consumer.subscribe("missing", "*", lambda message: seen.append(message.body))
        async with consumer, Producer("p", cluster.namesrv) as producer:
            cluster.topic("missing", a=1)
            await producer.send(Message("missing", b"1"))
            await until(lambda: seen == [b"1"])
            assert consumer.client_id in broker.clients["g"]
