"""Deadlines of held requests (pulls and pops that wait for a message), the earliest first."""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, Protocol, TypeVar

SWEEP_ABOVE = 64
"""So few entries are never swept."""


class Held(Protocol):
    """A held request."""

    released: bool
    """It is answered, and its deadline no longer counts."""


H = TypeVar("H", bound=Held)


class Deadlines(Generic[H]):
    """A heap of deadlines. Requests that were released leave it later, most of them together."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, H]] = []
        self._ticket = count()
        """Tells requests of one deadline apart, and keeps their order."""

    def __len__(self) -> int:
        """Number of entries, released ones too."""
        return len(self._heap)

    def add(self, deadline_ms: int, held: H) -> None:
        heapq.heappush(self._heap, (deadline_ms, next(self._ticket), held))

    def clear(self) -> None:
        self._heap.clear()

    def pop_expired(self, now_ms: int) -> H | None:
        """Remove and return the first request that is not released and expired by `now_ms`; None: there is
        no more."""
        heap = self._heap
        while heap and (heap[0][2].released or heap[0][0] <= now_ms):
            held = heapq.heappop(heap)[2]
            if not held.released:
                return held
        return None

    def next_ms(self) -> int | None:
        """The earliest deadline; None if no request is held."""
        heap = self._heap
        while heap and heap[0][2].released:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def sweep(self, held: int) -> None:
        """Drop released requests if they are many. `held`: how many are not released.

        A busy queue releases pulls long before their deadlines. Without this the heap would keep them and
        what they asked until then.
        """
        heap = self._heap
        while heap and heap[0][2].released:
            heapq.heappop(heap)
        if len(heap) > SWEEP_ABOVE and len(heap) > 4 * held:
            heap[:] = [entry for entry in heap if not entry[2].released]
            heapq.heapify(heap)
