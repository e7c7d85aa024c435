"""Master and slave are killed together; the slave that remains, which is in sync, becomes master."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.ha.replica_group import ReplicaGroup


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    """Three replicas in sync. Nothing is sent: their logs have the same end."""
    made = ReplicaGroup(tmp_path / "group", replicas=3)
    await made.up()
    yield made
    await made.close()


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_the_replica_that_remains_becomes_master(three: ReplicaGroup, fault: signal.Signals) -> None:
    """With equal logs the lower id would win, so that slave fails, too. It is stopped: if it were killed, its
    connection might close before the master is replaced."""
    ids = await three.ids()
    info = await three.info()
    assert info is not None and info.master_address
    slaves = sorted((number, address) for address, number in ids.items() if address != info.master_address)
    master, slave = (three.cluster.broker_at(each) for each in (info.master_address, slaves[0][1]))
    remaining = slaves[1][1]
    await asyncio.sleep(1.5)  # each has sent heartbeats with the end of its log
    slave.signal(signal.SIGSTOP)
    master.signal(fault)
    try:
        async with asyncio.timeout(10):
            while True:
                now = await three.info()
                if now is not None and now.master_address == remaining:
                    break
                await asyncio.sleep(0.02)
        await three.serving()
    finally:
        for program in (slave, master):
            program.signal(signal.SIGCONT)
