"""Threads for blocking work, which get along with those they have if the system lets them start no more.

Work that takes long and may be left at any point, as the recovery of a store, runs `in_thread`: a stop does
not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

START_PATIENCE_S = 0.5
"""How long a stop waits for a start under way, before it breaks it off."""


class Threads(ThreadPoolExecutor):
    """A pool whose work waits for the threads that it has, if no further one can be started.

    `ThreadPoolExecutor` puts the work into its queue first, and then raises what the start of the thread
    raises: its caller takes a flush for failed that is yet to be made.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise

    def begin(self) -> None:
        """Start a thread, so that there is one. Raises RuntimeError."""
        self.submit(int).result()


def use_threads() -> None:
    """Give the running loop `Threads` for its `run_in_executor`, of the usual number. Raises RuntimeError."""
    threads = Threads(thread_name_prefix="asyncio")
    threads.begin()
    asyncio.get_running_loop().set_default_executor(threads)


class _Work:
    """What runs `in_thread`."""

    left = 0
    """So many run whose callers were cancelled."""
    lock = threading.Lock()

    def __init__(self) -> None:
        self.runs = self.is_left = False

    def begin(self) -> None:
        self.runs = True

    def end(self) -> None:
        with self.lock:
            self.runs = False
            _Work.left -= self.is_left

    def leave(self) -> None:
        with self.lock:
            if self.runs:
                self.is_left = True
                _Work.left += 1


async def in_thread(work: Callable[[], T]) -> T:
    """Do `work` in a thread of the loop's. If the caller is cancelled, it continues, and the process ends
    without it (`close_runner`): it must be as safe to break off as by a crash."""
    state = _Work()

    def run() -> T:
        state.begin()
        try:
            return work()
        finally:
            state.end()

    try:
        return await asyncio.get_running_loop().run_in_executor(None, run)
    except asyncio.CancelledError:
        state.leave()
        raise


def close_runner(runner: asyncio.Runner, left: str = "") -> None:
    """Close it. If work `in_thread` was left, end the process with exit code 0, and say `left` on stderr.

    asyncio starts a thread to wait for those of the loop. If it gets none, the interpreter waits for them."""
    if _Work.left:
        logging.shutdown()
        sys.stdout.flush()
        os.write(2, left.encode())
        os._exit(0)
    try:
        runner.close()
    except RuntimeError as error:
        log.warning("no thread could be started for the end of the stop: %s; everything else is done", error)
