"""Counters by labels, for metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from batonmq.common.metrics import Point

MAX_SERIES: Final = 10_000
"""Series of one counter; groups beyond are not counted."""


class Counts:
    """A counter by labels."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *labels: str) -> None:
        counts = self._counts
        known = counts.get(labels)
        if known is not None:
            counts[labels] = known + 1
        elif len(counts) < MAX_SERIES:
            counts[labels] = 1

    def points(self) -> Iterator[Point]:
        yield from list(self._counts.items())
