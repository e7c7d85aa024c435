"""Request and reply over topics: SEND_REPLY_MESSAGE (324) and SEND_REPLY_MESSAGE_V2 (325).

A request is a plain message with the requester's client id and a correlation id in its properties. Whoever
consumes it sends the reply to a broker, which pushes it to the requester's connection
(PUSH_REPLY_MESSAGE_TO_CLIENT, 326) and stores it in the reply topic. Source: `ReplyMessageProcessor`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.answers import overloaded
from batonmq.broker.messages.sender import AwaitedSend
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.client import ReplyMessage
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import encode_message_id
from batonmq.protocol.message.properties import (
    PROPERTY_MSG_REGION,
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TRACE_SWITCH,
    decode_properties,
    encode_properties,
)
from batonmq.protocol.send.request import fields_of

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.messages.sender import Sender
    from batonmq.protocol.send.request import SendFields

log = logging.getLogger(__name__)

PUSH_TIMEOUT_MS: Final = 10_000
"""How long a requester may take to confirm a reply (`Broker2Client.callClient`)."""
NOT_STORED: Final = "0"
"""Message id in the answer if the reply is not in the reply topic."""


class ReplyHandlers:
    """The replies of one broker."""

    def __init__(self, broker: Broker, sender: Sender) -> None:
        self._broker = broker
        self._sender = sender
        self.pending = 0
        """Replies whose senders wait for an answer."""

    def register(self, dispatcher: Dispatcher) -> None:
        for code in (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
            dispatcher.on_code(code, self.on_reply)

    def on_reply(self, request: Request) -> Awaitable[Reply]:
        config = self._broker.settings.broker
        if self.pending >= config.reply_thread_pool_queue_capacity:
            raise overloaded()
        command, peer = request.command, request.connection.peer
        fields = fields_of(command)
        fields.batch = False
        call = None
        if config.store_reply_message_enable and command.body:  # an empty one is pushed, not stored
            call = AwaitedSend()
            self._sender.send(fields, command.body, peer, command.version, call)
            queue_id = call.queue_id
        else:
            queue_id = self._sender.check(fields, peer)
        return self._answer(fields, bytes(command.body), peer, queue_id, call)

    async def _answer(
        self, fields: SendFields, body: bytes, peer: str, queue_id: int, call: AwaitedSend | None
    ) -> Reply:
        self.pending += 1
        try:
            failure = await self._push(fields, body, peer)
            message_id, queue_offset = await self._stored(call)
        finally:
            self.pending -= 1
        config = self._broker.settings.broker
        ext = {
            PROPERTY_MSG_REGION: config.region_id,
            PROPERTY_TRACE_SWITCH: "true" if config.trace_on else "false",
        }
        if failure is not None:
            raise MQError(ResponseCode.SYSTEM_ERROR, failure, ext)
        placed = {"msgId": message_id, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
        return Reply(ext={**placed, **ext})

    async def _push(self, fields: SendFields, body: bytes, peer: str) -> str | None:
        """Push the reply to the requester. Returns None, or why it failed, in RocketMQ's words."""
        properties = decode_properties(fields.properties)
        requester = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if requester is None:
            return f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null"
        connection = self._broker.tables.producers.connection_of(requester)
        if connection is None:
            log.warning("reply not delivered: requester %.200s is not connected sender=%s", requester, peer)
            return f"push reply message fail, channel of <{requester}> not found."
        now_ms = self._broker.clock.now_ms()
        properties[PROPERTY_PUSH_REPLY_TIME] = str(now_ms)
        try:
            header = ReplyMessage(
                producer_group=fields.producer_group,
                topic=fields.topic,
                default_topic=fields.default_topic,
                default_topic_queue_nums=fields.default_topic_queue_nums,
                queue_id=fields.queue_id,
                sys_flag=fields.sys_flag,
                born_timestamp=fields.born_timestamp,
                flag=fields.flag,
                born_host=peer,
                store_host=self._broker.address,
                store_timestamp=now_ms,
                properties=encode_properties(properties).decode(),
                reconsume_times=fields.reconsume_times,
                unit_mode=fields.unit_mode,
            )
            await connection.call(header, body, PUSH_TIMEOUT_MS)
        except (NetError, MQError, MessageFormatError) as error:
            log.warning("reply not delivered to %.200s at %s: %s", requester, connection.peer, error)
            return f"push reply message to {requester}fail."
        return None

    async def _stored(self, call: AwaitedSend | None) -> tuple[str, int]:
        """Message id and queue offset in the reply topic. A reply that cannot be stored was pushed
        nevertheless; RocketMQ counts that as success."""
        if call is None:
            return NOT_STORED, 0
        status, result = await call.outcome
        if result is None:
            log.warning("reply not stored in the reply topic: %s", status.value)
            return NOT_STORED, 0
        return encode_message_id(self._sender.store_host, result.physical_offset), result.queue_offset
