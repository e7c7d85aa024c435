"""Arithmetic of static topics: from offsets of logical queues to offsets of physical ones and back. No I/O.

A logical queue is a list of parts (`LogicQueueMappingItem`), oldest first. The last part is the leader. A
part without a logic offset is new: its remapping is not finished. Source: RIP-21, `TopicQueueMappingUtils`
and `LogicQueueMappingItem` of Apache RocketMQ 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from batonmq.protocol.bodies.common import MessageQueue

if TYPE_CHECKING:
    from batonmq.protocol.bodies.routes import TopicQueueMappingInfo
    from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem, TopicQueueMappingDetail

MOCK_BROKER_PREFIX: Final = "__syslo__"
"""How the broker name of a logical queue begins (`LOGICAL_QUEUE_MOCK_BROKER_PREFIX`)."""
GLOBAL_SCOPE: Final = "__global__"
MOST_QUEUES: Final = 16_384
"""Largest number of logical queues of a topic that clients read from a route."""


def mock_broker_name(scope: str) -> str:
    """The broker name that stands in a `MessageQueue` of a logical queue: a logical queue moves."""
    return MOCK_BROKER_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)


def is_mock(broker_name: str) -> bool:
    """Whether this is the broker name of logical queues."""
    return broker_name.startswith(MOCK_BROKER_PREFIX)


def is_leader(items: Sequence[LogicQueueMappingItem], broker_name: str) -> bool:
    """Whether this broker takes the messages of the logical queue."""
    return bool(items) and items[-1].bname == broker_name


def led_queues(detail: TopicQueueMappingDetail) -> dict[int, int]:
    """The logical queues that this broker leads, and their physical queues; name servers get these."""
    return {
        queue_id: items[-1].queue_id
        for queue_id, items in detail.hosted_queues.items()
        if is_leader(items, detail.bname or "")
    }


def logical_queues(topic: str, mappings: Iterable[TopicQueueMappingInfo]) -> dict[MessageQueue, str]:
    """All logical queues of a route, in order, and the name of the broker set that leads each; empty while no
    broker says that it leads the queue. Two may say so during a remapping: the higher epoch has it."""
    totals: dict[str, int] = {}
    claims: dict[MessageQueue, tuple[int, str]] = {}
    for info in mappings:
        totals[info.scope] = min(MOST_QUEUES, max(info.total_queues, totals.get(info.scope, 0)))
        for queue_id in info.curr_id_map:
            queue = MessageQueue(topic, mock_broker_name(info.scope), queue_id)
            claim = info.epoch, info.bname or ""
            claims[queue] = max(claim, claims.get(queue, claim))
    return {
        queue: claims.get(queue, (0, ""))[1]
        for scope, total in sorted(totals.items())
        for queue in (MessageQueue(topic, mock_broker_name(scope), number) for number in range(total))
    }


# -- offsets


def part_at(items: Sequence[LogicQueueMappingItem], logic_offset: int) -> LogicQueueMappingItem | None:
    """The part that holds an offset of the logical queue; the first one if all begin later. None if no part
    has a logic offset."""
    decided = [item for item in items if item.logic_offset >= 0]
    for item in reversed(decided):
        if logic_offset >= item.logic_offset:
            return item
    return decided[0] if decided else None


def last_part(items: Sequence[LogicQueueMappingItem]) -> LogicQueueMappingItem | None:
    """The last part that has a logic offset."""
    return next((item for item in reversed(items) if item.logic_offset >= 0), None)


def part_after(
    items: Sequence[LogicQueueMappingItem], item: LogicQueueMappingItem
) -> LogicQueueMappingItem | None:
    """The part after this one; None if there is none, or if its logic offset is not decided."""
    following = next((each for each in items if each.gen > item.gen), None)
    return following if following is not None and following.logic_offset >= 0 else None


def to_physical(item: LogicQueueMappingItem, logic_offset: int) -> int:
    return logic_offset - item.logic_offset + item.start_offset


def to_logical(item: LogicQueueMappingItem, offset: int) -> int:
    """The logical offset of an offset of the part's queue; one before the part is the part's first."""
    return item.logic_offset + max(0, offset - item.start_offset)


def to_logical_within(item: LogicQueueMappingItem, offset: int) -> int:
    """As `to_logical`, and an offset beyond the part is the part's end. -1 if the part has no logic offset
    yet: the messages of a new leader get theirs when the remapping is finished."""
    if item.logic_offset < 0:
        return -1
    return to_logical(item, min(offset, item.end_offset) if item.end_offset >= item.start_offset else offset)


def has_end(item: LogicQueueMappingItem) -> bool:
    return item.end_offset > item.start_offset


def known_end(items: Sequence[LogicQueueMappingItem]) -> int:
    """The largest logical offset that the mapping alone tells; -1 of a queue without parts."""
    if not items:
        return -1
    last = items[-1]
    return last.logic_offset + max(0, last.end_offset - last.start_offset)


# -- what a mapping must be


def check_queues(detail: TopicQueueMappingDetail) -> None:
    """Raises ValueError for logical queues that clients would not see, and for more than they can read."""
    total = detail.total_queues
    if not 0 <= total <= MOST_QUEUES:
        raise ValueError(f"a static topic cannot have {total} logical queues, at most {MOST_QUEUES}")
    for queue_id, items in detail.hosted_queues.items():
        if not 0 <= queue_id < total:
            raise ValueError(f"the mapping has logical queue {queue_id}, but the topic has only {total}")
        if not items:
            raise ValueError("The new item list is null or empty")
        check_parts(items)


def check_parts(items: Sequence[LogicQueueMappingItem]) -> None:
    """Raises ValueError for parts that do not follow one another."""
    following: LogicQueueMappingItem | None = None
    for item in reversed(items):
        if min(item.start_offset, item.gen, item.queue_id) < 0:
            raise ValueError("The field is illegal, should not be negative")
        if item.end_offset != -1 and item.end_offset < item.start_offset:
            raise ValueError("The endOffset is smaller than the start offset")
        if following is not None:
            if item.logic_offset < 0:
                raise ValueError("The non-latest item has negative logic offset")
            if item.gen >= following.gen:
                raise ValueError("The gen does not increase monotonically")
            if following.logic_offset >= 0:
                if item.logic_offset >= following.logic_offset:
                    raise ValueError("The base logic offset does not increase monotonically")
                if known_end([item]) >= following.logic_offset:
                    raise ValueError("The max logic offset does not increase monotonically")
        following = item


def check_successor(
    old: Sequence[LogicQueueMappingItem], new: Sequence[LogicQueueMappingItem], *, same_epoch: bool
) -> None:
    """Raises ValueError if `new` changes a part of `old`; parts may be missing, or be added. With the same
    epoch the leader stays."""
    if not old:
        return
    if not new:
        raise ValueError("The new item list is null or empty")
    before: Mapping[int, LogicQueueMappingItem] = {item.gen: item for item in old}
    for item in new:
        known = before.get(item.gen)
        if known is None:
            continue
        if _place(known) != _place(item):
            raise ValueError(f"Part {item.gen} is at {_place(item)}, and was at {_place(known)}")
        if known.logic_offset not in (-1, item.logic_offset):
            raise ValueError(
                f"Part {item.gen} begins at {item.logic_offset}, and began at {known.logic_offset}"
            )
    if same_epoch and (old[-1].gen, *_place(old[-1])) != (new[-1].gen, *_place(new[-1])):
        raise ValueError("The new leader is different but epoch equal")


def _place(item: LogicQueueMappingItem) -> tuple[str, int, int]:
    return item.bname, item.queue_id, item.start_offset
