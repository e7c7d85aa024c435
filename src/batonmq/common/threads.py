"""Threads for blocking work, which get along with those they have if the system lets them start no more."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger(__name__)


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


def close_runner(runner: asyncio.Runner) -> None:
    """Close it. It starts a thread to wait for those of the loop; the interpreter waits for them as well."""
    try:
        runner.close()
    except RuntimeError as error:
        log.warning("no thread was to be had for the end of the stop: %s; all else is done", error)
