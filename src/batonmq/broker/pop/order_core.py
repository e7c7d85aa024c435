"""The state of ordered pops: one batch of a queue at a time. No I/O.

Source: RocketMQ's `ConsumerOrderInfoManager`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from batonmq.protocol.bodies.pop import OrderInfo, OrderRecord
from batonmq.protocol.pop import queue_offset_key, retry_flag

ILLEGAL: Final = -1
"""The message does not belong to the batch."""
IGNORED: Final = -2
"""The receipt is of an earlier batch."""


def offsets_of(info: OrderInfo) -> list[int]:
    """Queue offsets of the batch."""
    listed = info.offset_list
    return [listed[0], *[listed[0] + each for each in listed[1:]]] if listed else []


def new_batch(
    previous: OrderInfo | None,
    attempt_id: str | None,
    pop_time: int,
    invisible_ms: int,
    offsets: Sequence[int],
) -> OrderInfo:
    """The state after a batch was handed out; messages of the batch before were consumed once more."""
    consumed: dict[int, int] = {}
    if previous is not None:
        if attempt_id is not None and previous.attempt_id == attempt_id:
            consumed = dict(previous.consumed)
        else:
            before = set(offsets_of(previous))
            consumed = {each: previous.consumed.get(each, 0) + 1 for each in offsets if each in before}
    first = offsets[0]
    return OrderInfo(
        pop_time=pop_time,
        invisible_time=invisible_ms,
        offset_list=[first, *[each - first for each in offsets[1:]]],
        consumed=consumed,
        last_consume=pop_time,
        attempt_id=attempt_id,
    )


def plausible(record: OrderRecord) -> bool:
    """Whether a record of the log can be the state of a queue; it may be anybody's message."""
    info = record.info
    numbers = (
        record.queue_id,
        record.next_offset,
        info.pop_time,
        info.invisible_time or 0,
        info.last_consume,
        info.acked,
        *info.offset_list,
        *info.next_visible,
        *info.next_visible.values(),
        *info.consumed,
        *info.consumed.values(),
    )
    ascending = all(a < b for a, b in pairwise(info.offset_list[1:]))
    named = bool(record.topic and record.consumer_group)
    return named and ascending and all(0 <= number < 1 << 62 for number in numbers)


def free_at(info: OrderInfo | None, attempt_id: str | None, now_ms: int) -> int | None:
    """Wall time at which the queue's next batch may be handed out; None: it may be now."""
    if info is None or not info.offset_list:
        return None
    if info.attempt_id is not None and info.attempt_id == attempt_id:
        return None
    usual = info.pop_time + (info.invisible_time or 0)
    latest = max(
        (
            info.next_visible.get(offset, usual)
            for n, offset in enumerate(offsets_of(info))
            if not info.acked >> n & 1
        ),
        default=0,
    )
    return latest if latest > now_ms else None


def limit_wait(info: OrderInfo, now_ms: int) -> None:
    """The clock of a new master may run behind the former master's, or the clock was set back. The queue must
    not wait for that."""
    invisible = info.invisible_time or 0
    if info.pop_time > now_ms:
        for offset in offsets_of(info):
            info.next_visible.setdefault(offset, now_ms + invisible)


def next_offset(info: OrderInfo) -> int:
    """The first message of the batch that is not acknowledged, or the one after the batch."""
    offsets = offsets_of(info)
    for n, offset in enumerate(offsets):
        if not info.acked >> n & 1:
            return offset
    return offsets[-1] + 1


def end_of(record: OrderRecord) -> int:
    """The queue offset behind the last message that the record is about."""
    offsets = offsets_of(record.info)
    return offsets[-1] + 1 if offsets else record.next_offset


def is_done(info: OrderInfo) -> bool:
    return info.acked == (1 << len(info.offset_list)) - 1


def bit_of(info: OrderInfo, offset: int, pop_time: int) -> int:
    """The bit of one message; ILLEGAL or IGNORED if the receipt does not fit."""
    if pop_time != info.pop_time:
        return IGNORED
    try:
        return 1 << offsets_of(info).index(offset)
    except ValueError:
        return ILLEGAL


def order_count_info(info: OrderInfo, topic: str, queue_id: int) -> str:
    """How often the messages of the batch were consumed before, as clients read it."""
    flag = retry_flag(topic)
    pieces = [
        f"{flag} {queue_offset_key(queue_id, offset)} {times}" for offset, times in info.consumed.items()
    ]
    least = 0 if len(info.consumed) < len(info.offset_list) else min(info.consumed.values())
    return ";".join([*pieces, f"{flag} {queue_id} {least}"])
