"""The thread with an event loop behind each blocking client: how its calls end, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from batonmq.client.loop_thread import LoopThread
from batonmq.net.errors import ConnectionLost

WAIT_S = 10.0
"""More than anything here takes, unless it hangs."""


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Other threads than the test's."""
    with ThreadPoolExecutor() as pool:
        yield pool


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


def test_calls_under_way_at_the_end_fail(others: ThreadPoolExecutor) -> None:
    loop = LoopThread("batonmq-test")
    future = loop.submit(hang())
    blocked = others.submit(loop.call, hang)
    time.sleep(0.1)
    loop.close()
    for call in (future, blocked):
        with pytest.raises(ConnectionLost, match="this client is closed"):
            call.result(WAIT_S)
    with pytest.raises(RuntimeError, match="this client is closed"):
        loop.call(hang)
    loop.close()


def test_calls_that_end_by_themselves_keep_their_outcome() -> None:
    loop = LoopThread("batonmq-test")
    done = asyncio.Event()

    async def wait() -> int:
        await done.wait()
        await asyncio.sleep(0.1)
        return 1

    async def last() -> None:
        done.set()

    future = loop.submit(wait())
    loop.close(last)
    assert future.result(0) == 1


class Last:
    """A last coroutine that takes a while."""

    def __init__(self, after: Callable[[], None] = lambda: None) -> None:
        self.begun = threading.Event()
        self.runs = self.ends = 0
        self._after = after

    async def __call__(self) -> None:
        self.runs += 1
        self.begun.set()
        await asyncio.sleep(0.3)
        self._after()
        self.ends += 1


def test_two_that_close_at_a_time_share_one_end(others: ThreadPoolExecutor) -> None:
    loop = LoopThread("batonmq-test")
    last = Last()
    first = others.submit(loop.close, last)
    assert last.begun.wait(WAIT_S)
    loop.close(last)
    assert (last.runs, last.ends) == (1, 1), "the second waits for the first one's end"
    first.result(WAIT_S)


def test_a_signal_handler_may_close_while_its_thread_does() -> None:
    loop = LoopThread("batonmq-test")
    last = Last()
    handled: list[int] = []

    def handle(number: int, frame: object) -> None:
        loop.close(last)
        handled.append(last.ends)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        loop.close(last)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert handled == [1] and last.runs == 1


def test_what_the_last_coroutine_raises_is_raised_and_the_thread_ends_all_the_same() -> None:
    def fail() -> None:
        raise OSError("no")

    loop = LoopThread("batonmq-test")
    with pytest.raises(OSError, match="no"):
        loop.close(Last(fail))
    with pytest.raises(RuntimeError, match="this client is closed"):
        loop.call(hang)


def test_a_call_that_is_interrupted_does_not_continue() -> None:
    loop = LoopThread("batonmq-test")
    ended: Future[str] = Future()

    async def receive() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            ended.set_result("cancelled")
            raise

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            loop.call(receive)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended.result(WAIT_S) == "cancelled"
    loop.close()


def test_a_loop_that_something_ends_lets_nobody_wait(others: ThreadPoolExecutor) -> None:
    loop = LoopThread("batonmq-test")
    blocked = others.submit(loop.call, hang)

    async def leave() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
        await hang()

    with pytest.raises(ConnectionLost):
        loop.submit(leave()).result(WAIT_S)
    with pytest.raises(ConnectionLost):
        blocked.result(WAIT_S)
    for call in (lambda: loop.call(hang), loop.close):
        with pytest.raises(RuntimeError, match=r"event loop was ended by SystemExit\(3\)"):
            others.submit(call).result(WAIT_S)


FORKS = """
import os
from batonmq import sync

reader = sync.QueueReader("127.0.0.1:1")
child = os.fork()
if not child:
    for call in (lambda: reader.queues("t"), reader.close):
        try:
            call()
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
reader.close()
print("parent", os.getpid())
"""


def test_another_process_cannot_use_it() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    first, second, last = run.stdout.splitlines()
    process = last.removeprefix("parent ")
    assert first == second
    assert first == f"this client belongs to process {process}, which made it: make one after the fork"
