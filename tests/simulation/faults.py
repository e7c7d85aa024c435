"""What goes wrong in a story: faults at random, and strikes that aim at the master.

Many ways to lose data need a second fault at a certain moment, so a strike is several faults in a row: at a
group that is well, after an election, after a start, or in the middle of a program's work on its disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from batonmq.admin import controllers
from batonmq.admin.session import Admin as AdminCommands
from batonmq.admin.session import AdminError
from batonmq.client.errors import ClientError
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import CleanBrokerData
from tests.simulation.cluster import BROKER_NAME, CONTROLLER_PORT, Node, SimCluster
from tests.simulation.forger import forge
from tests.simulation.story import Shape, Story, Violation
from tests.simulation.witness import Witness

DISK_WORK = ("append", "extend", "truncate_suffix", "clear")
"""Changes of the epoch file: a crash around one leaves log and epochs in every state they can be in."""
GIVEN_UP_S = 15.0
"""In that time controllers that can be reached give up a replica that is silent."""
KNOWN_S = 0.9
"""A topic that was made in less time is on all slaves that follow; the master waits no longer than 1 s."""

T = TypeVar("T")


class Nemesis:
    """All chance comes from the cluster's generator."""

    def __init__(self, cluster: SimCluster, witness: Witness, story: Story, shape: Shape) -> None:
        self.cluster, self.witness, self.story, self.shape = cluster, witness, story, shape
        self.random = cluster.random
        self.over = False
        self._epoch = 0
        self._topics = 0
        self._faults: tuple[tuple[int, Callable[[], object]], ...] = (
            (20, self._kill),
            (10, self._power_cut),
            (5, self._pause),
            (10, self._cut),
            (5, self._isolate),
            (5, self._reset),
            (3, self._stall),
            (2, self._slow_disk),
            (2, self._slow_link),
            (2, self._slow_packets),
            (2, self._full_disk),
            (2, self._strike_at_work),
            (2, self._stop),
            (6, self.strike),
            (4, self.cluster.reconnect),
        )
        self._strikes: tuple[tuple[int, Callable[[Node], object]], ...] = (
            (20, self._end),
            (10, lambda master: self._end_all()),
            (20, self._lose_slaves),
            (15, self._deafen),
            (15, self._isolate_leader),
            (4, lambda master: cluster.pause(master, self.random.uniform(0.5, 5))),
            (4, cluster.isolate),
            (4, lambda master: self._strike_at_work()),
            (4, self._forge),
        )
        self._plots: tuple[tuple[int, Callable[[Node], Awaitable[None]]], ...] = (
            (10, self._join),
            (6, self._ahead),
            (6, self._blink),
            (3, self._forget),
            (3, self._roll),
            (3, self._blackout),
            (3, self._replace_disk),
            (3, self._new_topic),
        )
        if shape.replace_controllers:
            self._plots = (*self._plots, (60, self._replace_controller))

    # -- choosing -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Faults for as long as the story's shape says."""
        cluster, pick = self.cluster, self.random
        end = cluster.loop.now + self.shape.faults_s
        while cluster.loop.now < end:
            if pick.random() < 0.3:
                # A group that is well again has most to lose.
                cluster.heal()
                await self._until(cluster.whole, pick.uniform(1, 6))
                await asyncio.sleep(pick.expovariate(1 / 0.3))
                if pick.random() < 0.4 and cluster.whole():
                    await self._one_of(self._plots)(cluster.masters()[0])
                else:
                    self.strike()
            else:
                await asyncio.sleep(pick.expovariate(1 / 1.5))
                self._one_fault()
        for _ in range(pick.randint(0, 5)):  # what has to be healed may be a lot
            self._one_fault()
            await asyncio.sleep(pick.expovariate(1 / 0.1))
        self.over = True

    def look(self) -> None:
        """After an election there may be another strike soon."""
        epoch = self.witness.newest_epoch
        if epoch > self._epoch:
            self._epoch = epoch
            if not self.over and self.random.random() < 0.3:
                self._strike_soon(1.0)

    def strike(self) -> None:
        """One or two more faults, aimed at the master."""
        cluster = self.cluster
        brokers = [n for n in cluster.brokers if n.up]
        if not self.over and brokers:
            master = max(cluster.masters(), key=lambda n: int(n.broker.epoch), default=brokers[0])
            self._one_of(self._strikes)(master)

    def _one_of(self, choices: Sequence[tuple[int, T]]) -> T:
        return self.random.choices([choice for _, choice in choices], [weight for weight, _ in choices])[0]

    def _one_fault(self) -> None:
        cluster, pick = self.cluster, self.random
        down = [n for n in cluster.nodes if not n.up]
        # Where much is down little can go wrong any more: it comes back soon.
        if not down or pick.random() > (0.35 if len(down) < 3 else 0.6):
            self._one_of(self._faults)()
            return
        node = pick.choice(down)
        cluster.start(node)
        if node.kind == "broker" and pick.random() < 0.4:
            if pick.random() < 0.5:
                cluster.slow_link(node, pick.choice((10e3, 50e3)))
            self._strike_soon(1.5)  # while it catches up

    def _up(self) -> Node:
        """Any program that runs; brokers twice, for what happens to them matters most."""
        cluster = self.cluster
        nodes = [n for n in [*cluster.controllers, *cluster.brokers, *cluster.brokers] if n.up]
        return self.random.choice(nodes or cluster.brokers)

    async def _until(self, condition: Callable[[], bool], seconds: float, look_s: float = 0.05) -> bool:
        end = self.cluster.loop.now + seconds
        while not condition():
            if self.cluster.loop.now >= end:
                return False
            await asyncio.sleep(look_s)
        return True

    def _later(self, seconds: float, fault: Callable[[], object]) -> None:
        def unless_over() -> None:
            if not self.over:
                fault()

        self.cluster.loop.call_later(seconds, unless_over)

    def _strike_soon(self, within_s: float) -> None:
        self._later(self.random.uniform(0, within_s), self.strike)

    # -- faults -------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        node = self._up()
        if node.up:
            self.cluster.crash(node)

    def _power_cut(self) -> None:
        node = self._up()
        if node.up:
            self._end(node, cut=1.0)

    def _end(self, node: Node, cut: float = 0.6) -> None:
        """Kill a program, or, with the probability `cut`, cut the power of its machine."""
        if not node.up:
            return
        # Without SYNC_FLUSH a broker's word is as good as its page cache; a controller's is always synced.
        allowed = self.shape.sync_flush or node.kind != "broker"
        if allowed and self.random.random() < cut:
            self.cluster.power_cut(node, self.random.choice((0.5, 0.5, 1.0)))
        else:
            self.cluster.crash(node)

    def _end_all(self) -> None:
        for node in self.cluster.brokers:
            self._end(node)

    def _start(self, node: Node) -> None:
        if not node.up:
            self.cluster.start(node)

    def _stop(self) -> None:
        node = self._up()
        if node.up and self._stoppable(node):
            self.cluster.stop(node)

    @staticmethod
    def _stoppable(node: Node) -> bool:
        """Whether it is past its start and not stopping yet."""
        return node.up and not node.stopping and (node.kind != "broker" or node.broker_id is not None)

    def _pause(self) -> None:
        self.cluster.pause(self._up(), self.random.uniform(0.1, 8))

    def _cut(self) -> None:
        a, b = self.random.sample(self.cluster.nodes, 2)
        self.cluster.partition(a, b, both=self.random.random() < 0.7)

    def _isolate(self) -> None:
        self.cluster.isolate(self._up())

    def _reset(self) -> None:
        if connections := self.cluster.connections():
            self.cluster.reset(self.random.choice(connections))

    def _stall(self) -> None:
        if connections := self.cluster.connections():
            end, pick = self.random.choice(connections), self.random
            self.cluster.stall(end, pick.uniform(1, 15), both=pick.random() < 0.5)

    def _slow_disk(self) -> None:
        self.cluster.slow_disk(self._up(), self.random.choice((0.02, 0.1, 0.4)))

    def _slow_link(self) -> None:
        self.cluster.slow_link(self._up(), self.random.choice((5e3, 20e3, 100e3)))

    def _slow_packets(self) -> None:
        self.cluster.slow_packets(self._up(), self.random.choice((0.01, 0.05, 0.3)))

    def _full_disk(self) -> None:
        self.cluster.full_disk(self.random.choice(self.cluster.brokers))

    def _strike_at_work(self) -> None:
        brokers = [n for n in self.cluster.brokers if n.up]
        if brokers:
            moments = [*DISK_WORK, *(f"after {name}" for name in DISK_WORK)]
            self.cluster.crash_at_work(self.random.choice(brokers), self.random.sample(moments, 3))

    # -- strikes: at the master, whatever the state of the group ---------------------------------------------

    def _slaves(self, master: Node) -> list[Node]:
        return [n for n in self.cluster.brokers if n is not master]

    def _lose_slaves(self, master: Node) -> None:
        """The slaves fall behind, and then the master is gone before the SyncStateSet can shrink."""
        for node in self._slaves(master):
            if node.up:
                self.cluster.partition(master, node, both=self.random.random() < 0.5)
        self._later(self.random.uniform(0.1, 2.5), lambda: self._end(master))

    def _deafen(self, master: Node) -> None:
        """The controllers hear the master, but it does not hear them: answers get lost."""
        for node in self.cluster.controllers:
            self.cluster.partition(node, master, both=False)
        self._later(self.random.uniform(0.5, 6), lambda: self._end(master))

    def _isolate_leader(self, master: Node) -> None:
        """The leading controller is alone with the brokers, and must decide something."""
        cluster = self.cluster
        for leader in [n for n in cluster.controllers if n.up and cluster.leads(n)]:
            for node in cluster.controllers:
                if node is not leader:
                    cluster.partition(leader, node)
        self._later(self.random.uniform(0, 0.5), lambda: self._end(master))

    def _forge(self, master: Node) -> None:
        """A stranger says that a slave has what nobody sent to it (apache/rocketmq #3015)."""
        ids = [node.broker_id for node in self._slaves(master) if node.broker_id is not None]
        for node in self._slaves(master):
            if self.random.random() < 0.5:
                self.cluster.partition(master, node)  # the slave itself has nothing then
        forge(self.cluster, master, self.random.choice([*ids, 99]))

    # -- plots: several steps, beginning with a group that is well ------------------------------------------

    async def _join(self, master: Node) -> None:
        """A slave leaves the SyncStateSet and comes back; when it is about to join, the master is lost.

        Either the controllers' answer to the master gets lost and then the link to the slave, or the slave
        is slow to catch up. Whoever counts it in too early, or too late, loses messages.
        """
        cluster, pick = self.cluster, self.random
        slave = pick.choice(self._slaves(master))
        tracker = master.broker.ha.tracker
        whole = tracker.agreed.members
        self._end(slave)
        await self._until(lambda: tracker.agreed.members < whole, 6, 0.002)
        await asyncio.sleep(pick.uniform(0, 1))
        deaf = pick.random() < 0.5
        if deaf:
            for node in cluster.controllers:
                cluster.partition(node, master, both=False)
        else:
            cluster.slow_link(slave, pick.choice((3e3, 10e3, 30e3)))
        self._start(slave)
        before = tracker.agreed.members
        await self._until(
            lambda: (tracker.proposal or before) > before or tracker.agreed.members > before, 4, 0.002
        )
        if deaf:
            cluster.partition(master, slave)
        await asyncio.sleep(pick.uniform(0.1, 1))
        self._end(master)

    async def _ahead(self, master: Node) -> None:
        """The slaves have more on their disks than the master has; then the power fails everywhere.

        The master comes back first, and is alone for a while.
        """
        cluster, pick = self.cluster, self.random
        cluster.slow_disk(master, pick.choice((0.2, 0.5, 1.0)))
        await asyncio.sleep(pick.uniform(0.2, 1.5))
        slaves = self._slaves(master)
        self._end(master, cut=0.9)
        for node in slaves:
            self._end(node)
        await asyncio.sleep(pick.uniform(0.02, 1))
        self._start(master)
        if pick.random() < 0.3:
            cluster.slow_disk(master, 0.2)
        await asyncio.sleep(pick.uniform(0.05, 4))
        for node in slaves:
            self._start(node)

    async def _blink(self, master: Node) -> None:
        """The power of a master with a slow disk fails for a moment only: slaves have what it has lost."""
        cluster, pick = self.cluster, self.random
        cluster.slow_disk(master, pick.choice((0.2, 0.4, 1.0)))
        await asyncio.sleep(pick.uniform(0.3, 1.5))
        self._end(master, cut=0.9)
        await asyncio.sleep(pick.uniform(0.02, 0.5))
        self._start(master)
        if pick.random() < 0.7:
            await asyncio.sleep(pick.uniform(0, 8))  # for what comes of it

    async def _forget(self, master: Node) -> None:
        """The controllers hear of no broker for so long that they give all of them up; nothing else happens.

        The same master may be elected for a new term, with all its links intact.
        """
        cluster, pick = self.cluster, self.random
        for node in cluster.controllers:
            for broker in cluster.brokers:
                cluster.partition(node, broker)
        await asyncio.sleep(pick.uniform(5, 20))
        cluster.reconnect()
        await self._until(cluster.whole, pick.uniform(0, 6))

    async def _blackout(self, master: Node) -> None:
        """Everything goes dark at once and comes back one by one, in any order."""
        cluster, pick = self.cluster, self.random
        for node in cluster.brokers:
            if pick.random() < 0.5:
                cluster.slow_disk(node, pick.choice((0.1, 0.4)))
        await asyncio.sleep(pick.uniform(0, 1))
        nodes = list(cluster.nodes if pick.random() < 0.5 else cluster.brokers)
        for node in nodes:
            self._end(node, cut=0.9)
        pick.shuffle(nodes)
        for node in nodes:
            await asyncio.sleep(pick.choice((0.0, 0.1, pick.uniform(0, 3))))
            self._start(node)

    async def _roll(self, master: Node) -> None:
        """All programs of a kind are restarted, one after the other, as for a new version."""
        cluster, pick = self.cluster, self.random
        nodes = list(cluster.brokers if pick.random() < 0.7 else cluster.controllers)
        pick.shuffle(nodes)
        gently, patience = pick.random() < 0.7, pick.choice((0.5, 3.0, 8.0))
        for node in nodes:
            if gently and self._stoppable(node):
                cluster.stop(node)
                await self._until(lambda node=node: not node.up, 10)  # type: ignore[misc]
            self._end(node, cut=0.0)
            await asyncio.sleep(pick.uniform(0.01, 1))
            self._start(node)
            await self._until(cluster.whole, patience)

    async def _replace_disk(self, master: Node) -> None:
        """A replica comes back with an empty disk; its old id may be cleaned away by an operator.

        The old disk goes when the controllers know that the replica is dead. Before, they could still elect
        it, alone in the SyncStateSet: with the other's power cut in that moment, what was acknowledged would
        be on no disk that may be elected from, whatever the programs do.
        """
        cluster, pick = self.cluster, self.random
        node = pick.choice(cluster.brokers)
        former = node.broker_id
        self._end(node)
        if not await self._until(lambda: self.witness.can_lose(node), GIVEN_UP_S):
            self._start(node)
            return
        cluster.new_disk(node)
        await asyncio.sleep(pick.uniform(0.01, 2))
        self._start(node)
        if pick.random() < 0.5:
            await asyncio.sleep(pick.uniform(0, 3))
            cluster.on(cluster.client_host, self._clean(former))
        # To lose the others' disks before this one is full again would be to lose the data.
        await self._until(cluster.whole, pick.uniform(1, 6))

    async def _clean(self, broker_id: int | None) -> None:
        async with self.cluster.admin() as admin:
            for node in self.cluster.controllers:
                header = CleanBrokerData(BROKER_NAME, None, str(broker_id))
                try:
                    await admin._session.net.call(f"{node.address}:{CONTROLLER_PORT}", header)
                except (NetError, MQError) as error:
                    self.cluster.log(f"{node.name} does not clean {broker_id}: {error}")
                else:
                    self.cluster.log(f"{node.name} has cleaned {broker_id}")
                    return

    async def _replace_controller(self, master: Node) -> None:
        """An operator puts a new controller in the place of another, which may be dead, or lead; meanwhile
        there is another strike. Whoever was removed may come back, and knows nothing of it."""
        cluster, pick = self.cluster, self.random
        old = pick.choice(cluster.controllers)
        if pick.random() < 0.7:
            self._end(old)
        new = cluster.new_controller()
        self._strike_soon(4.0)
        if not await cluster.on(cluster.client_host, self._order_replacement(old, new)):
            return
        self.story.replaced += 1
        if pick.random() < 0.6:
            if old.up:
                self._end(old)
            cluster.controllers.remove(old)
        elif not old.up:
            cluster.start(old)

    async def _order_replacement(self, old: Node, new: Node) -> bool:
        addresses = ";".join(f"{node.address}:{CONTROLLER_PORT}" for node in self.cluster.controllers)
        try:
            async with AdminCommands(None, 1_000) as admin:
                address = f"{new.address}:{CONTROLLER_PORT}"
                await controllers.add(admin, addresses, f"n{new.index}", address, "", 15)
                self.cluster.log(f"{new.name} is a voter")
                await controllers.remove(admin, addresses, f"n{old.index}", 15)
        except (AdminError, NetError, MQError) as error:
            self.cluster.log(f"{new.name} is not in the place of {old.name}: {error}")
            return False
        self.cluster.log(f"{new.name} is in the place of {old.name}")
        return True

    async def _new_topic(self, master: Node) -> None:
        """An administrator makes a topic; as soon as he has his answer the master is lost."""
        cluster = self.cluster
        self._topics += 1
        name, queues = f"made{self._topics}", 3
        slaves = self._slaves(master)
        if master.broker.tables.followers < len(slaves):
            return
        lives = {node.name: node.life for node in slaves}
        try:
            async with asyncio.timeout(KNOWN_S):
                await cluster.on(cluster.client_host, self._create(name, queues))
        except (TimeoutError, ClientError, NetError, MQError, LookupError) as error:
            cluster.log(f"topic {name} was not made: {error!r}")
            return
        if master.broker.tables.followers < len(slaves):
            return  # a slave was given up meanwhile
        cluster.log(f"topic {name} was made")
        for node in slaves:
            topic = node.broker.topics.get(name) if node.up and node.life == lives[node.name] else None
            if (
                node.up
                and node.life == lives[node.name]
                and (topic is None or topic.write_queue_nums != queues)
            ):
                raise Violation(f"topic {name} was made, and {node.name} has {topic}")
        self._end(master)

    async def _create(self, topic: str, queues: int) -> None:
        async with self.cluster.admin() as admin:
            await admin.create_topic(topic, queues)
