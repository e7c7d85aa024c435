"""Cuts commit logs into what tasks read, and says which records a query wants. No I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from batonmq.protocol.names import is_system_topic
from batonmq.spark.store.directory import LogFile, StoreLog
from batonmq.spark.store.options import StoreOptions

CLOCK_SLACK_MS: Final = 3_600_000
"""What lies this far outside the wanted store times is not read at all. Store times ascend in a log, but for
clocks that were put back, or differ between two masters: by less than this."""


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
    tags: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    min_physical: int | None = None
    max_physical: int | None = None
    min_queue_offset: int | None = None
    max_queue_offset: int | None = None
    system_topics: bool = False
    """Whether the system's topics count where `topics` is None, and records that enter no consume queue."""

    def wants_topic(self, topic: str) -> bool:
        """Whether records of this topic are wanted."""
        if self.pattern is not None and re.fullmatch(self.pattern, topic) is None:
            return False
        if self.topics is not None:
            return topic in self.topics
        return self.pattern is not None or self.system_topics or not is_system_topic(topic)


def within(values: Any, low: int | None, high: int | None) -> Any:
    """Which of the values, an array, are in these bounds, inclusive; None is no bound."""
    keep = np.ones(len(values), bool)
    if low is not None:
        keep &= values >= low
    if high is not None:
        keep &= values <= high
    return keep


def selection_of(options: StoreOptions) -> Selection:
    """What the options ask for."""
    end = options.ending_timestamp_ms
    return Selection(
        topics=None if options.topics is None else frozenset(options.topics),
        pattern=options.pattern,
        system_topics=options.include_system_topics,
        min_time_ms=options.starting_timestamp_ms,
        max_time_ms=None if end is None else end - 1,
        tags=options.tags,
        queue_ids=options.queue_ids,
        min_physical=options.min_physical_offset,
        max_physical=options.max_physical_offset,
        min_queue_offset=options.min_queue_offset,
        max_queue_offset=options.max_queue_offset,
    )
