"""What brokers and tools ask of a consumer: offsets, resets, a message consumed directly."""

from __future__ import annotations

from batonmq.client.consumer import Consumer
from batonmq.client.push.retries import RetryLater
from batonmq.protocol.bodies.clients import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    ResetConsumerClientOffset,
)
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.record import MessageExt, StoredMessage, encode_record

from .fakes import FakeCluster
from .helpers import FIRST, fill, until


async def test_brokers_may_ask_and_reset() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 4)
        queue = MessageQueue("t", "a", 0)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 4)
            await until(lambda: bool(broker.server.connections))
            (connection,) = broker.server.connections
            answer = await connection.call(GetConsumerRunningInfo("g", consumer.client_id))
            info = decode(answer.body, ConsumerRunningInfo)
            assert info.mq_table[queue].commit_offset == 4 and info.jstack is None
            answer = await connection.call(GetConsumerRunningInfo("g", consumer.client_id, True))
            stacks = decode(answer.body, ConsumerRunningInfo).jstack
            assert stacks is not None and "pulling.py" in stacks and "thread MainThread" in stacks
            body = encode(ResetOffsetBody({queue: 2}))
            connection.oneway(ResetConsumerClientOffset("t", "g"), body)
            await until(lambda: len(seen) == 6)
        assert sorted(seen[4:]) == [b"2", b"3"]


async def test_a_tool_has_messages_consumed_directly_and_asks_for_offsets() -> None:
    def handle(message: MessageExt) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("no flight")
        if message.body == b"later":
            raise RetryLater(2)

    def record(body: bytes, topic: str = "t") -> bytes:
        stored = StoredMessage(topic=topic, queue_id=0, body=body, store_host=pack_host("10.0.0.1", 1))
        return encode_record(stored, queue_offset=9, physical_offset=9, store_timestamp=1)

    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        queue = MessageQueue("t", "a", 0)
        await fill(cluster, 2)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(seen) == 2)
            (connection,) = broker.server.connections

            async def result(data: bytes) -> tuple[object, str | None]:
                answer = await connection.call(ConsumeMessageDirectly("g", consumer.client_id), data)
                shown = decode(answer.body, ConsumeMessageDirectlyResult)
                return shown.consume_result, shown.remark

            kinds = ConsumeResult
            assert await result(record(b"fine")) == (kinds.SUCCESS, None)
            assert await result(record(b"bad")) == (kinds.THROW_EXCEPTION, "ValueError: no flight")
            assert await result(record(b"later")) == (kinds.LATER, "delay level 2")
            other = await result(record(b"x", "other"))
            assert other == (kinds.THROW_EXCEPTION, "LookupError: no handler for other")
            assert seen[2:] == [b"fine", b"bad", b"later"] and broker.log.sent_back == []
            answer = await connection.call(GetConsumerStatusFromClient("t", "g"))
            status = decode(answer.body, GetConsumerStatusBody)
            assert status.message_queue_table == {queue: 2}
