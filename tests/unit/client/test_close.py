"""What becomes of calls under way when their client is closed: they fail soon, and say why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from batonmq import sync
from batonmq.client.errors import SendFailed, TransactionUnconfirmed
from batonmq.client.hooks import TransactionState
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.client.simple_consumer import SimpleConsumer
from batonmq.client.transactions import TransactionProducer
from batonmq.net.errors import ConnectionLost, NetError
from batonmq.protocol.bodies.common import MessageQueue

from .fakes import FakeCluster
from .pop_fakes import PopBroker

SOON_S = 5.0
"""Less than any timeout of the calls that are tested."""
QUEUE = MessageQueue("t", "a", 0)


async def error_at_close(client: Any, call: Awaitable[object]) -> BaseException:
    """Close the client under a call; the exception that the call raises."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.2)
    assert not task.done()
    began = time.monotonic()
    await client.close()
    await asyncio.wait([task], timeout=SOON_S)
    assert time.monotonic() - began < SOON_S and task.done()
    assert not task.cancelled(), "nobody cancelled it: a task group would end without an error"
    error = task.exception()
    assert error is not None
    return error


async def test_a_send_that_waits_for_its_route_fails() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        producer = Producer("g", cluster.namesrv)
        await producer.start()
        cluster.silent = True
        error = await error_at_close(producer, producer.send(Message("t", b"x"), timeout_ms=10_000))
        assert isinstance(error, SendFailed) and not error.maybe_stored
        assert "this client is closed" in str(error)


async def test_a_send_that_waits_for_its_broker_fails() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        producer = Producer("g", cluster.namesrv)
        await producer.send(Message("t", b"x"))
        broker.silent = True
        error = await error_at_close(producer, producer.send(Message("t", b"y"), timeout_ms=10_000))
        assert isinstance(error, SendFailed) and error.maybe_stored and error.attempts == 1
        assert "this client is closed; the message may have been stored" in str(error)


async def test_a_send_after_the_end_fails_at_once() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message("t", b"x"))
        began = time.monotonic()
        with pytest.raises(SendFailed, match=r"this client is closed$") as caught:
            await producer.send(Message("t", b"x"), timeout_ms=10_000)
        assert not caught.value.maybe_stored and not caught.value.attempts
        for call in (producer.queues("t"), producer.send_oneway(Message("t", b"x"))):
            with pytest.raises(ConnectionLost, match="this client is closed"):
                await call
        assert time.monotonic() - began < 0.5


async def test_a_call_that_is_cancelled_leaves_the_request_to_the_others() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        async with Producer("g", cluster.namesrv) as producer:
            asked = cluster.asked
            first, second = (asyncio.ensure_future(producer.queues("t")) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            assert await second == [QUEUE]
            assert first.cancelled() and cluster.asked == asked + 1


@pytest.mark.parametrize("hanging", ["the name server", "the broker"])
async def test_a_reader_gives_up(hanging: str) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        for call in (QueueReader.max_offset, lambda reader, queue: reader.pull(queue, 0)):
            reader = QueueReader(cluster.namesrv)
            await reader.start()
            cluster.silent = hanging == "the name server"
            broker.silent = not cluster.silent
            error = await error_at_close(reader, call(reader, QUEUE))
            assert isinstance(error, NetError)
            cluster.silent = broker.silent = False


@pytest.mark.parametrize("silent", [False, True], ids=["no message", "no answer"])
async def test_a_receive_fails(silent: bool) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)
        consumer = SimpleConsumer("g", cluster.namesrv)
        await consumer.start()
        consumer.subscribe("t")
        assert await consumer.receive(wait=0) == []
        broker.silent = silent
        error = await error_at_close(consumer, consumer.receive(wait=20))
        assert isinstance(error, ConnectionLost) and "this client is closed" in str(error)
        with pytest.raises(ConnectionLost, match="this client is closed"):
            await consumer.receive(wait=20)


async def test_a_thread_that_waits_in_a_blocking_client_gets_its_error() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(PopBroker, "a")
        cluster.topic("t", a=1)

        def blocking() -> None:
            producer = sync.Producer("g", cluster.namesrv)
            producer.send(Message("t", b"x"))
            consumer = sync.SimpleConsumer("g", cluster.namesrv)
            consumer.start()
            consumer.subscribe("t")
            broker.silent = True
            future = producer.send_async(Message("t", b"y"), timeout_ms=10_000)
            with ThreadPoolExecutor() as others:
                send = others.submit(producer.send, Message("t", b"z"), timeout_ms=10_000)
                receive = others.submit(consumer.receive, wait=20)
                time.sleep(0.2)
                producer.close()
                for call in (future, send):
                    with pytest.raises(SendFailed, match="this client is closed"):
                        call.result(SOON_S)
                consumer.close()
                with pytest.raises(ConnectionLost, match="this client is closed"):
                    receive.result(SOON_S)

        await asyncio.to_thread(blocking)


async def test_a_commit_ends_when_its_producer_is_closed() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        producer = TransactionProducer(
            "g", cluster.namesrv, check=lambda message: TransactionState.UNKNOWN, end_timeout_ms=60_000
        )
        await producer.start()
        transaction = producer.transaction(Message("t", b"x"))
        await transaction.__aenter__()
        broker.silent = True
        commit = asyncio.ensure_future(transaction.commit())
        await asyncio.sleep(0.05)
        await producer.close()
        with pytest.raises(TransactionUnconfirmed):
            await asyncio.wait_for(commit, SOON_S)
