"""What a send request says, read as fast as Python can.

Three request codes carry the same fields: SEND_MESSAGE (10) under long names, SEND_MESSAGE_V2 (310) and
SEND_BATCH_MESSAGE (320) under one letter each. For binary V2 headers, which RocketMQ's benchmark and large
installations use, `fields_of` reads the bytes directly: generic decoding took 6 us, this takes 1.6 us of the
15 us a message may cost. A client sends the same first four and last fields with every message of a topic, so
those are looked up by their bytes; only queue, times and properties are parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command, decode_ext

_LETTERS: Final = dict(
    zip(
        "abcdefghijklmn",
        (
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
            "flag",
            "properties",
            "reconsumeTimes",
            "unitMode",
            "maxReconsumeTimes",
            "batch",
            "brokerName",
        ),
        strict=True,
    )
)
_REQUIRED: Final = frozenset("abcdefgh")
_V1: Final = int(RequestCode.SEND_MESSAGE)
_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_CACHE_SIZE: Final = 4096
_E_MARK: Final = b"\0\1e\0\0\0"
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
    if command.binary and command.code != _V1:
        fields = _fast(command.raw_ext)
        if fields is not None:
            if command.code == _BATCH:
                fields.batch = True
            return fields
    fields = _from_ext(command.ext, short=command.code != _V1)
    if command.code == _BATCH:
        fields.batch = True
    return fields


def _fast(raw: bytes) -> SendFields | None:
    """Fields of a binary V2 header written in RocketMQ's order, None if it has another shape.

    The bytes before and after the parsed middle are only used from the caches, where they got by a strict
    parse that consumed them whole; so a marker that occurs inside a value cannot be mistaken for a field.
    """
    at = raw.find(_E_MARK)
    head = _heads.get(raw[:at])
    if head is None:
        head = _learn_head(raw[:at]) if at > 0 else None
        if head is None:
            return None
    try:
        end = at + 7 + raw[at + 6]
        queue_id = int(raw[at + 7 : end])
        if raw[end : end + 6] != b"\0\1f\0\0\0":
            return None
        at, end = end, end + 7 + raw[end + 6]
        sys_flag = int(raw[at + 7 : end])
        if raw[end : end + 6] != b"\0\1g\0\0\0":
            return None
        at, end = end, end + 7 + raw[end + 6]
        born_timestamp = int(raw[at + 7 : end])
        if raw[end : end + 6] != b"\0\1h\0\0\0":
            return None
        at, end = end, end + 7 + raw[end + 6]
        flag = int(raw[at + 7 : end])
        properties = b""
        if raw[end : end + 3] == b"\0\1i":
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
        tail = _learn_tail(rest)
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


def _learn_head(raw: bytes) -> _Head | None:
    try:
        ext = decode_ext(raw)
        if list(ext) != ["a", "b", "c", "d"]:
            return None
        head = _Head(ext["a"], ext["b"], ext["c"], int(ext["d"]))
    except (MQError, ValueError):
        return None
    if len(_heads) >= _CACHE_SIZE:
        _heads.clear()
    _heads[raw] = head
    return head


def _learn_tail(raw: bytes) -> _Tail | None:
    try:
        ext = decode_ext(raw)
        if ext.keys() & set("abcdefghi"):
            return None
        tail = _Tail(
            int(ext.get("j") or 0),
            ext.get("k") == "true",
            int(ext["l"]) if ext.get("l") else None,
            ext.get("m") == "true",
        )
        if not 0 <= tail.reconsume_times <= _INT_MAX:
            return None
    except (MQError, ValueError):
        return None
    if len(_tails) >= _CACHE_SIZE or len(raw) > 512:
        _tails.clear()
    _tails[raw] = tail
    return tail


def _from_ext(ext: dict[str, str], *, short: bool) -> SendFields:
    names = {letter: letter for letter in _LETTERS} if short else _LETTERS

    def number(letter: str, default: int | None = None) -> int:
        text = ext.get(names[letter])
        if text is None or text == "":
            if default is None:
                raise MQError(ResponseCode.SYSTEM_ERROR, f"the custom field <{names[letter]}> is null")
            return default
        low, high = (-_LONG_MAX, _LONG_MAX) if letter == "g" else (_INT_MIN, _INT_MAX)
        try:
            value = int(text)
        except ValueError:
            value = high + 1
        if not low <= value <= high:
            remark = f"the custom field <{names[letter]}> has the value {text!r}: not a number in range"
            raise MQError(ResponseCode.SYSTEM_ERROR, remark)
        return value

    for letter in sorted(_REQUIRED):
        if names[letter] not in ext:
            raise MQError(ResponseCode.SYSTEM_ERROR, f"the custom field <{names[letter]}> is null")
    maximum = number("l", -1)
    return SendFields(
        producer_group=ext[names["a"]],
        topic=ext[names["b"]],
        default_topic=ext[names["c"]],
        default_topic_queue_nums=number("d"),
        queue_id=number("e"),
        sys_flag=number("f"),
        born_timestamp=number("g"),
        flag=number("h"),
        properties=ext.get(names["i"], "").encode(),
        reconsume_times=number("j", 0),
        unit_mode=ext.get(names["k"]) == "true",
        max_reconsume_times=None if maximum < 0 else maximum,
        batch=ext.get(names["m"]) == "true",
    )
