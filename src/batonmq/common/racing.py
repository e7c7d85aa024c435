"""Work of which the first result counts, and work that an event ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def first_result(
    ways: Iterable[Callable[[], Coroutine[Any, Any, T]]],
    pause_s: float | None,
    failures: type[Exception] | tuple[type[Exception], ...],
) -> T:
    """The first result; what still runs is cancelled. The next way is tried `pause_s` after the one before,
    or as soon as one fails (like the connections of RFC 8305); with None only then.

    Raises an `ExceptionGroup` if all ways failed, with what each of them raised, in the order of time. An
    exception that is none of `failures` is raised at once.
    """
    left = list(ways)[::-1]
    running: list[asyncio.Task[T]] = []  # ordered, so that simulated runs can be repeated
    failed: list[Exception] = []
    try:
        while left or running:
            if left:
                running.append(asyncio.create_task(left.pop()()))
            await asyncio.wait(
                running, timeout=pause_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [task for task in running if task.done()]:
                try:
                    return task.result()
                except failures as error:
                    failed.append(error)
                    running.remove(task)
    finally:
        for task in running:
            task.cancel()
        # Also those that ended together with the first result: who asks for no exception has it logged.
        await asyncio.gather(*running, return_exceptions=True)
    raise ExceptionGroup("all ways failed", failed)


class Abandoned(Exception):
    """The event came before the result."""


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises `Abandoned` if `event` is set before; `work` is cancelled then."""
    running, coming = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((running, coming), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise Abandoned
        return running.result()
    finally:
        running.cancel()
        coming.cancel()
        await asyncio.gather(running, coming, return_exceptions=True)
