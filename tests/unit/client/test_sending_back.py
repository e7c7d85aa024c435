"""A message whose handler failed: it is sent back, retried here, sent again whole, or a dead letter."""

from __future__ import annotations

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.push import handling
from batonmq.client.push.retries import RetryLater
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import error_for
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeCluster, properties_of
from .helpers import FIRST, fill, until


@pytest.mark.parametrize(("level", "attempts", "delay"), [(0, 1, "3"), (5, 1, "5"), (-1, 3, None)])
async def test_a_message_that_its_broker_has_no_more_is_sent_again_whole(
    level: int, attempts: int, delay: str | None
) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        cluster.topic("%RETRY%g", a=1)
        await fill(cluster, 1)
        broker.sends.clear()
        broker.answer = lambda code: (
            error_for(ResponseCode.SYSTEM_ERROR, "look message by offset failed, 17")
            if code == RequestCode.CONSUMER_SEND_MSG_BACK
            else None
        )
        failed: list[bytes] = []

        def handle(message: MessageExt) -> None:
            if message.reconsume_times == 0 and not failed:
                failed.append(message.body)
                raise RetryLater(level)

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, max_reconsume_times=2)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: bool(broker.sends))
        (sent,) = broker.sends
        assert (sent.topic, sent.reconsume_times, sent.max_reconsume_times) == ("%RETRY%g", attempts, 2)
        properties = properties_of(sent)
        assert (properties["RETRY_TOPIC"], properties.get("DELAY")) == ("t", delay)
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 1


async def test_an_ordered_message_becomes_a_dead_letter_when_its_handler_wants_it() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 3)
        calls: list[bytes] = []

        def handle(message: MessageExt) -> None:
            calls.append(message.body)
            if message.body == b"1":
                raise RetryLater(-1)
            if message.body == b"2" and not message.reconsume_times:
                raise RetryLater(18)  # two hours, which would hold the queue

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=20)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(calls) == 4)
        assert calls == [b"0", b"1", b"2", b"2"]
        assert [header.delay_level for header in broker.log.sent_back] == [-1]
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 3


async def test_a_failed_message_is_sent_back_and_the_rest_continues() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 4)
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            if message.body == b"1":
                raise RetryLater(3)
            if message.body == b"2":
                raise RuntimeError("bug")
            seen.append(message.body)

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, max_reconsume_times=5)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(seen) == 2 and len(broker.log.sent_back) == 2)
        levels = {header.origin_topic: header.max_reconsume_times for header in broker.log.sent_back}
        assert sorted(header.delay_level for header in broker.log.sent_back) == [0, 3]
        assert levels == {"t": 5}
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 4


async def test_when_sending_back_fails_it_is_retried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "LOCAL_RETRY_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        broker.answer = lambda code: (
            error_for(ResponseCode.MESSAGE_ILLEGAL, "no")
            if code == RequestCode.CONSUMER_SEND_MSG_BACK
            else None
        )
        attempts: list[int] = []

        async def handle(message: MessageExt) -> None:
            attempts.append(message.reconsume_times)
            if len(attempts) < 3:
                raise RetryLater

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(attempts) == 3)
        assert attempts == [0, 1, 2]
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 1


async def test_a_retried_message_comes_to_the_handler_of_its_topic() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        cluster.topic("%RETRY%g", a=1)
        from batonmq.protocol.message.properties import encode_properties
        from batonmq.protocol.message.record import StoredMessage

        broker.log.append(
            "%RETRY%g",
            "a",
            StoredMessage(
                topic="%RETRY%g",
                queue_id=0,
                body=b"again",
                properties=encode_properties({"RETRY_TOPIC": "t"}),
                reconsume_times=1,
            ),
        )
        seen: list[tuple[str, int]] = []
        consumer = Consumer("g", cluster.namesrv)
        consumer.subscribe("t", "*", lambda message: seen.append((message.topic, message.reconsume_times)))
        async with consumer:
            await until(lambda: bool(seen))
        assert seen == [("t", 1)]
