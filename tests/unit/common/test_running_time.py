"""Time that stands still while the process does."""

from __future__ import annotations

from batonmq.common.clock import ManualClock
from batonmq.common.running_time import STEP_MS, RunningTime


def test_it_follows_the_clock_while_it_is_read_often() -> None:
    clock = ManualClock()
    running = RunningTime(clock)
    began = running.now_ms()
    for _ in range(50):
        clock.advance(STEP_MS)
        running.now_ms()
    assert running.now_ms() - began == 50 * STEP_MS


def test_a_pause_counts_as_one_step() -> None:
    clock = ManualClock()
    running = RunningTime(clock)
    began = running.now_ms()
    clock.advance(60_000)
    assert running.now_ms() - began == STEP_MS
    clock.advance(100)
    assert running.now_ms() - began == STEP_MS + 100


def test_it_begins_with_the_clock() -> None:
    clock = ManualClock()
    clock.advance(5_000)
    assert RunningTime(clock).now_ms() == clock.monotonic_ms()
