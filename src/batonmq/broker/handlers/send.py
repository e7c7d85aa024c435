"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and CONSUMER_SEND_MSG_BACK (36).

The order of the checks, the codes and the remarks are RocketMQ's (`SendMessageProcessor`). A send that
passes is handed to the appender and answered when it is as safe as the configuration demands.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from batonmq.broker.appender import PutStatus, Waiter
from batonmq.broker.delay import delay_level_of, to_schedule_topic
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.topics import MULTI_TAG
from batonmq.protocol.codes import MessageSysFlag, Perm, RequestCode, ResponseCode, TopicSysFlag
from batonmq.protocol.errors import FAQ, MQError
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import pack_address
from batonmq.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_INNER_NUM,
    PROPERTY_MSG_REGION,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_POP_CK,
    PROPERTY_PRIORITY,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TRACE_SWITCH,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE_OK,
    TIMER_PREFIX,
    TIMER_PROPERTIES,
    decode_properties,
    encode_properties,
    find_property,
    property_start,
)
from batonmq.protocol.message.record import StoredMessage, decode_record
from batonmq.protocol.names import (
    NOT_ALLOWED_TO_SEND,
    RETRY_PREFIX,
    dead_letter_topic,
    retry_topic,
    topic_error,
)
from batonmq.protocol.send.reply import SendReplies
from batonmq.protocol.send.request import SendFields, fields_of
from batonmq.protocol.versions import V3_4_9

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
    from batonmq.protocol.bodies.topics import TopicConfig
    from batonmq.store.store import PutResult

log = logging.getLogger(__name__)

DLQ_QUEUES: Final = 1
_INNER_BATCH: Final = MessageSysFlag.INNER_BATCH
_TRANSACTION_MASK: Final = MessageSysFlag.TRANSACTION_MASK
_TRANSACTION_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT
_UNIQUE_KEY: Final = PROPERTY_UNIQUE_KEY.encode()
_PRIORITY: Final = property_start(PROPERTY_PRIORITY)
_WAIT_FALSE: Final = property_start(PROPERTY_WAIT_STORE_OK) + b"false"
# A plain message has none of these; each test costs 40 ns where parsing all properties costs 2 us.
_DELAY: Final = PROPERTY_DELAY_LEVEL.encode()
_TIMER: Final = TIMER_PREFIX.encode()
_TRANSACTION: Final = property_start(PROPERTY_TRANSACTION_PREPARED)
_POP_CK: Final = property_start(PROPERTY_POP_CK)
_INNER_NUM: Final = property_start(PROPERTY_INNER_NUM)
_OTHER_KINDS: Final = (PROPERTY_DELAY_LEVEL, *TIMER_PROPERTIES, PROPERTY_SHARDING_KEY)
"""Properties of a message that make it another kind than one with a priority."""

CODE_OF: Final = {
    PutStatus.PUT_OK: int(ResponseCode.SUCCESS),
    PutStatus.FLUSH_DISK_TIMEOUT: int(ResponseCode.FLUSH_DISK_TIMEOUT),
    PutStatus.FLUSH_SLAVE_TIMEOUT: int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
}


def rejected() -> MQError:
    """The answer of a broker that is not in the role for a request: clients try again elsewhere."""
    # One for each request: an exception that is raised again keeps the frames of all times before.
    return MQError(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST]system busy, start flow control for a while")


def _overloaded() -> MQError:
    return MQError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")


def _by_priority(message: StoredMessage, topic: TopicConfig) -> int:
    """The queue of a message that has a priority: that of its number, or the last one. A message that is
    ordered or delayed, too, loses its priority. As RocketMQ 5.5 does (`Message.setPriority`)."""
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


def put_error(status: PutStatus, max_message_size: int) -> MQError:
    """The answer for a message that is not in the log."""
    if status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
        return MQError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
    if status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
        return MQError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {max_message_size}B, msg properties length limit 32KB.",
        )
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        return MQError(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "service not available now. It may be caused by one of the following reasons: "
            "the broker's disk is full, "
            "messages are put to the slave, message store has been shut down, etc.",
        )
    if status is PutStatus.CREATE_MAPPED_FILE_FAILED:
        return MQError(ResponseCode.SYSTEM_ERROR, "create mapped file failed, server is busy or broken.")
    return MQError(ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR")


class _Send:
    """A send on its way; answers its request."""

    __slots__ = ("handlers", "queue_id", "request", "unique_key", "wait")

    def __init__(
        self, handlers: SendHandlers, request: Request, queue_id: int, unique_key: bytes, wait: bool
    ) -> None:
        self.handlers = handlers
        self.request = request
        self.queue_id = queue_id
        self.unique_key = unique_key
        self.wait = wait

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        handlers = self.handlers
        request = self.request
        if result is None:
            request.fail(put_error(status, handlers.broker.store_config.max_message_size))
            return
        code = CODE_OF[status]
        request.reply_frame(
            handlers.replies.encode(
                request.command,
                code,
                result.physical_offset,
                self.queue_id,
                result.queue_offset,
                self.unique_key,
            ),
            code,
        )


class _BatchSend(_Send):
    """A batch: its answer names the id of each message."""

    __slots__ = ()

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        if result is None:
            super().stored(status, None)
            return
        replies = self.handlers.replies
        ids = ",".join([replies.message_id(offset) for offset in result.physical_offsets])
        code = CODE_OF[status]
        self.request.reply_frame(
            replies.encode_ids(
                self.request.command,
                code,
                ids,
                self.queue_id,
                result.queue_offset,
                self.unique_key,
            ),
            code,
        )


class _SendBack:
    """A message of `topic` stored again for `group`; the answer has no fields."""

    __slots__ = ("group", "handlers", "request", "topic", "wait")

    def __init__(self, handlers: SendHandlers, request: Request, group: str, topic: str) -> None:
        self.handlers = handlers
        self.request = request
        self.group = group
        self.topic = topic
        # RocketMQ does not wait for replicas here. We do: the consumer commits the original's offset once
        # this is answered, so losing the copy would lose the message.
        self.wait = True

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        if status is PutStatus.PUT_OK:
            self.handlers.broker.stats.sent_back(self.group, self.topic)
            self.request.reply(Reply())
        else:
            self.request.fail(MQError(ResponseCode.SYSTEM_ERROR, status.value))


class SendHandlers:
    """Handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        config = broker.config
        self._store_host = pack_address(broker.address)
        self.replies = SendReplies(self._store_host, config.region_id, config.trace_on)
        # Appended to each message's properties; constant while the broker runs.
        self._own_properties = encode_properties(
            {
                PROPERTY_MSG_REGION: config.region_id,
                PROPERTY_TRACE_SWITCH: "true" if config.trace_on else "false",
                PROPERTY_CLUSTER: config.broker_cluster_name,
            }
        )
        self._born_hosts: dict[str, bytes] = {}

    # -- sends

    def on_send(self, request: Request) -> None:
        """One message or a batch, in any of the three codes."""
        broker = self.broker
        if not broker.role.is_master:
            raise rejected()
        config = broker.config
        if broker.appender.backlog >= config.send_thread_pool_queue_capacity:
            raise _overloaded()
        if config.start_accept_send_request_time_stamp:
            self._check_opened(config.start_accept_send_request_time_stamp)
        command = request.command
        fields = fields_of(command)
        topic = broker.topics.get(fields.topic)
        if topic is None or fields.topic in NOT_ALLOWED_TO_SEND or config.broker_permission & Perm.WRITE == 0:
            topic = self._check_topic(fields, request)
        queue_id = fields.queue_id
        if queue_id < 0 and topic.write_queue_nums > 0:
            queue_id = broker.rng.randrange(topic.write_queue_nums)
        elif queue_id < 0 or (queue_id >= topic.write_queue_nums and queue_id >= topic.read_queue_nums):
            raise MQError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {topic} Producer: {request.connection.peer}",
            )
        body = command.body
        if not body or len(body) > broker.store_config.max_message_size or fields.sys_flag & _INNER_BATCH:
            raise put_error(PutStatus.MESSAGE_ILLEGAL, broker.store_config.max_message_size)
        sys_flag = fields.sys_flag
        if topic.topic_filter_type == MULTI_TAG:
            sys_flag |= MessageSysFlag.MULTI_TAGS
        if sys_flag & _TRANSACTION_MASK and sys_flag & _TRANSACTION_MASK != _TRANSACTION_COMMIT:
            raise self._transactions_forbidden()
        peer = request.connection.peer
        born_host = self._born_hosts.get(peer)
        if born_host is None:
            born_host = self._born_host(peer)
        message = StoredMessage(
            topic=fields.topic,
            queue_id=queue_id,
            body=body,
            flag=fields.flag,
            sys_flag=sys_flag,
            born_timestamp=fields.born_timestamp,
            born_host=born_host,
            store_host=self._store_host,
            reconsume_times=fields.reconsume_times,
        )
        properties = fields.properties
        if fields.batch:
            if fields.topic.startswith(RETRY_PREFIX):
                raise MQError(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {fields.topic}"
                )
            message.batch = True
            waiter: Waiter = _BatchSend(self, request, queue_id, b"", True)
            if fields.topic in broker.new_topics.unknown:
                waiter = self._hold(fields.topic, waiter)
            broker.appender.submit(message, waiter)
            return
        unique_key = find_property(properties, _UNIQUE_KEY) or b""
        if properties and properties[-1] != 2:
            properties += b"\2"  # old clients leave out the last separator
        properties += self._own_properties
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise put_error(PutStatus.MESSAGE_ILLEGAL, broker.store_config.max_message_size)
        message.properties = properties
        if _PRIORITY in properties:
            queue_id = message.queue_id = _by_priority(message, topic)
        if (
            _DELAY in properties
            or _TIMER in properties
            or _TRANSACTION in properties
            or _POP_CK in properties
            or _INNER_NUM in properties
            or fields.topic.startswith(RETRY_PREFIX)
        ):
            message = self._special(message, fields, command.version)
        wait = _WAIT_FALSE not in properties
        waiter = _Send(self, request, queue_id, unique_key, wait)
        if fields.topic in broker.new_topics.unknown:
            waiter = self._hold(fields.topic, waiter)
        broker.appender.submit(message, waiter)

    def _hold(self, topic: str, waiter: Waiter) -> Waiter:
        """`topic` is what the message was sent to; a delayed one is in another by now."""
        new = self.broker.new_topics
        if new.held >= self.broker.config.send_thread_pool_queue_capacity:
            raise _overloaded()
        return new.hold(topic, waiter)

    def _check_opened(self, start_ms: int) -> None:
        if self.broker.clock.now_ms() < start_ms:
            start = datetime.fromtimestamp(start_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
            raise MQError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {start}")

    def _check_topic(self, fields: SendFields, request: Request) -> TopicConfig:
        """The checks that a message to a known, writable topic need not repeat."""
        broker = self.broker
        config = broker.config
        name = fields.topic
        if config.broker_permission & Perm.WRITE == 0 and broker.topics.is_order(name):
            raise self._sending_forbidden()
        error = topic_error(name)
        if error is not None:
            raise MQError(ResponseCode.INVALID_PARAMETER, error)
        if name in NOT_ALLOWED_TO_SEND:
            raise MQError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        found = broker.topics.get(name)
        if found is not None:
            return found
        retry = name.startswith(RETRY_PREFIX)
        sys_flag = 0
        if fields.unit_mode:
            sys_flag = TopicSysFlag.UNIT_SUB if retry else TopicSysFlag.UNIT
        found = broker.topics.create_on_send(
            name, fields.default_topic, fields.default_topic_queue_nums, sys_flag, request.connection.peer
        )
        if found is None and retry:
            found = broker.topics.create_on_send_back(name, 1, sys_flag=sys_flag)
        if found is None:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!{FAQ}")
        broker.new_topics.made(name)
        return found

    def _special(self, message: StoredMessage, fields: SendFields, client_version: int) -> StoredMessage:
        """Delayed, retried or otherwise marked messages."""
        properties = decode_properties(message.properties)
        properties.pop(PROPERTY_POP_CK, None)
        if properties.get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true":
            raise self._transactions_forbidden()
        if PROPERTY_INNER_NUM in properties:
            raise put_error(PutStatus.MESSAGE_ILLEGAL, self.broker.store_config.max_message_size)
        if message.topic.startswith(RETRY_PREFIX):
            self._retry_or_dead_letter(message, properties, fields, client_version)
        try:
            level = delay_level_of(properties)
        except ValueError:
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"property {PROPERTY_DELAY_LEVEL}={properties[PROPERTY_DELAY_LEVEL]} is not a delay level",
            ) from None
        if level <= 0 and not properties.keys().isdisjoint(TIMER_PROPERTIES):
            raise MQError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        try:
            message.properties = encode_properties(properties)
            if level > 0:
                return to_schedule_topic(message, level, self.broker.schedule.max_level)
        except MessageFormatError:
            raise put_error(PutStatus.MESSAGE_ILLEGAL, self.broker.store_config.max_message_size) from None
        return message

    def _retry_or_dead_letter(
        self, message: StoredMessage, properties: dict[str, str], fields: SendFields, client_version: int
    ) -> None:
        """A consumer resends a message it could not handle; too many attempts make it a dead letter."""
        broker = self.broker
        group = message.topic[len(RETRY_PREFIX) :]
        config = broker.subscriptions.find(group)
        if config is None:
            raise self._no_group(group)
        most = config.retry_max_times
        if client_version >= V3_4_9 and fields.max_reconsume_times is not None:
            most = fields.max_reconsume_times
        ordered = not broker.locks.all_expired(group, broker.clock.now_ms())
        if fields.reconsume_times > most or ordered:
            properties[PROPERTY_DELAY_LEVEL] = "-1"
            topic = broker.topics.create_on_send_back(dead_letter_topic(group), DLQ_QUEUES)
            message.topic = topic.topic_name
            message.queue_id = broker.rng.randrange(DLQ_QUEUES)
            log.info(
                "dead letter group=%s reconsume_times=%d ordered=%s", group, fields.reconsume_times, ordered
            )

    # -- send back

    def on_send_back(self, request: Request, header: ConsumerSendMsgBack) -> None:
        """A consumer could not handle a message of this broker's log: store it again for its group."""
        broker = self.broker
        if not broker.role.is_master:
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"no master available along with {broker.address.rpartition(':')[0]}",
            )
        if broker.appender.backlog >= broker.config.send_thread_pool_queue_capacity:
            raise _overloaded()
        group = broker.subscriptions.find(header.group)
        if group is None:
            raise self._no_group(header.group)
        if broker.config.broker_permission & Perm.WRITE == 0:
            raise self._sending_forbidden()
        if group.retry_queue_nums <= 0:
            request.reply(Reply())
            return
        sys_flag = TopicSysFlag.UNIT_SUB if header.unit_mode else 0
        topic = broker.topics.create_on_send_back(
            retry_topic(header.group), group.retry_queue_nums, sys_flag=sys_flag
        )
        if topic.perm & Perm.WRITE == 0:
            raise MQError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        message, origin = self._message_back(request, header, group, topic)
        broker.appender.submit(message, _SendBack(self, request, header.group, origin))

    def _message_back(
        self,
        request: Request,
        header: ConsumerSendMsgBack,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
    ) -> tuple[StoredMessage, str]:
        """The message to store, and the topic it was first sent to."""
        broker = self.broker
        view = broker.store.message_at(header.offset)
        if view is None:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        record = decode_record(view, inflate=False)
        properties = dict(record.properties)
        properties.setdefault(PROPERTY_RETRY_TOPIC, record.topic)
        properties[PROPERTY_WAIT_STORE_OK] = "false"
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, record.offset_message_id)
        most = group.retry_max_times
        if request.command.version >= V3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        level = header.delay_level
        queue_id = broker.rng.randrange(max(1, topic.write_queue_nums))
        if record.reconsume_times >= most or level < 0:
            topic = broker.topics.create_on_send_back(dead_letter_topic(header.group), DLQ_QUEUES)
            queue_id = broker.rng.randrange(DLQ_QUEUES)
            level = 0
            properties.pop(PROPERTY_DELAY_LEVEL, None)
            log.info(
                "dead letter group=%s topic=%s physical_offset=%d reconsume_times=%d",
                header.group,
                record.topic,
                header.offset,
                record.reconsume_times,
            )
        elif level == 0:
            level = 3 + record.reconsume_times
        message = StoredMessage(
            topic=topic.topic_name,
            queue_id=queue_id,
            body=record.body,
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp=record.born_timestamp,
            born_host=record.born_host,
            store_host=self._store_host,
            reconsume_times=record.reconsume_times + 1,
        )
        try:
            message.properties = encode_properties(properties)
            if level > 0:
                message = to_schedule_topic(message, level, broker.schedule.max_level)
        except MessageFormatError:
            raise put_error(PutStatus.MESSAGE_ILLEGAL, broker.store_config.max_message_size) from None
        return message, properties[PROPERTY_RETRY_TOPIC]

    # -- answers and small things

    def _born_host(self, peer: str) -> bytes:
        try:
            host = pack_address(peer)
        except ValueError:
            host = b"\0" * 8  # a peer without an IP address, as in tests over sockets of another family
        if len(self._born_hosts) > 10_000:
            self._born_hosts.clear()
        self._born_hosts[peer] = host
        return host

    def _no_group(self, group: str) -> MQError:
        return MQError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {FAQ}"
        )

    def _sending_forbidden(self) -> MQError:
        ip = self.broker.address.rpartition(":")[0]
        return MQError(ResponseCode.NO_PERMISSION, f"the broker[{ip}] sending message is forbidden")

    def _transactions_forbidden(self) -> MQError:
        ip = self.broker.address.rpartition(":")[0]
        return MQError(
            ResponseCode.NO_PERMISSION, f"the broker[{ip}] sending transaction message is forbidden"
        )


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    handlers = SendHandlers(broker)
    for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        dispatcher.on_code(code, handlers.on_send)
    dispatcher.on(ConsumerSendMsgBack, handlers.on_send_back)
