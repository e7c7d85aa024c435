"""Time in which this process could run: what it measures the silence of others with."""

from __future__ import annotations

from typing import Final

from batonmq.common.clock import Clock

TICK_S: Final = 0.1
"""The owner reads the time at least this often."""
STEP_MS: Final = 250
"""Most that passes between two readings, ms: a longer gap means that the process did not run."""


class RunningTime:
    """A clock that stands still while the process does.

    A process that was stopped, starved of processor time or blocked finds what others sent meanwhile only
    when it runs again. By a usual clock, it would count its own pause as their silence. `now_ms` must be read
    every `TICK_S`; of a longer gap only `STEP_MS` count. Under steady starvation this time is slower than the
    clock, so others get longer to answer.
    """

    __slots__ = ("_clock", "_now_ms", "_read_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_ms = self._now_ms = clock.monotonic_ms()

    def now_ms(self) -> int:
        """Milliseconds since some fixed instant; never goes back."""
        read_ms = self._clock.monotonic_ms()
        self._now_ms += min(read_ms - self._read_ms, STEP_MS)
        self._read_ms = read_ms
        return self._now_ms
