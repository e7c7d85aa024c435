"""Recall, and requests with their replies, against brokers in memory."""

from __future__ import annotations

import asyncio
import base64
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.errors import ReplyTimeout, SendFailed
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.net.dispatch import Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.send import RecallMessage, RecallMessageResponse, SendMessageV2
from batonmq.protocol.headers.client import ReplyMessage
from batonmq.protocol.message.ids import pack_address
from batonmq.protocol.message.properties import decode_properties, encode_properties
from batonmq.protocol.message.record import MessageExt, StoredMessage

from .fakes import FakeBroker, FakeCluster, Log


class ReplyBroker(FakeBroker):
    """Passes replies on to the clients whose heartbeats it got."""

    def more(self) -> dict[int, Callable[[Request], object]]:
        self.recalls: list[RecallMessage] = []
        self.replies: list[SendMessageV2] = []
        self.pushed: list[int] = []
        self.spoil: Callable[[ReplyMessage, bytes], tuple[ReplyMessage, bytes]] = lambda header, body: (
            header,
            body,
        )
        return {
            RequestCode.RECALL_MESSAGE: self._recall,
            RequestCode.SEND_REPLY_MESSAGE_V2: self._reply,
        }

    def _recall(self, request: Request) -> Reply:
        header = RecallMessage.from_ext(request.command.ext)
        self.recalls.append(header)
        return Reply(RecallMessageResponse("U1"))

    async def _reply(self, request: Request) -> Reply:
        header = SendMessageV2.from_ext(request.command.ext)
        self.replies.append(header)
        properties = decode_properties(header.properties or "")
        client = properties["REPLY_TO_CLIENT"]
        if client not in {beat.client_id for beat in self.heartbeats}:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{client}> not found."
            )
        push = ReplyMessage(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=4,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host="127.0.0.1:1",
            store_host="127.0.0.1:2",
            store_timestamp=5,
            properties=header.properties,
        )
        push, body = self.spoil(push, bytes(request.command.body))
        for connection in list(self.server.connections):
            try:
                answer = await connection.call(push, body, 500)
                self.pushed.append(answer.code)
            except MQError as error:
                self.pushed.append(error.code)
        return Reply()


class ClusterLog(Log):
    """Stores messages with the properties that brokers add."""

    def append(self, topic: str, name: str, message: StoredMessage) -> tuple[int, int]:
        properties = {**decode_properties(message.properties), "CLUSTER": "c"}
        message.properties = encode_properties(properties)
        return super().append(topic, name, message)


async def replying(cluster: FakeCluster, name: str = "a") -> ReplyBroker:
    cluster.logs[name] = ClusterLog()
    broker = await cluster.broker_of(ReplyBroker, name)
    cluster.topic("t", **dict.fromkeys(cluster.addresses, 1))
    cluster.topic("c_REPLY_TOPIC", **dict.fromkeys(cluster.addresses, 1))
    return broker


def responder(cluster: FakeCluster, **options: Any) -> Consumer:
    consumer = Consumer("responders", cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)

    async def handle(message: MessageExt) -> None:
        await consumer.reply(message, b"re: " + message.body, properties={"mood": "good"}, **options)

    consumer.subscribe("t", "*", handle)
    return consumer


async def test_a_request_gets_the_reply_to_it() -> None:
    async with FakeCluster() as cluster:
        broker = await replying(cluster)
        async with responder(cluster), Producer("g", cluster.namesrv) as producer:
            replies = await asyncio.gather(
                *(producer.request(Message("t", b"%d" % number), timeout_ms=5_000) for number in range(20))
            )
            assert [reply.body for reply in replies] == [b"re: %d" % number for number in range(20)]
        properties = replies[0].properties
        assert (properties["mood"], properties["MSG_TYPE"]) == ("good", "reply")
        assert properties["REPLY_TO_CLIENT"] == producer.client_id and properties["TTL"] == "5000"
        assert replies[0].store_address == ("127.0.0.1", 2)
        assert {header.topic for header in broker.replies} == {"c_REPLY_TOPIC"}


async def test_the_reply_goes_by_the_broker_that_knows_the_requester() -> None:
    async with FakeCluster() as cluster:
        await replying(cluster, "a")
        b = await replying(cluster, "b")
        cluster.topic("t", b=1)
        async with responder(cluster), Producer("g", cluster.namesrv) as producer:
            reply = await producer.request(Message("t", b"x"), timeout_ms=5_000)
            assert reply.body == b"re: x" and len(b.replies) == 1


async def test_without_a_reply_the_request_ends_at_its_timeout() -> None:
    async with FakeCluster() as cluster:
        await replying(cluster)
        async with Producer("g", cluster.namesrv) as producer:
            with pytest.raises(ReplyTimeout, match="no reply"):
                await producer.request(Message("t", b"x"), timeout_ms=100)
            assert producer._requests._waiting == {}


async def test_requests_under_way_fail_when_the_producer_is_closed() -> None:
    async with FakeCluster() as cluster:
        broker = await replying(cluster)
        async with Producer("g", cluster.namesrv) as producer:
            waiting = asyncio.create_task(producer.request(Message("t", b"x"), timeout_ms=10_000))
            while not broker.sends:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        with pytest.raises(NetError, match="closed"):
            await waiting


async def test_a_late_or_unknown_reply_is_dropped() -> None:
    async with FakeCluster() as cluster:
        broker = await replying(cluster)
        async with Producer("g", cluster.namesrv) as producer:
            with pytest.raises(ReplyTimeout):
                await producer.request(Message("t", b"x"), timeout_ms=100)
            async with responder(cluster):
                while not broker.pushed:
                    await asyncio.sleep(0.01)
            assert set(broker.pushed) <= {0, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
            assert 0 in broker.pushed


async def test_compressed_and_spoiled_replies() -> None:
    async with FakeCluster() as cluster:
        broker = await replying(cluster)
        async with responder(cluster), Producer("g", cluster.namesrv) as producer:

            def compressed(header: ReplyMessage, body: bytes) -> tuple[ReplyMessage, bytes]:
                header.sys_flag = MessageSysFlag.COMPRESSED
                return header, zlib.compress(body)

            broker.spoil = compressed
            assert (await producer.request(Message("t", b"x"))).body == b"re: x"

            def spoiled(header: ReplyMessage, body: bytes) -> tuple[ReplyMessage, bytes]:
                header.sys_flag = MessageSysFlag.COMPRESSED
                header.born_host = header.store_host = "nonsense"
                return header, b"\x00\x01"

            broker.spoil = spoiled
            with pytest.raises(ReplyTimeout):
                await producer.request(Message("t", b"x"), timeout_ms=300)
            assert int(ResponseCode.SYSTEM_ERROR) in broker.pushed

            def nowhere(header: ReplyMessage, body: bytes) -> tuple[ReplyMessage, bytes]:
                header.born_host = header.store_host = "nonsense"
                return header, body

            broker.spoil = nowhere
            reply = await producer.request(Message("t", b"x"))
            assert reply.body == b"re: x" and reply.store_host == bytes(8)


async def test_what_is_not_a_request_cannot_be_replied_to() -> None:
    message = MessageExt(topic="t", queue_id=0, queue_offset=0, physical_offset=0, body=b"x")
    message.store_host = message.born_host = pack_address("127.0.0.1:1")
    async with FakeCluster() as cluster:
        await replying(cluster)
        async with Producer("g", cluster.namesrv) as producer:
            with pytest.raises(ValueError, match="is not a request"):
                await producer.reply(message, b"y")
            message.properties = {"REPLY_TO_CLIENT": "gone", "CORRELATION_ID": "1", "CLUSTER": "c"}
            with pytest.raises(MQError, match="channel of <gone> not found"):
                await producer.reply(message, b"y")
            message.properties["CLUSTER"] = "other"
            with pytest.raises(TopicNotExistError):
                await producer.reply(message, b"y")


async def test_a_delayed_message_is_recalled_at_its_broker() -> None:
    async with FakeCluster() as cluster:
        broker = await replying(cluster)
        handle = base64.urlsafe_b64encode(b"v1 t a 5 U1").decode()
        async with Producer("g", cluster.namesrv) as producer:
            assert await producer.recall("t", handle) == "U1"
            with pytest.raises(ValueError, match="belongs to topic t"):
                await producer.recall("u", handle)
            with pytest.raises(ValueError, match="recall handle is invalid"):
                await producer.recall("t", "junk")
            refusal = MQError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
            broker.answer = lambda code: refusal if code == RequestCode.RECALL_MESSAGE else None
            with pytest.raises(MQError, match="forbidden"):
                await producer.recall("t", handle, timeout_ms=200)
        assert [(header.topic, header.recall_handle) for header in broker.recalls] == [("t", handle)]


async def test_a_request_greets_no_other_master_than_the_one_it_goes_to() -> None:
    async with FakeCluster() as cluster:
        a, b = await replying(cluster, "a"), await replying(cluster, "b")
        async with responder(cluster):
            b.silent = True
            async with Producer("g", cluster.namesrv, attempt_timeout_ms=200) as producer:
                queue = MessageQueue("t", "a", 0)
                began = time.monotonic()
                reply = await producer.request(Message("t", b"ping"), queue=queue, timeout_ms=2_000)
                assert reply.body == b"re: ping" and time.monotonic() - began < 1.5
                assert producer.client_id in {beat.client_id for beat in a.heartbeats}
                for _ in range(2):  # one of them goes to the other master first
                    await producer.request(Message("t", b"ping"), timeout_ms=2_000)
                queue = MessageQueue("t", "b", 0)
                with pytest.raises(SendFailed, match="does not answer") as caught:
                    await producer.request(Message("t", b"ping"), queue=queue, timeout_ms=300)
                assert not caught.value.maybe_stored and not b.sends


async def test_a_request_greets_a_master_again_whose_connection_is_another_one() -> None:
    """A broker that restarted knows nobody, though a send has connected to it again."""
    async with FakeCluster() as cluster:
        broker = await replying(cluster, "a")
        async with responder(cluster), Producer("g", cluster.namesrv) as producer:
            await producer.request(Message("t", b"ping"), timeout_ms=2_000)
            broker.kill()
            await producer.send(Message("t", b"x"))
            broker.heartbeats.clear()
            await producer.request(Message("t", b"ping"), timeout_ms=2_000)
            assert producer.client_id in {beat.client_id for beat in broker.heartbeats}
