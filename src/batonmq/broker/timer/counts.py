"""Counters of the timer: waiting messages by topic, messages in and out, and their rates. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from batonmq.broker.timer.timing import MOST_TOPICS, TimingCounts

WINDOW_MS: Final = 10_000
"""Length of time over which a rate is taken."""


class Rate:
    """Events a second over the last `WINDOW_MS`."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()
        """Time in s, and the number of events in it."""

    def add(self, now_ms: int) -> None:
        second = now_ms // 1_000
        if self._seconds and second < self._seconds[-1][0]:
            self._seconds.clear()  # the clock was set back; until it is there again no second would leave
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + 1)
        else:
            self._seconds.append((second, 1))
            self._forget(now_ms)

    def per_second(self, now_ms: int) -> float:
        self._forget(now_ms)
        return sum(count for _, count in self._seconds) * 1_000 / WINDOW_MS

    def _forget(self, now_ms: int) -> None:
        while self._seconds and self._seconds[0][0] * 1_000 <= now_ms - WINDOW_MS:
            self._seconds.popleft()


class TimerCounts:
    """Counts of a master; `timing` is copied by slaves."""

    def __init__(self, timing: TimingCounts, now_ms: Callable[[], int]) -> None:
        self.timing = timing
        self._now_ms = now_ms
        self.enqueued_by_topic: dict[str, int] = {}
        self.delivered_by_topic: dict[str, int] = {}
        self.enqueue_rate, self.deliver_rate = Rate(), Rate()

    def enqueued(self, topic: str, *, recalls: bool) -> None:
        """A message entered the wheel."""
        now = self._now_ms()
        self.timing.add(topic, -1 if recalls else 1, now)
        _count(self.enqueued_by_topic, topic)
        self.enqueue_rate.add(now)

    def left(self, topic: str) -> None:
        """A message left the wheel and was stored."""
        now = self._now_ms()
        self.timing.leave(topic, now)
        _count(self.delivered_by_topic, topic)
        self.deliver_rate.add(now)

    def recall_left(self, topic: str, *, matched: bool) -> None:
        """A recall left the wheel; `matched`: it has stopped a message, for which it counted already."""
        if not matched:
            self.timing.add(topic, 1, self._now_ms())


def _count(table: dict[str, int], topic: str) -> None:
    known = table.get(topic)
    if known is not None:
        table[topic] = known + 1
    elif len(table) < MOST_TOPICS:
        table[topic] = 1
