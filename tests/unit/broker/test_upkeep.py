"""How much of the index is built before the loop serves other work, and how long it then pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.broker.upkeep.pace import INDEX_DELAY_S, LATE_S, LEAST_SLICE, MOST_SLICE, SLICE_S, Pace

TIMES_S = st.lists(st.floats(1e-5, 0.05), min_size=1, max_size=50)
"""What slices take."""


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
    pace = Pace()
    pace.size = size
    pace.indexed(took_s)
    assert pace.size == following


def share(times_s: list[float], *, late_s: float, work: float) -> float:
    """The part of the time that goes to the index. `late_s`: how much too long each pause is; `work`: the
    part of a pause in which the loop works."""
    pace, paused = Pace(), 0.0
    for took_s in times_s:
        pace.paused(pace.pause_s + late_s, work * pace.pause_s)
        pace.indexed(took_s)
        paused += pace.pause_s
    return sum(times_s) / (sum(times_s) + paused)


@given(TIMES_S)
def test_the_index_takes_at_most_a_tenth_of_the_processor_of_a_busy_broker(times_s: list[float]) -> None:
    assert share(times_s, late_s=0, work=0.5) < 0.1
    assert share(times_s, late_s=2 * LATE_S, work=0) < 0.1


@given(TIMES_S)
def test_the_index_takes_a_sixth_of_the_processor_of_an_idle_broker(times_s: list[float]) -> None:
    assert share(times_s, late_s=0, work=0.1) == pytest.approx(1 / 6)


def test_a_log_that_cannot_be_read_is_tried_again_after_a_second() -> None:
    pace = Pace()
    pace.indexed(SLICE_S)
    assert pace.pause_s < INDEX_DELAY_S
    pace.failed()
    assert pace.pause_s == INDEX_DELAY_S
