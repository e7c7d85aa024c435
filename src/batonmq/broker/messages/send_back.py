"""Stores messages again that consumers send back (CONSUMER_SEND_MSG_BACK).

Codes and remarks are RocketMQ's (`AbstractSendMessageProcessor.consumerSendMsgBack`). The message is read
from this broker's log. A slave has it, too, but writes nothing: a master in the same process stores it. If
there is none, the consumer gets an error and sends the message itself, as RocketMQ's clients do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from batonmq.broker.messages.answers import no_group, not_stored, overloaded, sending_forbidden
from batonmq.broker.messages.appender import PutStatus, Waiter
from batonmq.broker.messages.sender import DLQ_QUEUES, VERSION_WITH_MAX_RECONSUME
from batonmq.protocol.codes import Perm, ResponseCode, TopicSysFlag
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import pack_address
from batonmq.protocol.message.layout import once_more
from batonmq.protocol.message.properties import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE_OK,
    encode_properties,
)
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_record
from batonmq.protocol.names import dead_letter_topic, retry_topic

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.protocol.bodies.topics import TopicConfig
    from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack

log = logging.getLogger(__name__)


def send_back(broker: Broker, header: ConsumerSendMsgBack, version: int, waiter: Waiter) -> str | None:
    """Store a message of this broker's log again, for a group that failed to handle it.

    `version`: the client's. Returns the message's first topic; None if the group has no retries (the waiter
    is then not called). Raises `MQError`.
    """
    home = broker if broker.role.is_master else _master_beside(broker)
    if home is None:
        ip = broker.address.rpartition(":")[0]
        raise MQError(ResponseCode.SYSTEM_ERROR, f"no master available along with {ip}")
    config = home.settings.broker
    if home.appender.full(config.send_thread_pool_queue_capacity):
        raise overloaded()
    group = home.tables.subscriptions.get_or_create(header.group)
    if group is None:
        raise no_group(header.group)
    if config.broker_permission & Perm.WRITE == 0:
        raise sending_forbidden(home.address)
    if group.retry_queue_nums <= 0:
        return None
    topic = home.tables.topics.create_on_send_back(
        retry_topic(header.group),
        group.retry_queue_nums,
        sys_flag=TopicSysFlag.UNIT_SUB if header.unit_mode else 0,
    )
    if topic.perm & Perm.WRITE == 0:
        raise MQError(
            ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
        )
    record = _record(broker, header)
    most = group.retry_max_times
    if version >= VERSION_WITH_MAX_RECONSUME and header.max_reconsume_times is not None:
        most = header.max_reconsume_times
    home.appender.submit(_copy(home, record, header, most, topic), waiter)
    return record.properties.get(PROPERTY_RETRY_TOPIC, record.topic)


def _master_beside(broker: Broker) -> Broker | None:
    """A master in this process that a client may reach through this slave: not one that checks requests which
    this slave does not check."""
    own = broker.settings.auth
    for other in broker.masters_beside():
        auth = other.settings.auth
        if (own.authentication_enabled or not auth.authentication_enabled) and (
            own.authorization_enabled or not auth.authorization_enabled
        ):
            return other
    return None


def _record(broker: Broker, header: ConsumerSendMsgBack) -> MessageExt:
    """The message in this broker's log."""
    view = broker.store.message_at(header.offset)
    if view is None:
        raise MQError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    record = decode_record(view, inflate=False)
    if header.origin_topic is not None and header.origin_topic in broker.tables.mappings:
        # The offset may be one of another broker's log, which has an older part of the queue. RocketMQ's
        # clients send the message itself after this error.
        sent = record.properties.get(PROPERTY_UNIQUE_KEY, record.offset_message_id)
        topics = header.origin_topic, retry_topic(header.group)
        if record.topic not in topics or header.origin_msg_id not in (None, sent):
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}: another message is there",
            )
    return record


def _copy(
    home: Broker, record: MessageExt, header: ConsumerSendMsgBack, most: int, topic: TopicConfig
) -> StoredMessage:
    """The message that `home` stores: in the retry topic, or among the dead letters after `most` retries."""
    properties = dict(record.properties)
    properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
    properties[PROPERTY_WAIT_STORE_OK] = "false"
    properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, record.offset_message_id)
    queue_id = home.rng.randrange(max(1, topic.write_queue_nums))
    if record.reconsume_times >= most or header.delay_level < 0:
        topic = home.tables.topics.create_on_send_back(dead_letter_topic(header.group), DLQ_QUEUES)
        queue_id = home.rng.randrange(DLQ_QUEUES)
        properties.pop(PROPERTY_DELAY_LEVEL, None)
        log.info(
            "dead letter group=%s topic=%s physical_offset=%d reconsume_times=%d",
            header.group,
            record.topic,
            header.offset,
            record.reconsume_times,
        )
    else:
        level = header.delay_level or 3 + record.reconsume_times
        properties[PROPERTY_DELAY_LEVEL] = str(level)
    message = StoredMessage(
        topic=topic.topic_name,
        queue_id=queue_id,
        body=record.body,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=pack_address(home.address),
        reconsume_times=once_more(record.reconsume_times),
        accepted=True,
    )
    try:
        message.properties = encode_properties(properties)
        return home.redirects.apply(message, properties) or message
    except MessageFormatError:
        raise not_stored(PutStatus.MESSAGE_ILLEGAL, home.settings.store.max_message_size) from None
