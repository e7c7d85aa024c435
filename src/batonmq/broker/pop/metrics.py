"""Metrics of pop consumption. Source: RocketMQ's `PopMetricsConstant` and `PopMetricsManager`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from batonmq.common.metrics import Kind, Metric, Source

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.pop.core import CheckPoints
    from batonmq.broker.pop.counts import Counts
    from batonmq.broker.pop.journal import Journal
    from batonmq.broker.pop.positions import Positions

OFFSETS: Final = Metric(
    "rocketmq_pop_offset_buffer_size", Kind.GAUGE, "Queues of groups whose offset waits for its check point"
)
CHECK_POINTS: Final = Metric(
    "rocketmq_pop_checkpoint_buffer_size", Kind.GAUGE, "Batches handed out and not acknowledged"
)
LAG: Final = Metric(
    "rocketmq_pop_revive_lag",
    Kind.GAUGE,
    "Batches that are due and not revived (a count; RocketMQ gives it this unit)",
    ("queue_id",),
    unit="milliseconds",
)
LATENCY: Final = Metric(
    "rocketmq_pop_revive_latency",
    Kind.GAUGE,
    "How long the oldest of them is due",
    ("queue_id",),
    unit="milliseconds",
)
IN: Final = Metric(
    "rocketmq_pop_revive_in_message_total",
    Kind.COUNTER,
    "Check points and acks stored",
    ("consumer_group", "topic", "revive_message_type", "put_status"),
)
RETRIES: Final = Metric(
    "rocketmq_pop_revive_retry_messages_total",
    Kind.COUNTER,
    "Messages put into retry topics because nobody acknowledged them",
    ("consumer_group", "topic", "put_status"),
)
METRICS: Final = (OFFSETS, CHECK_POINTS, LAG, LATENCY, IN, RETRIES)


class PopMetrics:
    """Reads what the parts of pop consumption count anyway."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        check_points: CheckPoints,
        positions: Positions,
        stored: Counts,
        retries: Counts,
    ) -> None:
        self._broker = broker
        self._journal = journal
        self._check_points = check_points
        self._positions = positions
        self._stored = stored
        self._retries = retries

    def sources(self) -> Mapping[Metric, Source]:
        return {
            OFFSETS: lambda: [((), len(self._positions))],
            CHECK_POINTS: lambda: [((), len(self._check_points))],
            LAG: lambda: [((str(queue),), count) for queue, (count, _) in self._overdue().items()],
            LATENCY: lambda: [((str(queue),), age) for queue, (_, age) in self._overdue().items()],
            IN: self._stored.points,
            RETRIES: self._retries.points,
        }

    def _overdue(self) -> dict[int, tuple[int, int]]:
        """Revive queue -> number of batches that are due, and ms since the oldest is."""
        now_ms = self._broker.clock.now_ms()
        found = dict.fromkeys(self._journal.queues(), (0, 0))
        for entry in list(self._check_points):
            if entry.due_ms < now_ms:
                count, age = found.get(entry.revive_queue, (0, 0))
                found[entry.revive_queue] = (count + 1, max(age, now_ms - entry.due_ms))
        return found
