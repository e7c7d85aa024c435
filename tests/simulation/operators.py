"""What operators do to a group while things go wrong: new disks, other controllers, topics."""

from __future__ import annotations

import asyncio

from batonmq.admin.operations import controllers
from batonmq.admin.session import Admin as AdminCommands
from batonmq.admin.session import AdminError
from batonmq.client.errors import ClientError
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import CleanBrokerData, ElectMaster
from batonmq.protocol.registry import Header
from tests.simulation.cluster import BROKER_NAME, CONTROLLER_PORT, Node
from tests.simulation.faults import Faults
from tests.simulation.story import Violation

GIVEN_UP_S = 15.0
"""In that time controllers that can be reached give up a replica that is silent."""
KNOWN_S = 0.9
"""A topic that was made in less time is on all slaves that follow; the master waits no longer than 1 s."""


class Operators(Faults):
    """Plots with an operator in them; each takes the master of a group that is well."""

    _topics = 0

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
        cleaned = pick.random()
        if cleaned < 0.3:  # before the new disk has an id
            await cluster.on(cluster.client_host, self._clean(former))
        await asyncio.sleep(pick.uniform(0.01, 2))
        self._start(node)
        if 0.3 <= cleaned < 0.6:
            await asyncio.sleep(pick.uniform(0, 3))
            cluster.on(cluster.client_host, self._clean(former))
        # To lose the others' disks before this one is full again would be to lose the data.
        await self._until(cluster.whole, pick.uniform(1, 6))

    async def _clean(self, broker_id: int | None) -> bool:
        return await self._order(CleanBrokerData(BROKER_NAME, None, str(broker_id)))

    async def _order(self, header: Header) -> bool:
        """Whether some controller has done what an operator wants."""
        async with self.cluster.admin() as admin:
            for node in self.cluster.controllers:
                try:
                    await admin._session.net.call(f"{node.address}:{CONTROLLER_PORT}", header)
                except (NetError, MQError) as error:
                    self.cluster.log(f"{node.name} does not do {header}: {error}")
                else:
                    self.cluster.log(f"{node.name} has done {header}")
                    return True
        return False

    async def _order_master(self, node: Node) -> bool:
        """An operator wants `node` to be master; whether it is, by now."""
        cluster = self.cluster
        header = ElectMaster(broker_name=BROKER_NAME, broker_id=node.broker_id or 0, designate_elect=True)
        if not await cluster.on(cluster.client_host, self._order(header)):
            return False
        return await self._until(lambda: node in cluster.masters(), 2, 0.005)

    async def _switch(self, master: Node) -> None:
        """An operator hands the master's role over, and perhaps back again at once."""
        pick = self.random
        if not await self._order_master(pick.choice(self._slaves(master))):
            return
        await asyncio.sleep(pick.choice((0.0, 0.05, pick.uniform(0, 2))))
        if pick.random() < 0.5:
            await self._order_master(master)
        if pick.random() < 0.5:
            self.strike()

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
        if master.broker.tables.watch.followers < len(slaves):
            return
        lives = {node.name: node.life for node in slaves}
        try:
            async with asyncio.timeout(KNOWN_S):
                await cluster.on(cluster.client_host, self._create(name, queues))
        except (TimeoutError, ClientError, NetError, MQError, LookupError) as error:
            cluster.log(f"topic {name} was not made: {error!r}")
            return
        if master.broker.tables.watch.followers < len(slaves):
            return  # a slave was given up meanwhile
        cluster.log(f"topic {name} was made")
        for node in slaves:
            topic = node.broker.tables.topics.get(name) if node.up and node.life == lives[node.name] else None
            if (
                node.up
                and node.life == lives[node.name]
                and (topic is None or topic.write_queue_nums != queues)
            ):
                raise Violation(f"topic {name} was made, and {node.name} has {topic}")
        self._end(master)

    async def announce(self, master: Node) -> None:
        """A topic is made, so that the slaves copy the tables at once; perhaps its answer comes late."""
        self._topics += 1
        try:
            async with asyncio.timeout(KNOWN_S):
                await self.cluster.on(self.cluster.client_host, self._create(f"made{self._topics}", 1))
        except (TimeoutError, ClientError, NetError, MQError, LookupError) as error:
            self.cluster.log(f"topic was not made: {error!r}")

    async def _create(self, topic: str, queues: int) -> None:
        async with self.cluster.admin() as admin:
            await admin.create_topic(topic, queues)
