"""Counts of transactions by topic. Source: RocketMQ's `TransactionMetrics`."""

from __future__ import annotations

from typing import Final

from batonmq.common.metrics import Histogram

LATENCY_BOUNDS_S: Final = (5.0, 60.0, 600.0, 3_600.0, 43_200.0, 86_400.0)
"""RocketMQ's buckets of `rocketmq_finish_message_latency`."""


class TransactionCounts:
    """Totals since the start of this broker, and the half messages that are undecided now."""

    def __init__(self) -> None:
        self.half: dict[str, int] = {}
        """Topic -> undecided half messages; 0 for topics that had some before."""
        self.committed: dict[str, int] = {}
        self.rolled_back: dict[str, int] = {}
        self.given_up: dict[str, int] = {}
        self.checks = 0
        """Checks that were sent to producers."""
        self.latency_s: dict[str, Histogram] = {}
        """Time from the creation of a message to its commit."""

    def prepared(self, topic: str) -> None:
        self.half[topic] = self.half.get(topic, 0) + 1

    def recounted(self, half: dict[str, int]) -> None:
        """A round of checks counted the undecided half messages of each topic that has some."""
        self.half = dict.fromkeys(self.half, 0) | half

    def commit(self, topic: str, latency_ms: int) -> None:
        self.committed[topic] = self.committed.get(topic, 0) + 1
        histogram = self.latency_s.get(topic)
        if histogram is None:
            histogram = self.latency_s[topic] = Histogram(LATENCY_BOUNDS_S)
        histogram.record(max(0, latency_ms) // 1000)
        self._finished(topic)

    def roll_back(self, topic: str) -> None:
        self.rolled_back[topic] = self.rolled_back.get(topic, 0) + 1
        self._finished(topic)

    def give_up(self, topic: str) -> None:
        self.given_up[topic] = self.given_up.get(topic, 0) + 1
        self._finished(topic)

    def _finished(self, topic: str) -> None:
        self.half[topic] = max(0, self.half.get(topic, 0) - 1)
