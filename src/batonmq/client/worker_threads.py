"""Threads in which a client calls plain functions of the user, which may block."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class WorkerThreads:
    """At most ``count`` threads, started as they are needed. The event loop's own executor has few, by the
    number of processors, and the client needs them itself."""

    def __init__(self, name: str, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def calling(self, function: Callable[[Any], T]) -> Callable[[Any], Coroutine[Any, Any, T]]:
        """The function as a coroutine function. It runs in the context (a trace's, for one) of the caller."""

        async def call(argument: Any) -> T:
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            return (await loop.run_in_executor(self._pool, context.run, _outcome, function, argument))()

        return call

    def close(self) -> None:
        """Begin no more calls. Those that run are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _outcome(function: Callable[[Any], T], argument: Any) -> Callable[[], T]:
    """What returns or raises as the function did.

    Nothing is raised in the thread: futures do not carry StopIteration, and turn the CancelledError of one of
    the user's futures into that of the task which waits. SystemExit would end the event loop.
    """
    try:
        result = function(argument)
    except BaseException as error:
        failure = error
    else:
        return lambda: result

    def fail() -> T:
        if isinstance(failure, Exception) and not isinstance(failure, StopIteration):
            raise failure
        raise RuntimeError(f"the function raised {failure!r}") from failure

    return fail
