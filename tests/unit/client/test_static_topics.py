"""Clients with static topics: queues that belong to no broker, and move."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

import pytest

from batonmq.client.consumer import Consumer, RetryLater
from batonmq.client.errors import SendFailed
from batonmq.client.hooks import TransactionState
from batonmq.client.message import Message
from batonmq.client.pop_consumer import PopConsumer
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.client.simple_consumer import SimpleConsumer
from batonmq.client.transactions import TransactionProducer
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.logical import in_logical_queue
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_records, encode_record

from .helpers import FIRST
from .static_fakes import BLOCK, LOGICAL, TOPIC, StaticCluster


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not within 10 s: {what}")


async def send(producer: Producer, *numbers: int, body: str = "") -> None:
    """One message to each of these logical queues."""
    for number in numbers:
        await producer.send(Message(TOPIC, body.encode() or b"%d" % number), queue=LOGICAL[number])


async def test_messages_go_to_the_brokers_that_lead_the_queues() -> None:
    async with StaticCluster() as cluster:
        await cluster.start()
        cluster.move(1, 3, to="b")
        async with Producer("p", cluster.namesrv) as producer:
            assert await producer.queues(TOPIC) == LOGICAL
            sent = [await producer.send(Message(TOPIC, b"x")) for _ in range(8)]
            assert sorted(result.queue for result in sent) == sorted(LOGICAL * 2)
            places = {(r.queue.queue_id, r.broker_name, r.queue_offset) for r in sent}
            assert places == {
                *((number, "a", offset) for number in (0, 2) for offset in (0, 1)),
                *((number, "b", BLOCK + offset) for number in (1, 3) for offset in (0, 1)),
            }
            keyed = [await producer.send(Message(TOPIC, b"x", sharding_key="k")) for _ in range(3)]
            assert len({result.queue for result in keyed}) == 1
            batch = await producer.send([Message(TOPIC, b"1"), Message(TOPIC, b"2")], queue=LOGICAL[3])
            assert (batch.queue, batch.broker_name, batch.queue_offset >= BLOCK) == (LOGICAL[3], "b", True)
            await producer.send_oneway(Message(TOPIC, b"oneway"), queue=LOGICAL[1])
            await until(lambda: len(cluster.parts.records(1, "b")) >= 3, "the message is there")


async def test_a_send_follows_a_queue_that_has_just_moved() -> None:
    async with StaticCluster() as cluster:
        old, new = await cluster.start()
        async with Producer("p", cluster.namesrv) as producer:
            await send(producer, 2)
            cluster.move(2, to="b", known=False)
            asyncio.get_running_loop().call_later(0.2, cluster.register)
            result = await producer.send(Message(TOPIC, b"x"), queue=LOGICAL[2])
            assert (result.broker_name, result.queue_offset) == ("b", BLOCK)
            cluster.move(0, to="b")
            assert (await producer.send(Message(TOPIC, b"x"), queue=LOGICAL[0])).broker_name == "b"
            with pytest.raises(Exception, match="static@a:0"):
                await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "a", 0), timeout_ms=200)
        assert not old.sends[1:] and len(new.sends) == 2


async def test_a_key_keeps_its_queue_while_the_leader_is_away() -> None:
    """Its messages would be out of order when the leader is back."""
    async with StaticCluster() as cluster:
        await cluster.start()
        cluster.move(2, 3, to="b")
        keys = [str(number) for number in range(12)]
        async with Producer("p", cluster.namesrv, send_timeout_ms=300) as producer:
            before = {
                key: (await producer.send(Message(TOPIC, b"x", sharding_key=key))).queue for key in keys
            }
            assert set(before.values()) == {*LOGICAL}
            away = cluster.addresses.pop("b")
            await producer.queues(TOPIC)
            for key, queue in before.items():
                if queue in LOGICAL[:2]:
                    assert (await producer.send(Message(TOPIC, b"x", sharding_key=key))).queue == queue
            [waits, *_] = [key for key, queue in before.items() if queue in LOGICAL[2:]]
            asked = cluster.asked
            with pytest.raises(SendFailed):
                await producer.send(Message(TOPIC, b"x", sharding_key=waits))
            assert cluster.asked - asked < 100, "the producer pauses between its attempts"
            asyncio.get_running_loop().call_later(0.1, cluster.addresses.__setitem__, "b", away)
            assert (await producer.send(Message(TOPIC, b"x", sharding_key=waits))).queue == before[waits]


@pytest.mark.parametrize("orderly", [False, True])
async def test_consumers_follow_queues_and_get_each_message_once(orderly: bool) -> None:
    async with StaticCluster() as cluster:
        old, new = await cluster.start()
        got: dict[int, list[MessageExt]] = defaultdict(list)
        consumer = Consumer("g", cluster.namesrv, orderly=orderly, from_where=FIRST, commit_interval_ms=50)
        consumer.subscribe(TOPIC, "*", lambda message: got[message.queue_id].append(message))
        async with consumer, Producer("p", cluster.namesrv) as producer:
            assert consumer.assigned == LOGICAL
            await send(producer, *[0, 1, 2, 3] * 5)
            await until(lambda: sum(map(len, got.values())) == 20, "the first part is consumed")
            if orderly:
                assert set(old.locks) == set(LOGICAL) and not new.locks
            await send(producer, *[1, 3] * 4)
            cluster.move(1, 3, to="b", known=False)
            await asyncio.sleep(0.3)
            cluster.register()
            await send(producer, *[0, 1, 2, 3] * 5)
            await until(lambda: sum(map(len, got.values())) == 48, "both parts are consumed")
            if orderly:
                assert set(new.locks) == {LOGICAL[1], LOGICAL[3]}, "queues are locked where they are"
            await until(
                lambda: new.log.offsets.get(("g", MessageQueue(TOPIC, "b", 1))) == BLOCK + 5, "committed"
            )
        for number, begin in ((0, 0), (1, BLOCK), (2, 0), (3, BLOCK)):
            offsets = [message.queue_offset for message in got[number]]
            second = range(begin, begin + 5) if begin else range(5, 10)
            assert offsets == [*range(9 if begin else 5), *second]
            assert {message.body for message in got[number]} == {b"%d" % number}
        assert not new.locks
        pulls = [header for broker in (old, new) for header in broker.pulled if header.topic == TOPIC]
        assert pulls and not any(header.sys_flag & PullSysFlag.COMMIT_OFFSET for header in pulls)


async def test_what_a_handler_failed_on_is_sent_to_the_retry_topic() -> None:
    async with StaticCluster() as cluster:
        old, _ = await cluster.start()
        cluster.topic("%RETRY%g", a=1)
        levels = {b"later": 2, b"never": -1, b"again": 0}

        def handle(message: MessageExt) -> None:
            if message.body in levels:
                raise RetryLater(levels.pop(message.body))

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, max_reconsume_times=3)
        consumer.subscribe(TOPIC, "*", handle)
        async with consumer, Producer("p", cluster.namesrv) as producer:
            for body in ("later", "never", "again"):
                await send(producer, 0, body=body)
            await until(lambda: sum(h.topic == "%RETRY%g" for h in old.sends) == 3, "all are sent again")
        retried = [header for header in old.sends if header.topic == "%RETRY%g"]
        properties = [decode_properties((header.properties or "").encode()) for header in retried]
        delays = {p.get("DELAY"): h.reconsume_times for p, h in zip(properties, retried, strict=True)}
        assert delays == {"2": 1, "3": 1, None: 4}
        assert {header.max_reconsume_times for header in retried} == {3}
        assert {p["RETRY_TOPIC"] for p in properties} == {TOPIC}
        assert len({p["ORIGIN_MESSAGE_ID"] for p in properties}) == 3
        assert not old.log.sent_back


async def test_a_reader_sees_the_queue_ids_and_offsets_of_logical_queues() -> None:
    async with StaticCluster() as cluster:
        await cluster.start()
        async with Producer("p", cluster.namesrv) as producer, QueueReader(cluster.namesrv) as reader:
            await send(producer, 0, 1, 1)
            cluster.move(1, to="b")
            await send(producer, 1)
            assert await reader.queues(TOPIC) == LOGICAL
            pulled = await reader.pull(LOGICAL[1], BLOCK)
            assert [(r.queue_id, r.queue_offset) for r in decode_records(pulled.records)] == [(1, BLOCK)]
            assert await reader.pull(LOGICAL[1], 2) == (b"", BLOCK, 0, BLOCK)
            pulled = await reader.pull(LOGICAL[1], 0)
            assert [(r.queue_id, r.queue_offset) for r in decode_records(pulled.records)] == [(1, 0), (1, 1)]


def test_an_offset_that_would_be_none_is_refused() -> None:
    record = encode_record(
        StoredMessage(topic="t", queue_id=5, body=b"x"), queue_offset=7, physical_offset=0, store_timestamp=0
    )
    assert decode_records(in_logical_queue(record, 1, 3))[0].queue_offset == 10
    for delta in (-8, 2**63 - 7):
        with pytest.raises(MessageFormatError, match="offset 7 cannot be moved"):
            in_logical_queue(record, 1, delta)


async def test_a_transaction_ends_where_it_began() -> None:
    async with StaticCluster() as cluster:
        old, new = await cluster.start()
        producer = TransactionProducer("p", cluster.namesrv, check=lambda message: TransactionState.UNKNOWN)
        async with producer, producer.transaction(Message(TOPIC, b"x")) as transaction:
            cluster.move(0, 1, 2, 3, to="b")
            assert len(await producer.queues(TOPIC)) == 4
            await transaction.commit()
        assert [header.commit_or_rollback for header in old.ends] == [8] and not new.ends


async def test_pops_of_static_topics_are_refused() -> None:
    async with StaticCluster() as cluster:
        await cluster.start()
        popping = PopConsumer("g", cluster.namesrv)
        popping.subscribe(TOPIC, "*", print)
        with pytest.raises(MQError, match="topic static is static: its logical queues cannot be popped") as e:
            await popping.start()
        assert e.value.code == ResponseCode.INVALID_PARAMETER
        async with SimpleConsumer("g", cluster.namesrv) as simple:
            simple.subscribe(TOPIC)
            with pytest.raises(MQError, match="cannot be popped"):
                await simple.receive(wait=1)
