"""Checks and stores messages that producers send.

This module knows no frames and connections: the remoting handlers (`send_handlers.py`) call it, and other
front ends may. The order of the checks, the codes and the remarks are RocketMQ's (`SendMessageProcessor`). A
message that passes goes to the appender; its caller receives the outcome once it is as safe as the
configuration demands.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.answers import no_group, not_stored, overloaded, sending_forbidden
from batonmq.broker.messages.appender import PutStatus, Waiter
from batonmq.broker.role import rejected
from batonmq.common.addresses import host_and_port
from batonmq.protocol.bodies.topics import MULTI_TAG
from batonmq.protocol.codes import MessageSysFlag, Perm, ResponseCode, TopicSysFlag
from batonmq.protocol.errors import FAQ, MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import UniqueIds, pack_address
from batonmq.protocol.message.light import LIGHT_MARK, gives_light_offsets, light_names, names_error
from batonmq.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_INNER_NUM,
    PROPERTY_MSG_REGION,
    PROPERTY_POP_CK,
    PROPERTY_PRIORITY,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_BATCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE_OK,
    TIMER_PROPERTIES,
    decode_properties,
    encode_properties,
    find_property,
    is_encoding,
    property_start,
)
from batonmq.protocol.message.recall import encode_recall_handle
from batonmq.protocol.message.record import StoredMessage
from batonmq.protocol.names import (
    NOT_ALLOWED_TO_SEND,
    RETRY_PREFIX,
    TIMER_TOPIC,
    dead_letter_topic,
    topic_error,
)
from batonmq.protocol.versions import V3_4_9

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.messages.new_topics import NewTopics
    from batonmq.protocol.bodies.topics import TopicConfig
    from batonmq.protocol.send.request import SendFields
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

DLQ_QUEUES: Final = 1
VERSION_WITH_MAX_RECONSUME: Final = V3_4_9
"""The first client version that says how often a message may be retried."""
NO_HOST: Final = b"\0" * 8
"""Stored for a peer without an IP address, as in tests over sockets of another family."""
_INNER_BATCH: Final = MessageSysFlag.INNER_BATCH
_TRANSACTION_MASK: Final = MessageSysFlag.TRANSACTION_MASK
_TRANSACTION_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT
_UNIQUE_KEY: Final = PROPERTY_UNIQUE_KEY.encode()
_BATCH: Final = property_start(PROPERTY_TRANSACTION_BATCH)
"""Of a half message that becomes many, each with the key of its row."""
_PRIORITY: Final = property_start(PROPERTY_PRIORITY)
_WAIT_FALSE: Final = property_start(PROPERTY_WAIT_STORE_OK) + b"false"
_PREPARED: Final = property_start(PROPERTY_TRANSACTION_PREPARED)
_OTHER_KINDS: Final = (PROPERTY_DELAY_LEVEL, *TIMER_PROPERTIES, PROPERTY_SHARDING_KEY)
"""Properties of a message that make it another kind than one with a priority."""
_DELAY_LEVEL: Final = PROPERTY_DELAY_LEVEL.encode()
_TIMES: Final = tuple(name.encode() for name in TIMER_PROPERTIES)
_TIMER_OUT: Final = PROPERTY_TIMER_OUT_MS.encode()
_MARKS: Final = (
    property_start(PROPERTY_POP_CK),
    property_start(PROPERTY_INNER_NUM),
)
"""What the properties of a message contain that `_inspect` has to look at."""


class SendCall:
    """One send of a message or batch. A front end subclasses it and answers in `stored`; `Sender.send` sets
    the attributes."""

    __slots__ = ("queue_id", "recall_handle", "unique_key", "wait")

    def __init__(self) -> None:
        self.recall_handle = ""
        """By which the producer can recall the message; empty for one without a time of delivery."""
        self.queue_id = -1
        """The chosen queue."""
        self.unique_key = b""
        """Property UNIQ_KEY; empty for a batch."""
        self.wait = True
        """False: the producer does not wait for replicas and disk (property WAIT=false)."""

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        """See `Waiter`."""
        raise NotImplementedError


class AwaitedSend(SendCall):
    """A send whose outcome is awaited: `outcome` gives its status, and the result if it is in the log."""

    __slots__ = ("outcome",)

    def __init__(self) -> None:
        super().__init__()
        self.outcome: asyncio.Future[tuple[PutStatus, PutResult | None]] = (
            asyncio.get_running_loop().create_future()
        )

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        if not self.outcome.done():
            self.outcome.set_result((status, result))


class Sender:
    """The sends of one broker."""

    def __init__(self, broker: Broker, new_topics: NewTopics) -> None:
        self._broker = broker
        self._settings = broker.settings
        self._role = broker.role
        self._topics = broker.tables.topics
        self._appender = broker.appender
        self._new_topics = new_topics
        config = broker.settings.broker
        # Appended to the properties of every message; constant while the broker runs.
        self._own_properties = encode_properties(
            {
                PROPERTY_MSG_REGION: config.region_id,
                PROPERTY_TRACE_SWITCH: "true" if config.trace_on else "false",
                PROPERTY_CLUSTER: config.broker_cluster_name,
            }
        )
        self._light_queues = broker.settings.store.light_queues
        self._store_host = NO_HOST
        self._marks: tuple[bytes, ...] = _MARKS
        self._born_hosts: dict[str, bytes] = {}
        self._ids: UniqueIds | None = None

    def open(self) -> None:
        """The broker's address is known, and all redirects are added."""
        self._store_host = pack_address(self._broker.address)
        self._marks = _MARKS + self._broker.redirects.marks
        if self._light_queues:
            self._marks += (LIGHT_MARK,)

    def _unique_id(self) -> bytes:
        """For a message without UNIQ_KEY: consumers know it by this id, and its producer may recall it."""
        ids = self._ids
        now_ms = self._broker.clock.now_ms()
        if ids is None:
            host, port = host_and_port(self._broker.address)
            # Differs from the ids of this broker before a restart, and of other brokers.
            ids = self._ids = UniqueIds(host, port, now_ms & 0xFFFFFFFF)
        return ids.next(now_ms).encode()

    @property
    def store_host(self) -> bytes:
        """The broker's packed address, for records and message ids."""
        return self._store_host

    def send(
        self, fields: SendFields, body: bytes | memoryview, peer: str, version: int, call: SendCall
    ) -> None:
        """Store one message or batch of the client at `peer` (``ip:port``), which has client version
        `version`.

        `call.stored` is called once unless this raises `MQError`. Hot path.
        """
        if not self._role.is_master:
            raise rejected(self._role, "messages")
        settings = self._settings
        config = settings.broker
        if self._appender.full(config.send_thread_pool_queue_capacity):
            raise overloaded()
        if config.start_accept_send_request_time_stamp:
            self._check_opened(config.start_accept_send_request_time_stamp)
        name = fields.topic
        topic = self._topics.get(name)
        if topic is None or name in NOT_ALLOWED_TO_SEND or config.broker_permission & Perm.WRITE == 0:
            topic = self._check_topic(fields, peer)
        queue_id = fields.queue_id
        if queue_id < 0 and topic.write_queue_nums > 0:
            queue_id = self._broker.rng.randrange(topic.write_queue_nums)
        elif queue_id < 0 or (queue_id >= topic.write_queue_nums and queue_id >= topic.read_queue_nums):
            raise _no_such_queue(queue_id, topic, peer)
        max_message_size = settings.store.max_message_size
        if not body or len(body) > max_message_size or fields.sys_flag & _INNER_BATCH:
            raise not_stored(PutStatus.MESSAGE_ILLEGAL, max_message_size)
        sys_flag = fields.sys_flag
        if topic.topic_filter_type == MULTI_TAG:
            sys_flag |= MessageSysFlag.MULTI_TAGS
        if sys_flag & _TRANSACTION_MASK and (fields.batch or not _may_have_flag(sys_flag, fields.properties)):
            raise not_stored(PutStatus.MESSAGE_ILLEGAL, max_message_size)
        born_host = self._born_hosts.get(peer)
        if born_host is None:
            born_host = self._born_host(peer)
        message = StoredMessage(
            topic=name,
            queue_id=queue_id,
            body=body,
            flag=fields.flag,
            sys_flag=sys_flag,
            born_timestamp=fields.born_timestamp,
            born_host=born_host,
            store_host=self._store_host,
            reconsume_times=fields.reconsume_times,
        )
        if fields.batch:
            if name.startswith(RETRY_PREFIX):
                raise MQError(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {name}"
                )
            if fields.properties and _is_delayed(fields.properties):
                # Its messages would be stored as ones to deliver at once.
                raise not_stored(PutStatus.MESSAGE_ILLEGAL, max_message_size)
            message.batch = True
        else:
            properties = fields.properties
            call.unique_key = find_property(properties, _UNIQUE_KEY) or b""
            if properties and properties[-1] != 2:
                properties += b"\2"  # old clients omit the last separator
            if not call.unique_key and _BATCH not in properties:
                call.unique_key = self._unique_id()
                properties += _UNIQUE_KEY + b"\1" + call.unique_key + b"\2"
            properties += self._own_properties
            if len(properties) > MAX_PROPERTIES_BYTES:
                raise not_stored(PutStatus.MESSAGE_ILLEGAL, max_message_size)
            message.properties = properties
            if _PRIORITY in properties:
                queue_id = message.queue_id = _by_priority(message, topic)
            # Plain messages have none of these. A test costs 40 ns, parsing all properties 2 us.
            for mark in self._marks:
                if mark in properties:
                    message = self._inspect(message, fields, version)
                    if message.topic == TIMER_TOPIC and name != TIMER_TOPIC:
                        call.recall_handle = self._recall_handle(name, message, call.unique_key)
                    break
            else:
                if name.startswith(RETRY_PREFIX):
                    message = self._inspect(message, fields, version)
            call.wait = _WAIT_FALSE not in properties
        call.queue_id = queue_id
        waiter: Waiter = call
        if name in self._new_topics.pending:
            waiter = self._hold(name, call)
        self._appender.submit(message, waiter)

    def check(self, fields: SendFields, peer: str) -> int:
        """The checks of `send`, for a message that is not stored. Returns the queue. Raises `MQError`."""
        if not self._role.is_master:
            raise rejected(self._role, "messages")
        config = self._settings.broker
        if config.start_accept_send_request_time_stamp:
            self._check_opened(config.start_accept_send_request_time_stamp)
        topic = self._check_topic(fields, peer)
        if fields.queue_id < 0 and topic.write_queue_nums > 0:
            return self._broker.rng.randrange(topic.write_queue_nums)
        if fields.queue_id < 0 or fields.queue_id >= max(topic.write_queue_nums, topic.read_queue_nums):
            raise _no_such_queue(fields.queue_id, topic, peer)
        return fields.queue_id

    def _hold(self, topic: str, waiter: Waiter) -> Waiter:
        """`topic`: the topic of the send; a delayed message is in another one by now."""
        if self._new_topics.held >= self._settings.broker.send_thread_pool_queue_capacity:
            raise overloaded()
        return self._new_topics.hold(topic, waiter)

    # -- checks

    def _check_opened(self, start_ms: int) -> None:
        if self._broker.clock.now_ms() < start_ms:
            start = datetime.fromtimestamp(start_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
            raise MQError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {start}")

    def _check_topic(self, fields: SendFields, peer: str) -> TopicConfig:
        """The topic, after the checks that a message to a known, writable topic does not need."""
        name, topics = fields.topic, self._topics
        if self._settings.broker.broker_permission & Perm.WRITE == 0 and topics.is_order(name):
            raise sending_forbidden(self._broker.address)
        error = topic_error(name)
        if error is not None:
            raise MQError(ResponseCode.INVALID_PARAMETER, error)
        if name in NOT_ALLOWED_TO_SEND:
            raise MQError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        found = topics.get(name)
        if found is not None:
            return found
        retry = name.startswith(RETRY_PREFIX)
        sys_flag = 0
        if fields.unit_mode:
            sys_flag = TopicSysFlag.UNIT_SUB if retry else TopicSysFlag.UNIT
        found = topics.create_on_send(
            name, fields.default_topic, fields.default_topic_queue_nums, sys_flag, peer
        )
        # Groups are limited in number, names that a client makes up are not.
        known_group = name[len(RETRY_PREFIX) :] in self._broker.tables.subscriptions
        if found is None and retry and (known_group or topics.has_room):
            found = topics.create_on_send_back(name, 1, sys_flag=sys_flag)
        if found is None:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}")
        self._new_topics.created(name)
        return found

    # -- kinds of messages

    def _inspect(self, message: StoredMessage, fields: SendFields, client_version: int) -> StoredMessage:
        """The message to store for a delayed, retried or otherwise marked message."""
        properties = decode_properties(message.properties)
        properties.pop(PROPERTY_POP_CK, None)
        if message.sys_flag & _TRANSACTION_MASK != _TRANSACTION_COMMIT:
            message.sys_flag &= ~_TRANSACTION_MASK  # or no consumer and no check would find it
        max_message_size = self._settings.store.max_message_size
        if PROPERTY_INNER_NUM in properties:
            raise not_stored(PutStatus.MESSAGE_ILLEGAL, max_message_size)
        if self._light_queues:
            properties.pop(PROPERTY_INNER_MULTI_QUEUE_OFFSET, None)  # only the store gives it
            self._check_light_queues(message)
        retried = message.topic.startswith(RETRY_PREFIX)
        if retried:
            self._retry_or_dead_letter(message, properties, fields, client_version)
        try:
            if retried or not is_encoding(message.properties, properties):
                message.properties = encode_properties(properties)
            stored = self._broker.redirects.apply(message, properties)
        except MessageFormatError:
            raise not_stored(PutStatus.MESSAGE_ILLEGAL, max_message_size) from None
        return message if stored is None else stored

    def _check_light_queues(self, message: StoredMessage) -> None:
        """Refuse at once what the store would refuse, perhaps only when a delayed message is due."""
        topic, properties = message.topic, message.properties
        if not gives_light_offsets(topic):
            return
        error = names_error(topic, light_names(properties))
        if error is not None:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, error)
        refused = self._broker.store.light_refusal(topic, properties)
        if refused is not None:
            raise not_stored(PutStatus[refused.name], self._settings.store.max_message_size)

    def _recall_handle(self, topic: str, message: StoredMessage, unique_key: bytes) -> str:
        """See `SendCall.recall_handle`; empty for a message that is sent back to a group."""
        slot_ms = find_property(message.properties, _TIMER_OUT)
        if topic.startswith(RETRY_PREFIX) or slot_ms is None or not unique_key:
            return ""
        name = self._settings.broker.broker_name
        return encode_recall_handle(topic, name, int(slot_ms) + 1, unique_key.decode("utf-8", "replace"))

    def _retry_or_dead_letter(
        self, message: StoredMessage, properties: dict[str, str], fields: SendFields, client_version: int
    ) -> None:
        """A consumer resends a message that it failed to handle; after too many attempts it is a dead
        letter."""
        broker = self._broker
        group = message.topic[len(RETRY_PREFIX) :]
        config = broker.tables.subscriptions.get_or_create(group)
        if config is None:
            raise no_group(group)
        most = config.retry_max_times
        if client_version >= VERSION_WITH_MAX_RECONSUME and fields.max_reconsume_times is not None:
            most = fields.max_reconsume_times
        ordered = not broker.tables.locks.all_expired(group, broker.clock.monotonic_ms())
        if fields.reconsume_times > most or ordered:
            properties[PROPERTY_DELAY_LEVEL] = "-1"
            topic = self._topics.create_on_send_back(dead_letter_topic(group), DLQ_QUEUES)
            message.topic = topic.topic_name
            message.queue_id = broker.rng.randrange(DLQ_QUEUES)
            log.info(
                "dead letter group=%s reconsume_times=%d ordered=%s", group, fields.reconsume_times, ordered
            )

    def _born_host(self, peer: str) -> bytes:
        try:
            host = pack_address(peer)
        except ValueError:
            host = NO_HOST
        if len(self._born_hosts) > 10_000:
            self._born_hosts.clear()
        self._born_hosts[peer] = host
        return host


def _no_such_queue(queue_id: int, topic: TopicConfig, peer: str) -> MQError:
    return MQError(
        ResponseCode.INVALID_PARAMETER,
        f"request queueId[{queue_id}] is illegal, topic {topic.topic_name} has "
        f"writeQueueNums={topic.write_queue_nums} readQueueNums={topic.read_queue_nums} Producer: {peer}",
    )


def _may_have_flag(sys_flag: int, properties: bytes) -> bool:
    """Whether a message may have these transaction bits. One with the bits of a half message, but without the
    property, would be stored where no consumer and no check finds it; RocketMQ stores it."""
    return sys_flag & _TRANSACTION_MASK == _TRANSACTION_COMMIT or _PREPARED in properties


def _is_delayed(properties: bytes) -> bool:
    """Whether a message with these properties is to be delivered later."""
    level = find_property(properties, _DELAY_LEVEL)
    if level is not None and level != b"0" and not level.startswith(b"-"):
        return True
    return any(find_property(properties, name) is not None for name in _TIMES)


def _by_priority(message: StoredMessage, topic: TopicConfig) -> int:
    """The queue of a message with a priority: the queue with that number, or the last one. An ordered or
    delayed message loses its priority. Source: RocketMQ 5.5 (`Message.setPriority`)."""
    properties = decode_properties(message.properties)
    text = properties.get(PROPERTY_PRIORITY, "")
    priority = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else -1
    if not 0 <= priority < 1 << 31 or topic.write_queue_nums < 1:
        return message.queue_id
    if not properties.keys().isdisjoint(_OTHER_KINDS):
        del properties[PROPERTY_PRIORITY]
        message.properties = encode_properties(properties)
        return message.queue_id
    return min(priority, topic.write_queue_nums - 1)
