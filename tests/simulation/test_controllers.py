"""Controllers on simulated hosts: a leader that is gone is missed at once, one that lives is not deposed."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.simulation.cluster import Node, SimCluster
from tests.simulation.loop import SimLoop

pytestmark = pytest.mark.simulation

ELECTION_S = 1.0
"""jRaftElectionTimeoutMs, as shipped."""


def play(
    seed: int,
    scene: Callable[[SimCluster], Awaitable[None]],
    controllers: int = 3,
    *,
    lease_read: bool = False,
) -> None:
    """Three controllers and nothing else, on a new loop."""
    loop = SimLoop(seed)
    root = Path(tempfile.mkdtemp(prefix=f"batonmq-sim-{seed}-"))
    collecting = gc.isenabled()
    gc.disable()  # as in scenario.py
    try:
        asyncio.set_event_loop(loop)
        cluster = SimCluster(loop, root, replicas=0, controllers=controllers)
        cluster.lease_read = lease_read
        with cluster.world.in_force():
            for node in cluster.controllers:
                cluster.start(node)
            loop.run_until_complete(scene(cluster))
        assert not loop.failures, loop.failures
    finally:
        asyncio.set_event_loop(None)
        loop.dispose()
        if collecting:
            gc.enable()
        shutil.rmtree(root, ignore_errors=True)


async def leader_of(cluster: SimCluster, within_s: float = 10) -> Node:
    """Whoever serves: leads, and has committed in its term."""
    end = cluster.loop.now + within_s
    while True:
        for node in cluster.controllers:
            if node.up and getattr(node.service, "leading", False):
                return node
        assert cluster.loop.now < end, f"no leader within {within_s} s\n" + "\n".join(cluster.events)
        await asyncio.sleep(0.001)


def between_controllers(cluster: SimCluster) -> list:
    names = {node.name for node in cluster.controllers}
    return [end for end in cluster.connections() if {end.host.name, end.remote_host.name} <= names]


@pytest.mark.parametrize(
    ("controllers", "lease_read", "typical_s"), [(3, False, 0.3), (5, False, 0.3), (3, True, 0.5)]
)
def test_a_leader_whose_process_dies_is_missed_at_once(
    controllers: int, lease_read: bool, typical_s: float
) -> None:
    """With leases not before the promise to the dead one is over: 0.3 s after its last word."""
    waits = []

    async def scene(cluster: SimCluster) -> None:
        leader = await leader_of(cluster)
        await asyncio.sleep(cluster.random.uniform(1, 3))
        before = cluster.loop.now
        cluster.crash(leader)
        await leader_of(cluster)
        waits.append(cluster.loop.now - before)

    for seed in range(30):
        play(seed, scene, controllers, lease_read=lease_read)
    assert max(waits) < 1.5 * ELECTION_S
    assert sorted(waits)[len(waits) // 2] < typical_s * ELECTION_S, sorted(waits)
    if lease_read:
        assert min(waits) > 0.15 * ELECTION_S, "a promise was broken"


def test_a_leader_whose_machine_is_gone_is_missed_when_it_is_silent() -> None:
    async def scene(cluster: SimCluster) -> None:
        leader = await leader_of(cluster)
        await asyncio.sleep(2)
        before = cluster.loop.now
        cluster.power_cut(leader)
        await leader_of(cluster)
        assert cluster.loop.now - before >= 0.8 * ELECTION_S, "nobody closed its connections"

    play(1, scene)


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_lives_is_not_deposed_by_connections_that_close(seed: int) -> None:
    """All connections of the controllers are reset together, again and again."""

    async def scene(cluster: SimCluster) -> None:
        leader = await leader_of(cluster)
        await asyncio.sleep(1)
        term, resets = leader.service.node.term, 0
        for _ in range(30):
            for end in between_controllers(cluster):
                cluster.reset(end)
                resets += 1
            await asyncio.sleep(cluster.random.uniform(0.01, 0.6))
        assert resets > 60
        assert leader.service.leading and leader.service.node.term == term

    play(seed, scene)


@pytest.mark.parametrize("seed", range(10))
def test_a_follower_that_does_not_reach_the_leader_deposes_nobody(seed: int) -> None:
    """A half-broken network: a follower's connections end, and its packets to or from the leader are lost, so
    there is no new connection. The leader hands over to the third controller, which reaches both."""

    async def scene(cluster: SimCluster) -> None:
        leader = await leader_of(cluster)
        await asyncio.sleep(1)
        term = leader.service.node.term
        follower = cluster.random.choice([each for each in cluster.controllers if each is not leader])
        (third,) = (each for each in cluster.controllers if each not in (leader, follower))
        pair = {leader.name, follower.name}
        for end in between_controllers(cluster):
            if {end.host.name, end.remote_host.name} == pair:
                cluster.reset(end)
        ends = (leader, follower) if cluster.random.random() < 0.5 else (follower, leader)
        cluster.partition(*ends, both=cluster.random.random() < 0.5)
        await asyncio.sleep(2)
        assert leader.service.leading and leader.service.node.term == term
        await asyncio.sleep(5)
        assert third.service.leading and third.service.node.term == term + 1
        cluster.reconnect()
        await asyncio.sleep(3)
        assert third.service.leading and third.service.node.term == term + 1
        for each in (leader, follower):
            assert each.service.leader_id == third.service.topology.self_id

    play(seed, scene)
