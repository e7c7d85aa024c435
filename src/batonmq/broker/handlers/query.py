"""Looking at single messages, and asking a consumer about itself through the broker.

Source: RocketMQ's QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, QUERY_CONSUME_QUEUE and its requests that a broker
passes on to a connected consumer.
"""

from __future__ import annotations

import logging

from batonmq.broker.context import Broker
from batonmq.broker.queues import records_of
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.errors import CallTimeout, NetError
from batonmq.protocol.bodies.clients import GetConsumerStatusBody
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.statistics import ConsumeQueueData, QueryConsumeQueueResponseBody
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.admin import GetConsumerStatus
from batonmq.protocol.headers.broker.pull import (
    UNIQUE_KEY_QUERY,
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageResponse,
    ViewMessage,
)
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
)
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.properties import PROPERTY_TAGS
from batonmq.protocol.tags import java_hash

log = logging.getLogger(__name__)

CALL_TIMEOUT_MS = 10_000
"""How long a consumer may take to answer what was passed on to it."""
STATUS_TIMEOUT_MS = 5_000
UNIQUE_KEY_MAX = 32
"""Most messages returned for a unique id."""


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    messages, relay = _MessageHandlers(broker), _RelayHandlers(broker)
    dispatcher.on(QueryMessage, messages.by_key)
    dispatcher.on(ViewMessage, messages.by_offset)
    dispatcher.on(QueryConsumeQueue, messages.consume_queue)
    dispatcher.on(GetConsumerRunningInfo, relay.running_info)
    dispatcher.on(ConsumeMessageDirectly, relay.consume_directly)
    dispatcher.on(GetConsumerStatus, relay.consumer_status)


class _MessageHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def by_key(self, request: Request, header: QueryMessage) -> Reply:
        unique = request.command.ext.get(UNIQUE_KEY_QUERY) == "true"
        found = self._broker.store.query_by_key(
            header.topic,
            header.key,
            UNIQUE_KEY_MAX if unique else header.max_num,
            header.begin_timestamp,
            header.end_timestamp,
        )
        progress = QueryMessageResponse(
            index_last_update_timestamp=found.index_timestamp, index_last_update_phyoffset=found.index_offset
        )
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return Reply(progress, code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return Reply(progress, found.records)

    def by_offset(self, request: Request, header: ViewMessage) -> Reply:
        record = self._broker.store.message_at(header.offset)
        if record is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        return Reply(body=record)

    def consume_queue(self, request: Request, header: QueryConsumeQueue) -> Reply:
        broker, topic, queue_id = self._broker, header.topic, header.queue_id
        bounds = broker.store.queue_bounds(topic, queue_id)
        if not bounds.max_offset:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(
            max_queue_index=bounds.max_offset, min_queue_index=bounds.min_offset
        )
        if header.consumer_group is not None:
            body.subscription_data = broker.consumers.subscription(header.consumer_group, topic)
            offline = f"{header.consumer_group}@{topic} is not online!"
            body.filter_data = "null" if body.subscription_data else offline
        if not bounds.min_offset <= header.index < bounds.max_offset:
            return Reply(
                body=encode(body), remark=f"Index {header.index} of {queue_id}@{topic} is not exist!"
            )
        body.queue_data = [
            ConsumeQueueData(
                physic_offset=record.physical_offset,
                physic_size=record.store_size,
                tags_code=java_hash(record.properties.get(PROPERTY_TAGS, "")),
            )
            for record in records_of(broker.store, topic, queue_id, header.index, header.count)
        ]
        return Reply(body=encode(body))


class _RelayHandlers:
    """The broker in the middle: tools cannot reach a consumer, its connection to the broker can."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def _pass_on(
        self, request: Request, code: int, group: str, client_id: str | None, body: bytes | memoryview = b""
    ) -> Reply:
        member = self._broker.consumers.member(group, client_id) if client_id else None
        if member is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        command = Command(code, dict(request.command.ext), body or request.command.body)
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
        return await self._pass_on(request, code, header.consumer_group, header.client_id)

    async def consume_directly(self, request: Request, header: ConsumeMessageDirectly) -> Reply:
        broker, ext = self._broker, request.command.ext
        ext["brokerName"] = broker.config.broker_name
        topic = broker.topics.get(header.topic) if header.topic else None
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = broker.subscriptions.find(header.consumer_group)
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
        return await self._pass_on(request, code, header.consumer_group, header.client_id, record)

    async def consumer_status(self, request: Request, header: GetConsumerStatus) -> Reply:
        group = self._broker.consumers.group(header.group)
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
