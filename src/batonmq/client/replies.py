"""Request and reply over topics: the requester waits for a reply, which a broker pushes to it.

A request message names its sender and carries an id. Whoever handles it sends the reply to the cluster's
reply topic, and the broker passes it on over the requester's own connection. Source: `RequestFutureHolder`,
`MessageUtil` and `ReplyMessageProcessor` of Apache RocketMQ 5.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping

from batonmq.client.errors import ReplyTimeout
from batonmq.client.session import ClientSession
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import ConnectFailed, ConnectionLost, NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.compression import CompressionError, decompress
from batonmq.protocol.errors import MQError, error_for
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.client import ReplyMessage
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import UniqueIds, pack_address
from batonmq.protocol.message.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MESSAGE_TTL,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_REPLY_MESSAGE_ARRIVE_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE_OK,
    decode_properties,
    encode_properties,
)
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import reply_topic
from batonmq.protocol.send.request import send_ext
from batonmq.routing.routes import TopicRoute

log = logging.getLogger(__name__)

REPLY_TYPE = "reply"
"""Value of MSG_TYPE that marks a reply (`MixAll.REPLY_MESSAGE_FLAG`)."""


def wants_reply(message: MessageExt) -> bool:
    """It was sent by `Producer.request` or its like, and somebody may still wait for the reply."""
    properties = message.properties
    return PROPERTY_REPLY_TO_CLIENT in properties and PROPERTY_CORRELATION_ID in properties


class Requests:
    """Requests of one client that wait for their replies."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def bind(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(ReplyMessage, self._replied)

    def begin(self, timeout_ms: int) -> tuple[str, dict[str, str]]:
        """(correlation id, the properties of the request message)."""
        correlation_id = str(uuid.UUID(int=self._session.rng.getrandbits(128), version=4))
        self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        return correlation_id, {
            PROPERTY_CORRELATION_ID: correlation_id,
            PROPERTY_REPLY_TO_CLIENT: self._session.client_id,
            PROPERTY_MESSAGE_TTL: str(timeout_ms),
        }

    def end(self, correlation_id: str) -> None:
        """Nobody waits any longer."""
        future = self._waiting.pop(correlation_id, None)
        if future is not None:
            future.cancel()

    async def reply(self, correlation_id: str, topic: str, timeout_s: float) -> MessageExt:
        """The reply. Raises `ReplyTimeout`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._waiting[correlation_id]
        except TimeoutError:
            raise ReplyTimeout(topic) from None

    def close(self) -> None:
        """Requests under way fail."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(self._session.client_id, "this client is closed"))
                future.exception()  # marks it as retrieved: the request may still be on its way

    def _replied(self, request: Request, header: ReplyMessage) -> Reply:
        properties = decode_properties(header.properties or "")
        future = self._waiting.get(properties.get(PROPERTY_CORRELATION_ID, ""))
        if future is None or future.done():
            log.warning("nobody waits for the reply to %s from %s", header.topic, header.born_host)
            return Reply()  # as Java's clients answer
        now_ms = self._session.clock.now_ms()
        properties[PROPERTY_REPLY_MESSAGE_ARRIVE_TIME] = str(now_ms)
        body = bytes(request.command.body)
        sys_flag = header.sys_flag
        if sys_flag & MessageSysFlag.COMPRESSED:
            try:
                body = decompress(body, sys_flag)
            except CompressionError as error:
                raise MQError(ResponseCode.SYSTEM_ERROR, f"the reply's body: {error}") from None
            sys_flag &= ~MessageSysFlag.COMPRESSED
        future.set_result(
            MessageExt(
                topic=header.topic,
                queue_id=header.queue_id,
                queue_offset=0,
                physical_offset=0,
                body=body,
                properties=properties,
                flag=header.flag,
                sys_flag=sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=_host(header.born_host),
                store_timestamp=header.store_timestamp,
                store_host=_host(header.store_host),
                reconsume_times=header.reconsume_times or 0,
            )
        )
        return Reply()


def _host(address: str) -> bytes:
    """Packed; all zero for what is not an address: the reply counts, not the way it took."""
    try:
        return pack_address(address)
    except (ValueError, OSError):
        return bytes(8)


class Replies:
    """Sends replies."""

    def __init__(self, session: ClientSession, group: str) -> None:
        self._session = session
        self._group = group
        self._ids = UniqueIds(session.ip, os.getpid(), session.rng.getrandbits(32))

    async def send(
        self,
        message: MessageExt,
        body: bytes | bytearray | memoryview,
        properties: Mapping[str, str] | None,
        timeout_ms: int,
    ) -> None:
        """Send the reply to a request message; see `Producer.reply`."""
        cluster = message.properties.get(PROPERTY_CLUSTER)
        if not wants_reply(message) or not cluster:
            raise ValueError(
                f"message {message.message_id} of {message.topic} is not a request: nobody waits"
            )
        session = self._session
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        topic = reply_topic(cluster)
        try:
            encoded = encode_properties(self._properties(message, properties)).decode()
        except MessageFormatError as error:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        route = session.known_route(topic) or await session.refresh(topic)
        failure: Exception = ConnectFailed(topic, "no broker has a master")
        # The requester is connected to the broker it sent to; others may not know it.
        for queue, address in _candidates(route, message):
            left_ms = (deadline - loop.time()) * 1000
            if left_ms <= 0:
                break
            ext = send_ext(
                self._group,
                topic,
                queue.broker_name,
                queue.queue_id,
                sys_flag=0,
                born_timestamp=str(session.clock.now_ms()),
                flag=0,
                properties=encoded,
                batch=False,
            )
            command = Command(int(RequestCode.SEND_REPLY_MESSAGE_V2), ext, binary=True)
            try:
                answer = await session.net.invoke(address, command, body=bytes(body), timeout_ms=left_ms)
                if answer.code == ResponseCode.SUCCESS:
                    return
                failure = error_for(answer.code, answer.remark, answer.ext)
            except NetError as error:
                failure = error
        raise failure

    def _properties(self, message: MessageExt, own: Mapping[str, str] | None) -> dict[str, str]:
        asked = message.properties
        properties = {
            PROPERTY_UNIQUE_KEY: self._ids.next(self._session.clock.now_ms()),
            PROPERTY_WAIT_STORE_OK: "true",
            **(own or {}),
            PROPERTY_MESSAGE_TYPE: REPLY_TYPE,
            PROPERTY_CORRELATION_ID: asked[PROPERTY_CORRELATION_ID],
            PROPERTY_REPLY_TO_CLIENT: asked[PROPERTY_REPLY_TO_CLIENT],
        }
        if PROPERTY_MESSAGE_TTL in asked:
            properties[PROPERTY_MESSAGE_TTL] = asked[PROPERTY_MESSAGE_TTL]
        return properties


def _candidates(route: TopicRoute, message: MessageExt) -> list[tuple[MessageQueue, str]]:
    """A queue and the master of each broker, the one that stored the request first."""
    found: dict[str, tuple[MessageQueue, str]] = {}
    host, port = message.store_address
    stored_at = f"{host}:{port}"
    for queue in route.write_queues:
        address = route.master(queue.broker_name)
        if address is not None:
            found.setdefault(queue.broker_name, (queue, address))

    def rank(candidate: tuple[MessageQueue, str]) -> bool:
        return stored_at not in route.brokers[candidate[0].broker_name].values()

    return sorted(found.values(), key=rank)
