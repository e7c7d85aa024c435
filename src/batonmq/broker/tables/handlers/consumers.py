"""Requests of tools that the broker relays to a connected consumer, which tools cannot reach directly.

Source: RocketMQ's GET_CONSUMER_RUNNING_INFO, CONSUME_MESSAGE_DIRECTLY and
INVOKE_BROKER_TO_GET_CONSUMER_STATUS.
"""

from __future__ import annotations

import logging

from batonmq.broker.context import Broker
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import CallTimeout, NetError
from batonmq.protocol.bodies.clients import GetConsumerStatusBody
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.headers.broker.admin import GetConsumerStatus
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
)
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.signing import unsigned

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS = 10_000
"""Time limit for a consumer's answer to a relayed request."""
STATUS_TIMEOUT_MS = 5_000


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    relay = _RelayHandlers(broker)
    dispatcher.on(GetConsumerRunningInfo, relay.running_info)
    dispatcher.on(ConsumeMessageDirectly, relay.consume_directly)
    dispatcher.on(GetConsumerStatus, relay.consumer_status)


class _RelayHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def _relay(
        self, request: Request, code: int, group: str, client_id: str | None, body: bytes | memoryview = b""
    ) -> Reply:
        member = self._broker.tables.consumers.member(group, client_id) if client_id else None
        if member is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        # The signature is for this broker. The consumer could use it for its own requests.
        command = Command(code, unsigned(request.command.ext), body or request.command.body)
        try:
            answer = await member.connection.invoke(command, CALL_TIMEOUT_MS)
        except CallTimeout as error:
            raise MQError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {error}"
            ) from None
        except NetError as error:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}"
            ) from None
        return Reply(body=answer.body, code=answer.code, remark=answer.remark)

    async def running_info(self, request: Request, header: GetConsumerRunningInfo) -> Reply:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return await self._relay(request, code, header.consumer_group, header.client_id)

    async def consume_directly(self, request: Request, header: ConsumeMessageDirectly) -> Reply:
        broker, ext = self._broker, request.command.ext
        ext["brokerName"] = broker.settings.broker.broker_name
        topic = broker.tables.topics.get(header.topic) if header.topic else None
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = broker.tables.subscriptions.get_or_create(header.consumer_group)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        try:
            _, _, offset = decode_message_id(header.msg_id or "")
        except MessageFormatError as error:
            raise MQError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = broker.store.message_at(offset)
        if record is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return await self._relay(request, code, header.consumer_group, header.client_id, record)

    async def consumer_status(self, request: Request, header: wire.GetConsumerStatus) -> Reply:
        group = self._broker.tables.consumers.group(header.group)
        if group is None:
            raise MQError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        table: dict[str, dict[MessageQueue, int]] = {}
        for member in list(group.members.values()):
            if header.client_addr and header.client_addr != member.client_id:
                continue
            asked = GetConsumerStatusFromClient(topic=header.topic, group=header.group)
            try:
                answer = await member.connection.call(asked, b"", STATUS_TIMEOUT_MS)
                table[member.client_id] = decode(answer.body, GetConsumerStatusBody).message_queue_table
            except (NetError, MQError) as error:
                log.warning("no status group=%s id=%s: %s", header.group, member.client_id, error)
        return Reply(body=encode(GetConsumerStatusBody(consumer_table=table)))
