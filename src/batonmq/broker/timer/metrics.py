"""Metrics of the timer. Source: RocketMQ's `DefaultStoreMetricsConstant`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from batonmq.common.metrics import Kind, Metric, Point, Source
from batonmq.protocol.names import TIMER_TOPIC

if TYPE_CHECKING:
    from batonmq.broker.timer.counts import TimerCounts
    from batonmq.broker.timer.state import TimerState

_STORAGE: Final = ("storage_type", "storage_medium")
_VALUES: Final = ("local", "disk")
BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""Ends of the periods of `SNAPSHOT`, from now (`TimerMetrics.timerDist`)."""

ENQUEUE_LAG: Final = Metric(
    "rocketmq_timer_enqueue_lag", Kind.GAUGE, "Timed messages not in the wheel yet", _STORAGE
)
ENQUEUE_LATENCY: Final = Metric(
    "rocketmq_timer_enqueue_latency", Kind.GAUGE, "Age of the oldest of them", _STORAGE, unit="milliseconds"
)
DEQUEUE_LAG: Final = Metric("rocketmq_timer_dequeue_lag", Kind.GAUGE, "Timed messages in the wheel", _STORAGE)
DEQUEUE_LATENCY: Final = Metric(
    "rocketmq_timer_dequeue_latency",
    Kind.GAUGE,
    "Lateness of the slot delivered next, in seconds (RocketMQ's unit says milliseconds)",
    _STORAGE,
    unit="milliseconds",
)
TIMING: Final = Metric(
    "rocketmq_timing_messages", Kind.GAUGE, "Timed messages that wait", (*_STORAGE, "topic")
)
ENQUEUED: Final = Metric(
    "rocketmq_timer_enqueue_total", Kind.COUNTER, "Timed messages put into the wheel", (*_STORAGE, "topic")
)
DELIVERED: Final = Metric(
    "rocketmq_timer_dequeue_total", Kind.COUNTER, "Timed messages delivered", (*_STORAGE, "topic")
)
SNAPSHOT: Final = Metric(
    "rocketmq_timer_message_snapshot",
    Kind.GAUGE,
    "Timed messages by time left, up to 24 h",
    (*_STORAGE, "timer_bound_s"),
)
METRICS: Final = (
    ENQUEUE_LAG,
    ENQUEUE_LATENCY,
    DEQUEUE_LAG,
    DEQUEUE_LATENCY,
    TIMING,
    ENQUEUED,
    DELIVERED,
    SNAPSHOT,
)


class TimerMetrics:
    """Reads the figures of one broker."""

    def __init__(self, state: TimerState, counts: TimerCounts) -> None:
        self._state = state
        self._counts = counts

    @property
    def enqueue_lag(self) -> int:
        """Messages that wait outside the wheel."""
        store = self._state.broker.store
        return max(0, store.queue_bounds(TIMER_TOPIC, 0).max_offset - self._state.queue_offset)

    def _enqueue_latency(self) -> int:
        stored = self._state.behind_since_ms
        return 0 if stored is None else max(0, self._state.now_ms() - stored)

    @property
    def late_ms(self) -> int:
        """Lateness of the slot that is delivered next, as RocketMQ counts it: up to one step always."""
        return max(0, self._state.now_ms() - self._state.read_ms)

    def sources(self) -> Mapping[Metric, Source]:
        counts = self._counts
        return {
            ENQUEUE_LAG: lambda: self._one(lambda: self.enqueue_lag),
            ENQUEUE_LATENCY: lambda: self._one(self._enqueue_latency),
            DEQUEUE_LAG: lambda: self._one(lambda: self._state.timers.waiting),
            DEQUEUE_LATENCY: lambda: self._one(lambda: self.late_ms // 1_000),
            TIMING: lambda: self._by_topic(counts.timing.counts()),
            ENQUEUED: lambda: self._by_topic(counts.enqueued_by_topic),
            DELIVERED: lambda: self._by_topic(counts.delivered_by_topic),
            SNAPSHOT: self._snapshot,
        }

    def runtime_info(self) -> Mapping[str, object]:
        """For GET_BROKER_RUNTIME_INFO."""
        if not self._state.opened:
            return {}
        now, counts = self._state.now_ms(), self._counts
        return {
            "timerReadBehind": self.late_ms // 1_000,
            "timerOffsetBehind": self.enqueue_lag,
            "timerCongestNum": self._state.timers.waiting,
            "timerEnqueueTps": counts.enqueue_rate.per_second(now),
            "timerDequeueTps": counts.deliver_rate.per_second(now),
        }

    def _one(self, read: Callable[[], int]) -> Iterable[Point]:
        if self._state.opened:
            yield _VALUES, read()

    def _by_topic(self, counts: Mapping[str, int]) -> Iterable[Point]:
        return [((*_VALUES, topic), count) for topic, count in list(counts.items())]

    def _snapshot(self) -> Iterable[Point]:
        if not self._state.opened:
            return
        begin = now = self._state.wheel.floor(self._state.now_ms())
        for bound_s in BOUNDS_S:
            end = now + bound_s * 1_000
            yield (*_VALUES, str(bound_s)), self._state.timers.wheel.count(begin, end)
            begin = end
