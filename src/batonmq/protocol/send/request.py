"""The header of a send request: a fast reader for brokers, and a writer for clients.

Three request codes carry the same fields: SEND_MESSAGE (10) under long names, SEND_MESSAGE_V2 (310) and
SEND_BATCH_MESSAGE (320) under one letter each. For binary V2 headers, which RocketMQ's benchmark and large
installations use, `fields_of` reads the bytes directly: generic decoding takes three times as long. A client
sends the same first four and last fields with every message of a topic, so those are looked up by their
bytes; only queue, times and properties are parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command, decode_ext
from batonmq.protocol.headers.broker.send import SendMessage, SendMessageV2
from batonmq.protocol.names import AUTO_CREATE_TOPIC, DEFAULT_TOPIC_QUEUES

_LETTERS: Final = dict(
    zip(SendMessageV2.__struct_fields__, SendMessageV2.__struct_encode_fields__, strict=True)
)
"""Field -> its letter."""
_LONG_NAMES: Final = dict(
    zip(SendMessage.__struct_fields__, SendMessage.__struct_encode_fields__, strict=True)
)
(
    _PRODUCER_GROUP,
    _TOPIC,
    _DEFAULT_TOPIC,
    _DEFAULT_TOPIC_QUEUE_NUMS,
    _QUEUE_ID,
    _SYS_FLAG,
    _BORN_TIMESTAMP,
    _FLAG,
    _PROPERTIES,
    _RECONSUME_TIMES,
    _UNIT_MODE,
    _MAX_RECONSUME_TIMES,
    _BATCH,
    _BROKER_NAME,
) = SendMessageV2.__struct_encode_fields__
_HEAD_LETTERS: Final = [_PRODUCER_GROUP, _TOPIC, _DEFAULT_TOPIC, _DEFAULT_TOPIC_QUEUE_NUMS]
_MIDDLE_LETTERS: Final = [_QUEUE_ID, _SYS_FLAG, _BORN_TIMESTAMP, _FLAG, _PROPERTIES]
_REQUIRED: Final = (
    "producer_group",
    "topic",
    "default_topic",
    "default_topic_queue_nums",
    "queue_id",
    "sys_flag",
    "born_timestamp",
    "flag",
)


def _mark(letter: str) -> bytes:
    """How the field of a short number begins: the letter's length, the letter, three bytes of the value's
    length."""
    return b"\0\1" + letter.encode() + b"\0\0\0"


_QUEUE_ID_MARK: Final = _mark(_QUEUE_ID)
_SYS_FLAG_MARK: Final = _mark(_SYS_FLAG)
_BORN_TIMESTAMP_MARK: Final = _mark(_BORN_TIMESTAMP)
_FLAG_MARK: Final = _mark(_FLAG)
_PROPERTIES_KEY: Final = _mark(_PROPERTIES)[:3]
_V1: Final = int(RequestCode.SEND_MESSAGE)
_V1_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE)
_BATCH_CODE: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_CACHE_SIZE: Final = 4096
_CACHED_BYTES: Final = 512
"""Longer ones are parsed each time: senders could fill all memory with them."""
_DEFAULT_QUEUES: Final = str(DEFAULT_TOPIC_QUEUES)
_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


@dataclass(slots=True)
class SendFields:
    """A send request's header."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int = -1
    sys_flag: int = 0
    born_timestamp: int = 0
    flag: int = 0
    properties: bytes = b""
    """Encoded as stored, without the broker's own."""
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False


@dataclass(slots=True, frozen=True)
class _Head:
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int


@dataclass(slots=True, frozen=True)
class _Tail:
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool


_heads: dict[bytes, _Head] = {}
_tails: dict[bytes, _Tail] = {}


def fields_of(command: Command) -> SendFields:
    """Header of a send request. Raises `MQError` (SYSTEM_ERROR) naming the field that is missing or
    malformed."""
    long_names = command.code == _V1 or command.code == _V1_REPLY
    if command.binary and not long_names:
        fields = _fast(command.raw_ext)
        if fields is not None:
            if command.code == _BATCH_CODE:
                fields.batch = True
            return fields
    fields = _from_ext(command.ext, _LONG_NAMES if long_names else _LETTERS)
    if command.code == _BATCH_CODE:
        fields.batch = True
    return fields


def _fast(raw: bytes) -> SendFields | None:
    """Fields of a binary V2 header written in RocketMQ's order, None if it has another shape.

    The bytes before and after the middle come from the caches only, which hold what a strict parse consumed
    whole; so a mark that occurs inside a value cannot be mistaken for a field.
    """
    at = raw.find(_QUEUE_ID_MARK)
    head = _heads.get(raw[:at])
    if head is None:
        head = _parse_head(raw[:at]) if at > 0 else None
        if head is None:
            return None
    try:
        end = at + 7 + raw[at + 6]
        queue_id = int(raw[at + 7 : end])
        if raw[end : end + 6] != _SYS_FLAG_MARK:
            return None
        at, end = end, end + 7 + raw[end + 6]
        sys_flag = int(raw[at + 7 : end])
        if raw[end : end + 6] != _BORN_TIMESTAMP_MARK:
            return None
        at, end = end, end + 7 + raw[end + 6]
        born_timestamp = int(raw[at + 7 : end])
        if raw[end : end + 6] != _FLAG_MARK:
            return None
        at, end = end, end + 7 + raw[end + 6]
        flag = int(raw[at + 7 : end])
        properties = b""
        if raw[end : end + 3] == _PROPERTIES_KEY:
            at, end = end, end + 7 + int.from_bytes(raw[end + 3 : end + 7], "big")
            properties = raw[at + 7 : end]
    except (ValueError, IndexError):
        return None
    if (
        end > len(raw)
        or not _INT_MIN <= sys_flag <= _INT_MAX
        or not _INT_MIN <= flag <= _INT_MAX
        or not -_LONG_MAX <= born_timestamp <= _LONG_MAX
    ):
        return None
    rest = raw[end:]
    tail = _tails.get(rest)
    if tail is None:
        tail = _parse_tail(rest)
        if tail is None:
            return None
    return SendFields(
        head.producer_group,
        head.topic,
        head.default_topic,
        head.default_topic_queue_nums,
        queue_id,
        sys_flag,
        born_timestamp,
        flag,
        properties,
        tail.reconsume_times,
        tail.unit_mode,
        tail.max_reconsume_times,
        tail.batch,
    )


def _parse_head(raw: bytes) -> _Head | None:
    try:
        ext = decode_ext(raw)
        if list(ext) != _HEAD_LETTERS:
            return None
        group, topic, default_topic, queues = ext.values()
        head = _Head(group, topic, default_topic, int(queues))
    except (MQError, ValueError):
        return None
    if len(raw) <= _CACHED_BYTES:
        if len(_heads) >= _CACHE_SIZE:
            _heads.clear()
        _heads[raw] = head
    return head


def _parse_tail(raw: bytes) -> _Tail | None:
    try:
        ext = decode_ext(raw)
        if not ext.keys().isdisjoint(_HEAD_LETTERS) or not ext.keys().isdisjoint(_MIDDLE_LETTERS):
            return None
        maximum = ext.get(_MAX_RECONSUME_TIMES)
        tail = _Tail(
            int(ext.get(_RECONSUME_TIMES) or 0),
            ext.get(_UNIT_MODE) == "true",
            int(maximum) if maximum else None,
            ext.get(_BATCH) == "true",
        )
        if not 0 <= tail.reconsume_times <= _INT_MAX:
            return None
    except (MQError, ValueError):
        return None
    if len(raw) <= _CACHED_BYTES:
        if len(_tails) >= _CACHE_SIZE:
            _tails.clear()
        _tails[raw] = tail
    return tail


def _from_ext(ext: dict[str, str], names: dict[str, str]) -> SendFields:
    """`names`: field -> its key in `ext`."""

    def number(field: str, default: int | None = None) -> int:
        name = names[field]
        text = ext.get(name)
        if text is None or text == "":
            if default is None:
                raise MQError(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null")
            return default
        low, high = (-_LONG_MAX, _LONG_MAX) if field == "born_timestamp" else (_INT_MIN, _INT_MAX)
        try:
            value = int(text)
        except ValueError:
            value = high + 1
        if not low <= value <= high:
            remark = f"the custom field <{name}> has the value {text!r}: not a number in range"
            raise MQError(ResponseCode.SYSTEM_ERROR, remark)
        return value

    for field in _REQUIRED:
        if names[field] not in ext:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the custom field <{names[field]}> is null")
    maximum = number("max_reconsume_times", -1)
    return SendFields(
        producer_group=ext[names["producer_group"]],
        topic=ext[names["topic"]],
        default_topic=ext[names["default_topic"]],
        default_topic_queue_nums=number("default_topic_queue_nums"),
        queue_id=number("queue_id"),
        sys_flag=number("sys_flag"),
        born_timestamp=number("born_timestamp"),
        flag=number("flag"),
        properties=ext.get(names["properties"], "").encode(),
        reconsume_times=number("reconsume_times", 0),
        unit_mode=ext.get(names["unit_mode"]) == "true",
        max_reconsume_times=None if maximum < 0 else maximum,
        batch=ext.get(names["batch"]) == "true",
    )


def send_ext(
    group: str,
    topic: str,
    broker_name: str,
    queue_id: int,
    *,
    sys_flag: int,
    born_timestamp: str,
    flag: int,
    properties: str,
    batch: bool,
) -> dict[str, str]:
    """The fields of SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE as a client sends them (a struct and back would
    cost twice as much). `born_timestamp`: ms, as text, for it is the same in each attempt."""
    return {
        _PRODUCER_GROUP: group,
        _TOPIC: topic,
        _DEFAULT_TOPIC: AUTO_CREATE_TOPIC,
        _DEFAULT_TOPIC_QUEUE_NUMS: _DEFAULT_QUEUES,
        _QUEUE_ID: str(queue_id),
        _SYS_FLAG: str(sys_flag),
        _BORN_TIMESTAMP: born_timestamp,
        _FLAG: str(flag),
        _PROPERTIES: properties,
        _RECONSUME_TIMES: "0",
        _UNIT_MODE: "false",
        _BATCH: "true" if batch else "false",
        _BROKER_NAME: broker_name,
    }
