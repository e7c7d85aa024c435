"""What Spark's filters say about the messages that a query wants. No I/O.

Spark evaluates the filters again, so a filter that cannot be expressed here is left to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

CLOCK_SLACK_MS: Final = 3_600_000
"""What lies this far outside the wanted store times is not read at all. Store times ascend in a log and in a
queue, but for clocks that were put back, or differ between two masters: by less than this."""
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def filters_are_pushed() -> bool:
    """Whether Spark asks for filters. It refuses a reader that takes some unless
    ``spark.sql.python.filterPushdown.enabled`` is true; then another worker of Spark plans the read."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (spec is not None and spec.name == _PUSHDOWN_WORKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages a query wants; bounds are inclusive, None is no bound."""

    topics: frozenset[str] | None = None
    brokers: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    min_physical: int | None = None
    max_physical: int | None = None
    min_queue_offset: int | None = None
    max_queue_offset: int | None = None

    def wants_topic(self, topic: str) -> bool:
        """Whether messages of this topic are wanted."""
        return self.topics is None or topic in self.topics


W = TypeVar("W", bound=Wanted)
_BOUNDS: Final = {
    "timestamp": ("min_time_ms", "max_time_ms"),
    "physicalOffset": ("min_physical", "max_physical"),
    "queueOffset": ("min_queue_offset", "max_queue_offset"),
}
_SETS: Final = {"topic": "topics", "broker": "brokers", "tags": "tags", "queueId": "queue_ids"}


def narrowed(wanted: W, filters: Iterable[Any]) -> W:
    """`wanted` with Spark's filters (`pyspark.sql.datasource`) applied as far as it can express them. It
    never leaves out a message that the filters accept; Spark evaluates them again."""
    for one in filters:
        path: tuple[str, ...] = getattr(one, "attribute", ())  # a negation has none
        column, kind = path[0] if len(path) == 1 else "", type(one).__name__
        value = getattr(one, "value", None)
        if column in _BOUNDS and kind in _LOWER | _UPPER and value is not None:
            wanted = _bounded(wanted, column, kind, value)
        elif column in _SETS and kind in ("EqualTo", "EqualNullSafe", "In") and value is not None:
            values = frozenset(value if kind == "In" else (value,)) - {None}
            name = _SETS[column]
            held = getattr(wanted, name)
            if column == "topic" and held is None:
                # What the options hide stays hidden: the system's topics.
                values = frozenset(t for t in values if wanted.wants_topic(t))
            changes: dict[str, Any] = {name: values if held is None else held & values}
            wanted = replace(wanted, **changes)
    return wanted


_LOWER: Final = frozenset({"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"})
_UPPER: Final = frozenset({"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"})


def _bounded(wanted: W, column: str, kind: str, value: Any) -> W:
    low_name, high_name = _BOUNDS[column]
    low, high = (_ms(value), _ms(value)) if column == "timestamp" else (value, value)
    changes: dict[str, Any] = {}
    if kind in _LOWER:
        held = getattr(wanted, low_name)
        changes[low_name] = low if held is None else max(low, held)
    if kind in _UPPER:
        held = getattr(wanted, high_name)
        changes[high_name] = high if held is None else min(high, held)
    return replace(wanted, **changes)


def _ms(value: datetime) -> int:
    """Whole milliseconds; a fraction is dropped, and never makes a bound too narrow."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
