"""Light queues: which consume queues a message enters besides its topic's, and at which offsets. No I/O.

The master that appends a message gives it its offsets, which are stored in its properties. Everything else
follows the log: slaves, recovery, a master that takes over.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.message.light import (
    LIGHT_MARK,
    LIGHT_QUEUE_ID,
    OFFSET_DIGITS,
    OFFSETS_START,
    gives_light_offsets,
    light_names,
    light_offsets,
    names_error,
    with_light_offsets,
    without_light_offsets,
)
from batonmq.protocol.message.properties import MAX_PROPERTIES_BYTES
from batonmq.store.consumequeue import ConsumeQueue
from batonmq.store.queues import ConsumeQueues
from batonmq.store.results import PutStatus

log = logging.getLogger(__name__)

_SHORT = struct.Struct(">h")

Item: TypeAlias = tuple[int, Buffer, bytes, bytes]
"""Flag, body, properties, properties behind their length."""
Places: TypeAlias = list[tuple[ConsumeQueue, int]]
"""Light queues, and the offset of a message in each."""


class Plan(NamedTuple):
    """What the messages of one append become. Their light queues have not given out the offsets yet."""

    items: list[Item]
    places: list[Places]
    """One for each item."""
    ends: dict[ConsumeQueue, int]
    """The `next_offset` that each light queue gets."""


class LightQueues:
    """The light queues of one store."""

    __slots__ = ("_most", "_queues")

    def __init__(self, queues: ConsumeQueues, most: int | None) -> None:
        """`most`: light queues from which on messages create no more; None: any number."""
        self._queues = queues
        self._most = most

    def refusal(self, topic: str, properties: bytes) -> PutStatus | None:
        """Why a message of `topic` cannot be stored with the light queues that it names; None if it can."""
        names = light_names(properties)
        if not names:
            return None
        if names_error(topic, names) is not None:
            return PutStatus.MESSAGE_ILLEGAL
        if len(properties) + len(OFFSETS_START) + len(names) * (OFFSET_DIGITS + 1) + 1 > MAX_PROPERTIES_BYTES:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        if self._most is not None and self._queues.light_count >= self._most:
            by_key = self._queues.by_key
            if any((name, LIGHT_QUEUE_ID) not in by_key for name in names):
                return PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        return None

    def plan(self, topic: str, items: Sequence[Item], *, accepted: bool) -> Plan | PutStatus | None:
        """Offsets for the messages of one append, or why they are refused; None if nothing changes.

        `accepted` (`StoredMessage.accepted`): they were acknowledged before, so they are stored in any case,
        if need be without light queues.
        """
        if not gives_light_offsets(topic):
            return None
        plan = Plan([], [], {})
        for item in items:
            flag, body, properties, tail = item
            places: Places = []
            if LIGHT_MARK in properties:
                refused = self.refusal(topic, properties)
                if refused is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED and accepted:
                    refused = None
                if refused is not None and not accepted:
                    return refused
                if refused is not None:
                    log.warning("a message of %s enters none of its light queues: %s", topic, refused.name)
                properties = without_light_offsets(properties)
                names = light_names(properties) if refused is None else []
                if names:
                    properties = with_light_offsets(properties, self._give(names, places, plan.ends))
                tail = _SHORT.pack(len(properties)) + properties
            plan.items.append((flag, body, properties, tail))
            plan.places.append(places)
        return plan

    def _give(self, names: list[str], places: Places, ends: dict[ConsumeQueue, int]) -> list[int]:
        """The offset of one message in each of its queues; a queue that is named twice has it once."""
        given: dict[str, int] = {}
        for name in names:
            if name not in given:
                queue = self._queues.ensure(name, LIGHT_QUEUE_ID)
                given[name] = offset = ends.get(queue, queue.next_offset)
                ends[queue] = offset + 1
                places.append((queue, offset))
        return [given[name] for name in names]

    def places(self, topic: str, properties: bytes, physical_offset: int) -> Places:
        """The light queues that a record of the log is in."""
        return [
            (queue, offset)
            for name, offset in light_offsets(topic, properties)
            if (queue := self._queues.of_record(name, LIGHT_QUEUE_ID, physical_offset)) is not None
        ]
