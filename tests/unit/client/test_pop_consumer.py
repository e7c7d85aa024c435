"""The pop consumer against brokers in memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from batonmq.client.message import Message
from batonmq.client.pop import settling
from batonmq.client.pop.received import batch_acks, fits_a_batch
from batonmq.client.pop_consumer import PopConsumer
from batonmq.client.producer import Producer
from batonmq.client.push.retries import RetryLater
from batonmq.client.simple_consumer import SimpleConsumer
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.pop import differences_of
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.compression import CompressionType
from batonmq.protocol.errors import error_for
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    ResetConsumerClientOffset,
)
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.record import MessageExt, StoredMessage, encode_record
from batonmq.protocol.pop import Receipt

from .fakes import FakeCluster
from .helpers import FIRST, until
from .pop_fakes import PopBroker


async def fill(cluster: FakeCluster, count: int, broker: str = "a", queues: int = 2) -> None:
    async with Producer("p", cluster.namesrv) as producer:
        for number in range(count):
            queue = MessageQueue("t", broker, number % queues)
            await producer.send(Message("t", b"%d" % number), queue=queue)


def consumer_of(cluster: FakeCluster, handler: Any, **options: Any) -> PopConsumer:
    consumer = PopConsumer("g", cluster.namesrv, from_where=FIRST, **options)
    consumer.subscribe("t", "*", handler)
    return consumer


async def test_a_topic_that_does_not_exist_is_waited_for() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker_of(PopBroker, "a")
        seen: list[bytes] = []
        async with consumer_of(cluster, lambda message: seen.append(message.body), poll_interval_ms=50):
            cluster.topic("t", a=2)
            await fill(cluster, 2)
            await until(lambda: sorted(seen) == [b"0", b"1"])


async def test_all_messages_of_all_brokers_once_and_acknowledged() -> None:
    async with FakeCluster() as cluster:
        a, b = await cluster.broker_of(PopBroker, "a"), await cluster.broker_of(PopBroker, "b")
        cluster.topic("t", a=2, b=2)
        await fill(cluster, 50, "a")
        await fill(cluster, 50, "b")
        seen: list[bytes] = []
        async with consumer_of(cluster, lambda message: seen.append(message.body)):
            await until(lambda: len(seen) == 100)
        assert len(set(a.acks)) == len(set(b.acks)) == 50 == len(a.acks) == len(b.acks)
        assert a.batch_acks + a.single_acks < 25, "acks go in batches"
        assert "g" in a.clients and a.clients["g"] == []


async def test_a_failed_message_is_delivered_again_then_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "RETRY_DELAYS_S", (0.05, 0.05))
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        await fill(cluster, 2)
        seen: list[tuple[bytes, int]] = []

        def handle(message: MessageExt) -> None:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"1":
                raise OSError("no")

        async with consumer_of(cluster, handle, max_reconsume_times=2):
            await until(lambda: len(broker.log.sent_back) == 1 and len(broker.acks) == 2)
        assert sorted(seen) == [(b"0", 0), (b"1", 0), (b"1", 1), (b"1", 2)]
        (back,) = broker.log.sent_back
        assert (back.delay_level, back.group, back.origin_topic) == (-1, "g", "%RETRY%g_t")
        assert back.max_reconsume_times == 0


async def test_the_handler_chooses_when_a_message_is_delivered_again() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=4)
        await fill(cluster, 3, queues=3)

        def handle(message: MessageExt) -> None:
            raise RetryLater([3, 0, -1][message.queue_id])

        async with consumer_of(cluster, handle):
            await until(lambda: len(broker.changes) == 2 and len(broker.log.sent_back) == 1)
        assert sorted(change.invisible_time for change in broker.changes) == [10_000, 10_000]


async def test_a_slow_handler_keeps_its_message_hidden_and_acknowledges_the_last_receipt() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 1, queues=1)
        calls = 0

        async def handle(message: MessageExt) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(1.2)

        async with consumer_of(cluster, handle, invisible_duration=0.4):
            await until(lambda: len(broker.acks) == 1)
        assert calls == 1
        assert len(broker.changes) >= 3 and all(change.suspend for change in broker.changes)


async def test_renewal_ends_after_its_limit() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 1, queues=1)
        calls = 0

        async def handle(message: MessageExt) -> None:
            nonlocal calls
            calls += 1
            await asyncio.sleep(3 if calls == 1 else 0)

        async with consumer_of(cluster, handle, invisible_duration=0.3, renew_limit=0.5, stop_timeout_s=0.1):
            await until(lambda: len(broker.acks) == 1)
            assert calls == 2, "another client, or this one, gets what a stuck handler does not let go"


async def test_messages_wait_at_the_broker_while_enough_are_here() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        await fill(cluster, 60)
        gate = asyncio.Event()
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            await gate.wait()
            seen.append(message.body)

        async with consumer_of(cluster, handle, concurrency=2, max_cached_messages=8, pop_batch_size=5):
            await asyncio.sleep(0.4)
            handed_out = sum(state.attempts for state in broker.states.values())
            assert handed_out == 8
            gate.set()
            await until(lambda: len(seen) == 60 and len(broker.acks) == 60)


async def test_batches_succeed_or_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "RETRY_DELAYS_S", (0.05,))
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 6, queues=1)
        calls: list[list[bytes]] = []

        def handle(messages: list[MessageExt]) -> None:
            calls.append([message.body for message in messages])
            if len(calls) == 1:
                raise OSError("no")

        consumer = PopConsumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle, batch_size=4)
        async with consumer:
            await until(lambda: len(broker.acks) == 6)
        assert len(calls[0]) == 4 and sorted(body for call in calls[1:] for body in call) == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
            b"5",
        ]


async def test_in_order_a_failed_message_comes_before_those_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settling, "ORDERED_RETRY_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        await fill(cluster, 20)
        handled: dict[int, list[int]] = {0: [], 1: []}
        failed: set[int] = set()

        async def handle(message: MessageExt) -> None:
            number = int(message.body)
            if number % 5 == 2 and number not in failed:
                failed.add(number)
                raise RetryLater
            await asyncio.sleep(0)
            handled[message.queue_id].append(number)

        async with consumer_of(cluster, handle, orderly=True, pop_batch_size=7):
            await until(lambda: len(broker.acks) == 20)
        assert handled == {0: list(range(0, 20, 2)), 1: list(range(1, 20, 2))}
        assert failed == {2, 7, 12, 17} and broker.log.sent_back == []


async def test_an_ack_is_repeated_until_the_message_shows_again(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 1, queues=1)
        refused = 0

        def answer(code: int) -> Exception | None:
            nonlocal refused
            if code == RequestCode.ACK_MESSAGE and refused < 3:
                refused += 1
                return error_for(ResponseCode.SYSTEM_BUSY, "busy")
            return None

        broker.answer = answer
        seen: list[bytes] = []
        async with consumer_of(cluster, lambda message: seen.append(message.body)):
            await until(lambda: len(broker.acks) == 1)
        assert seen == [b"0"] and refused == 3


async def test_stop_gives_back_what_no_handler_has_begun() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 5, queues=1)
        begun = asyncio.Event()
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            begun.set()
            await asyncio.sleep(0.2)
            seen.append(message.body)

        async with consumer_of(cluster, handle, concurrency=1):
            await begun.wait()
        assert seen == [b"0"] and broker.acks == [("t", 0, 0)]
        assert len(broker.changes) == 4 and {change.invisible_time for change in broker.changes} == {1}
        assert all(change.suspend for change in broker.changes), "that was not a failed attempt"


async def test_stop_gives_back_what_a_broker_hands_out_meanwhile() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        await fill(cluster, 1, queues=1)
        begun, gate = asyncio.Event(), asyncio.Event()

        async def handle(message: MessageExt) -> None:
            begun.set()
            await gate.wait()

        consumer = consumer_of(cluster, handle)
        await consumer.start()
        await begun.wait()
        await asyncio.sleep(0.05)  # the next pop waits at the broker
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0.05)
        await fill(cluster, 1, queues=1)
        await until(lambda: broker.popped == 2)
        await asyncio.sleep(0.05)
        gate.set()
        await stopping
        assert broker.acks == [("t", 0, 0)]
        assert [(change.offset, change.invisible_time) for change in broker.changes] == [(1, 1)]


async def test_popping_continues_at_the_next_master() -> None:
    async with FakeCluster() as cluster:
        old, new = await cluster.broker_of(PopBroker, "a"), await cluster.broker_of(PopBroker, "a", 1)
        new.states = old.states
        cluster.topic("t", a=2)
        seen: list[bytes] = []
        async with consumer_of(cluster, lambda message: seen.append(message.body)):
            await fill(cluster, 2)
            await until(lambda: len(seen) == 2)
            old.kill()
            await old.server.stop()
            cluster.addresses["a"] = {0: new.address}
            await fill(cluster, 4)
            await until(lambda: len(seen) == 6)


def receipt(offset: int, start: int = 10, queue_id: int = 0) -> Receipt:
    return Receipt(start, 1, 2, 3, "0", "a", queue_id, offset)


def test_acks_of_one_check_point_are_one_entry() -> None:
    acks = batch_acks("g", [("t", receipt(each)) for each in (12, 10, 12)] + [("t", receipt(5, 5, 1))])
    found = [(ack.queue_id, ack.start_offset, differences_of(ack.bit_set)) for ack in acks]
    assert found == [(0, 10, [0, 2]), (1, 5, [0])]


@pytest.mark.parametrize(
    ("offset", "fits"), [(10, True), (10 + 32767, True), (10 + 32768, False), (9, False)]
)
def test_a_message_far_behind_its_check_point_is_acknowledged_alone(offset: int, fits: bool) -> None:
    assert fits_a_batch(receipt(offset)) is fits
    if fits:
        (ack,) = batch_acks("g", [("t", receipt(offset))])
        assert differences_of(ack.bit_set) == [offset - 10], "brokers read it"


@pytest.mark.parametrize("size", [0, 33])
def test_a_pop_of_more_than_a_broker_gives_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="pop_batch_size"):
        PopConsumer("g", "127.0.0.1:1", pop_batch_size=size)


# -- what tools ask


def record(body: bytes, topic: str = "t", sys_flag: int = 0) -> bytes:
    stored = StoredMessage(
        topic=topic, queue_id=0, body=body, sys_flag=sys_flag, store_host=pack_host("10.0.0.1", 1)
    )
    return encode_record(stored, queue_offset=9, physical_offset=9, store_timestamp=1)


def test_a_pop_that_begins_at_a_time_is_refused() -> None:
    for kind in (PopConsumer, SimpleConsumer):
        with pytest.raises(ValueError, match="TIMESTAMP"):
            kind("g", "127.0.0.1:1", from_where=ConsumeFromWhere.TIMESTAMP)


async def test_tools_see_what_a_pop_consumer_does() -> None:
    gate = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        await gate.wait()

    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        await fill(cluster, 5)
        async with consumer_of(cluster, handle, concurrency=3) as consumer:
            await until(lambda: broker.popped > 0 and bool(broker.server.connections))
            await asyncio.sleep(0.05)
            (connection,) = broker.server.connections
            answer = await connection.call(GetConsumerRunningInfo("g", consumer.client_id))
            info = decode(answer.body, ConsumerRunningInfo)
            (place,) = info.mq_pop_table
            assert place == MessageQueue("t", "a", -1)
            assert info.mq_pop_table[place].wait_ack_count == 5
            assert abs(info.mq_pop_table[place].last_pop_timestamp / 1000 - time.time()) < 10
            assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
            assert abs(int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) / 1000 - time.time()) < 10
            assert [each.topic for each in info.subscription_set] == ["t"]
            answer = await connection.call(GetConsumerRunningInfo("g", consumer.client_id, True))
            stacks = decode(answer.body, ConsumerRunningInfo).jstack
            assert stacks is not None and "_pop_always" in stacks
            assert "handle" in stacks, "the handler that waits"
            answer = await connection.call(GetConsumerStatusFromClient("t", "g"))
            assert decode(answer.body, GetConsumerStatusBody).message_queue_table == {}
            gate.set()
            await until(lambda: len(broker.acks) == 5)


async def test_a_tool_has_a_pop_consumer_handle_a_message() -> None:
    seen: list[bytes] = []

    def handle(message: MessageExt) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("no flight")

    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        async with consumer_of(cluster, handle) as consumer:
            await until(lambda: bool(broker.server.connections))
            (connection,) = broker.server.connections

            async def result(data: bytes) -> tuple[object, str | None]:
                answer = await connection.call(ConsumeMessageDirectly("g", consumer.client_id), data)
                shown = decode(answer.body, ConsumeMessageDirectlyResult)
                return shown.consume_result, shown.remark

            failed = ConsumeResult.THROW_EXCEPTION
            assert await result(record(b"fine")) == (ConsumeResult.SUCCESS, None)
            assert await result(record(b"bad")) == (failed, "ValueError: no flight")
            assert await result(record(b"x", "other")) == (failed, "LookupError: no handler for other")
            for hostile in (b"", b"\0" * 200, record(b"fine")[:-1]):
                assert (await result(hostile))[0] is failed
            kind, remark = await result(record(b"no zlib", sys_flag=CompressionType.ZLIB.sys_flag))
            assert kind is failed and remark is not None and "inflate" in remark
            assert seen == [b"fine", b"bad"]
            assert broker.acks == [] and broker.log.sent_back == [] and broker.changes == []


async def test_a_pop_consumer_commits_the_offsets_that_a_broker_resets() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=2)
        async with consumer_of(cluster, lambda message: None):
            await until(lambda: bool(broker.server.connections))
            (connection,) = broker.server.connections
            other = MessageQueue("not subscribed", "a", 0)
            body = encode(ResetOffsetBody({MessageQueue("t", "a", 1): 7, other: 3}))
            await connection.call(ResetConsumerClientOffset("t", "g"), body)
            assert broker.log.offsets == {("g", MessageQueue("t", "a", 1)): 7}
