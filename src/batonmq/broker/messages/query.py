"""Requests for single messages: QUERY_MESSAGE, VIEW_MESSAGE_BY_ID and QUERY_CONSUME_QUEUE."""

from __future__ import annotations

import logging

from batonmq.broker.context import Broker
from batonmq.broker.messages.records import records_of
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.statistics import ConsumeQueueData, QueryConsumeQueueResponseBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import pull as wire
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.json import encode
from batonmq.protocol.message.properties import PROPERTY_TAGS

log = logging.getLogger(__name__)

TAG_INDEX = "T"
"""The index type of a query by tag (`MessageConst.INDEX_TAG_TYPE`)."""
UNIQUE_KEY_MAX = 32
"""Largest number of messages returned for a unique id."""


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    messages = _MessageHandlers(broker)
    dispatcher.on(wire.QueryMessage, messages.by_key)
    dispatcher.on(wire.ViewMessage, messages.by_offset)
    dispatcher.on(wire.QueryConsumeQueue, messages.consume_queue)


class _MessageHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def by_key(self, request: Request, header: wire.QueryMessage) -> Reply:
        if header.index_type == TAG_INDEX:
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                "tags are not indexed here, query by key or unique id; a consumer can filter by tag",
            )
        unique = request.command.ext.get(wire.UNIQUE_KEY_QUERY) == "true"
        found = self._broker.store.query_by_key(
            header.topic,
            header.key,
            UNIQUE_KEY_MAX if unique else header.max_num,
            header.begin_timestamp,
            header.end_timestamp,
        )
        progress = wire.QueryMessageResponse(
            index_last_update_timestamp=found.index_timestamp, index_last_update_phyoffset=found.index_offset
        )
        if not found.records:
            remark = "can not find message, maybe time range not correct"
            return Reply(progress, code=ResponseCode.QUERY_NOT_FOUND, remark=remark)
        return Reply(progress, found.records)

    def by_offset(self, request: Request, header: wire.ViewMessage) -> Reply:
        record = self._broker.store.message_at(header.offset)
        if record is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        return Reply(body=record)

    def consume_queue(self, request: Request, header: wire.QueryConsumeQueue) -> Reply:
        broker, topic, queue_id = self._broker, header.topic, header.queue_id
        bounds = broker.store.queue_bounds(topic, queue_id)
        if not bounds.max_offset:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body = QueryConsumeQueueResponseBody(
            max_queue_index=bounds.max_offset, min_queue_index=bounds.min_offset
        )
        if header.consumer_group is not None:
            body.subscription_data = broker.tables.consumers.subscription(header.consumer_group, topic)
            if body.subscription_data is None:
                body.filter_data = f"{header.consumer_group}@{topic} is not online!"
            else:
                known = broker.tables.filters.get(topic, header.consumer_group)
                body.filter_data = "null" if known is None else encode(known.data).decode()
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
