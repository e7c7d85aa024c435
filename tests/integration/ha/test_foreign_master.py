"""A broker's address may be given to a broker of another set. The slave must not follow that one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.ha.replica_group import ReplicaGroup, commit_log


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    made = ReplicaGroup(tmp_path / "other", {"brokerName": "other"}, replicas=1)
    made.cluster.broker_name = "other"
    yield made
    await made.close()


async def test_a_slave_keeps_its_log_when_another_set_has_its_masters_address(
    group: ReplicaGroup, other: ReplicaGroup
) -> None:
    await group.send(200, 1000)
    master = await group.master()
    (slave,) = (each for each in group.cluster.brokers if each is not master)
    store = group.cluster.store_path(group.cluster.brokers.index(slave))
    before = commit_log(store)
    for controller in group.cluster.controller_programs:  # nobody tells the slave that its master is gone
        controller.signal(signal.SIGSTOP)
    master.kill()

    (foreign,) = other.cluster.brokers
    foreign.settings = {**foreign.settings, "listenPort": master.settings["listenPort"]}
    await other.up()
    await other.send(3)
    await group.logs_it(slave, "WARNING", "lost master", "is broker other of cluster", "not broker-a")
    await asyncio.sleep(2)
    assert (await other.ha_status(foreign)).ha_connection_info == []
    assert commit_log(store) == before

    await asyncio.to_thread(other.cluster.stop)
    for controller in group.cluster.controller_programs:
        controller.signal(signal.SIGCONT)
    await asyncio.to_thread(master.start)
    group.pids[master.name] = master.pid
    await group.in_sync(2)
    await group.check()
