"""Workers for a node's disk, one job after the other: a thread beside the loop, or the loop itself."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

Job: TypeAlias = Callable[[], object]
Done: TypeAlias = Callable[[BaseException | None], None]
"""Called on the loop with what the job raised, if it did."""


class Worker(Protocol):
    """Does blocking jobs one after the other, in the order in which they come."""

    def submit(self, job: Job, done: Done, *, brief: bool = False) -> None:
        """``brief``: a write that takes a good disk less time than anything of this node would wait."""
        ...

    def stop(self) -> None:
        """No further jobs come; those submitted are still done."""


class ThreadWorker:
    """A separate thread. A write to the log costs a quarter less processor time this way than through the
    loop's executor and its two futures a job (228 µs instead of 302, of which the disk takes 110), and every
    entry is such a write on each controller of the group."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, done: Done, *, brief: bool = False) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._work, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put((job, done))

    def stop(self) -> None:
        self._jobs.put(None)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while (work := self._jobs.get()) is not None:
            job, done = work
            error: BaseException | None = None
            try:
                job()
            except BaseException as e:
                error = e
            try:
                loop.call_soon_threadsafe(done, error)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                return  # the node was stopped without waiting for a disk that did not answer


QUICK_S = 0.002
"""A disk is quick while its last brief jobs took less in the mean: several times what a log's write takes on
an SSD, and little beside the timeouts of those who wait for the loop."""
WEIGHT = 1 / 16
"""Of the latest job in that mean. One that takes 2 s makes a disk slow for the next hundred."""
UNKNOWN_S = 0.1
"""The mean to begin with: some sixty quick jobs make the disk quick."""


class QuickDiskWorker(ThreadWorker):
    """Does brief jobs on the loop for as long as the disk is quick, all others in the thread.

    Handing a write to a thread and taking its result back costs as much as the write: without it heartbeats
    cost three controllers together a quarter less processor time. The price is that a disk which stops
    answering stops the loop as well, until it answers: the node falls silent, and the others elect a leader
    whose disk works. Not for processes that have more to do than be that node.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._mean_s = UNKNOWN_S

    def submit(self, job: Job, done: Done, *, brief: bool = False) -> None:
        if not brief:
            super().submit(job, done)
        elif self._mean_s >= QUICK_S:
            super().submit(lambda: self._timed(job), done)
        else:
            loop = asyncio.get_running_loop()
            # Two turns later, when what this one sends to the other nodes is on its way.
            loop.call_soon(loop.call_soon, self._do, job, done)

    def _do(self, job: Job, done: Done) -> None:
        error: BaseException | None = None
        try:
            self._timed(job)
        except Exception as e:
            error = e
        done(error)

    def _timed(self, job: Job) -> None:
        began = time.perf_counter()
        try:
            job()
        finally:
            self._mean_s += (time.perf_counter() - began - self._mean_s) * WEIGHT
