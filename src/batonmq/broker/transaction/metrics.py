"""Metrics of transactions. Source: RocketMQ's `BrokerMetricsConstant`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from batonmq.broker.transaction.counts import LATENCY_BOUNDS_S
from batonmq.common.metrics import Kind, Metric, Point, Source

if TYPE_CHECKING:
    from batonmq.broker.transaction.counts import TransactionCounts

_TOPIC: Final = ("topic",)

HALF: Final = Metric(
    "rocketmq_half_messages", Kind.GAUGE, "Transactional messages that are undecided; 0 on a slave", _TOPIC
)
COMMITTED: Final = Metric(
    "rocketmq_commit_messages_total", Kind.COUNTER, "Transactional messages committed", _TOPIC
)
ROLLED_BACK: Final = Metric(
    "rocketmq_rollback_messages_total", Kind.COUNTER, "Transactional messages rolled back", _TOPIC
)
LATENCY: Final = Metric(
    "rocketmq_finish_message_latency",
    Kind.HISTOGRAM,
    "Time from the birth of a transactional message to its commit. Whole seconds, despite the unit in its "
    "name, as in RocketMQ",
    _TOPIC,
    unit="ms",
    bounds=LATENCY_BOUNDS_S,
)
GIVEN_UP: Final = Metric(
    "batonmq_transactions_given_up_total",
    Kind.COUNTER,
    "Transactional messages moved to TRANS_CHECK_MAX_TIME_TOPIC",
    _TOPIC,
)
CHECKS: Final = Metric(
    "batonmq_transaction_checks_total", Kind.COUNTER, "Checks of undecided messages sent to producers"
)
METRICS: Final = (HALF, COMMITTED, ROLLED_BACK, LATENCY, GIVEN_UP, CHECKS)


def sources(counts: TransactionCounts) -> Mapping[Metric, Source]:
    def by_topic(table: Mapping[str, int]) -> Iterable[Point]:
        return [((topic,), value) for topic, value in table.items()]

    return {
        HALF: lambda: by_topic(counts.half),
        COMMITTED: lambda: by_topic(counts.committed),
        ROLLED_BACK: lambda: by_topic(counts.rolled_back),
        LATENCY: lambda: [((t,), histogram.buckets()) for t, histogram in counts.latency_s.items()],
        GIVEN_UP: lambda: by_topic(counts.given_up),
        CHECKS: lambda: [((), counts.checks)],
    }
