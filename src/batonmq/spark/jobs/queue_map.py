"""Maps source queues to target queues of a topic, so that each queue keeps its order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.spark.options import ClearError

if TYPE_CHECKING:
    from pyspark.sql import Column

Queue = tuple[str, int]
"""Broker name and queue id."""


class NoQueue(ClearError):
    """The topic has no queue that can be written to."""


def queue_map(sources: Sequence[Queue], targets: Sequence[MessageQueue]) -> dict[Queue, MessageQueue]:
    """The target queue of each source queue: the one of the same name if all have one; otherwise the source
    queues are assigned in turn. Raises `NoQueue` if there is no target queue."""
    if not targets:
        raise NoQueue("the target topic has no queue that can be written to")
    by_name = {(queue.broker_name, queue.queue_id): queue for queue in targets}
    if all(source in by_name for source in sources):
        return {source: by_name[source] for source in sources}
    ordered = sorted(targets)
    return {source: ordered[at % len(ordered)] for at, source in enumerate(sorted(sources))}


def with_more(
    known: Mapping[Queue, MessageQueue], sources: Iterable[Queue], targets: Sequence[MessageQueue]
) -> dict[Queue, MessageQueue]:
    """`known`, and target queues for those of `sources` that it lacks: the one of the same name if no other
    source queue has it, or else the one that the fewest have. Raises `NoQueue`."""
    more = sorted(set(sources) - known.keys())
    if not known:
        return queue_map(more, targets)
    if more and not targets:
        raise NoQueue("the target topic has no queue that can be written to")
    found, used = dict(known), Counter(known.values())
    by_name = {(queue.broker_name, queue.queue_id): queue for queue in targets}
    for source in more:
        same = by_name.get(source)
        fewest = min(sorted(targets), key=lambda queue: used[queue])
        target = same if same is not None and not used[same] else fewest
        found[source] = target
        used[target] += 1
    return found


def place_columns(queues: Mapping[Queue, MessageQueue]) -> tuple[Column, Column]:
    """Columns `broker` and `queueId` of the target, for rows that have those of the source."""
    from pyspark.sql import functions as F

    lookup: list[Any] = []
    for (broker, queue_id), queue in queues.items():
        lookup += [F.lit(f"{broker}:{queue_id}"), F.struct(F.lit(queue.broker_name), F.lit(queue.queue_id))]
    place = F.create_map(*lookup)[F.concat_ws(":", "broker", "queueId")]
    return place["col1"], place["col2"]
