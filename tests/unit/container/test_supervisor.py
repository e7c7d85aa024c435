"""A worker that hangs is killed, and another one takes its place."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from batonmq.container import supervisor
from batonmq.container.core import BrokerIdentity
from batonmq.container.supervisor import WorkerProcess
from batonmq.net.tls import TlsConfig


def ended(identity: BrokerIdentity, cause: str) -> None:
    raise AssertionError(f"{identity} ended: {cause}")


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
