"""The lag of a stream behind its topics, from the progress reports that Spark gives its listeners.

Python sources cannot report metrics to Spark. But Spark's progress has the offsets that a micro-batch ended
at, and the latest ones that the source reported. These numbers follow from both.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """Messages between what a stream has read and what there was. Names as in Spark's Kafka connector."""

    total: int
    min_offsets_behind_latest: int
    max_offsets_behind_latest: int
    avg_offsets_behind_latest: float
    by_queue: Mapping[str, int]
    """``topic/broker:queue`` -> messages behind."""


def lag_of(end: str | Mapping[str, Any] | None, latest: str | Mapping[str, Any] | None) -> Lag | None:
    """The lag between two offsets of a progress report; None where one is missing, or is not our source's."""
    ends, latests = _offsets(end), _offsets(latest)
    if ends is None or latests is None:
        return None
    behind = {
        f"{topic}/{queue}": max(0, offset - ends.get(topic, {}).get(queue, 0))
        for topic, queues in latests.items()
        for queue, offset in queues.items()
    }
    if not behind:
        return None
    numbers = list(behind.values())
    return Lag(sum(numbers), min(numbers), max(numbers), sum(numbers) / len(numbers), behind)


def _offsets(given: str | Mapping[str, Any] | None) -> Mapping[str, Mapping[str, int]] | None:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return None
    if not isinstance(given, Mapping):
        return None
    # Offsets of Kafka's connector look the same, but for the names of the queues.
    ours = all(
        isinstance(queues, Mapping) and all(":" in queue for queue in queues) for queues in given.values()
    )
    return given if ours else None


class LagListener(StreamingQueryListener):
    """Calls a function with the lag of each source of ours after each micro-batch, and keeps the last one of
    each query until that ends::

        listener = LagListener(lambda query, lag: print(query, lag.total))
        spark.streams.addListener(listener)
        listener.last["orders"].max_offsets_behind_latest

    Queries go by their name, or by their id without one. An error of the function is one line in the log."""

    def __init__(self, report: Callable[[str, Lag], None] | None = None) -> None:
        self._report = report
        self.last: dict[str, Lag] = {}
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        for source in progress.sources:
            lag = lag_of(source.endOffset, source.latestOffset)
            if lag is None:
                continue
            self.last[name] = lag
            if self._report is not None:
                try:
                    self._report(name, lag)
                except Exception:
                    log.exception("the report of the lag of %s failed", name)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The lag stays as it was."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.last.pop(self._names.pop(str(event.runId), ""), None)
