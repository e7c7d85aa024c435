"""Delay levels, and the conversion of messages to and from the delay topic.

No I/O. A delayed message waits in queue ``level - 1`` of SCHEDULE_TOPIC_XXXX; its real topic and queue are
kept in the properties REAL_TOPIC and REAL_QID. Source: RocketMQ's schedule messages (`messageDelayLevel`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from batonmq.protocol.message.properties import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    TIMER_PROPERTIES,
    decode_properties,
    encode_properties,
)
from batonmq.protocol.message.record import MessageExt, StoredMessage, message_of
from batonmq.protocol.names import SCHEDULE_TOPIC


def delay_level_of(properties: dict[str, str]) -> int:
    """Requested level, 0 for none. Raises ValueError for other text; Java fails such a send."""
    return int(properties.get(PROPERTY_DELAY_LEVEL) or 0)


def to_schedule_topic(message: StoredMessage, level: int, max_level: int) -> StoredMessage:
    """The message as stored in the delay topic; a level above the last counts as the last."""
    properties = decode_properties(message.properties)
    for name in TIMER_PROPERTIES:  # a delay level wins over an exact time
        properties.pop(name, None)
    properties[PROPERTY_DELAY_LEVEL] = str(level)
    properties[PROPERTY_REAL_TOPIC] = message.topic
    properties[PROPERTY_REAL_QUEUE_ID] = str(message.queue_id)
    return replace(
        message,
        topic=SCHEDULE_TOPIC,
        queue_id=min(level, max_level) - 1,
        properties=encode_properties(properties),
    )


def from_schedule_topic(record: MessageExt) -> StoredMessage | None:
    """The message for its real topic; None if the record does not name one.

    `record` must be decoded without inflating its body.
    """
    properties = dict(record.properties)
    for name in (PROPERTY_DELAY_LEVEL, *TIMER_PROPERTIES[:2]):
        properties.pop(name, None)
    topic = properties.get(PROPERTY_REAL_TOPIC)
    queue_id = properties.get(PROPERTY_REAL_QUEUE_ID, "")
    if not topic or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 9):
        return None
    return message_of(record, topic=topic, queue_id=int(queue_id), properties=properties)


def deliver_at_ms(store_timestamp: int, delay_ms: int, now_ms: int, known_ms: int = 0) -> int:
    """Wall time at which a message stored at `store_timestamp` is due.

    `known_ms`: how long this broker has known the message. It counts where the store time is later than now:
    the clock was set back since, or the clock of the former master was ahead.
    """
    return min(store_timestamp + delay_ms, now_ms + max(0, delay_ms - known_ms))


class KnownSince:
    """For how long the messages of one queue are known, by a clock that nobody sets."""

    def __init__(self, step_ms: int) -> None:
        """`step_ms`: messages that come within this time count as one; it makes them younger, never older."""
        self._step_ms = step_ms
        self._ends: list[int] = []
        """Ends of the queue, in order."""
        self._times_ms: list[int] = []
        """When it first ended there."""

    def note(self, end: int, monotonic_ms: int) -> None:
        """The queue ends at `end` now."""
        ends, times = self._ends, self._times_ms
        if ends and end <= ends[-1]:
            return
        if len(ends) > 1 and monotonic_ms - times[-2] < self._step_ms:
            ends[-1], times[-1] = end, monotonic_ms
        else:
            ends.append(end)
            times.append(monotonic_ms)

    def known_ms(self, offset: int, monotonic_ms: int) -> int:
        """How long the message at this offset is known; 0 if it is not."""
        at = bisect_right(self._ends, offset)
        return monotonic_ms - self._times_ms[at] if at < len(self._ends) else 0

    def forget_before(self, offset: int) -> None:
        """The messages before `offset` no longer matter."""
        at = bisect_right(self._ends, offset)
        if at:
            del self._ends[:at], self._times_ms[:at]
