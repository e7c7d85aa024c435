"""Times of delivery, and the conversion of messages to and from the timer topic. No I/O.

A timed message waits in queue 0 of rmq_sys_wheel_timer; its real topic and queue are in the properties
REAL_TOPIC and REAL_QID, its slot is in TIMER_OUT_MS. A slot is due one step of the precision after its time,
so a message is late by up to one step and never early. Source: RocketMQ's `HookUtils` (what is a timed
message, rounding) and `TimerMessageStore` (rolling, conversion).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from batonmq.broker.timer.layout import BLANK_SLOTS
from batonmq.common.config import INT_MAX
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_S,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_ENQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    TIMER_PROPERTIES,
    encode_properties,
    is_encoding,
)
from batonmq.protocol.message.record import MessageExt, StoredMessage, message_of, moved
from batonmq.protocol.names import NOT_ALLOWED_TO_SEND, TIMER_TOPIC

_TIMES: Final = frozenset(TIMER_PROPERTIES)
PRECISIONS: Final = (100, 200, 500, 1_000)
"""Steps of the wheel in ms; others are rounded as RocketMQ's `setTimerPrecisionMs` does."""
ROOM: Final = 128
"""Bytes that the properties of a waiting message leave free for those that the delivery adds."""
_NO_PATH: Final = frozenset("/\0")
_LONG: Final = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Wheel:
    """The shape of the wheel."""

    precision_ms: int
    window_slots: int
    """Messages due later than this wait in slots up to here, and are then stored again (rolled)."""

    def floor(self, time_ms: int) -> int:
        """`time_ms` rounded down to the precision."""
        return time_ms - time_ms % self.precision_ms


def precision_of(configured_ms: int) -> int:
    """The precision in force for `timerPrecisionMs`."""
    for lower, upper in pairwise(PRECISIONS):
        if configured_ms < upper:
            return lower
    return PRECISIONS[-1]


def wheel_of(precision_ms: int, window_slots: int, slots: int) -> Wheel:
    """The shape for `timerPrecisionMs` and `timerRollWindowSlot`; `slots`: those of the file."""
    most = slots // 2 - BLANK_SLOTS
    return Wheel(precision_of(precision_ms), window_slots if 2 <= window_slots <= most else most)


def parse_long(text: str) -> int:
    """As Java's `Long.parseLong`. Raises ValueError."""
    if _LONG.fullmatch(text) is None or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"{text!r} is not a number")
    return int(text)


def is_timed(topic: str, properties: Mapping[str, str]) -> bool:
    """Whether a message asks for a time of delivery, and does not come from the wheel."""
    if topic == TIMER_TOPIC or PROPERTY_TIMER_OUT_MS in properties:
        return False
    return not _TIMES.isdisjoint(properties)


def deliver_at_ms(properties: Mapping[str, str], now_ms: int) -> int:
    """The requested time of delivery, ms since the epoch. Raises ValueError."""
    if (text := properties.get(PROPERTY_TIMER_DELAY_S)) is not None:
        return now_ms + parse_long(text) * 1_000
    if (text := properties.get(PROPERTY_TIMER_DELAY_MS)) is not None:
        return now_ms + parse_long(text)
    return parse_long(properties[PROPERTY_TIMER_DELIVER_MS])


def slot_of(deliver_ms: int, precision_ms: int) -> int:
    """The slot of a time of delivery: the last one that is due at this time or after it."""
    return deliver_ms - (deliver_ms % precision_ms or precision_ms)


def to_timer_topic(message: StoredMessage, properties: Mapping[str, str], slot_ms: int) -> StoredMessage:
    """The message as stored in the timer topic. Raises `MessageFormatError` if its properties leave no room
    for those of the delivery: it could never be delivered."""
    added = {
        PROPERTY_TIMER_OUT_MS: str(slot_ms),
        PROPERTY_REAL_TOPIC: message.topic,
        PROPERTY_REAL_QUEUE_ID: str(message.queue_id),
    }
    if properties.keys().isdisjoint(added) and is_encoding(message.properties, properties):
        encoded = message.properties + encode_properties(added)  # what was decoded need not be encoded again
    else:
        encoded = encode_properties({**properties, **added})
    if len(encoded) > MAX_PROPERTIES_BYTES - ROOM:
        raise MessageFormatError(
            f"properties of {len(encoded)} bytes leave no room for those of the delivery"
        )
    return moved(message, TIMER_TOPIC, 0, encoded, message.sys_flag)


def parking_slot(out_ms: int, stored_ms: int, wheel: Wheel) -> tuple[int, bool]:
    """The slot in which a message waits, and whether it will be rolled there.

    `out_ms`: its TIMER_OUT_MS, `stored_ms`: its store time. Depends on the message alone, so all replicas
    park it in the same slot; RocketMQ takes the time at which its thread sees the message. A time that has
    passed stays as it is: after a long absence a message and its recall meet there. And a store time may be
    ahead of the clock, because store times do not go back when the clock is set back.
    """
    window_ms = wheel.window_slots * wheel.precision_ms
    base = wheel.floor(stored_ms)
    ahead = out_ms - base
    if ahead < window_ms:
        return max(wheel.floor(out_ms), wheel.precision_ms), False
    if ahead - window_ms < wheel.window_slots // 3 * wheel.precision_ms:
        return base + wheel.window_slots // 2 * wheel.precision_ms, True
    return base + window_ms, True


def write_time(stored_ms: int, slot_ms: int, wheel: Wheel) -> int:
    """The write time of a message's unit: its store time, rounded down. Earlier if that is too long after
    its slot: a unit has 32 bits for the time between them."""
    return min(wheel.floor(stored_ms), slot_ms + wheel.floor(INT_MAX))


def delivered(record: MessageExt, enqueued_ms: int, now_ms: int) -> StoredMessage | None:
    """The message for its real topic; None if the record does not name one that can exist.

    `record` must be decoded without inflating its body; `enqueued_ms`: write time of its unit.
    """
    properties = dict(record.properties)
    topic = properties.get(PROPERTY_REAL_TOPIC)  # stays, as in RocketMQ
    queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if topic is None or topic == TIMER_TOPIC or topic in NOT_ALLOWED_TO_SEND:
        return None  # a client can store any properties in the timer topic
    if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 9):
        return None
    if not topic or topic in (".", "..") or not _NO_PATH.isdisjoint(topic) or len(topic.encode()) > 255:
        return None  # its queue is a directory
    properties[PROPERTY_TIMER_ENQUEUE_MS] = str(enqueued_ms)
    properties[PROPERTY_TIMER_DEQUEUE_MS] = str(now_ms)
    return _copy(record, topic, int(queue_id), properties)


def rolled(record: MessageExt, enqueued_ms: int, now_ms: int) -> StoredMessage:
    """The message for the timer topic again, because the wheel did not reach its time."""
    properties = dict(record.properties)
    times = properties.get(PROPERTY_TIMER_ROLL_TIMES, "")
    count = int(times) if times.isascii() and times.isdigit() and len(times) < 10 else 0
    properties[PROPERTY_TIMER_ENQUEUE_MS] = str(enqueued_ms)
    properties[PROPERTY_TIMER_DEQUEUE_MS] = str(now_ms)
    properties[PROPERTY_TIMER_ROLL_TIMES] = str(count + 1)
    return _copy(record, TIMER_TOPIC, 0, properties)


def _copy(record: MessageExt, topic: str, queue_id: int, properties: dict[str, str]) -> StoredMessage:
    try:
        return message_of(record, topic=topic, queue_id=queue_id, properties=properties)
    except MessageFormatError:
        # Only a record that a RocketMQ broker stored can be too long: better without than not at all.
        for name in (PROPERTY_TIMER_ENQUEUE_MS, PROPERTY_TIMER_DEQUEUE_MS):
            properties.pop(name, None)
        return message_of(record, topic=topic, queue_id=queue_id, properties=properties)
