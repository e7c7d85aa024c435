"""Calls in flight on one connection: opaque → who waits, and until when.

No timer per call. One timer is armed for the earliest deadline; when it fires, the table is walked once and
the timer armed again for the earliest that is left. With equal timeouts, as in practice, that is one walk per
timeout period however many calls were made in it, and a call costs a dict entry and a comparison.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from batonmq.net.errors import CallTimeout, NetError

if TYPE_CHECKING:
    from batonmq.protocol.frame import Command

OPAQUE_MAX: Final = 0x7FFF_FFFF
"""`opaque` is a Java int; we count through its positive half and start again."""


class Calls:
    """Correlation of answers with callers; belongs to one connection."""

    __slots__ = ("_address", "_armed_at", "_last_opaque", "_loop", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop = loop
        self._address = address
        self._waiting: dict[int, tuple[asyncio.Future[Command], float]] = {}
        self._last_opaque = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = float("inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def next_opaque(self) -> int:
        """An identifier that no call in flight uses."""
        opaque = self._last_opaque
        while True:
            opaque = opaque + 1 if opaque < OPAQUE_MAX else 1
            if opaque not in self._waiting:
                self._last_opaque = opaque
                return opaque

    def expect(self, opaque: int, timeout_s: float) -> asyncio.Future[Command]:
        """A future for the answer with this opaque; fails with `CallTimeout` after `timeout_s`."""
        future: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._loop.time() + timeout_s
        self._waiting[opaque] = (future, deadline)
        if deadline < self._armed_at:
            self._arm(deadline)
        return future

    def complete(self, command: Command) -> bool:
        """Hand an answer to its caller. False: nobody waits for it."""
        entry = self._waiting.pop(command.opaque, None)
        if entry is None:
            return False
        future = entry[0]
        if not future.done():
            future.set_result(command)
        return True

    def forget(self, opaque: int) -> None:
        """The caller gave up (cancelled)."""
        self._waiting.pop(opaque, None)

    def fail_all(self, error: NetError) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_at = float("inf")
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(error)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        self._timer = None
        self._armed_at = earliest = float("inf")
        expired: list[int] = []
        for opaque, (_, deadline) in self._waiting.items():
            if deadline <= now:
                expired.append(opaque)
            elif deadline < earliest:
                earliest = deadline
        for opaque in expired:
            future, _ = self._waiting.pop(opaque)
            if not future.done():
                future.set_exception(CallTimeout(self._address, "no answer in time"))
        if self._waiting:
            # Never sooner than 5 ms: differing timeouts must not turn into a walk of the table per call.
            self._arm(max(earliest, now + 0.005))
