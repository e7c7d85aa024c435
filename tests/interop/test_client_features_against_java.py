"""What our client can do beside sending and pulling, against the real Apache RocketMQ.

Exact delays, recall, SQL selectors, requests, transactions, message traces, dead letters, and pop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from batonmq import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    Message,
    MessageExt,
    MessageQueue,
    MessageTrace,
    MQError,
    PopConsumer,
    Producer,
    QueueReader,
    RetryLater,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
    sql,
)
from tests.interop.conftest import Peer
from tests.interop.test_client_against_java import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
JAVA = Path(__file__).parent / "java"
FIRST = ConsumeFromWhere.FIRST_OFFSET


async def start_cluster(peer: Peer, *names: str, settings: Mapping[str, object] | None = None) -> str:
    """Brokers of RocketMQ with these names, and what features need."""
    namesrv = await peer.start("namesrv")
    shared = {"namesrvAddr": namesrv.address, "timerWheelEnable": "true", **(settings or {})}
    for name in names:
        await peer.start("broker", {**shared, "brokerName": name})
    async with Admin(namesrv.address) as admin, asyncio.timeout(60):
        while len(await admin.masters()) < len(names):
            await asyncio.sleep(0.2)
    return namesrv.address


async def create(namesrv: str, topics: Mapping[str, int]) -> None:
    async with Admin(namesrv) as admin:
        for topic, queues in topics.items():
            await admin.create_topic(topic, queues)


async def test_quick_delays_recall_selectors_and_dead_letters(peer: Peer) -> None:
    namesrv = await start_cluster(
        peer, "java-a", settings={"recallMessageEnable": "true", "enablePropertyFilter": "true"}
    )
    await create(namesrv, {"timed": 2, "chosen": 2, "dead": 1})
    seen: list[tuple[str, bytes, float]] = []

    def handle(message: MessageExt) -> None:
        seen.append((message.topic, message.body, time.time()))

    def refuse(message: MessageExt) -> None:
        raise RetryLater(-1)

    consumer = Consumer("features", namesrv, from_where=FIRST)
    consumer.subscribe("timed", "*", handle)
    consumer.subscribe("chosen", sql("amount > 3 AND region = 'eu'"), handle)
    consumer.subscribe("dead", "*", refuse)
    async with consumer, Producer("p", namesrv, send_timeout_ms=30_000) as producer:
        began = time.time()
        await producer.send(Message("timed", b"after 2 s", delay=2))
        await producer.send(Message("timed", b"at 3 s", deliver_at=began + 3))
        recalled = await producer.send(Message("timed", b"recalled", delay=3))
        assert recalled.recall_handle is not None and recalled.region == "DefaultRegion"
        assert await producer.recall("timed", recalled.recall_handle) == recalled.message_id
        for amount in range(6):
            for region in ("eu", "us"):
                properties = {"amount": str(amount), "region": region}
                await producer.send(Message("chosen", b"%d" % amount, properties=properties))
        await producer.send(Message("dead", b"letter", keys="k", properties={"own": "kept"}))
        await until(lambda: sum(topic == "timed" for topic, _, _ in seen) == 2, "the delayed messages")
        await asyncio.sleep(2)
    assert Counter(body for topic, body, _ in seen if topic == "chosen") == {b"4": 1, b"5": 1}
    delays = {body: at - began for topic, body, at in seen if topic == "timed"}
    assert delays.keys() == {b"after 2 s", b"at 3 s"}, "the third one was recalled"
    assert delays[b"after 2 s"] > 0.9 and 1.9 < delays[b"at 3 s"] < 8, "RocketMQ rounds down to a second"
    async with QueueReader(namesrv) as reader, Producer("p", namesrv, send_timeout_ms=30_000) as producer:
        (letter,) = [message async for message in reader.dead_letters("features")]
        again = Message.from_record(letter)
        assert (again.topic, again.body, again.keys) == ("dead", b"letter", ("k",))
        assert again.properties == {"own": "kept"}
        await producer.send(again)
    wrong = Consumer("features2", namesrv)
    wrong.subscribe("chosen", sql("amount >"), handle)
    with pytest.raises(MQError, match="SUBSCRIPTION_PARSE_FAILED"):
        await wrong.start()


async def test_requests_replies_and_traces(peer: Peer) -> None:
    namesrv = await start_cluster(peer, "java-a", settings={"traceTopicEnable": "true"})
    await create(namesrv, {"questions": 2, "questions-back": 2})
    async with MessageTrace(namesrv, interval_s=0.1) as trace:
        responder = Consumer("responders", namesrv, from_where=FIRST, hooks=[trace])

        async def answer(message: MessageExt) -> None:
            await responder.reply(message, b"python: " + message.body, properties={"mood": "good"})

        responder.subscribe("questions", "*", answer)
        async with responder, Producer("p", namesrv, hooks=[trace], send_timeout_ms=30_000) as producer:
            replies = await asyncio.gather(
                *(producer.request(Message("questions", b"%d" % n), timeout_ms=20_000) for n in range(5))
            )
            assert [reply.body for reply in replies] == [b"python: %d" % n for n in range(5)]
            java = asyncio.create_task(peer.java(JAVA / "AskAndAnswer.java", namesrv, "questions"))
            reply = await producer.request(Message("questions-back", b"from python"), timeout_ms=60_000)
            assert reply.body == b"java: from python"
            output = await java
            assert "REPLY python: from java good" in output and "ANSWERED" in output, output[-3000:]
            sent = await producer.send(Message("questions", b"traced", keys="order-1", tags="a"))
            with pytest.raises(ValueError, match="is not a request"):
                (record,) = [
                    message
                    async for message in QueueReader(namesrv, session=producer._session).messages("questions")
                    if message.body == b"traced"
                ]
                await producer.reply(record, b"x")
            await asyncio.sleep(2)
    assert trace.dropped == 0
    output = await peer.admin_until("responders", "queryMsgTraceById", "-n", namesrv, "-i", sent.message_id)
    assert "Pub" in output and "Sub" in output, output


async def test_transactions(peer: Peer) -> None:
    namesrv = await start_cluster(
        peer,
        "java-a",
        settings={
            "transactionCheckInterval": 1000,
            "transactionTimeOut": 1000,
            "transactionOpBatchInterval": 100,
        },
    )
    await create(namesrv, {"paid": 2})
    states: dict[bytes, TransactionState] = {}
    asked: Counter[bytes] = Counter()
    delivered: Counter[bytes] = Counter()

    async def check(message: MessageExt) -> TransactionState:
        asked[message.body] += 1
        if message.body == b"late" and asked[message.body] < 2:
            return TransactionState.UNKNOWN
        return states[message.body]

    consumer = Consumer("payments", namesrv, from_where=FIRST)
    consumer.subscribe("paid", "*", lambda message: delivered.update([message.body]))
    async with (
        consumer,
        TransactionProducer(
            "tp", namesrv, check=check, send_timeout_ms=30_000, end_timeout_ms=30_000
        ) as producer,
    ):
        for number in range(10):
            async with producer.transaction(Message("paid", b"%d" % number)) as transaction:
                assert delivered[b"%d" % number] == 0
                if number % 2:
                    await transaction.rollback()
        for body, state in (
            (b"happened", TransactionState.COMMIT),
            (b"did not happen", TransactionState.ROLLBACK),
            (b"late", TransactionState.COMMIT),
        ):
            states[body] = state
            with pytest.raises(OSError):
                async with producer.transaction(Message("paid", body)):
                    raise OSError("the connection to the database")
        await until(lambda: delivered[b"happened"] >= 1 and delivered[b"late"] >= 1, "what was checked")
        await until(lambda: asked[b"did not happen"] >= 1, "a check of what did not happen")
        await asyncio.sleep(3)
    assert delivered == {**{b"%d" % n: 1 for n in range(0, 10, 2)}, b"happened": 1, b"late": 1}
    assert asked.keys() == states.keys(), "what was confirmed is not asked for"


async def test_simple_consumer(peer: Peer) -> None:
    namesrv = await start_cluster(peer, "java-a", "java-b")
    await create(namesrv, {"simple": 2})
    async with (
        Producer("p", namesrv, send_timeout_ms=30_000) as producer,
        SimpleConsumer("sg", namesrv, from_where=FIRST, invisible_duration=10) as consumer,
    ):
        consumer.subscribe("simple", "a || b")
        for number in range(30):
            await producer.send(Message("simple", b"%d" % number, tags="abc"[number % 3]))
        received: list[MessageExt] = []
        while len(received) < 20:
            messages = await consumer.receive(8, wait=10)
            assert 1 <= len(messages) <= 8
            received += messages
        assert len({message.body for message in received}) == 20
        assert {message.tags for message in received} == {"a", "b"}
        await consumer.ack(received[:-2])
        await consumer.change_invisible_duration(received[-2], 3)
        waits = []
        for number in range(10):  # whichever broker has the message, the consumer waits there, too
            receiving = asyncio.create_task(consumer.receive(wait=20))
            await asyncio.sleep(0.1)
            queue = MessageQueue("simple", f"java-{'ab'[number % 2]}", number // 2 % 2)
            await producer.send(Message("simple", b"now", tags="a"), queue=queue)
            began = time.monotonic()
            messages = await receiving
            waits.append(time.monotonic() - began)
            fresh = [message for message in messages if message.body == b"now"]
            await consumer.ack(messages)
            received = [*received, *(message for message in messages if message not in fresh)]
        assert sorted(waits)[5] < 1.0, waits
        again: dict[bytes, int] = {m.body: m.reconsume_times for m in received[20:]}
        deadline = time.monotonic() + 30
        while len(again) < 2 and time.monotonic() < deadline:
            for message in await consumer.receive(wait=5):
                again[message.body] = message.reconsume_times
                assert message.topic == "simple"
                await consumer.ack(message)
        # Both that were not acknowledged came again, once.
        assert again == {message.body: 1 for message in received[18:20]}
        assert await consumer.receive(wait=1) == []


async def test_pop_consumer(peer: Peer) -> None:
    namesrv = await start_cluster(peer, "java-a", "java-b")
    await create(namesrv, {"popped": 2, "popped-in-order": 2})
    seen: Counter[tuple[bytes, int]] = Counter()

    async def handle(message: MessageExt) -> None:
        seen[message.body, message.reconsume_times] += 1
        if message.body == b"fails" and message.reconsume_times == 0:
            raise RetryLater(1)
        if message.body == b"dead":
            raise RetryLater(-1)
        if message.body == b"slow":
            await asyncio.sleep(9)

    consumer = PopConsumer("pg", namesrv, from_where=FIRST, invisible_duration=5)
    consumer.subscribe("popped", "*", handle)
    async with consumer, Producer("p", namesrv, send_timeout_ms=30_000) as producer:
        for number in range(100):
            await producer.send(Message("popped", b"%d" % number))
        for body in (b"fails", b"dead", b"slow"):
            await producer.send(Message("popped", body))
        await until(lambda: seen[b"fails", 1] == 1 and len(seen) == 104, "all messages, one of them twice")
        await asyncio.sleep(10)
    assert set(seen.values()) == {1}, "the slow one was not delivered to anybody else"
    async with QueueReader(namesrv) as reader:
        assert [letter.body async for letter in reader.dead_letters("pg")] == [b"dead"]
    await keep_the_order(namesrv)


async def keep_the_order(namesrv: str) -> None:
    async with Producer("p", namesrv, send_timeout_ms=30_000) as producer:
        for number in range(40):
            queue = MessageQueue("popped-in-order", "java-a", number % 2)
            await producer.send(Message("popped-in-order", b"%d" % number), queue=queue)
    handled: dict[int, list[int]] = {0: [], 1: []}
    failed: set[int] = set()

    async def handle(message: MessageExt) -> None:
        number = int(message.body)
        if number % 10 == 3 and number not in failed:
            failed.add(number)
            raise RetryLater
        handled[number % 2].append(number)

    consumer = PopConsumer("pog", namesrv, from_where=FIRST, orderly=True, pop_batch_size=6)
    consumer.subscribe("popped-in-order", "*", handle)
    async with consumer:
        await until(lambda: sum(map(len, handled.values())) >= 40, "40 messages in order")
    assert handled == {0: list(range(0, 40, 2)), 1: list(range(1, 40, 2))}
    assert failed == {3, 13, 23, 33}
