"""Chooses the offsets that a batch reads, and cuts them into Spark partitions. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from batonmq.spark.options import EARLIEST, LATEST, OptionError

Offsets = dict[str, dict[str, int]]
"""``{topic: {"broker:queue": offset}}``: the shape of stream checkpoints and of the offset options."""
GONE: Final = "is gone (deleted, or no longer selected)"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """One queue's offsets at one moment; `end` is exclusive and never beyond the confirm offset."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """What a Spark task reads: exactly the messages ``[begin, end)`` of one queue."""

    topic: str
    broker: str
    queue_id: int
    begin: int
    end: int

    @property
    def queue(self) -> str:
        return f"{self.broker}:{self.queue_id}"

    def __len__(self) -> int:
        return self.end - self.begin


MANY_TASKS: Final = 64
"""Each task of Python costs Spark 20 to 40 ms of processor time, whatever it does. From this number on small
queues share tasks."""
SHARED_ROWS: Final = 10_000
"""Reading so many messages takes a task about 10 ms."""

Bounds = Mapping[str, Mapping[str, QueueBounds]]
"""``{topic: {"broker:queue": bounds}}``."""


SeenOffsets = Mapping[str, Mapping[str, int]]
"""Known offsets: `Offsets`, or the explicit ones of an option."""


def covers(bounds: Bounds, offsets: SeenOffsets) -> bool:
    """Whether every queue named in `offsets` exists and reaches at least its offset."""
    return all(
        queue in bounds.get(topic, {}) and bounds[topic][queue].end >= offset
        for topic, queues in offsets.items()
        for queue, offset in queues.items()
    )


class DataLoss(RuntimeError):
    """Messages to be read are gone (expired, or the topic was recreated)."""


def resolve(spec: int | Mapping[str, Mapping[str, int]], bounds: Bounds, *, name: str) -> Offsets:
    """Symbolic or explicit offsets as one number per queue. Raises `OptionError` for an unknown queue or, if
    explicit offsets are given, for a missing one."""
    if isinstance(spec, int):
        return {
            topic: {queue: b.begin if spec == EARLIEST else b.end for queue, b in queues.items()}
            for topic, queues in bounds.items()
        }
    unread = sorted(set(spec) - set(bounds))
    if unread:
        raise OptionError(f"{name}: topic {unread[0]!r} is not one that is read")
    resolved: Offsets = {}
    for topic, queues in bounds.items():
        given = spec.get(topic, {})
        strange = sorted(set(given) - set(queues))
        missing = sorted(set(queues) - set(given))
        if strange:
            raise OptionError(f"{name}: topic {topic!r} has no queue {strange[0]!r}")
        if missing:
            raise OptionError(f"{name}: no offset for queue {missing[0]!r} of topic {topic!r}")
        resolved[topic] = {
            queue: b.begin if given[queue] == EARLIEST else b.end if given[queue] == LATEST else given[queue]
            for queue, b in queues.items()
        }
    return resolved


def not_that_late(offsets: Offsets, bounds: Bounds) -> None:
    """Raises `OptionError` for a queue that has no message at its starting time or later, so that its offset
    is its end."""
    for topic, queues in offsets.items():
        for queue, offset in queues.items():
            if offset >= bounds[topic][queue].end:
                raise OptionError(
                    f"queue {queue} of topic {topic!r} has no message at the starting time or later; set "
                    "startingOffsetsByTimestampStrategy=latest to start at its end"
                )


def check_times(times: Mapping[str, Mapping[str, int]], bounds: Bounds, *, name: str) -> None:
    """Raises `OptionError` unless every queue that is read, and no other, has its time."""
    resolve({topic: dict(queues) for topic, queues in times.items()}, bounds, name=name)


def with_new_queues(start: Offsets, bounds: Bounds) -> Offsets:
    """`start`, plus the queues that only `bounds` has: they are read from their first message."""
    begins = {topic: {q: b.begin for q, b in queues.items()} for topic, queues in bounds.items()}
    return {
        topic: {**begins.get(topic, {}), **start.get(topic, {})} for topic in dict.fromkeys([*begins, *start])
    }


def backlog(start: Offsets, available: Offsets) -> int:
    """Messages between the two."""
    return sum(
        max(0, end - start.get(topic, {}).get(queue, 0))
        for topic, queues in available.items()
        for queue, end in queues.items()
    )


def rows_for(max_bytes: int, sizes: Sequence[tuple[int, int]]) -> int:
    """How many messages take about `max_bytes`, at least one. `sizes`: backlog and mean size by queue."""
    rows = sum(count for count, _ in sizes)
    size = sum(count * mean for count, mean in sizes)
    return rows if size <= max_bytes else max(1, rows * max_bytes // size)


def limit(start: Offsets, available: Offsets, max_offsets: int) -> Offsets:
    """At most `max_offsets` messages after `start`, shared among the queues in proportion to their backlog.

    Every queue with a backlog gets at least one message while there are any left, so that a large queue does
    not starve a small one. Where `max_offsets` is less than the number of these queues, they take turns."""
    backlog = {
        (topic, queue): max(0, end - start.get(topic, {}).get(queue, 0))
        for topic, queues in available.items()
        for queue, end in queues.items()
    }
    total = sum(backlog.values())
    if total <= max_offsets:
        return {topic: dict(queues) for topic, queues in available.items()}
    waiting = sorted(key for key, size in backlog.items() if size)
    # With one message each the offsets grow by `max_offsets`: so the next turn begins where this one ends.
    turn = sum(offset for queues in start.values() for offset in queues.values()) % len(waiting)
    share = dict.fromkeys([*waiting[turn:], *waiting[:turn]][:max_offsets], 1)
    left = max_offsets - len(share)
    rest = total - len(waiting)
    share |= {key: 1 + (backlog[key] - 1) * left // rest for key in share if rest}
    left = max_offsets - sum(share.values())
    for key in share:
        extra = min(left, backlog[key] - share[key])
        share[key] += extra
        left -= extra
    return {
        topic: {
            queue: min(end, start.get(topic, {}).get(queue, 0) + share.get((topic, queue), 0))
            for queue, end in queues.items()
        }
        for topic, queues in available.items()
    }


def keep_hidden(start: Offsets, available: Offsets) -> Offsets:
    """`available`, plus the queues that only `start` has: a queue that is missing in the route at the moment
    keeps its place in a stream's offsets."""
    merged = {topic: dict(queues) for topic, queues in available.items()}
    for topic, queues in start.items():
        for queue, offset in queues.items():
            merged.setdefault(topic, {}).setdefault(queue, offset)
    return merged


def not_before(start: Offsets, available: Offsets, bounds: Bounds) -> Offsets:
    """`available`, but never before `start`, except where a queue really ends there according to `bounds`."""
    ends: Offsets = {}
    for topic, queues in available.items():
        for queue, end in queues.items():
            seen = start.get(topic, {}).get(queue, end)
            held = bounds.get(topic, {}).get(queue)
            back_to = seen if held is None else min(seen, held.end)
            ends.setdefault(topic, {})[queue] = end if end >= seen else back_to
    return ends


def check_start(
    start: Offsets, bounds: Bounds, *, fail_on_data_loss: bool, restart_at_begin: bool = False
) -> Offsets:
    """Begin where messages still exist. An offset outside the queue is data loss: `DataLoss`, or the nearest
    offset that exists. `restart_at_begin`, for streams: an offset beyond the end means that the topic was
    recreated, and the new topic is read from its first message."""
    checked: Offsets = {}
    for topic, queues in start.items():
        for queue, offset in queues.items():
            held = bounds.get(topic, {}).get(queue)
            if held is None:
                problem, use = GONE, offset
            elif offset < held.begin:
                problem, use = f"begins at {held.begin} (older messages have expired)", held.begin
            elif offset > held.end:
                problem = f"ends at {held.end} (was the topic recreated?)"
                use = held.begin if restart_at_begin else held.end
            else:
                problem, use = "", offset
            if problem and fail_on_data_loss:
                raise DataLoss(
                    f"queue {queue} of topic {topic!r} {problem}, reading was to start at {offset}; "
                    "set failOnDataLoss=false to read what is there"
                )
            checked.setdefault(topic, {})[queue] = use
    return checked


def expired_before(known: SeenOffsets, start: Offsets) -> list[tuple[str, str, int]]:
    """The queues of `start` that are not `known` and have lost their first messages: topic, queue, and where
    each begins. Nobody knows whether these messages are older than the stream."""
    return [
        (topic, queue, begin)
        for topic, queues in start.items()
        for queue, begin in queues.items()
        if begin > 0 and queue not in known.get(topic, {})
    ]


def check_end(end: Offsets, bounds: Bounds, *, fail_on_data_loss: bool) -> Offsets:
    """End at the end of the queue at the latest; a later end, or a queue that is gone, is `DataLoss`, unless
    that is allowed."""
    checked: Offsets = {}
    for topic, queues in end.items():
        for queue, offset in queues.items():
            held = bounds.get(topic, {}).get(queue)
            if fail_on_data_loss and (held is None or offset > held.end):
                problem = GONE if held is None else f"ends at {held.end}"
                raise DataLoss(
                    f"queue {queue} of topic {topic!r} {problem}, reading was to end at {offset}; "
                    "set failOnDataLoss=false to read what is there"
                )
            if held is not None:
                checked.setdefault(topic, {})[queue] = min(offset, held.end)
    return checked


def ranges(
    start: Offsets,
    end: Offsets,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[QueueRange]:
    """One range per queue with messages, cut further for `min_partitions` or `max_records`."""
    whole = []
    for topic, queues in sorted(end.items()):
        for queue, stop in sorted(queues.items()):
            begin = start.get(topic, {}).get(queue, 0)
            if begin < stop:
                broker, _, queue_id = queue.rpartition(":")
                whole.append(QueueRange(topic, broker, int(queue_id), begin, stop))
    total = sum(len(r) for r in whole)
    size = total
    if min_partitions is not None and min_partitions > len(whole):
        size = max(1, total // min_partitions)
    if max_records is not None:
        size = min(size, max_records)
    return [piece for r in whole for piece in _cut(r, size)]


def tasks(
    start: Offsets,
    end: Offsets,
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[tuple[QueueRange, ...]]:
    """The ranges that each task reads, one after the other: one range, as `ranges` cuts them.

    Of more than `MANY_TASKS`, small ones share a task: up to `SHARED_ROWS` messages, but so few that about
    `MANY_TASKS` remain. `min_partitions` and `max_records` hold all the same.
    """
    pieces = ranges(start, end, min_partitions=min_partitions, max_records=max_records)
    alone: list[tuple[QueueRange, ...]] = [(piece,) for piece in pieces]
    if len(pieces) <= max(MANY_TASKS, min_partitions or 0):
        return alone
    most = max(1, min(SHARED_ROWS, sum(map(len, pieces)) // max(MANY_TASKS, min_partitions or 0)))
    if max_records is not None:
        most = min(most, max_records)
    shared: list[tuple[QueueRange, ...]] = []
    rows = most
    for piece in pieces:
        if rows + len(piece) <= most:
            shared[-1] += (piece,)
            rows += len(piece)
        else:
            shared.append((piece,))
            rows = len(piece)
    return shared if len(shared) >= (min_partitions or 0) else alone


def _cut(whole: QueueRange, size: int) -> Sequence[QueueRange]:
    parts = max(1, -(-len(whole) // size)) if size else 1
    edges = [whole.begin + len(whole) * i // parts for i in range(parts + 1)]
    return [QueueRange(whole.topic, whole.broker, whole.queue_id, a, b) for a, b in pairwise(edges) if a < b]
