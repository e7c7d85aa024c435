"""Metrics of programs, and how an exporter reads them.

A metric is declared once (`Metric`); the documentation's table and the check of the dashboards are derived
from the declaration. The code that is measured bumps plain numbers: nothing here or there knows the exporter,
which is imported only when a configuration asks for it (`metrics_exporter.py`).

An exporter works in a separate thread and never looks at a program's state. It asks the event loop to run a
metric's *source*, a function that yields (label values, value) pairs; the loop does so a slice at a time.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

SLICE_S = 0.002
"""How long a source may keep the event loop before others get their turn."""

_PROMETHEUS_UNITS = {"us": "microseconds", "ms": "milliseconds", "s": "seconds", "By": "bytes"}


class Kind(Enum):
    """What a metric's numbers mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of one metric; name, unit, labels and bounds are RocketMQ's where it has the metric."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    """Labels besides those that all metrics of a program carry."""
    unit: str = ""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets, without the last, which is infinite."""

    @property
    def prometheus_name(self) -> str:
        """As a scrape shows it: with the unit, and a counter with `_total`."""
        suffix = _PROMETHEUS_UNITS.get(self.unit, self.unit)
        name = f"{self.name}_{suffix}" if suffix and not self.name.endswith(f"_{suffix}") else self.name
        return f"{name}_total" if self.kind is Kind.COUNTER and not name.endswith("_total") else name


class Buckets(NamedTuple):
    """A histogram at one moment: how many values fell into each bucket, and their sum."""

    counts: tuple[int, ...]
    sum: float


class Histogram:
    """The buckets of one series. Hot path: two list look-ups and a bisection."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def record(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> Buckets:
        return Buckets(tuple(self._counts), self._sum)


LabelValues: TypeAlias = tuple[str | bool, ...]
"""Values of a metric's own labels, in the order of the declaration."""
Point: TypeAlias = tuple[LabelValues, float | Buckets]
Source: TypeAlias = Callable[[], Iterable[Point] | Awaitable[Iterable[Point]]]
"""Runs on the event loop, which may do other things between two points: a source that walks a table must
take a copy of its keys. One that looks at the disk is a coroutine. A histogram's source yields `Buckets`."""


async def sliced(items: Iterable[T]) -> list[T]:
    """All items; other callbacks of the loop get their turn every `SLICE_S`."""
    found: list[T] = []
    began = perf_counter()
    for item in items:
        found.append(item)
        if perf_counter() - began > SLICE_S:
            await asyncio.sleep(0)
            began = perf_counter()
    return found


async def read(source: Source) -> list[Point]:
    """All points of a source."""
    points = source()
    return await sliced(await points if isinstance(points, Awaitable) else points)
