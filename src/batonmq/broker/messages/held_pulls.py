"""Held pulls (long polling): pulls that found no message and wait for one, or for their deadline.

Pure: the caller passes in the time and the queues that have grown, and runs the returned pulls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from batonmq.broker.deadlines import Deadlines
from batonmq.store.results import QueueKey

T = TypeVar("T")


class HeldPull(Generic[T]):
    """One held pull."""

    __slots__ = ("deadline_ms", "pull", "queue", "queue_offset", "released")

    def __init__(self, queue: QueueKey, queue_offset: int, deadline_ms: int, pull: T) -> None:
        self.queue = queue
        self.queue_offset = queue_offset
        """The pull waits for a message at or above this offset of the queue."""
        self.deadline_ms = deadline_ms
        self.pull = pull
        self.released = False


class HeldPulls(Generic[T]):
    """All held pulls of a broker."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, dict[HeldPull[T], None]] = {}
        """In the order in which they came. A dict: thousands of one queue may expire in any order."""
        self._deadlines: Deadlines[HeldPull[T]] = Deadlines()
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def hold(self, queue: QueueKey, queue_offset: int, deadline_ms: int, pull: T) -> None:
        held = HeldPull(queue, queue_offset, deadline_ms, pull)
        self._by_queue.setdefault(queue, {})[held] = None
        self._deadlines.add(deadline_ms, held)
        self._held += 1

    def queues_grown(self, queues: Iterable[tuple[QueueKey, int]]) -> list[HeldPull[T]]:
        """`queues`: the queues that grew, with their new max offsets. Returns the pulls to run now."""
        by_queue = self._by_queue
        ready: list[HeldPull[T]] = []
        for queue, max_offset in queues:
            waiting = by_queue.get(queue)
            if waiting is None:
                continue
            still = {held: None for held in waiting if held.queue_offset >= max_offset}
            if len(still) == len(waiting):
                continue
            ready.extend(held for held in waiting if held.queue_offset < max_offset)
            if still:
                by_queue[queue] = still
            else:
                del by_queue[queue]
        for held in ready:
            held.released = True
        self._held -= len(ready)
        self._deadlines.sweep(self._held)
        return ready

    def expire(self, now_ms: int) -> list[HeldPull[T]]:
        """Remove and return the pulls that expired by `now_ms`."""
        expired: list[HeldPull[T]] = []
        while (held := self._deadlines.pop_expired(now_ms)) is not None:
            held.released = True
            expired.append(held)
            waiting = self._by_queue[held.queue]
            del waiting[held]
            if not waiting:
                del self._by_queue[held.queue]
        self._held -= len(expired)
        return expired

    def release(self, topic: str) -> list[HeldPull[T]]:
        """Remove and return the pulls of a topic."""
        queues = [queue for queue in self._by_queue if queue[0] == topic]
        released = [held for queue in queues for held in self._by_queue.pop(queue)]
        for held in released:
            held.released = True
        self._held -= len(released)
        self._deadlines.sweep(self._held)
        return released

    def release_all(self) -> list[HeldPull[T]]:
        """Remove and return all pulls, for a change of the role or a stop."""
        everything = [held for waiting in self._by_queue.values() for held in waiting]
        for held in everything:
            held.released = True
        self._by_queue.clear()
        self._deadlines.clear()
        self._held = 0
        return everything

    def next_deadline_ms(self) -> int | None:
        """The next deadline; None while no pull is held."""
        return self._deadlines.next_ms()
