"""SQL selectors of consumers, dead letters, and the blocking clients, against brokers in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from batonmq import sync
from batonmq.client.consumer import Consumer
from batonmq.client.filter import sql
from batonmq.client.message import Message
from batonmq.client.pop_consumer import PopConsumer
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.net.dispatch import Reply, Request
from batonmq.protocol.bodies.clients import CheckClientRequestBody
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError, error_for
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.send import EndTransaction
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeBroker, FakeCluster
from .helpers import FIRST
from .pop_fakes import PopBroker


class SqlBroker(FakeBroker):
    def more(self) -> dict[int, Callable[[Request], object]]:
        self.checked: list[CheckClientRequestBody] = []
        self.pulled: list[PullMessage] = []
        return {RequestCode.CHECK_CLIENT_CONFIG: self._check}

    def _check(self, request: Request) -> Reply:
        self.checked.append(decode(request.command.body, CheckClientRequestBody))
        return Reply()

    async def _pull(self, request: Request) -> Reply:
        self.pulled.append(PullMessage.from_ext(request.command.ext))
        return await super()._pull(request)


async def test_an_sql_expression_is_checked_then_travels_with_heartbeats_and_pulls() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(SqlBroker, "a")
        cluster.topic("t", a=1)
        seen: list[bytes] = []
        async with Producer("p", cluster.namesrv) as producer:
            await producer.send(Message("t", b"x", tags="any"))
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", sql("a > 3"), lambda message: seen.append(message.body))
        async with consumer:
            while not seen:
                await asyncio.sleep(0.01)
        (checked,) = broker.checked
        data = checked.subscription_data
        assert data is not None and checked.group == "g"
        assert (data.topic, data.sub_string, data.expression_type) == ("t", "a > 3", "SQL92")
        assert (broker.pulled[0].subscription, broker.pulled[0].expression_type) == ("a > 3", "SQL92")
        beat = next(beat for beat in broker.heartbeats if beat.consumer_data_set)
        sent = {each.topic: each for each in beat.consumer_data_set[0].subscription_data_set}
        assert sent["t"] == data and sent["%RETRY%g"].expression_type == "TAG"


@pytest.mark.parametrize("kind", [Consumer, PopConsumer])
async def test_an_sql_expression_that_the_broker_refuses_ends_the_start(kind: Any) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(SqlBroker, "a")
        cluster.topic("t", a=1)
        refusal = MQError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "cannot parse")
        broker.answer = lambda code: refusal if code == RequestCode.CHECK_CLIENT_CONFIG else None
        consumer = kind("g", cluster.namesrv)
        consumer.subscribe("t", sql("a >"), lambda message: None)
        with pytest.raises(MQError, match="cannot parse"):
            await consumer.start()


@pytest.mark.parametrize("kind", [Consumer, PopConsumer])
async def test_a_broker_without_the_property_filter_names_the_key(kind: Any) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(SqlBroker, "a")
        cluster.topic("t", a=1)
        remark = "The broker does not support consumer to filter message by SQL92"
        broker.answer = lambda code: (
            error_for(ResponseCode.SYSTEM_ERROR, remark) if code == RequestCode.CHECK_CLIENT_CONFIG else None
        )
        consumer = kind("g", cluster.namesrv)
        consumer.subscribe("t", sql("a > 3"), lambda message: None)
        with pytest.raises(MQError, match="set enablePropertyFilter=true") as caught:
            await consumer.start()
        assert broker.address in caught.value.remark and remark in caught.value.remark
        assert not caught.value.retryable


async def test_dead_letters_are_read_and_sent_again() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        async with QueueReader(cluster.namesrv) as reader, Producer("p", cluster.namesrv) as producer:
            assert [letter async for letter in reader.dead_letters("g")] == []
            cluster.topic("%DLQ%g", a=2)
            for number in range(70):
                await producer.send(Message("%DLQ%g", b"%d" % number, keys=f"k{number}"))
            letters = [letter async for letter in reader.dead_letters("g")]
            assert sorted(int(letter.body) for letter in letters) == list(range(70))
            await producer.send(Message.from_record(letters[0], "t"))
            (again,) = [message async for message in reader.messages("t")]
            assert (again.body, again.keys) == (letters[0].body, letters[0].keys)


class EndBroker(PopBroker):
    def more(self) -> dict[int, Callable[[Request], object]]:
        self.ends: list[int] = []
        return {**super().more(), RequestCode.END_TRANSACTION: self._end}

    def _end(self, request: Request) -> Reply:
        self.ends.append(EndTransaction.from_ext(request.command.ext).commit_or_rollback)
        return Reply()


async def test_the_blocking_clients_do_the_same() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(EndBroker, "a")
        cluster.topic("t", a=1)
        namesrv = cluster.namesrv

        def blocking() -> None:
            with sync.TransactionProducer(
                "g", namesrv, check=lambda message: sync.TransactionState.UNKNOWN
            ) as producer:
                with producer.transaction(sync.Message("t", b"x")) as transaction:
                    assert len(transaction.transaction_id) == 32
                assert transaction.state is sync.TransactionState.COMMIT
                with producer.transaction(sync.Message("t", b"y")) as transaction:
                    transaction.rollback()
                with pytest.raises(KeyError), producer.transaction(sync.Message("t", b"z")):
                    raise KeyError
                with pytest.raises(ValueError, match="recall handle"):
                    producer.recall("t", "junk")
            with pytest.raises(TypeError, match="check="):
                sync.TransactionProducer("g", namesrv)
            with sync.SimpleConsumer("sg", namesrv, from_where=FIRST) as simple:
                simple.subscribe("t")
                messages = simple.receive(2, wait=2)
                simple.change_invisible_duration(messages[0], 5)
                simple.ack(messages)
                (last,) = simple.receive(wait=2)
                simple.ack(last)
                simple.unsubscribe("t")
            seen: list[MessageExt] = []
            pop = sync.PopConsumer("pg", namesrv, from_where=FIRST)
            pop.subscribe("t", "*", seen.append)
            with pop:
                end = time.monotonic() + 5
                while len(seen) < 3 and time.monotonic() < end:
                    time.sleep(0.01)
            assert sorted(message.body for message in seen) == [b"x", b"y", b"z"]
            with sync.QueueReader(namesrv) as reader:
                assert [message.body for message in reader.messages("t")] == [b"x", b"y", b"z"]
                assert list(reader.dead_letters("g")) == []

        await asyncio.to_thread(blocking)
        assert broker.ends == [MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK]
        assert len(broker.acks) == 6
