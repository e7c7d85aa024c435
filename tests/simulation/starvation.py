"""One seeded story of a starved machine, where a healthy master keeps its role, and then of a hung master.

For a minute and a half of virtual time, processes run late: each stops again and again for up to 0.9 s, the
whole machine now and then for up to 3.5 s, and single connections of replicas are silent for seconds.
Invariants:

- no master is deposed, and the controllers count nobody as silent;
- a slave whose link is silent may leave the SyncStateSet, and is back in the end;
- a master that then hangs is replaced within `REPLACED_S`, a hung slave leaves the set within `DROPPED_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from tests.simulation.cluster import CONTROLLER_PORT, HA_PORT, Node, SimCluster
from tests.simulation.loop import SimLoop
from tests.simulation.network import Endpoint
from tests.simulation.story import HEAL_S, START_UP_S, TOPIC, Violation, play, scratch

STARVED_S: Final = 90.0
LONGEST_PAUSE_S: Final = 0.9
"""Of one process."""
LEAST_RUN_S: Final = 0.05
"""Between two pauses."""
LONGEST_STOP_S: Final = 3.5
"""Of the whole machine."""
LONGEST_STALL_S: Final = 1.8
"""Of heartbeats and replication: with a second between heartbeats still within their timeout."""
CALM_S: Final = 31.0
"""Lateness is remembered so long."""
REPLACED_S: Final = 2.0
DROPPED_S: Final = 2.0
HUNG_S: Final = 8.0


@dataclass
class StarvationStory:
    """What happened."""

    seed: int
    pauses: int = 0
    stops: int = 0
    stalls: int = 0
    dropped: int = 0
    """Times that a slave left the SyncStateSet of the starved master."""
    replaced_s: float = 0.0
    """From the master's hang to another master."""
    dropped_s: float = 0.0
    """From the slave's hang to a SyncStateSet without it."""
    events: list[str] = field(default_factory=list)


def run(seed: int) -> StarvationStory:
    """Run the story of `seed`; raises `Violation` if an invariant breaks."""
    loop = SimLoop(seed)
    story = StarvationStory(seed)
    with scratch("starved", seed) as root:
        cluster = SimCluster(loop, root, replicas=3 if seed % 3 == 2 else 2)
        story.events = cluster.events
        with cluster.world.in_force():
            play(loop, seed, story.events, StarvationScenario(cluster, story).play)
        return story


class StarvationScenario:
    """The story from start to end."""

    def __init__(self, cluster: SimCluster, story: StarvationStory) -> None:
        self.cluster, self.story = cluster, story
        self.random = cluster.random
        self._starved = True

    async def play(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(lambda: cluster.whole() and self._leader() is not None, START_UP_S, "the start")
        sending = cluster.on(cluster.client_host, self._send())
        (master,) = cluster.masters()
        epoch = master.broker.replication.epoch
        watcher = asyncio.ensure_future(self._watch(master, epoch))
        work = [self._starve(node) for node in (*cluster.brokers, *cluster.controllers)]
        work += [self._stop_all(), self._stall_links(master), self._stall_most(master)]
        starving = [asyncio.ensure_future(each) for each in work]
        await self._unless(watcher, STARVED_S)
        for task in starving:
            task.cancel()
        cluster.log("calm")
        await self._unless(watcher, CALM_S)
        if not cluster.whole():
            raise Violation("the SyncStateSet lacks a slave although all processes run")
        watcher.cancel()
        await self._hung_slave(master)
        await self._hung_master(master, epoch)
        sending.cancel()

    async def _unless(self, watcher: asyncio.Future[None], seconds: float) -> None:
        """Wait, or raise what the watcher found."""
        done, _ = await asyncio.wait([watcher], timeout=seconds)
        if done:
            watcher.result()

    async def _watch(self, master: Node, epoch: int) -> None:
        members: frozenset[int] = frozenset()
        while True:
            ha = master.broker.replication
            if not master.broker.role.is_master or ha.epoch != epoch:
                raise Violation(f"the healthy master {master.name} of epoch {epoch} was deposed")
            for node in self.cluster.controllers:
                broker_set = node.service.machine.broker_sets["group"]
                if broker_set.master_epoch > epoch:
                    raise Violation(f"{node.name}: epoch {broker_set.master_epoch} without a fault")
            now = ha.tracker.agreed.members
            self.story.dropped += len(members - now)
            members = now
            await asyncio.sleep(0.05)

    def _leader(self) -> Node | None:
        return next((each for each in self.cluster.controllers if self.cluster.leads(each)), None)

    # -- starvation

    async def _starve(self, node: Node) -> None:
        while True:
            await asyncio.sleep(LEAST_RUN_S + self.random.expovariate(3.0))
            seconds = min(self.random.expovariate(4.0), LONGEST_PAUSE_S)
            self._pause(node, seconds)
            self.story.pauses += 1
            await asyncio.sleep(seconds)

    async def _stop_all(self) -> None:
        """The machine itself stands still; its processes go on within half a second of each other."""
        while True:
            await asyncio.sleep(self.random.uniform(5.0, 15.0))
            seconds = self.random.uniform(1.0, LONGEST_STOP_S - 0.5)
            self.cluster.log(f"the machine stops for {seconds:.1f} s")
            for node in self.cluster.nodes:
                self._pause(node, seconds + self.random.uniform(0.0, 0.5))
            self.story.stops += 1

    def _pause(self, node: Node, seconds: float) -> None:
        assert node.host is not None
        node.host.paused_until = max(node.host.paused_until, self.cluster.loop.now + seconds)

    def _links(self, master: Node) -> list[Endpoint]:
        """The slaves' ends of the replication links."""
        return [
            end
            for end in self.cluster.connections()
            if end.remote_port == HA_PORT and end.remote_host is master.host
        ]

    async def _stall_links(self, master: Node) -> None:
        """The replication link is silent, nothing else."""
        while True:
            await asyncio.sleep(self.random.uniform(8.0, 20.0))
            if links := self._links(master):
                self.cluster.stall(self.random.choice(links), self.random.uniform(1.0, 5.0), both=True)
                self.story.stalls += 1

    async def _stall_most(self, master: Node) -> None:
        """TCP repeats lost packets late: all connections of the master that were open are silent."""
        while True:
            await asyncio.sleep(self.random.uniform(10.0, 20.0))
            heartbeats = [
                end
                for end in self.cluster.connections()
                if end.host is master.host and end.remote_port == CONTROLLER_PORT
            ]
            seconds = self.random.uniform(1.2, LONGEST_STALL_S)
            for end in (*self._links(master), *heartbeats):
                self.cluster.stall(end, seconds, both=True)

    # -- hangs

    async def _hung_slave(self, master: Node) -> None:
        slave = next(node for node in self.cluster.brokers if node is not master)
        members = master.broker.replication.tracker
        at, broker_id = self.cluster.loop.now, slave.broker_id
        self.cluster.pause(slave, HUNG_S)
        await self._until(
            lambda: broker_id not in members.agreed.members, DROPPED_S, "the set without a slave"
        )
        self.story.dropped_s = self.cluster.loop.now - at
        await self._until(self.cluster.whole, HEAL_S, "the whole SyncStateSet again")

    async def _hung_master(self, master: Node, epoch: int) -> None:
        others = [node for node in self.cluster.brokers if node is not master]
        at = self.cluster.loop.now
        self.cluster.pause(master, HUNG_S)

        def replaced() -> bool:
            return any(n.broker.role.is_master and n.broker.replication.epoch > epoch for n in others)

        await self._until(replaced, REPLACED_S, "another master")
        self.story.replaced_s = self.cluster.loop.now - at
        await self._until(self.cluster.whole, HEAL_S, "the whole SyncStateSet again")

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = self.cluster.loop.now + seconds
        while not condition():
            if self.cluster.loop.now > end:
                raise Violation(f"{what} did not come within {seconds:g} s")
            await asyncio.sleep(0.01)

    async def _send(self) -> None:
        async with self.cluster.producer() as producer:
            while True:
                with contextlib.suppress(ClientError, MQError, NetError):
                    await producer.send(Message(TOPIC, b"x" * 16))
                await asyncio.sleep(0.2)
