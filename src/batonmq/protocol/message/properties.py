"""Message properties: their names, and how they are stored.

Source: `MessageConst` and `MessageDecoder` of Apache RocketMQ 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.message.errors import MessageFormatError

MAX_PROPERTIES_BYTES: Final = 32767
PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_WAIT_STORE_OK = "WAIT"
PROPERTY_DELAY_LEVEL: Final = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_MSG_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_SWITCH: Final = "TRACE_ON"
PROPERTY_UNIQUE_KEY: Final = "UNIQ_KEY"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIME = "CONSUME_START_TIME"
PROPERTY_TRANSACTION_ID: Final = "__transactionId__"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_POP_CK: Final = "POP_CK"
PROPERTY_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
PROPERTY_INNER_NUM: Final = "INNER_NUM"
PROPERTY_TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_CHECK_IMMUNITY_TIME_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRANSACTION_BATCH: Final = "__TRAN_BATCH"
"""Private to this implementation: the body of this half message is a wire batch of so many messages. Its
unique key is that of the first of them."""
PROPERTY_TRANSACTION_MOVED: Final = "TRAN_MOVED"
"""BatonMQ's: the half messages that an op message names were stored elsewhere, not decided."""
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_TIMER_DELAY_S = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_DELETE_UNIQUE_KEY = "TIMER_DEL_UNIQKEY"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_ORIGIN_GROUP = "ORIGIN_GROUP"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_MESSAGE_TYPE = "MSG_TYPE"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_MESSAGE_TTL = "TTL"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_REPLY_MESSAGE_ARRIVE_TIME = "ARRIVE_TIME"
TIMER_PREFIX = "TIMER_"
TIMER_PROPERTIES = (PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_S, PROPERTY_TIMER_DELAY_MS)
"""When a message is due: wall time in ms, or how much later than it is stored."""

RESERVED_PROPERTIES = frozenset(
    {
        PROPERTY_KEYS,
        PROPERTY_TAGS,
        PROPERTY_WAIT_STORE_OK,
        PROPERTY_DELAY_LEVEL,
        PROPERTY_RETRY_TOPIC,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_TRANSACTION_PREPARED,
        PROPERTY_PRODUCER_GROUP,
        PROPERTY_MIN_OFFSET,
        PROPERTY_MAX_OFFSET,
        PROPERTY_ORIGIN_MESSAGE_ID,
        PROPERTY_MSG_REGION,
        PROPERTY_TRACE_SWITCH,
        PROPERTY_UNIQUE_KEY,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_CONSUME_START_TIME,
        PROPERTY_CLUSTER,
        PROPERTY_INNER_MULTI_QUEUE_OFFSET,
        *("BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", "INSTANCE_ID"),
        *("TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"),
    }
)
"""Names that applications must not use for properties of their own (`MessageConst.STRING_HASH_SET`)."""


def split_keys(text: str) -> list[str]:
    """The keys of a message, from its property KEYS. Only the blank separates them (`KEY_SEPARATOR` of
    `MessageConst`), no other white space."""
    return [key for key in text.split(" ") if key]


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Properties as stored: ``name \\x01 value \\x02`` each, UTF-8, in the mapping's order.

    Raises `MessageFormatError` if a separator occurs inside, or the result exceeds 32767 bytes.
    """
    if not properties:
        return b""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise MessageFormatError("a property name or value holds a separator (\\x01 or \\x02)")
    data = text.encode()
    if len(data) > MAX_PROPERTIES_BYTES:
        raise MessageFormatError(
            f"properties take {len(data)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
        )
    return data


def decode_properties(data: Buffer | str) -> dict[str, str]:
    """Inverse of `encode_properties`. Pieces without name, separator or value are passed over, as in Java."""
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    properties = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def is_encoding(data: bytes, properties: Mapping[str, str]) -> bool:
    """Whether `data` is what `encode_properties` makes of `properties`, which were decoded from it: some may
    have been removed since, but none was changed or added. May say no although it is."""
    count = len(properties)
    return data.isascii() and data.endswith(b"\2") and data.count(b"\1") == data.count(b"\2") == count


def property_start(name: str) -> bytes:
    """How a property begins in encoded properties: its name and the separator."""
    return name.encode() + b"\x01"


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Value of one property in encoded `properties`, without decoding the rest; the last one counts."""
    return find_value(properties, name + b"\x01")


def find_value(properties: bytes, mark: bytes) -> bytes | None:
    """As `find_property`; `mark`: the `property_start` of the name."""
    at = len(properties)
    while (at := properties.rfind(mark, 0, at)) >= 0:
        if at == 0 or properties[at - 1] == 2:
            begin = at + len(mark)
            end = properties.find(b"\x02", begin)
            value = properties[begin:] if end < 0 else properties[begin:end]
            if value:
                return value
    return None
