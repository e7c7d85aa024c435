"""Held pops whose filter has not seen all messages yet: each looks further in turn, a few ms per loop turn.

A filter may pass over a backlog of millions of messages before it finds one. The loop must serve other
clients meanwhile, and every group must get its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from batonmq.common.clock import Clock

TURN_US: Final = 5_000
"""Time of one loop turn that filters of held pops may take, in µs."""
TURN_LOOKS: Final = 64
"""Looks in one loop turn; the limit where time stands still within a turn (simulation)."""


class Looks:
    """Groups of topics whose held pops look further."""

    def __init__(self, clock: Clock, look: Callable[[str, str], None]) -> None:
        self._clock = clock
        self._look = look
        self._waiting: dict[tuple[str, str], None] = {}
        """(topic, group), first come first."""
        self._handle: asyncio.Handle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, topic: str, group: str) -> None:
        """Call ``look(topic, group)`` in another loop turn, once."""
        self._waiting[topic, group] = None
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def clear(self) -> None:
        self._waiting.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _turn(self) -> None:
        waiting = self._waiting
        # `add` must not call this again before the loop had a turn.
        end = self._clock.monotonic_us() + TURN_US
        try:
            for _ in range(TURN_LOOKS):
                if not waiting:
                    break
                key = next(iter(waiting))
                del waiting[key]
                self._look(*key)  # which may add it again, behind the others
                if self._clock.monotonic_us() >= end:
                    break
        finally:  # one that fails does not stop the others
            self._handle = asyncio.get_running_loop().call_soon(self._turn) if waiting else None
