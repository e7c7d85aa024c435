"""A request to the controllers that arrives long after its sender gave it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from batonmq import Message
from batonmq.broker.replica.part import ReplicaPart
from batonmq.ha.autoswitch.sync_state import SyncStateTracker
from tests.simulation.cluster import BROKER_NAME, Node, SimCluster
from tests.simulation.loop import SimLoop
from tests.simulation.story import play_quietly

pytestmark = pytest.mark.simulation

TOPIC = "Late"


async def until(condition: Callable[[], object], step_s: float = 0.01) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(step_s)


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_that_was_refused_is_not_added_later(tmp_path: Path, seed: int) -> None:
    """The master asks for a SyncStateSet with its slave. The request is held up on the way, and the slave is
    killed. Asked again through another controller, the leader refuses, so the master acknowledges alone. When
    the slave lives again, without these messages, the first request arrives: it must not make the slave
    eligible."""
    loop = SimLoop(seed)
    sets: list[tuple[int, ...]] = []

    def tracker(master: Node) -> SyncStateTracker:
        found = master.broker.replication.tracker
        assert isinstance(found, SyncStateTracker)
        return found

    async def send() -> None:
        async with cluster.admin() as admin:
            await admin.create_topic(TOPIC, 1)
        async with cluster.producer() as producer:
            await producer.send(Message(TOPIC, b"acknowledged by the master alone"))

    async def story() -> None:
        cluster.start_all()
        await until(cluster.whole)
        await asyncio.sleep(2)
        (master,) = cluster.masters()
        (slave,) = (node for node in cluster.brokers if node is not master)
        (leader,) = (node for node in cluster.controllers if cluster.leads(node))
        slave_id = slave.broker_id
        assert slave_id is not None
        cluster.crash(slave)
        await until(lambda: slave_id not in tracker(master).agreed.members)
        cluster.start(slave)
        await until(lambda: (link := tracker(master).replicas.get(slave_id)) and link.connected, 0.000_1)
        cluster.partition(master, leader, both=False)
        await until(lambda: tracker(master).proposal is not None, 0.000_1)
        cluster.crash(slave)
        await until(lambda: tracker(master).proposal is None)
        cluster.partition(master, slave)
        assert tracker(master).agreed.members == {master.broker_id}
        await cluster.on(cluster.client_host, send())

        cluster.start(slave)
        broker_set = leader.service.machine.broker_sets[BROKER_NAME]
        await until(lambda: slave_id in broker_set.live)
        loop.network.cuts.clear()
        cluster.partition(master, slave)
        await asyncio.sleep(1.0)
        sets.append(broker_set.sync_state_set)
        cluster.crash(master)
        await asyncio.sleep(5.0)
        assert not cluster.masters()

    cluster = SimCluster(loop, tmp_path, replicas=2)
    play_quietly(cluster, seed, story)
    assert len(sets) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_registration_that_is_held_up_deposes_no_master(tmp_path: Path, seed: int) -> None:
    """The link from a starting broker to the leader is cut for 1.5 s. If its registration went through
    another controller meanwhile, it could become master, and the first copy, by which the broker has just
    started, would depose it."""
    loop = SimLoop(seed)
    epochs: list[int] = []

    async def story() -> None:
        cluster.start_all()
        await until(cluster.whole)
        await asyncio.sleep(2)
        (broker,) = cluster.brokers
        (leader,) = (node for node in cluster.controllers if cluster.leads(node))
        cluster.crash(broker)
        broker_set = leader.service.machine.broker_sets[BROKER_NAME]
        await until(lambda: broker_set.master_id is None)
        lost = broker_set.master_epoch
        cluster.start(broker)

        def finds_leader() -> bool:
            manager = None if broker.broker is None else broker.service.part(ReplicaPart).manager
            return manager is not None and manager._controllers.leader is not None

        await until(finds_leader, 0.000_05)
        cluster.partition(broker, leader, both=False)
        await asyncio.sleep(1.5)
        assert cluster.leads(leader)
        loop.network.cuts.clear()
        await until(lambda: broker in cluster.masters())
        await asyncio.sleep(5.0)
        epochs.append(broker_set.master_epoch - lost)

    cluster = SimCluster(loop, tmp_path, replicas=1)
    play_quietly(cluster, seed, story)
    assert epochs == [1]
