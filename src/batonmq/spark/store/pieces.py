"""Cuts commit logs into what tasks read, and says which records a query wants. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from batonmq.protocol.names import is_system_topic
from batonmq.spark.store.directory import LogFile, StoreLog
from batonmq.spark.store.options import StoreOptions

CLOCK_SLACK_MS: Final = 3_600_000
"""Pieces that begin or end this far outside the wanted store times are not read at all. Store times ascend in
a log, but for clocks that were put back, or differ between two masters: by less than this."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one task reads: records that begin in ``[begin, end)``, commit log offsets in one file."""

    root: str
    broker: str
    file: LogFile
    begin: int
    """A record's beginning."""
    end: int


def cut(log: StoreLog, end: int, beginnings: Sequence[int]) -> list[Piece]:
    """The log up to `end` in pieces that begin at the files' beginnings and at those given."""
    pieces = []
    for file in log.files:
        stop = min(file.end, end)
        inner = [at for at in beginnings if file.base < at < stop]
        edges = [file.base, *inner, stop]
        pieces += [Piece(log.root, log.broker, file, a, b) for a, b in pairwise(edges) if a < b]
    return pieces


def cut_points(log: StoreLog, end: int, size: int) -> list[int]:
    """Offsets inside the files, `size` bytes apart, up to `end`."""
    return [at for file in log.files for at in range(file.base + size, min(file.end, end) - size // 2, size)]


def in_time(pieces: Sequence[Piece], times: Sequence[int | None], wanted: Selection) -> list[Piece]:
    """The pieces that may hold records of the wanted store times. `times`: store time of each piece's first
    record, None where it is unknown."""
    low, high = wanted.min_time_ms, wanted.max_time_ms
    kept = []
    for number, piece in enumerate(pieces):
        begins = times[number]
        follows = times[number + 1] if number + 1 < len(pieces) else None
        same_log = number + 1 < len(pieces) and pieces[number + 1].root == piece.root
        if high is not None and begins is not None and begins > high + CLOCK_SLACK_MS:
            continue
        if low is not None and same_log and follows is not None and follows < low - CLOCK_SLACK_MS:
            continue
        kept.append(piece)
    return kept


# -- which records


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records a query wants; bounds are inclusive, None is no bound."""

    topics: frozenset[str] | None = None
    pattern: str | None = None
    system_topics: bool = False
    """Whether the system's topics count where `topics` is None, and records that enter no consume queue."""
    tags: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    min_physical: int | None = None
    max_physical: int | None = None
    min_queue_offset: int | None = None
    max_queue_offset: int | None = None

    def wants_topic(self, topic: str) -> bool:
        """Whether records of this topic are wanted."""
        if self.pattern is not None and re.fullmatch(self.pattern, topic) is None:
            return False
        if self.topics is not None:
            return topic in self.topics
        return self.pattern is not None or self.system_topics or not is_system_topic(topic)


def selection_of(options: StoreOptions) -> Selection:
    """What the options ask for."""
    end = options.ending_timestamp_ms
    return Selection(
        topics=None if options.topics is None else frozenset(options.topics),
        pattern=options.pattern,
        system_topics=options.include_system_topics,
        min_time_ms=options.starting_timestamp_ms,
        max_time_ms=None if end is None else end - 1,
    )


_BOUNDS: Final = {
    "timestamp": ("min_time_ms", "max_time_ms"),
    "physicalOffset": ("min_physical", "max_physical"),
    "queueOffset": ("min_queue_offset", "max_queue_offset"),
}
_SETS: Final = {"topic": "topics", "tags": "tags", "queueId": "queue_ids"}


def narrowed(selection: Selection, filters: Iterable[Any]) -> Selection:
    """The selection with Spark's filters (`pyspark.sql.datasource`) applied as far as it can express them. It
    never leaves out a record that the filters accept; Spark evaluates them again."""
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())  # a negation has none
        column, kind = path[0] if len(path) == 1 else "", type(one).__name__
        value = getattr(one, "value", None)
        if column in _BOUNDS and kind in _LOWER | _UPPER and value is not None:
            selection = _bounded(selection, column, kind, value)
        elif column in _SETS and kind in ("EqualTo", "EqualNullSafe", "In") and value is not None:
            values = frozenset(value if kind == "In" else (value,)) - {None}
            name = _SETS[column]
            held = getattr(selection, name)
            if column == "topic" and held is None and not selection.system_topics:
                # The system's topics stay hidden unless the options name them.
                values = frozenset(t for t in values if selection.wants_topic(t))
            changes: dict[str, Any] = {name: values if held is None else held & values}
            selection = replace(selection, **changes)
    return selection


_LOWER: Final = frozenset({"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"})
_UPPER: Final = frozenset({"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"})


def _bounded(selection: Selection, column: str, kind: str, value: Any) -> Selection:
    low_name, high_name = _BOUNDS[column]
    low, high = (_ms(value), _ms(value)) if column == "timestamp" else (value, value)
    changes: dict[str, Any] = {}
    if kind in _LOWER:
        held = getattr(selection, low_name)
        changes[low_name] = low if held is None else max(low, held)
    if kind in _UPPER:
        held = getattr(selection, high_name)
        changes[high_name] = high if held is None else min(high, held)
    return replace(selection, **changes)


def _ms(value: datetime) -> int:
    """Whole milliseconds; a fraction is dropped, and never makes a bound too narrow."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
