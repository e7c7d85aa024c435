"""The slave's group commit, with a log that flushes when the test lets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from batonmq.ha.flusher import SlaveFlusher

from .conftest import until


class Log:
    """Flushes up to where it ended when the flush began; waits for `gate`."""

    def __init__(self) -> None:
        self.max_offset = self.flushed_offset = self.flushes = 0
        self.gate = threading.Event()
        self.failure: OSError | None = None

    def flush(self) -> int:
        self.flushes += 1
        end = self.max_offset
        assert self.gate.wait(5)
        if self.failure is not None:
            raise self.failure
        self.flushed_offset = end
        return end


class Slave:
    """Notes what it is called with."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.acked: list[int] = []
        self.errors: list[Exception] = []

    def flushed(self) -> None:
        self.acked.append(self.log.flushed_offset)

    def flush_failed(self, error: Exception) -> None:
        self.errors.append(error)


@pytest.fixture
async def log() -> AsyncIterator[Log]:
    log = Log()
    yield log
    log.gate.set()


def flusher_of(log: Log, *, sync_flush: bool, interval_ms: int = 20) -> tuple[SlaveFlusher, Slave]:
    flusher = SlaveFlusher(log, sync_flush=sync_flush, interval_ms=interval_ms)  # type: ignore[arg-type]
    flusher.observer = slave = Slave(log)
    return flusher, slave


async def test_what_arrives_during_a_flush_is_covered_by_the_next_one(log: Log) -> None:
    flusher, slave = flusher_of(log, sync_flush=True)
    log.max_offset = 10
    flusher.soon()
    await until(lambda: log.flushes == 1)
    for log.max_offset in (20, 30, 40):
        flusher.soon()
    log.gate.set()
    await flusher.settled()
    assert slave.acked == [10, 40]
    assert log.flushes == 2


async def test_without_sync_flush_it_waits_for_its_interval(log: Log) -> None:
    flusher, slave = flusher_of(log, sync_flush=False, interval_ms=100)
    log.gate.set()
    log.max_offset = 10
    flusher.soon()
    flusher.soon()
    await asyncio.sleep(0.02)
    assert not log.flushes
    log.max_offset = 20
    await until(lambda: slave.acked == [20])
    assert log.flushes == 1


async def test_a_log_is_cut_only_after_the_flush_under_way(log: Log) -> None:
    flusher, _ = flusher_of(log, sync_flush=True)
    log.max_offset = 10
    flusher.soon()
    settled = asyncio.create_task(flusher.settled())
    await until(lambda: log.flushes == 1)
    assert not settled.done()
    log.gate.set()
    await settled
    assert log.flushed_offset == 10


async def test_a_replica_that_left_its_role_acknowledges_nothing_and_flushes_no_more(log: Log) -> None:
    flusher, slave = flusher_of(log, sync_flush=True)
    log.max_offset = 10
    flusher.soon()
    await until(lambda: log.flushes == 1)
    flusher.observer = None
    log.max_offset = 20
    log.gate.set()
    await flusher.stop()
    assert (slave.acked, log.flushes) == ([], 1)
    later, slave = flusher_of(log, sync_flush=False, interval_ms=1)
    later.soon()
    later.observer = None
    await asyncio.sleep(0.02)
    assert (slave.acked, log.flushes) == ([], 1)


async def test_a_disk_that_fails_is_reported_once_and_not_asked_again(log: Log) -> None:
    flusher, slave = flusher_of(log, sync_flush=True)
    log.failure = OSError(5, "Input/output error")
    log.gate.set()
    log.max_offset = 10
    flusher.soon()
    await flusher.settled()
    assert slave.errors == [log.failure] and not slave.acked
    assert log.flushes == 1


async def test_a_flush_for_which_there_is_no_thread_is_logged_and_reported(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The link to the master ends, and the next one flushes again."""
    flusher, slave = flusher_of(log, sync_flush=True)
    log.gate.set()
    log.max_offset = 10
    with monkeypatch.context() as patch:
        loop, refusal = asyncio.get_running_loop(), RuntimeError("can't start new thread")

        def without_threads(*args: object) -> None:
            raise refusal

        patch.setattr(loop, "run_in_executor", without_threads)
        flusher.soon()
        await flusher.stop()
    assert slave.errors == [refusal]
    assert caplog.messages == ["flushing the log failed: can't start new thread"]
    flusher.soon()
    await flusher.settled()
    assert slave.acked == [10]
