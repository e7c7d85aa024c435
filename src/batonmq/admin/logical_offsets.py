"""Offsets of the logical queues of a static topic, from those of its physical queues. No I/O.

Source: `MQAdminUtils` of Apache RocketMQ 5. It shows offsets of groups as they stand at the physical queues;
here they are translated like those of brokers.
"""

from __future__ import annotations

from collections.abc import Mapping

from batonmq.admin.static_plans import Parts
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem
from batonmq.protocol.bodies.statistics import OffsetWrapper, TopicOffset
from batonmq.routing.static_topics import (
    GLOBAL_SCOPE,
    last_part,
    mock_broker_name,
    to_logical,
    to_logical_within,
)

Table = Mapping[MessageQueue, OffsetWrapper]


def topic_offsets(
    topic: str, parts: Parts, table: Mapping[MessageQueue, TopicOffset]
) -> dict[MessageQueue, TopicOffset]:
    """The offsets that a topic's logical queues begin and end at; those whose brokers answered."""
    found: dict[MessageQueue, TopicOffset] = {}
    for queue_id, items in parts.items():
        last = last_part(items)
        begin = table.get(_physical(topic, items[0]))
        end = table.get(_physical(topic, last)) if last is not None else None
        if last is None or begin is None or end is None:
            continue
        found[_logical(topic, queue_id)] = TopicOffset(
            max(0, to_logical(items[0], begin.min_offset)),
            max(0, to_logical_within(last, end.max_offset)),
            end.last_update_timestamp,
        )
    return found


def group_offsets(topic: str, parts: Parts, table: Table) -> dict[MessageQueue, OffsetWrapper]:
    """How far a group is in a topic's logical queues: it is in the last part that it committed an offset of.
    Queues where it committed none are left out."""
    found: dict[MessageQueue, OffsetWrapper] = {}
    for queue_id, items in parts.items():
        decided = [
            (item, at)
            for item in reversed(items)
            if item.logic_offset >= 0 and (at := table.get(_physical(topic, item))) is not None
        ]
        reached = next(((item, at) for item, at in decided if at.consumer_offset >= 0), None)
        if reached is None:
            continue
        last, end = decided[0]
        part, at = reached
        found[_logical(topic, queue_id)] = OffsetWrapper(
            to_logical_within(last, end.broker_offset),
            to_logical(part, at.consumer_offset),
            to_logical(part, at.pull_offset),
            at.last_timestamp,
        )
    return found


def _physical(topic: str, item: LogicQueueMappingItem) -> MessageQueue:
    return MessageQueue(topic, item.bname, item.queue_id)


def _logical(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, mock_broker_name(GLOBAL_SCOPE), queue_id)
