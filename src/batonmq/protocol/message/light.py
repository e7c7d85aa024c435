"""Light queues of a message, as its properties name them (RocketMQ's LMQ, multi-dispatch).

A producer lists light queues in INNER_MULTI_DISPATCH. The master that stores the message adds
INNER_MULTI_QUEUE_OFFSET: the message's offset in each of them, in the same order. Every replica builds the
queues from these two. Source: RocketMQ 5.5 (`MixAll.topicAllowsLMQ`, `LmqDispatch`, `MultiDispatchUtils`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from batonmq.protocol.message.properties import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    find_property,
    property_start,
)
from batonmq.protocol.names import (
    DLQ_PREFIX,
    LIGHT_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)

LIGHT_QUEUE_ID: Final = 0
"""A light queue has one queue on each broker."""
LIGHT_MARK: Final = b"INNER_MULTI_"
"""The encoded properties of every message with light queues contain this."""
OFFSETS_START: Final = property_start(PROPERTY_INNER_MULTI_QUEUE_OFFSET)
OFFSET_DIGITS: Final = 19
"""Most digits of a queue offset."""
_NAMES: Final = PROPERTY_INNER_MULTI_DISPATCH.encode()
_OFFSETS: Final = PROPERTY_INNER_MULTI_QUEUE_OFFSET.encode()
_SEPARATOR: Final = ","
_OTHERS: Final = (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_TOPIC_PREFIX)
_NAME_MAX: Final = 255
"""Bytes; a light queue is a directory of its name."""


def has_light_queues(topic: str) -> bool:
    """Whether messages of `topic` are in the light queues that they name. Those that wait, or have been
    delivered before, are not."""
    return topic != SCHEDULE_TOPIC and not topic.startswith(_OTHERS)


def gives_light_offsets(topic: str) -> bool:
    """Whether a master gives messages that it stores in `topic` their offsets in light queues. RocketMQ gives
    them to half messages too, so that consumers of light queues see transactions before they are decided."""
    return has_light_queues(topic) and topic not in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)


def light_names(properties: bytes) -> list[str]:
    """The names that a message lists, as they stand there; empty if it lists none."""
    value = find_property(properties, _NAMES)
    return [] if value is None else _split(value)


def names_error(topic: str, names: Iterable[str]) -> str | None:
    """Why a message of `topic` may not name these light queues; None if it may."""
    for name in names:
        if not name.startswith(LIGHT_PREFIX):
            return f"{PROPERTY_INNER_MULTI_DISPATCH} names {name!r}, which does not begin with {LIGHT_PREFIX}"
        if name == LIGHT_PREFIX:
            return f"{PROPERTY_INNER_MULTI_DISPATCH} names {name!r}, which has no name behind {LIGHT_PREFIX}"
        if "/" in name or "\0" in name:
            return f"{PROPERTY_INNER_MULTI_DISPATCH} names {name!r}, which has an illegal character"
        if len(name.encode()) > _NAME_MAX:
            return f"{PROPERTY_INNER_MULTI_DISPATCH} names a light queue of more than {_NAME_MAX} bytes"
        if name == topic:
            return f"{PROPERTY_INNER_MULTI_DISPATCH} names {name!r}, the topic of the message"
    return None


def light_offsets(topic: str, properties: bytes) -> list[tuple[str, int]]:
    """The light queues of a stored message of `topic`, and its offset in each; each queue once."""
    names, offsets = find_property(properties, _NAMES), find_property(properties, _OFFSETS)
    if names is None or offsets is None:
        return []
    return list(_offsets(topic, _split(names), _split(offsets)).items())


def _offsets(topic: str, names: list[str], texts: list[str]) -> dict[str, int]:
    if len(texts) != len(names) or not has_light_queues(topic):  # RocketMQ passes over such a message, too
        return {}
    found: dict[str, int] = {}
    for name, text in zip(names, texts, strict=True):
        legal = text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS
        if legal and names_error(topic, (name,)) is None:
            found.setdefault(name, int(text))
    return found


class _Message(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


def offset_in(queue_of: str, message: _Message) -> int:
    """The offset of a stored message in a queue of the topic `queue_of`, which may be a light queue; -1 if it
    is not there."""
    if queue_of == message.topic:
        return message.queue_offset
    names = message.properties.get(PROPERTY_INNER_MULTI_DISPATCH, "")
    offsets = message.properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, "")
    return _offsets(message.topic, _split_text(names), _split_text(offsets)).get(queue_of, -1)


def with_light_offsets(properties: bytes, offsets: Iterable[int]) -> bytes:
    """Encoded `properties` with the offsets of the light queues that they name, in the same order."""
    if properties[-1:] != b"\2":
        properties += b"\2"
    return properties + OFFSETS_START + _SEPARATOR.join(map(str, offsets)).encode() + b"\2"


def without_light_offsets(properties: bytes) -> bytes:
    """Encoded `properties` without offsets in light queues, as of a message that is stored again."""
    if OFFSETS_START not in properties:
        return properties
    kept = [piece for piece in properties.split(b"\2") if piece and not piece.startswith(OFFSETS_START)]
    return b"".join([piece + b"\2" for piece in kept])


def _split(value: bytes) -> list[str]:
    return _split_text(str(value, "utf-8", "replace"))


def _split_text(text: str) -> list[str]:
    """As Java splits: empty names at the end do not count."""
    text = text.rstrip(_SEPARATOR)
    return text.split(_SEPARATOR) if text.strip() else []
