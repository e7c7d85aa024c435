"""The number of waiting messages of each topic: the table behind ``config/timermetrics``.

Source: RocketMQ's `TimerMetrics`; a message that recalls another one counts -1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.json import decode, encode

MOST_TOPICS: Final = 10_000
"""Topics that are counted. A client can store any name in the timer topic; messages for more topics than this
are delivered without being counted."""


class _Metric(msgspec.Struct, rename="camel"):
    count: int = 0
    time_stamp: int = 0
    """Time of the last change, ms since the epoch."""


class _TimerMetrics(msgspec.Struct, rename="camel"):
    """timermetrics."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    timing_count: dict[str, _Metric] = msgspec.field(default_factory=dict)


class TimingCounts:
    """Waiting messages by topic."""

    def __init__(self) -> None:
        self._table = _TimerMetrics()
        self._changed = False

    def take_changed(self) -> bool:
        """Whether a count changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def counts(self) -> dict[str, int]:
        """Topic -> waiting messages."""
        return {topic: metric.count for topic, metric in self._table.timing_count.items()}

    def add(self, topic: str, number: int, now_ms: int) -> None:
        """Count `number` more messages of a topic, if there is room for it."""
        table = self._table.timing_count
        metric = table.get(topic)
        if metric is None:
            if len(table) >= MOST_TOPICS:
                self.forget_unless(())
                if len(table) >= MOST_TOPICS:
                    return
            metric = table[topic] = _Metric()
        metric.count += number
        metric.time_stamp = now_ms
        version = self._table.data_version
        self._table.data_version = DataVersion(now_ms, version.counter + 1, version.state_version)
        self._changed = True

    def leave(self, topic: str, now_ms: int) -> None:
        """One message of a topic waits no longer. One of a topic that is not counted was never counted."""
        if topic in self._table.timing_count:
            self.add(topic, -1, now_ms)

    def recount(self, by_hash: dict[int, int], topics: Iterable[str], now_ms: int) -> None:
        """Replace the counts by those of the timer log, which has only hashes of the topics."""
        table = self._table.timing_count
        names = {java_hash(topic): topic for topic in topics}
        counts = {names[value]: count for value, count in by_hash.items() if value in names}
        for topic in table.keys() | counts.keys():
            if table.get(topic, _Metric()).count != counts.get(topic, 0):
                self.add(topic, counts.get(topic, 0) - table.get(topic, _Metric()).count, now_ms)

    def forget_unless(self, known: Iterable[str]) -> None:
        """Drop topics that are not `known`, nor wait."""
        table, topics = self._table.timing_count, set(known)
        for topic in [t for t, metric in table.items() if t not in topics and not metric.count]:
            del table[topic]
            self._changed = True

    def encode(self) -> bytes:
        return encode(self._table)

    def restore(self, data: bytes) -> None:
        """Load the contents of the file or the master's answer. Raises ValueError."""
        self._table = decode(data, _TimerMetrics)

    def replace(self, data: bytes) -> None:
        """On a slave: load the master's table. Raises ValueError."""
        self.restore(data)
        self._changed = True
