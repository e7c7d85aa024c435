"""One timer for a core that knows its next deadline; no timer runs without a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batonmq.common.clock import Clock


class Alarm:
    """Calls `fire(now_ms)` at the deadline that `due()` returns. Times are `Clock.monotonic_ms`.

    Call `arm` whenever the core may have an earlier deadline. If a deadline becomes later, `fire` is called
    once too early, which is cheaper than cancelling a timer for each send.
    """

    __slots__ = ("_clock", "_due", "_fire", "_handle", "_set_for")

    def __init__(self, clock: Clock, due: Callable[[], int | None], fire: Callable[[int], None]) -> None:
        self._clock = clock
        self._due = due
        self._fire = fire
        self._handle: asyncio.TimerHandle | None = None
        self._set_for = 0

    def arm(self) -> None:
        due = self._due()
        if due is None or (self._handle is not None and self._set_for <= due):
            return
        self.cancel()
        delay_s = max(0, due - self._clock.monotonic_ms()) / 1000
        self._set_for = due
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._fire(self._clock.monotonic_ms())
        self.arm()
