"""Static topics (logical queues, RIP-21) between this project and the real Apache RocketMQ."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from batonmq import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    Message,
    MessageExt,
    MQError,
    PopConsumer,
    Producer,
    QueueReader,
    RetryLater,
    SendResult,
    TransactionProducer,
)
from tests.interop.conftest import Peer
from tests.interop.test_client_against_java import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
TOPIC = "Static"
QUEUES = 4
MOCK = "__syslo__global__"


async def java_cluster(peer: Peer, *names: str) -> str:
    """A name server and brokers of RocketMQ in one cluster; the name server's address."""
    namesrv = await peer.start("namesrv")
    for name in names:
        await peer.start("broker", {"namesrvAddr": namesrv.address, "brokerName": name})
    async with Admin(namesrv.address) as admin, asyncio.timeout(60):
        while len(await admin.masters()) < len(names):
            await asyncio.sleep(0.2)
    return namesrv.address


async def mqadmin(peer: Peer, namesrv: str, command: str, *arguments: str) -> str:
    output = await peer.admin(command, "-n", namesrv, *arguments)
    assert "failed" not in output and "Exception" not in output, output
    return output


@asynccontextmanager
async def sending(producer: Producer, results: list[SendResult]) -> AsyncIterator[None]:
    """Messages of four keys, one after the other, until the block ends."""

    async def send() -> None:
        while True:
            number = len(results)
            message = Message(TOPIC, b"%d" % number, sharding_key=f"key-{number % 4}")
            results.append(await producer.send(message))
            await asyncio.sleep(0.005)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        # A cancelled send may be stored all the same: the last number is then sent but not counted.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_quick_clients_go_on_through_a_remapping(peer: Peer) -> None:
    namesrv = await java_cluster(peer, "a", "b")
    await mqadmin(peer, namesrv, "updateStaticTopic", "-t", TOPIC, "-qn", str(QUEUES), "-b", "a")
    ordered: dict[int, list[MessageExt]] = defaultdict(list)
    shared: list[MessageExt] = []
    failed: set[bytes] = set()

    def in_order(message: MessageExt) -> None:
        ordered[message.queue_id].append(message)

    def share(message: MessageExt) -> None:
        if message.body in (b"5", b"6") and message.body not in failed:
            failed.add(message.body)
            raise RetryLater(1 if message.body == b"5" else -1)
        shared.append(message)

    results: list[SendResult] = []
    first = ConsumeFromWhere.FIRST_OFFSET
    consumers = [
        Consumer("g-ordered", namesrv, orderly=True, from_where=first),
        *(Consumer("g-shared", namesrv, from_where=first) for _ in range(2)),
    ]
    consumers[0].subscribe(TOPIC, "*", in_order)
    for consumer in consumers[1:]:
        consumer.subscribe(TOPIC, "*", share)
    async with Producer("p", namesrv) as producer:
        for consumer in consumers:
            await consumer.start()
        async with sending(producer, results):
            await until(lambda: len(results) > 100, "100 messages are sent")
            await mqadmin(peer, namesrv, "remappingStaticTopic", "-t", TOPIC, "-b", "b")
            moved = len(results)
            await until(lambda: len(results) > moved + 200, "sends after the remapping")
        sent = [b"%d" % number for number in range(len(results))]
        await until(lambda: {m.body for m in shared} >= {*sent} - {b"6"}, "the group has all")
        await until(lambda: sum(map(len, ordered.values())) >= len(sent), "the ordered group has all")

        assert {result.queue.broker_name for result in results} == {MOCK}
        assert [r.broker_name for r in results] == sorted(r.broker_name for r in results)
        assert {results[0].broker_name, results[-1].broker_name} == {"a", "b"}
        for queue_id, messages in ordered.items():
            offsets = [message.queue_offset for message in messages]
            assert offsets == sorted(set(offsets)), f"queue {queue_id}: doubled or out of order"
            keys = [int(m.body) for m in messages]
            assert keys == sorted(keys)
            acknowledged = {r.queue_offset for r in results if r.queue.queue_id == queue_id}
            # The answer to a send during the remapping has no offset yet.
            assert {offset for offset in acknowledged if offset >= 0} <= set(offsets)
            assert offsets[0] == 0 and offsets[-1] >= 10_000
        assert set(ordered) == {r.queue.queue_id for r in results}
        for consumer in consumers:
            await consumer.stop()

        # What was committed is found at the new leader: nothing comes again.
        again: list[MessageExt] = []
        for group in ("g-ordered", "g-shared"):
            late = Consumer(group, namesrv, from_where=first)
            late.subscribe(TOPIC, "*", again.append)
            async with late:
                last = await producer.send(Message(TOPIC, b"last for " + group.encode()))
                await until(lambda: bool(again), f"{group} goes on")
                await asyncio.sleep(2)
        assert {m.body for m in again} <= {b"last for g-ordered", b"last for g-shared"}, len(again)

    async with QueueReader(namesrv) as reader:
        queues = await reader.queues(TOPIC)
        assert [queue.queue_id for queue in queues] == list(range(QUEUES))
        assert await reader.max_offset(last.queue) == last.queue_offset + 1
        assert await reader.min_offset(last.queue) == 0
        assert await reader.offset_at(last.queue, 0) == 0
        stored = [message async for message in reader.messages(TOPIC)]
        assert {m.body for m in stored} >= set(sent)
        assert {(m.queue_id, m.queue_offset) for m in stored} >= {
            (queue_id, m.queue_offset) for queue_id, messages in ordered.items() for m in messages
        }
        dead = [message.body async for message in reader.dead_letters("g-shared")]
    assert dead == [b"6"]
