"""A worker that hangs is killed, and another one takes its place, with the same brokers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from batonmq.container import control, supervisor
from batonmq.container.core import BrokerIdentity
from batonmq.container.supervisor import WorkerProcess
from batonmq.net.tls import TlsConfig

A = BrokerIdentity("DefaultCluster", "a", 0)


def ended(identity: BrokerIdentity, cause: str) -> None:
    raise AssertionError(f"{identity} ended: {cause}")


class Restarted(WorkerProcess):
    """Its worker has just started again, with broker `A`, whose start takes until the test says so."""

    def __init__(self) -> None:
        super().__init__(1, TlsConfig(), ended)
        self.orders: list[control.Order] = []
        self.started = asyncio.Event()
        self._brokers = {A: ("a.conf", "127.0.0.1:1")}
        self._writer = Mock()

    async def _call(self, order: Callable[[int], control.Order]) -> str | None:
        self.orders.append(order(len(self.orders)))
        if isinstance(self.orders[-1], control.Start):
            await self.started.wait()
        return None


async def test_a_broker_that_starts_again_hears_of_other_name_servers() -> None:
    worker = Restarted()
    restoring = asyncio.create_task(worker._restore())
    await asyncio.sleep(0.01)
    await worker.set_name_servers("127.0.0.1:2")
    assert len(worker.orders) == 2, "the worker tells only those that run"
    worker.started.set()
    await restoring
    assert worker.orders[2:] == [control.NameServers(2, "127.0.0.1:2")]


async def test_a_broker_that_starts_again_is_removed_once_it_has_stopped() -> None:
    worker = Restarted()
    restoring = asyncio.create_task(worker._restore())
    await asyncio.sleep(0.01)
    stopping = asyncio.create_task(worker.stop(A))
    await asyncio.sleep(0.01)
    assert len(worker.orders) == 1 and not stopping.done(), "the worker would not find it yet"
    worker.started.set()
    await asyncio.gather(restoring, stopping)
    assert worker.orders[1:] == [control.Stop(1, A)]
    assert not worker._returning


async def until_other(worker: WorkerProcess, pid: int) -> int:
    async with asyncio.timeout(20):
        while worker.pid in (pid, None):
            await asyncio.sleep(0.01)
    assert worker.pid is not None
    return worker.pid


async def test_a_worker_that_hangs_is_replaced_and_one_that_answers_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "PING_S", 0.2)
    worker = WorkerProcess(1, TlsConfig(), ended)
    await worker.open()
    try:
        await asyncio.wait_for(worker.set_name_servers("127.0.0.1:1"), 20)  # it answers
        first = worker.pid
        assert first is not None
        await asyncio.sleep(3)
        assert worker.pid == first, "a worker that answers lives on"
        os.kill(first, signal.SIGSTOP)
        second = await until_other(worker, first)
        assert "worker-1 has not answered for 2 s: it is killed" in caplog.text
        await asyncio.wait_for(worker.set_name_servers("127.0.0.1:1"), 20)
        assert worker.pid == second
    finally:
        await worker.close()
    assert worker.pid is None
