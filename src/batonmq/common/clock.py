"""Time as an argument: code that decides gets a `Clock`, so that tests and the simulator can control it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a program gets its time from."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the Unix epoch; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed instant; never goes back."""

    def monotonic_us(self) -> int:
        """The same in microseconds."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000


class ManualClock:
    """A clock that stops until it is advanced; for tests."""

    __slots__ = ("_monotonic", "_now")

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now = now_ms
        self._monotonic = 0

    def now_ms(self) -> int:
        return self._now

    def monotonic_ms(self) -> int:
        return self._monotonic

    def monotonic_us(self) -> int:
        return self._monotonic * 1_000

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass on both clocks."""
        if ms < 0:
            raise ValueError(f"time does not go back: {ms} ms")
        self._now += ms
        self._monotonic += ms

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock, as an administrator does; the other one goes on as before."""
        self._now = now_ms
