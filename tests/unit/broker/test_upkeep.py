"""How much of the index is built before the loop serves other work."""

from __future__ import annotations

import pytest

from batonmq.broker.upkeep.part import LEAST_SLICE, MOST_SLICE, next_slice


@pytest.mark.parametrize(
    ("size", "took_s", "following"),
    [
        (100, 0.0004, 200),
        (800, 0.0009, MOST_SLICE),
        (800, 0.002, 400),
        (300, 0.009, LEAST_SLICE),
        (MOST_SLICE, 0.001, MOST_SLICE),
    ],
)
def test_a_slice_of_the_index_takes_about_a_millisecond(size: int, took_s: float, following: int) -> None:
    assert next_slice(size, took_s) == following
