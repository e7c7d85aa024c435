"""Searches by store time at brokers that answer with a message near by."""

from __future__ import annotations

import asyncio
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from batonmq.client.time_search import first_at


@given(
    st.lists(st.integers(0, 20), max_size=60).map(sorted), st.integers(0, 5), st.integers(-1, 22), st.data()
)
def test_the_first_message_at_or_after_the_time_is_found(times, low, wanted, data) -> None:
    near = data.draw(st.integers(-3, low + len(times) + 3))
    looked: list[int] = []

    async def stored_ms(offset: int) -> int:
        looked.append(offset)
        return times[offset - low]

    found = asyncio.run(first_at(wanted, near, low, low + len(times), stored_ms))
    assert found == low + bisect_left(times, wanted)
    assert len(set(looked)) == len(looked)


def test_few_messages_are_looked_at_beside_a_good_guess() -> None:
    looked = 0

    async def stored_ms(offset: int) -> int:
        nonlocal looked
        looked += 1
        return offset * 10

    for near in (499_999, 500_000, 500_001):
        looked = 0
        assert asyncio.run(first_at(5_000_000, near, 0, 1_000_000, stored_ms)) == 500_000
        assert looked <= 4
