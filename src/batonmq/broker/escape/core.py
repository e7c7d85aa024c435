"""Decides where a message of an acting master goes, and in which form it is sent. No I/O.

Source: RocketMQ's `EscapeBridge` and `TopicRouteInfoManager`. RocketMQ does not request a route again after a
failure, and loses a timed message that was sent to a dead broker four times (issue 7923).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.message.properties import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
    TIMER_PROPERTIES,
    decode_properties,
    encode_properties,
    find_property,
)
from batonmq.protocol.message.record import StoredMessage
from batonmq.protocol.names import (
    AUTO_CREATE_TOPIC,
    DEFAULT_TOPIC_QUEUES,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_HALF_TOPIC,
)
from batonmq.routing.routes import TopicRoute, parse_route

_TRANSACTION: Final = MessageSysFlag.TRANSACTION_MASK
_WAITING: Final = (SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC)
_GROUP: Final = PROPERTY_PRODUCER_GROUP.encode()


NOWHERE: Final = TopicRoute((), (), {})


def usable(topic: str, route: TopicRouteData, cluster: str, own_name: str) -> TopicRoute:
    """The masters of `cluster` that take messages of `topic`, except the broker set `own_name`: its master is
    gone, and an old route may still name it. None for a static topic: another master would take the physical
    queue for a logical one."""
    if route.topic_queue_mapping_by_broker:
        return NOWHERE
    names = {
        group.broker_name
        for group in route.broker_datas
        if group.cluster == cluster and group.broker_name != own_name
    }
    return parse_route(
        topic,
        TopicRouteData(
            [queues for queues in route.queue_datas if queues.broker_name in names],
            [group for group in route.broker_datas if group.broker_name in names],
        ),
    )


def without(route: TopicRoute, addresses: set[str]) -> TopicRoute:
    """The route without the masters at these addresses."""
    if not addresses:
        return route
    return TopicRoute(
        tuple(queue for queue in route.write_queues if route.master(queue.broker_name) not in addresses),
        route.read_queues,
        route.brokers,
    )


def outward(message: StoredMessage, precision_ms: int) -> StoredMessage:
    """The message as a client would send it.

    Delayed messages, timed messages and half messages get their real topic back: the other master moves them
    to its system topic. A committed message becomes a plain one, because its half message is in another log.
    `precision_ms`: step of this broker's timer wheel. Raises `MessageFormatError` for properties that become
    too long.
    """
    message = replace(message, sys_flag=message.sys_flag & ~_TRANSACTION, prepared_transaction_offset=0)
    if message.topic not in _WAITING:
        return message
    properties = decode_properties(message.properties)
    topic, queue_id = properties.pop(PROPERTY_REAL_TOPIC, ""), properties.pop(PROPERTY_REAL_QUEUE_ID, "")
    if message.topic == TRANS_HALF_TOPIC:
        message.sys_flag |= MessageSysFlag.TRANSACTION_PREPARED
        properties[PROPERTY_TRANSACTION_PREPARED] = "true"
        properties.pop(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET, None)
    elif message.topic == TIMER_TOPIC:
        out_ms = properties.pop(PROPERTY_TIMER_OUT_MS, "")
        if out_ms.isascii() and out_ms.isdigit():
            for name in (PROPERTY_DELAY_LEVEL, *TIMER_PROPERTIES):
                properties.pop(name, None)
            # The messages of a slot are due at the end of its step.
            properties[PROPERTY_TIMER_DELIVER_MS] = str(int(out_ms) + precision_ms)
    return replace(
        message,
        topic=topic,
        queue_id=int(queue_id) if queue_id.isascii() and queue_id.isdigit() else 0,
        properties=encode_properties(properties),
    )


def send_header(message: StoredMessage, queue_id: int, broker_name: str, group: str) -> SendMessageV2:
    """The request that sends a message to this queue. `group`: for a message that names no producer group.
    Raises ValueError for properties that are not UTF-8."""
    named = find_property(message.properties, _GROUP)
    return SendMessageV2(
        producer_group=named.decode() if named else group,
        topic=message.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=DEFAULT_TOPIC_QUEUES,
        queue_id=queue_id,
        sys_flag=message.sys_flag & ~MessageSysFlag.HOSTS_V6,
        born_timestamp=message.born_timestamp,
        flag=message.flag,
        properties=message.properties.decode(),
        reconsume_times=message.reconsume_times,
        unit_mode=False,
        batch=message.batch,
        broker_name=broker_name,
    )
