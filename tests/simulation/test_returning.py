"""Strict queue locks and masters that return, under seeded faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from batonmq.net.client import RemotingClient
from batonmq.protocol.headers.broker.pull import UpdateConsumerOffset
from tests.simulation.classic import Rule
from tests.simulation.cluster import BROKER_PORT, Node
from tests.simulation.loop import SimLoop
from tests.simulation.returning import GROUP, ReturningCluster, ReturningScenario, ReturningStory, run
from tests.simulation.returning_mutations import MUTATIONS
from tests.simulation.story import TOPIC, play, scratch

SEEDS = [*range(12), 63, 7120055]
"""7120055: a slave acted once more, for 50 ms, before it could hand over what it had accepted."""


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_a_queue_has_one_owner_and_a_master_that_returns_keeps_accepted_offsets(seed):
    story = run(seed)
    assert story.granted and story.acting and story.returned and story.commits


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_notices_a_guard_that_is_gone(name):
    mutation, seeds = MUTATIONS[name]
    noticed = (mutation.violation(lambda seed=seed: run(seed)) for seed in seeds)
    assert any(noticed), f"no seed of {seeds} notices that {mutation.what}"


@pytest.mark.simulation
def test_a_seed_tells_the_same_story_again():
    assert run(4).events == run(4).events


async def _handed_over(cluster: ReturningCluster) -> float:
    """Virtual seconds without a broker that acts, when the slave with the lower id is back."""
    loop = cluster.loop
    lower, higher = cluster.brokers[1:]

    def acts(node: Node) -> bool:
        return node.up and node.broker is not None and node.broker.role.is_acting

    async def until(condition: Callable[[], bool]) -> None:
        end = loop.now + 60
        while not condition():
            assert loop.now < end
            await asyncio.sleep(0.005)

    cluster.start_all()
    await until(cluster.whole)
    for node in (cluster.master, lower):
        cluster.crash(node)
    await until(lambda: acts(higher))
    cluster.start(lower)
    await until(lambda: not acts(higher))
    began = loop.now
    await until(lambda: acts(lower))
    return loop.now - began


async def _killed_after_it_was_handed(cluster: ReturningCluster) -> int:
    """The offset of a master that an acting slave handed it, and that was killed right after that."""
    loop, master, slave = cluster.loop, *cluster.brokers
    net = cluster.client_host

    async def until(condition: Callable[[], bool]) -> None:
        end = loop.now + 60
        while not condition():
            assert loop.now < end
            await asyncio.sleep(0.001)

    def offset() -> int:
        return master.broker.tables.offsets.query(GROUP, TOPIC, 1) if master.up and master.broker else -1

    async def commit() -> None:
        client = RemotingClient()
        header = UpdateConsumerOffset(GROUP, TOPIC, 1, 201)
        await client.call(f"{slave.address}:{BROKER_PORT}", header)
        await client.close()

    cluster.start_all()
    await until(cluster.whole)
    await cluster.on(net, ReturningScenario(cluster, ReturningStory(0), 0)._prepare())
    cluster.crash(master)
    await until(lambda: slave.broker is not None and slave.broker.role.is_acting)
    await cluster.on(net, commit())
    cluster.isolate(slave)
    await asyncio.sleep(5)  # no name server lists it any more
    cluster.start(master)
    await until(lambda: master.broker is not None and master.broker.role.is_master)
    assert offset() == -1
    cluster.reconnect()
    await until(lambda: slave.broker is not None and slave.broker.tables.offsets._acting is None)
    cluster.isolate(slave)
    cluster.crash(master)
    await asyncio.sleep(5)
    cluster.start(master)
    await until(lambda: master.broker is not None and master.broker.role.is_master)
    return offset()


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(3))
def test_an_offset_that_a_slave_has_handed_over_outlives_a_kill_of_the_master(seed: int) -> None:
    loop = SimLoop(seed)
    kept: list[int] = []
    with scratch("handed", seed) as root:
        cluster = ReturningCluster(loop, root, Rule(2, 2, 1, True, sync_flush=False, whole_log=False))

        async def work() -> None:
            kept.append(await _killed_after_it_was_handed(cluster))

        with cluster.world.in_force():
            play(loop, seed, cluster.events, work)
    assert kept == [201], cluster.events


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(3))
def test_a_slave_with_a_lower_id_acts_as_soon_as_the_other_one_ends(seed: int) -> None:
    """Name servers notify only the others; it asked once a second."""
    loop = SimLoop(seed)
    took: list[float] = []
    with scratch("lower-id", seed) as root:
        cluster = ReturningCluster(loop, root, Rule(3, 2, 1, True, sync_flush=False, whole_log=False))

        async def work() -> None:
            took.append(await _handed_over(cluster))

        with cluster.world.in_force():
            play(loop, seed, cluster.events, work)
    assert took[0] < 0.2, cluster.events
