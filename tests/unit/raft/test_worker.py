"""Where a node's disk work is done, and when."""

from __future__ import annotations

import asyncio
import threading

import pytest

from batonmq.raft import worker as module
from batonmq.raft.worker import Job, QuickDiskWorker, ThreadWorker


async def run(worker: ThreadWorker, job: Job, *, brief: bool = True) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    worker.submit(job, done.set_result, brief=brief)
    async with asyncio.timeout(5):
        return await done


async def where(worker: ThreadWorker, *, brief: bool = True) -> str:
    """ "loop" or "thread"."""
    names: list[str] = []
    assert await run(worker, lambda: names.append(threading.current_thread().name), brief=brief) is None
    return "thread" if names == ["disk"] else "loop"


class Stopwatch:
    """Stands in for the module `time`: a job takes what the next number says, in seconds."""

    def __init__(self) -> None:
        self.took = 0.000_1
        self._now = 0.0
        self._begun = False

    def perf_counter(self) -> float:
        self._now += self.took if self._begun else 1.0
        self._begun = not self._begun
        return self._now


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr(module, "time", watch)
    return watch


async def until_on_the_loop(worker: ThreadWorker) -> int:
    """How many brief jobs the thread did before the loop did one."""
    for number in range(1_000):
        if await where(worker) == "loop":
            return number
    raise AssertionError("a thousand jobs, none on the loop")


async def test_a_thread_does_what_a_thread_worker_gets() -> None:
    worker = ThreadWorker("disk")
    assert [await where(worker), await where(worker, brief=False)] == ["thread", "thread"]
    worker.stop()


@pytest.mark.usefixtures("stopwatch")
async def test_brief_jobs_move_to_the_loop_once_the_disk_has_shown_to_be_quick() -> None:
    worker = QuickDiskWorker("disk")
    assert 50 < await until_on_the_loop(worker) < 70
    assert await where(worker, brief=False) == "thread", "nobody knows how long that takes"
    assert await where(worker) == "loop"
    worker.stop()


async def test_a_slow_job_now_and_then_does_not_send_them_away_a_slow_disk_does(stopwatch: Stopwatch) -> None:
    worker = QuickDiskWorker("disk")
    await until_on_the_loop(worker)
    assert [await where(worker) for _ in range(60)] == ["loop"] * 60
    stopwatch.took = 0.020
    assert await where(worker) == "loop"
    stopwatch.took = 0.000_1
    assert [await where(worker) for _ in range(20)] == ["loop"] * 20
    stopwatch.took = 0.005
    assert [await where(worker) for _ in range(20)][-1] == "thread"
    stopwatch.took = 0.000_1
    assert 5 < await until_on_the_loop(worker) < 50
    worker.stop()


async def test_a_disk_that_hung_has_to_show_for_long_that_it_is_quick(stopwatch: Stopwatch) -> None:
    worker = QuickDiskWorker("disk")
    await until_on_the_loop(worker)
    stopwatch.took = 2.0
    assert await where(worker) == "loop"
    stopwatch.took = 0.000_1
    assert 60 < await until_on_the_loop(worker) < 100
    worker.stop()


@pytest.mark.usefixtures("stopwatch")
async def test_what_a_job_raises_is_passed_on_wherever_it_is_done() -> None:
    worker = QuickDiskWorker("disk")

    def broken() -> None:
        raise OSError(5, "input/output error")

    assert isinstance(await run(worker, broken), OSError)
    await until_on_the_loop(worker)
    assert isinstance(await run(worker, broken), OSError)
    assert isinstance(await run(worker, broken, brief=False), OSError)
    worker.stop()


@pytest.mark.usefixtures("stopwatch")
async def test_what_was_sent_before_leaves_before_the_loop_writes() -> None:
    """An entry travels while its leader itself writes it: what a turn collects, the next one sends."""
    worker = QuickDiskWorker("disk")
    await until_on_the_loop(worker)
    order: list[str] = []
    writing = asyncio.ensure_future(run(worker, lambda: order.append("written")))
    await asyncio.sleep(0)  # the task has begun: what follows is the same turn
    asyncio.get_running_loop().call_soon(order.append, "sent")
    await writing
    assert order == ["sent", "written"]
    worker.stop()


def test_a_job_that_ends_after_its_loop_is_closed_ends_the_thread_quietly() -> None:
    worker, gate, failures = ThreadWorker("late"), threading.Event(), []
    hook = threading.excepthook
    threading.excepthook = failures.append
    loop = asyncio.new_event_loop()

    async def submit() -> None:
        worker.submit(gate.wait, lambda error: None)

    try:
        loop.run_until_complete(submit())
        loop.close()
        gate.set()
        thread = worker._thread
        assert thread is not None
        thread.join(5)
        assert not thread.is_alive() and not failures
    finally:
        threading.excepthook = hook
