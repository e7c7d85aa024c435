"""What users send and what they get for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    PROPERTY_WAIT_STORE_OK,
    RESERVED_PROPERTIES,
    encode_properties,
)
from batonmq.protocol.names import NOT_ALLOWED_TO_SEND, check_topic


class Message:
    """A message to send.

    Args:
        topic: where to.
        body: any bytes.
        tags: what subscriptions can filter by; one tag.
        keys: what `mqadmin queryMsgByKey` finds it by; text without white space.
        properties: the application's own names and values, text.
        delay_level: 1 to 18 for the delays of the broker's `messageDelayLevel`; 0 is at once.
        flag: a number of the application's own.
        wait_store_ok: False asks the broker to acknowledge before the message is safe.

    Its ``unique_id`` is set when it is first sent and kept when it is sent again, so that a duplicate shows.
    """

    __slots__ = (
        "body",
        "delay_level",
        "flag",
        "keys",
        "properties",
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
        flag: int = 0,
        wait_store_ok: bool = True,
    ) -> None:
        if isinstance(body, str):
            raise TypeError("the body of a message is bytes, not str: encode it, e.g. text.encode()")
        self.topic = topic
        self.body = body
        self.tags = tags
        self.keys: tuple[str, ...] = (keys,) if isinstance(keys, str) else tuple(keys)
        self.properties = dict(properties) if properties else {}
        self.delay_level = delay_level
        self.flag = flag
        self.wait_store_ok = wait_store_ok
        self.unique_id: str | None = None

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, <{len(self.body)} B>, tags={self.tags!r}, keys={self.keys!r})"

    def encoded_properties(self) -> bytes:
        """All properties as they travel.

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
        for name, value in self.properties.items():
            if name in RESERVED_PROPERTIES:
                raise MQError(ResponseCode.MESSAGE_ILLEGAL, f"the property {name} is reserved by the system")
            if not name or not value:
                raise MQError(
                    ResponseCode.MESSAGE_ILLEGAL, f"property {name!r}: name and value must not be empty"
                )
            properties[name] = value
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
        if any(not key or key.split() != [key] for key in self.keys):
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL, f"keys {self.keys!r}: a key must be text without white space"
            )


class EncodedBatch:
    """Messages of one topic that are encoded already (`protocol.message.batch`), unique ids included."""

    __slots__ = ("body", "topic")

    def __init__(self, topic: str, body: bytes | memoryview) -> None:
        self.topic = topic
        self.body = body


class SendStatus(Enum):
    """How safely a message is stored."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult:
    """An acknowledged message: where it is and what it is called.

    ``message_id`` is the sender's unique id (several joined by commas for a batch), ``offset_message_id`` the
    broker's. ``queue_offset`` is the first one of a batch.
    """

    __slots__ = ("message_id", "offset_message_id", "queue", "queue_offset", "status")

    def __init__(
        self,
        status: SendStatus,
        message_id: str,
        offset_message_id: str,
        queue: MessageQueue,
        queue_offset: int,
    ) -> None:
        self.status = status
        self.message_id = message_id
        self.offset_message_id = offset_message_id
        self.queue = queue
        self.queue_offset = queue_offset

    def __repr__(self) -> str:
        return f"SendResult({self.status.value}, {self.message_id}, {self.queue}, offset={self.queue_offset})"
