"""Background tasks of one owner: failures are logged, the end of the owner ends them.

Work that is to continue for as long as its owner goes through `lasting`: what one failure ends is missing
until a restart, and nobody notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN_S: Final = 1.0
AGAIN_MOST_S: Final = 60.0
"""Pause after a failure, at first and at most."""
RECOVERED_S: Final = 2 * AGAIN_MOST_S
"""Work that has run for so long has recovered; the next failure is a new one."""


async def lasting(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """Do `work`; after an exception, which is a bug, do it again, with growing pauses. The log has one
    traceback for the same failure again and again. `what`: the work, for the log."""
    loop = asyncio.get_running_loop()
    pause_s, logged = AGAIN_S, ""
    while True:
        began = loop.time()
        try:
            await work()
            return
        except Exception as error:
            if loop.time() - began > RECOVERED_S:
                pause_s, logged = AGAIN_S, ""
            if repr(error) != logged:
                logged = repr(error)
                log.exception("%s: failed, trying again until it works", what)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, AGAIN_MOST_S)


class Tasks:
    """Keeps tasks alive while they run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` on the running loop; an exception that ends it is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> asyncio.Task[None]:
        """Run work that is to continue, see `lasting`."""
        return self.spawn(lasting(work, what))

    async def cancel(self) -> None:
        """Cancel what runs and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task failed", exc_info=task.exception())
