"""Messages to send, and the results of sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import Enum

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.compression import decompress
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    PROPERTY_CORRELATION_ID,
    PROPERTY_DELAY_LEVEL,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_KEYS,
    PROPERTY_MESSAGE_TTL,
    PROPERTY_MESSAGE_TYPE,
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_POP_CK,
    PROPERTY_PRIORITY,
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_MESSAGE_ARRIVE_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRANSACTION_BATCH,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE_OK,
    RESERVED_PROPERTIES,
    TIMER_PREFIX,
    encode_properties,
    split_keys,
)
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import NOT_ALLOWED_TO_SEND, check_topic

PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
SYSTEM_PROPERTIES = frozenset(
    {
        PROPERTY_TRANSACTION_BATCH,
        PROPERTY_SHARDING_KEY,
        PROPERTY_PRIORITY,
        PROPERTY_TRANSACTION_ID,
        PROPERTY_POP_CK,
        PROPERTY_FIRST_POP_TIME,
        PROPERTY_ORIGIN_GROUP,
        PROPERTY_CORRELATION_ID,
        PROPERTY_REPLY_TO_CLIENT,
        PROPERTY_MESSAGE_TTL,
        PROPERTY_MESSAGE_TYPE,
        PROPERTY_PUSH_REPLY_TIME,
        PROPERTY_REPLY_MESSAGE_ARRIVE_TIME,
    }
)
SYSTEM_PREFIXES = (TIMER_PREFIX, "INNER_", "DLQ_ORIGIN_")
"""What clients and brokers set on the way of a message; not part of it when it is sent again."""


class Message:
    """A message to send.

    Args:
        topic: where to.
        body: any bytes. A buffer may be used again once the send has returned or raised.
        tags: what subscriptions can filter by; one tag.
        keys: what `mqadmin queryMsgByKey` finds it by; text without white space.
        properties: the application's own names and values, text.
        delay_level: 1 to 18 for the delays of the broker's `messageDelayLevel`; 0 is at once.
        delay: how long after it is stored the message is delivered; a `timedelta` or seconds. RocketMQ rounds
            to `timerPrecisionMs` (1 s).
        deliver_at: when the message is delivered; a `datetime` (local time if it has no zone) or seconds
            since the epoch. A time in the past is at once. Only one of the three can be given.
        priority: for topics of the type PRIORITY; 0 or greater.
        sharding_key: messages with the same key go to the same queue, while the topic's writable queues stay
            the same. A broker set without a master has none: until it has one again, the keys are shared out
            among the queues of the others, and most of them change their queue, also keys that were there.
            Keys of a static topic keep their queue; sends to a queue without a master wait.
        flag: a number of the application's own.
        wait_store_ok: False asks the broker to acknowledge before the message is safe.

    Its ``unique_id`` is set when it is first sent and kept when it is sent again, so that a duplicate shows.
    """

    __slots__ = (
        "body",
        "delay_level",
        "delay_ms",
        "deliver_at_ms",
        "flag",
        "keys",
        "priority",
        "properties",
        "sharding_key",
        "tags",
        "topic",
        "unique_id",
        "wait_store_ok",
    )

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        delay: timedelta | float | None = None,
        deliver_at: datetime | float | None = None,
        priority: int | None = None,
        sharding_key: str | None = None,
        flag: int = 0,
        wait_store_ok: bool = True,
    ) -> None:
        if isinstance(body, str):
            raise TypeError("the body of a message is bytes, not str: encode it, e.g. text.encode()")
        if (delay_level != 0) + (delay is not None) + (deliver_at is not None) > 1:
            raise ValueError("only one of delay_level, delay and deliver_at can be given")
        self.topic = topic
        self.body = _in_bytes(body) if isinstance(body, memoryview) else body
        self.tags = tags
        self.keys: tuple[str, ...] = (keys,) if isinstance(keys, str) else tuple(keys)
        self.properties = dict(properties) if properties else {}
        self.delay_level = delay_level
        self.delay_ms = None if delay is None else _delay_ms(delay)
        self.deliver_at_ms = None if deliver_at is None else _time_ms(deliver_at)
        self.priority = priority
        self.sharding_key = sharding_key
        self.flag = flag
        self.wait_store_ok = wait_store_ok
        self.unique_id: str | None = None

    @classmethod
    def from_record(cls, record: MessageExt, topic: str | None = None) -> Message:
        """The same message, to be sent again: for one, a dead letter after its cause is gone.

        Body, tags, keys, sharding key, flag and the application's properties are kept; the unique id is a new
        one. ``topic`` is the one it was sent to first, unless given.

        Raises `CompressionError` for a body that does not inflate: its sender must send it again.
        """
        body = record.body
        if record.sys_flag & MessageSysFlag.COMPRESSED:
            body = decompress(body, record.sys_flag)
        properties = record.properties
        origin = properties.get(PROPERTY_DLQ_ORIGIN_TOPIC) or properties.get(PROPERTY_RETRY_TOPIC)
        return cls(
            topic or origin or record.topic,
            body,
            tags=record.tags,
            keys=record.keys,
            properties={
                name: value
                for name, value in properties.items()
                if name not in RESERVED_PROPERTIES
                and name not in SYSTEM_PROPERTIES
                and not name.startswith(SYSTEM_PREFIXES)
            },
            sharding_key=properties.get(PROPERTY_SHARDING_KEY),
            flag=record.flag,
        )

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, <{len(self.body)} B>, tags={self.tags!r}, keys={self.keys!r})"

    @property
    def delayed(self) -> bool:
        """It is delivered later than at once."""
        return bool(self.delay_level) or self.delay_ms is not None or self.deliver_at_ms is not None

    def encoded_properties(self, system: Mapping[str, str] | None = None) -> bytes:
        """All properties as they travel; ``system`` are those that the client adds.

        Raises:
            MQError: MESSAGE_ILLEGAL naming the property that is reserved, empty, or holds a separator.
        """
        properties: dict[str, str] = {}
        if self.keys:
            properties[PROPERTY_KEYS] = " ".join(self.keys)
        if self.unique_id:
            properties[PROPERTY_UNIQUE_KEY] = self.unique_id
        properties[PROPERTY_WAIT_STORE_OK] = "true" if self.wait_store_ok else "false"
        if self.tags:
            properties[PROPERTY_TAGS] = self.tags
        if self.delay_level:
            properties[PROPERTY_DELAY_LEVEL] = str(self.delay_level)
        elif self.deliver_at_ms is not None:
            properties[PROPERTY_TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        elif self.delay_ms is not None:
            properties[PROPERTY_TIMER_DELAY_MS] = str(self.delay_ms)
        if self.priority is not None:
            properties[PROPERTY_PRIORITY] = str(self.priority)
        if self.sharding_key is not None:
            properties[PROPERTY_SHARDING_KEY] = self.sharding_key
        for name, value in self.properties.items():
            if name in RESERVED_PROPERTIES:
                raise MQError(ResponseCode.MESSAGE_ILLEGAL, f"the property {name} is reserved by the system")
            if not name or not value:
                raise MQError(
                    ResponseCode.MESSAGE_ILLEGAL, f"property {name!r}: name and value must not be empty"
                )
            properties[name] = value
        if system:
            properties |= system
        try:
            return encode_properties(properties)
        except MessageFormatError as error:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None

    def check(self, max_size: int) -> None:
        """Raises `MQError` (MESSAGE_ILLEGAL) naming what no broker would take."""
        check_topic(self.topic, ResponseCode.MESSAGE_ILLEGAL)
        if self.topic in NOT_ALLOWED_TO_SEND:
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL, f"sending to the system topic {self.topic} is forbidden"
            )
        if len(self.body) == 0:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, "the message body is empty")
        if len(self.body) > max_size:
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message body of {len(self.body)} bytes is over the limit of {max_size}",
            )
        if any(split_keys(key) != [key] for key in self.keys):
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"keys {self.keys!r}: a key must be text without a blank; such white space separates keys",
            )
        if self.sharding_key == "":
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, "the sharding key is empty")
        if self.priority is not None and not 0 <= self.priority < 2**31:
            raise MQError(ResponseCode.MESSAGE_ILLEGAL, f"the priority {self.priority} is not in 0..2^31-1")


def _in_bytes(view: memoryview) -> memoryview:
    """The same memory, so that its length counts bytes and not the items of an array."""
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


MAX_TIME_MS = 2**53
"""No time or delay is later than that: what every client can represent exactly."""


def _delay_ms(delay: timedelta | float) -> int:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds * 1000 <= MAX_TIME_MS:
        raise ValueError(f"the delay of {seconds} s is negative or out of range")
    return round(seconds * 1000)


def _time_ms(time: datetime | float) -> int:
    seconds = time.timestamp() if isinstance(time, datetime) else time
    if not 0 <= seconds * 1000 <= MAX_TIME_MS:
        raise ValueError(
            f"the time {time} is before 1970 or out of range: seconds since the epoch are expected"
        )
    return round(seconds * 1000)


class EncodedBatch:
    """Messages of one topic that are encoded already (`protocol.message.batch`), unique ids included."""

    __slots__ = ("body", "count", "topic")

    def __init__(self, topic: str, body: bytes | memoryview, count: int) -> None:
        self.topic = topic
        self.body = body
        self.count = count
        """Number of messages."""


class SendStatus(Enum):
    """How safely a message is stored."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult:
    """An acknowledged message: where it is and what it is called.

    ``message_id`` is the sender's unique id (several joined by commas for a batch), ``offset_message_id`` the
    broker's. ``queue_offset`` is the first one of a batch; a delayed message shows where it waits.
    ``broker_name`` is the broker set that stored it, which ``queue`` of a static topic does not name.
    ``recall_handle`` cancels a delayed message (`Producer.recall`), if the broker allows that.
    ``transaction_id`` belongs to half messages. ``region`` and ``traced`` are the broker's `regionId` and
    whether it wants message traces.
    """

    __slots__ = (
        "broker_name",
        "message_id",
        "offset_message_id",
        "queue",
        "queue_offset",
        "recall_handle",
        "region",
        "status",
        "traced",
        "transaction_id",
    )

    def __init__(
        self,
        status: SendStatus,
        message_id: str,
        offset_message_id: str,
        queue: MessageQueue,
        queue_offset: int,
        *,
        broker_name: str,
        recall_handle: str | None = None,
        transaction_id: str | None = None,
        region: str | None = None,
        traced: bool = True,
    ) -> None:
        self.status = status
        self.message_id = message_id
        self.offset_message_id = offset_message_id
        self.queue = queue
        self.queue_offset = queue_offset
        self.broker_name = broker_name
        self.recall_handle = recall_handle
        self.transaction_id = transaction_id
        self.region = region
        self.traced = traced

    def __repr__(self) -> str:
        return f"SendResult({self.status.value}, {self.message_id}, {self.queue}, offset={self.queue_offset})"
