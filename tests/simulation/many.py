"""Many seeds in processes, until all have ended or a signal says to stop."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import connection, parent_process
from types import FrameType
from typing import TypeVar

from rich.progress import Progress

Result = TypeVar("Result")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_S = 1.0
"""A signal that comes again so soon is the same one: `timeout` sends it to the process and to its group."""


def begin_worker() -> None:
    # A terminal, or `timeout`, sends the signal to all processes of the group.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # What was imported is there for ever: collections after each story need not look at it.
    gc.freeze()
    threading.Thread(target=_end_with_the_search, daemon=True).start()


def _end_with_the_search() -> None:
    """A worker whose parent was killed would wait for its next seed for ever."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


class Stop:
    """Whether a signal asked to stop. A second one, after `SAME_S`, ends the process as usual."""

    def __init__(self) -> None:
        self._asked_at: float | None = None

    @property
    def asked(self) -> bool:
        return self._asked_at is not None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at > SAME_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def block(one: Callable[[int], Result], seeds: range) -> list[Result]:
    return [one(seed) for seed in seeds]


def run_each(
    one: Callable[[int], Result],
    seeds: range,
    jobs: int,
    *,
    chunk: int = 1,
) -> Iterator[tuple[int, Result]]:
    """Each seed and what `one` returned for it, in no particular order.

    After SIGINT or SIGTERM no further seeds begin, and those under way are waited for. So the seeds that
    ended are always the first ones of `seeds`, with none left out.
    """
    stop = Stop()
    running: dict[Future[list[Result]], range] = {}
    waiting = (seeds[place : place + chunk] for place in range(0, len(seeds), chunk))
    with (
        ProcessPoolExecutor(jobs, initializer=begin_worker) as pool,
        Progress(disable=not sys.stderr.isatty()) as progress,
        stop.on_signals(),
    ):
        bar = progress.add_task("seeds", total=len(seeds))
        while True:
            # One chunk a worker and one that waits for the first worker that is free.
            while not stop.asked and len(running) <= jobs and (part := next(waiting, None)) is not None:
                running[pool.submit(block, one, part)] = part
            if not running:
                break
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                part = running.pop(future)
                yield from zip(part, future.result(), strict=True)
                progress.advance(bar, len(part))
    if stop.asked:
        print("interrupted: the seeds that began have ended", file=sys.stderr)
