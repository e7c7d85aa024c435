"""The master and a slave fail together; the other slave, which is in sync, becomes master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.simulation.cluster import Node, SimCluster
from tests.simulation.loop import SimLoop
from tests.simulation.story import play_quietly

pytestmark = pytest.mark.simulation

IDLE_S = 5.0
"""All replicas report the same end of their logs: nothing but their silence sets them apart."""
REPLACED_S = {"killed": 0.3, "power cut": 2.5, "isolated": 2.5, "hung": 2.5}
"""The master is replaced within this time."""


Fault: TypeAlias = Callable[[SimCluster, Node], None]


def kill(cluster: SimCluster, node: Node) -> None:
    cluster.crash(node)


def power_cut(cluster: SimCluster, node: Node) -> None:
    cluster.power_cut(node)


def isolate(cluster: SimCluster, node: Node) -> None:
    cluster.isolate(node)


def hang(cluster: SimCluster, node: Node) -> None:
    cluster.pause(node, 60.0)


FAULTS: dict[str, Fault] = {
    "killed": kill,
    "power cut": power_cut,
    "isolated": isolate,
    "hung": hang,
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fault", FAULTS)
def test_the_replica_that_remains_becomes_master(tmp_path: Path, fault: str, seed: int) -> None:
    assert replaced_after(tmp_path, seed, FAULTS[fault]) < REPLACED_S[fault]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fault", ["power cut", "isolated", "hung"])
def test_a_slave_that_failed_a_moment_before_is_passed_over(tmp_path: Path, fault: str, seed: int) -> None:
    """The controllers still count it as alive when the master is killed."""
    assert replaced_after(tmp_path, seed, kill, FAULTS[fault]) < REPLACED_S["killed"]


def replaced_after(root: Path, seed: int, fail: Fault, fail_before: Fault | None = None) -> float:
    """Virtual seconds from the fault of master and slave until the other slave is master. With `fail_before`
    the slave has failed up to a second before."""
    loop = SimLoop(seed)
    after: list[float] = []

    async def story() -> None:
        cluster.start_all()
        async with asyncio.timeout(60):
            while not cluster.whole():
                await asyncio.sleep(0.05)
        await asyncio.sleep(IDLE_S + loop.random.random())
        (master,) = cluster.masters()
        # With equal logs the lower id wins, so it is the slave with the lower id that fails, too.
        slaves = sorted((node for node in cluster.brokers if node is not master), key=lambda n: n.broker_id)
        if fail_before is not None:
            fail_before(cluster, slaves[0])
            await asyncio.sleep(loop.random.random())
        failed_at = loop.now
        fail(cluster, master)
        if fail_before is None:
            await asyncio.sleep(0.001)
            fail(cluster, slaves[0])
        async with asyncio.timeout(30):
            while slaves[1] not in cluster.masters():
                await asyncio.sleep(0.01)
        after.append(loop.now - failed_at)

    cluster = SimCluster(loop, root, replicas=3)
    play_quietly(cluster, seed, story)
    return after[0]
