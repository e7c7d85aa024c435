"""The code in consume queue units of delayed messages: the time at which each is due. No I/O.

Source: RocketMQ's `CommitLog.checkMessageAndReturnSize` and `ScheduleMessageService.computeDeliverTimestamp`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from batonmq.protocol.message.properties import find_property
from batonmq.protocol.names import SCHEDULE_TOPIC
from batonmq.store.policy import UnitCode
from batonmq.store.scan import tags_code


def delay_unit_codes(delays_ms: Sequence[int]) -> Mapping[str, UnitCode]:
    """For `StorePolicy.unit_codes`. `delays_ms`: the delays of the levels, the first is level 1."""
    return {SCHEDULE_TOPIC: partial(_delivery_time, delays_ms)}


def _delivery_time(delays_ms: Sequence[int], properties: bytes, store_timestamp: int) -> int:
    """When a record in SCHEDULE_TOPIC_XXXX is due, ms since the epoch.

    A level above the last counts as the last. A record without a level has its tags code, like any other.
    """
    text = find_property(properties, b"DELAY")
    try:
        level = min(int(text or b"0"), len(delays_ms))
    except ValueError:
        level = 0
    if level <= 0:
        return tags_code(properties)
    return min(store_timestamp + delays_ms[level - 1], (1 << 63) - 1)
