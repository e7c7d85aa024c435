"""The simple consumer against brokers in memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from batonmq.client.filter import sql
from batonmq.client.message import Message
from batonmq.client.pop import sources
from batonmq.client.producer import Producer
from batonmq.client.simple_consumer import SimpleConsumer
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import ConsumerRunningInfo, ConsumeType
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError, error_for
from batonmq.protocol.headers.broker.pop import PopMessageResponse
from batonmq.protocol.headers.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import StoredMessage, encode_record

from .fakes import FakeCluster
from .helpers import FIRST
from .pop_fakes import PopBroker


async def fill(cluster: FakeCluster, count: int, broker: str = "a", **options: Any) -> None:
    async with Producer("p", cluster.namesrv) as producer:
        for number in range(count):
            message = Message("t", b"%d" % number, **options)
            await producer.send(message, queue=MessageQueue("t", broker, number % 2))


async def test_messages_are_received_once_and_acknowledged() -> None:
    async with FakeCluster() as cluster:
        a, b = await cluster.broker_of(PopBroker, "a"), await cluster.broker_of(PopBroker, "b")
        cluster.topic("t", a=2, b=2)
        await fill(cluster, 10, "a")
        await fill(cluster, 10, "b")
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            messages = []
            while len(messages) < 20:
                received = await consumer.receive(4, wait=1)
                assert 0 < len(received) <= 4
                messages += received
            assert await consumer.receive(wait=0) == []
            await consumer.ack(messages[:-1])
            await consumer.ack(messages[-1])
            assert sorted(int(message.body) for message in messages) == sorted([*range(10), *range(10)])
        assert sorted(a.acks) == sorted(b.acks) == [("t", q, n) for q in (0, 1) for n in range(5)]
        assert a.batch_acks == b.batch_acks == 1 and a.single_acks + b.single_acks == 1
        assert a.pops[0].init_mode == 0 and not a.pops[0].order
        (group,) = next(beat for beat in a.heartbeats if beat.consumer_data_set).consumer_data_set
        assert (group.group_name, group.consume_type) == ("g", ConsumeType.ACTIVELY)
        assert a.left[-1] == b.left[-1] == consumer.client_id


async def test_what_is_not_acknowledged_is_delivered_again_and_can_be_acknowledged_then() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        await fill(cluster, 1)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            (first,) = await consumer.receive(invisible_duration=0.2)
            began = time.monotonic()
            (again,) = await consumer.receive(wait=3)
            assert 0.1 < time.monotonic() - began < 1
            assert (again.body, again.topic, first.reconsume_times, again.reconsume_times) == (
                b"0",
                "t",
                0,
                1,
            )
            await consumer.change_invisible_duration(again, 0.1)
            assert broker.changes[0].topic == "%RETRY%g_t", "it is stored in the retry topic now"
            (third,) = await consumer.receive(wait=3)
            await consumer.change_invisible_duration(third, 5)
            await consumer.ack(third)
            assert await consumer.receive(wait=0.1) == []
        assert broker.acks == [("t", 0, 0)]


async def test_the_broker_that_has_a_message_answers_while_others_wait() -> None:
    """A receive waits at all brokers, not at one (apache/rocketmq-clients#913)."""
    async with FakeCluster() as cluster:
        brokers = {name: await cluster.broker_of(PopBroker, name) for name in "abc"}
        cluster.topic("t", a=2, b=2, c=2)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            for name in "cab":
                receiving = asyncio.create_task(consumer.receive(wait=10))
                await asyncio.sleep(0.1)
                began = time.monotonic()
                await fill(cluster, 1, name)
                (message,) = await receiving
                assert time.monotonic() - began < 0.25
                await consumer.ack(message)
        assert all(broker.popped == 1 for broker in brokers.values()), "no message was taken in vain"


async def test_a_broker_is_asked_once_at_a_time_however_many_receive() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            waiting = [asyncio.create_task(consumer.receive(1, wait=5)) for _ in range(20)]
            await asyncio.sleep(0.9)
            assert broker.notifications <= 5
            await fill(cluster, 20)
            received = await asyncio.gather(*waiting)
            assert sorted(int(message.body) for (message,) in received) == list(range(20))


async def cancelled_in_a_pop(consumer: SimpleConsumer, broker: PopBroker) -> None:
    """Cancel a receive after the broker has handed out messages and before its answer comes."""
    broker.answer_delay_s = 0.1
    receiving = asyncio.create_task(consumer.receive(wait=5))
    while not broker.popped:
        await asyncio.sleep(0.001)
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    assert receiving.cancelled()


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            await fill(cluster, 3)
            await cancelled_in_a_pop(consumer, broker)
            await asyncio.sleep(0.2)
            received = [await consumer.receive(2, wait=2) for _ in range(2)]
            assert [len(messages) for messages in received] == [2, 1]
            assert broker.popped == 1, "they are those of the receive that was cancelled"
            assert {message.body for messages in received for message in messages} == {b"0", b"1", b"2"}


async def test_messages_of_a_cancelled_receive_are_left_alone_when_their_time_is_nearly_over() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST, invisible_duration=0.4) as consumer:
            consumer.subscribe("t")
            await fill(cluster, 1)
            await cancelled_in_a_pop(consumer, broker)
            await asyncio.sleep(0.25)
            (message,) = await consumer.receive(wait=2)
            assert (broker.popped, message.reconsume_times) == (2, 1)


async def test_close_gives_back_what_nobody_received() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            await fill(cluster, 1)
            await cancelled_in_a_pop(consumer, broker)
        assert [(change.invisible_time, change.suspend) for change in broker.changes] == [(1, True)]


async def test_only_tags_that_were_asked_for_and_others_are_acknowledged() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        await fill(cluster, 2, tags="x")
        await fill(cluster, 2, tags="y")
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t", "y || z")
            received = await consumer.receive(wait=1)
            assert [message.tags for message in received] == ["y", "y"]
        assert broker.pops[0].exp == "y || z" and broker.pops[0].exp_type == "TAG"
        assert len(broker.acks) == 2, "a broker compares hash codes; the rest is acknowledged here"


async def test_an_sql_expression_goes_to_the_brokers_and_their_refusal_to_the_caller() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with SimpleConsumer("g", cluster.namesrv) as consumer:
            consumer.subscribe("t", sql("a > 3"))
            with pytest.raises(MQError, match="not supported"):  # CHECK_CLIENT_CONFIG
                await consumer.receive(wait=0)
            broker.answer = lambda code: (
                MQError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "cannot parse")
                if code == RequestCode.POP_MESSAGE
                else None
            )
            with pytest.raises(MQError, match="cannot parse"):
                await consumer.receive(wait=5)


@pytest.mark.parametrize(
    "bad",
    [
        {"start_offset_info": "0 0 0;0 0"},
        {"start_offset_info": "0 x 0"},
        {"start_offset_info": "0 7 0"},
        {"msg_offset_info": "0 0 nine"},
        {"msg_offset_info": "0 0 99"},
        {"order_count_info": ";;; ; ;"},
    ],
)
async def test_an_answer_whose_parts_do_not_fit_is_logged_and_read_again(
    bad: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with Producer("p", cluster.namesrv) as producer:
            await producer.send(Message("t", b"x"))

        def spoiled(header: PopMessageResponse) -> PopMessageResponse:
            return msgspec.structs.replace(header, **bad)

        broker.rewrite = spoiled
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            assert await consumer.receive(invisible_duration=0.2, wait=0.1) == []
            assert "cannot be read" in caplog.text
            broker.rewrite = lambda header: header
            (message,) = await consumer.receive(wait=3)
            assert message.body == b"x"


async def test_a_body_that_does_not_inflate_takes_no_other_message_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        queue = MessageQueue("t", "a", 0)
        async with Producer("p", cluster.namesrv) as producer:
            await producer.send(Message("t", b"before"))
            spoiled = StoredMessage(
                topic="t", queue_id=0, body=b"not compressed", sys_flag=MessageSysFlag.COMPRESSED
            )
            record = encode_record(spoiled, queue_offset=1, physical_offset=1_000, store_timestamp=0)
            broker.log.records[queue].append(record)
            await producer.send(Message("t", b"behind" * 10_000))
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            messages = await consumer.receive(wait=1)
            assert [message.body for message in messages] == [b"before", b"behind" * 10_000]
            await consumer.ack(messages)
        assert "cannot be read" in caplog.text
        assert broker.acks == [("t", 0, 0), ("t", 0, 2)]


async def test_a_receipt_that_a_sender_invented_is_not_believed() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with Producer("p", cluster.namesrv) as producer:
            for text in ("junk", "0 1 2 3 0 elsewhere 0 0", "0 1 2 3 1 elsewhere 0 9"):
                await producer.send(Message("t", b"x", properties={"POP_CK": text}))
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            await consumer.ack(await consumer.receive(wait=1))
        assert broker.acks == [("t", 0, 0), ("t", 0, 1), ("t", 0, 2)]


async def test_what_cannot_be_received_or_acknowledged_is_said_at_once() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        consumer = SimpleConsumer("g", cluster.namesrv)
        with pytest.raises(RuntimeError, match="start"):
            await consumer.receive()
        async with consumer:
            with pytest.raises(RuntimeError, match="subscribe"):
                await consumer.receive()
            with pytest.raises(ValueError, match="names no tag"):
                consumer.subscribe("t", "||")
            with pytest.raises(MQError, match="illegal"):
                consumer.subscribe("bad topic")
            consumer.subscribe("missing")
            with pytest.raises(TopicNotExistError):
                await consumer.receive(wait=1)
            consumer.unsubscribe("missing")
            consumer.subscribe("t")
            for duration in (0, -1, 13 * 3600):
                with pytest.raises(ValueError, match="invisible"):
                    await consumer.receive(invisible_duration=duration)
            with pytest.raises(ValueError, match="max_messages"):
                await consumer.receive(0)
            async with Producer("p", cluster.namesrv) as producer:
                await producer.send(Message("t", b"x"))
            (message,) = await consumer.receive(wait=2)
            with pytest.raises(ValueError, match="receipt"):
                await consumer.ack(replace(message, properties={}))
            with pytest.raises(MQError, match="no receipt"):
                await consumer.ack(replace(message, properties={"POP_CK": "1 2 3"}))


async def test_receiving_continues_at_the_next_master() -> None:
    async with FakeCluster() as cluster:
        old, new = await cluster.broker_of(PopBroker, "a"), await cluster.broker_of(PopBroker, "a", 1)
        new.states = old.states
        cluster.topic("t", a=2)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            await fill(cluster, 2)
            (first, second) = await consumer.receive(wait=1)
            receiving = asyncio.create_task(consumer.receive(wait=10))
            await asyncio.sleep(0.05)
            old.kill()
            await old.server.stop()
            cluster.addresses["a"] = {0: new.address}
            await fill(cluster, 1)
            (third,) = await receiving
            await consumer.ack([first, second, third])
        assert len(new.acks) == 3


async def test_a_cluster_that_does_not_answer_is_an_error_after_the_wait() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with SimpleConsumer("g", cluster.namesrv) as consumer:
            consumer.subscribe("t")
            assert await consumer.receive(wait=0) == []
            broker.kill()
            await broker.server.stop()
            await asyncio.sleep(0.1)
            with pytest.raises(NetError):
                await consumer.receive(wait=0.3)


async def test_where_too_many_wait_the_consumer_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FULL_PAUSE_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        broker.answer = lambda code: (
            error_for(ResponseCode.POLLING_FULL, "full") if code == RequestCode.NOTIFICATION else None
        )
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t")
            receiving = asyncio.create_task(consumer.receive(wait=5))
            await asyncio.sleep(0.2)
            await fill(cluster, 1)
            (message,) = await receiving
            assert message.body == b"0"
            assert len(broker.pops) < 20


async def test_in_order_the_next_messages_of_a_queue_wait_for_the_acks() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with Producer("p", cluster.namesrv) as producer:
            for number in range(4):
                await producer.send(Message("t", b"%d" % number))
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST, orderly=True) as consumer:
            consumer.subscribe("t")
            first = await consumer.receive(2, wait=1)
            assert [message.body for message in first] == [b"0", b"1"]
            assert await consumer.receive(2, wait=0.1) == []
            await consumer.ack(first[0])
            await consumer.change_invisible_duration(first[1], 0.05)
            again = await consumer.receive(2, wait=1)
            assert [(message.body, message.reconsume_times) for message in again] == [(b"1", 1), (b"2", 0)]
            await consumer.ack(again)
        assert broker.pops[0].order


async def test_tools_see_a_simple_consumer_and_cannot_make_it_handle_a_message() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with SimpleConsumer("g", cluster.namesrv, from_where=FIRST) as consumer:
            consumer.subscribe("t", "x || y")
            assert await consumer.receive(wait=0) == []
            (connection,) = broker.server.connections
            answer = await connection.call(GetConsumerRunningInfo("g", consumer.client_id))
            info = decode(answer.body, ConsumerRunningInfo)
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
            assert [(each.topic, each.sub_string) for each in info.subscription_set] == [("t", "x || y")]
            assert info.mq_table == {} and info.mq_pop_table == {}
            stored = StoredMessage(topic="t", queue_id=0, body=b"x")
            body = encode_record(stored, queue_offset=9, physical_offset=9, store_timestamp=1)
            with pytest.raises(MQError, match="has no message handler"):
                await connection.call(ConsumeMessageDirectly("g", consumer.client_id), body)
