"""Tasks of a consumer: a failure is logged, and no task outlives its owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

log = logging.getLogger("batonmq.client.consumer")
"""Of all parts: a user knows the consumer, not what it is made of."""
CANCEL_WAIT_S = 5.0
"""How long cancelled tasks are waited for."""


def spawn(work: Coroutine[Any, Any, None], into: set[asyncio.Task[None]]) -> None:
    """Run ``work`` as one of the tasks ``into``, until it ends."""
    task = asyncio.get_running_loop().create_task(work)
    into.add(task)
    task.add_done_callback(into.discard)
    task.add_done_callback(_report)


class Once:
    """Work that is done once. All callers return when it is done; after a cancelled call another does it."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work
        self._lock = asyncio.Lock()
        self._done = False

    async def __call__(self) -> None:
        async with self._lock:
            if not self._done:
                await self._work()
                self._done = True


async def cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks (but not the one that runs this) and wait until they have ended, at most `CANCEL_WAIT_S`:
    a handler may suppress its cancellation."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    if others:
        _, running = await asyncio.wait(others, timeout=CANCEL_WAIT_S)
        if running:
            log.warning(
                "%d cancelled tasks of the consumer continue: a handler suppresses CancelledError",
                len(running),
            )


def _report(task: asyncio.Task[None]) -> None:
    if task.cancelled():
        if not task.cancelling():
            log.error("a task of the consumer ended, though nobody cancelled it: %r", task)
    elif task.exception() is not None:
        log.error("a task of the consumer failed", exc_info=task.exception())
