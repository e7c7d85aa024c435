"""Searches by store time where brokers answer with a message nearby. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from batonmq.protocol.versions import V5_1_0

EXACT_SINCE: Final = V5_1_0
"""Brokers from this release on answer a search with the first message at or after the time. Older ones answer
with the nearest one, with any of several of the same millisecond, and with the last one after the end
(`ConsumeQueue.getOffsetInQueueByTime`)."""


async def first_at(
    time_ms: int, near: int, low: int, high: int, stored_ms: Callable[[int], Awaitable[int]]
) -> int:
    """The first offset of ``[low, high)`` whose message was stored at or after `time_ms`; `high` if none was.

    Args:
        near: where to begin; the nearer, the fewer messages are looked at.
        stored_ms: store time of the message at an offset; ascends with the offset.
    """
    # What is before `below` is earlier, what is from `above` on is not.
    below, above, step = low, high, 1
    at = min(max(near, low), high - 1)
    while below < above:
        if await stored_ms(at) >= time_ms:
            above, following = at, at - step
        else:
            below, following = at + 1, at + step
        step *= 2
        at = following if below <= following < above else (below + above) // 2
    return above
