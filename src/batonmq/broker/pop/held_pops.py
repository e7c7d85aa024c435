"""Held pops (long polling): pops that found no message and wait for one, or for their deadline.

Pure: the caller passes in the time and the queues that have grown, and runs the returned lines: all pops of a
group that wait for the same queue, the first come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from batonmq.broker.deadlines import Deadlines
from batonmq.store.results import QueueKey

T = TypeVar("T")

ANY_QUEUE = -1


class HeldPop(Generic[T]):
    """One held pop."""

    __slots__ = ("deadline_ms", "line", "pop", "released")

    def __init__(self, line: Line[T], deadline_ms: int, pop: T) -> None:
        self.line = line
        self.deadline_ms = deadline_ms
        self.pop = pop
        self.released = False


class Line(Generic[T]):
    """Pops of one group that wait for one queue of a topic, or for any (-1)."""

    __slots__ = ("group", "queue_id", "size", "topics", "waiting")

    def __init__(self, group: str, topics: Sequence[str], queue_id: int) -> None:
        self.group = group
        self.topics = topics
        """The topic and its retry topics."""
        self.queue_id = queue_id
        self.waiting: deque[HeldPop[T]] = deque()
        self.size = 0
        """Number of those that are not released."""

    def first(self) -> HeldPop[T] | None:
        """The pop that has waited longest; it stays."""
        waiting = self.waiting
        while waiting and waiting[0].released:
            waiting.popleft()
        return waiting[0] if waiting else None

    def drop_released(self) -> None:
        """Let go of released ones, which may be many behind one that waits for long."""
        waiting = self.waiting
        if len(waiting) > 64 and len(waiting) > 4 * self.size:
            self.waiting = deque(held for held in waiting if not held.released)


class HeldPops(Generic[T]):
    """All held pops of a broker."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, int], Line[T]] = {}
        self._by_topic: dict[str, dict[tuple[str, str, int], Line[T]]] = {}
        """By topic or retry topic, what waits for it."""
        self._deadlines: Deadlines[HeldPop[T]] = Deadlines()
        self._held = 0

    def __len__(self) -> int:
        return self._held

    @property
    def lines(self) -> int:
        return len(self._lines)

    def size(self, topic: str, group: str, queue_id: int) -> int:
        """Number of pops of a group that wait for this queue."""
        line = self._lines.get((topic, group, queue_id))
        return 0 if line is None else line.size

    def hold(
        self, topic: str, retry_topics: Sequence[str], group: str, queue_id: int, deadline_ms: int, pop: T
    ) -> None:
        key = (topic, group, queue_id)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(group, (topic, *retry_topics), queue_id)
            for each in line.topics:
                self._by_topic.setdefault(each, {})[key] = line
        held = HeldPop(line, deadline_ms, pop)
        line.waiting.append(held)
        line.size += 1
        self._deadlines.add(deadline_ms, held)
        self._held += 1

    def release(self, held: HeldPop[T]) -> None:
        """It is answered."""
        if held.released:
            return
        held.released = True
        self._held -= 1
        line = held.line
        line.size -= 1
        line.drop_released()
        if not line.size:
            key = (line.topics[0], line.group, line.queue_id)
            del self._lines[key]
            for topic in line.topics:
                lines = self._by_topic[topic]
                del lines[key]
                if not lines:
                    del self._by_topic[topic]
        self._deadlines.sweep(self._held)

    def lines_for(self, queues: Iterable[tuple[QueueKey, int]]) -> list[Line[T]]:
        """The lines to run, since these queues have grown."""
        found: dict[int, Line[T]] = {}
        by_topic = self._by_topic
        for (topic, queue_id), _ in queues:
            lines = by_topic.get(topic)
            if lines is None:
                continue
            for line in lines.values():
                if line.queue_id in (ANY_QUEUE, queue_id) or topic != line.topics[0]:
                    found[id(line)] = line
        return list(found.values())

    def lines_of(self, topic: str, group: str) -> list[Line[T]]:
        """The lines of a group in a topic or retry topic."""
        return [line for line in self._by_topic.get(topic, {}).values() if line.group == group]

    def expire(self, now_ms: int) -> list[HeldPop[T]]:
        """The pops that expired by `now_ms`; the caller releases them."""
        expired = []
        while (held := self._deadlines.pop_expired(now_ms)) is not None:
            expired.append(held)
        return expired

    def all(self) -> list[HeldPop[T]]:
        return [held for line in self._lines.values() for held in line.waiting if not held.released]

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()
