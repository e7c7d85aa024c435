"""Finds messages that the former master, or this broker before its restart, has delivered already.

A checkpoint is up to some seconds old. What was delivered since is in the log, and so in the queues of the
real topics: a delivered message keeps its UNIQ_KEY and its TIMER_OUT_MS. Messages without a unique key cannot
be told apart and are delivered twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from batonmq.broker.timer.enqueuer import records_of
from batonmq.common.files import reason
from batonmq.protocol.message.properties import (
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    PROPERTY_UNIQUE_KEY,
    find_property,
)

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.protocol.message.record import StoredMessage

log = logging.getLogger(__name__)

MOST: Final = 500_000
"""Records read at most; then messages are delivered twice rather than kept waiting."""
ATTEMPTS: Final = 10
"""To read from a disk that fails; then, too, messages are delivered twice rather than kept waiting."""
RETRY_S: Final = 0.5
_UNIQUE, _OUT, _ROLLS = (
    name.encode() for name in (PROPERTY_UNIQUE_KEY, PROPERTY_TIMER_OUT_MS, PROPERTY_TIMER_ROLL_TIMES)
)
Mark = tuple[bytes, bytes, bytes]
"""UNIQ_KEY, TIMER_OUT_MS and TIMER_ROLL_TIMES."""


def mark_of(properties: bytes) -> Mark | None:
    """What tells a delivered message from others; None without a unique key."""
    key, out = find_property(properties, _UNIQUE), find_property(properties, _OUT)
    if key is None or out is None:
        return None
    return key, out, find_property(properties, _ROLLS) or b""


class AlreadyDelivered:
    """The deliveries since a time, by queue; a queue is read when the first message for it is due."""

    def __init__(self, broker: Broker, since_ms: int) -> None:
        """`since_ms`: store time of the first delivery that counts."""
        self._broker = broker
        self._since_ms = since_ms
        self._marks: dict[tuple[str, int], Counter[Mark]] = {}
        self._read = 0

    async def take(self, message: StoredMessage) -> bool:
        """Whether `message` was delivered already. Each delivery stands for one message only."""
        mark = mark_of(message.properties)
        if mark is None:
            return False
        queue = message.topic, message.queue_id
        marks = self._marks.get(queue)
        if marks is None:
            marks = self._marks[queue] = await self._load(*queue)
        if not marks[mark]:
            return False
        marks[mark] -= 1
        return True

    async def _load(self, topic: str, queue_id: int) -> Counter[Mark]:
        broker = self._broker
        marks: Counter[Mark] = Counter()
        offset = broker.store.offset_by_time(topic, queue_id, self._since_ms)
        failures = 0
        while self._read < MOST:
            result = broker.store.get(topic, queue_id, offset, 1_000)
            if result.next_offset <= offset:
                return marks
            try:
                if result.fetch is not None:
                    await asyncio.get_running_loop().run_in_executor(broker.readers, result.fetch)
            except OSError as error:
                failures += 1
                if failures < ATTEMPTS:
                    await asyncio.sleep(RETRY_S)
                    continue
                log.error(
                    "messages of topic=%s queue=%d cannot be read, some may be delivered twice: %s",
                    *(topic, queue_id, reason(error)),
                )
                return marks
            failures = 0
            for record in records_of(result.buffers):
                self._read += 1
                mark = mark_of(record.properties)
                if mark is not None:
                    marks[mark] += 1
            offset = result.next_offset
            await asyncio.sleep(0)
        log.warning("more than %d messages since the last checkpoint: some may be delivered twice", MOST)
        return marks
