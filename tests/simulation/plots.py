"""Plots: several faults in a row, at a group that is well."""

from __future__ import annotations

import asyncio

from tests.simulation.cluster import HA_PORT, Node
from tests.simulation.operators import GIVEN_UP_S, Operators


class Plots(Operators):
    """Each takes the master of a group whose replicas are all in the SyncStateSet."""

    async def _join(self, master: Node) -> None:
        """A slave leaves the SyncStateSet and comes back; when it is about to join, the master is lost.

        Either the controllers' answer to the master gets lost and then the link to the slave, or the slave
        is slow to catch up. Whoever counts it in too early, or too late, loses messages.
        """
        cluster, pick = self.cluster, self.random
        slave = pick.choice(self._slaves(master))
        tracker = master.broker.replication.tracker
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

    async def _stalled(self, master: Node) -> None:
        """The slaves get nothing of the log for a while, but copy the master's tables; then it is lost.

        Whatever a table says that the log does not say yet is wrong at the next master.
        """
        cluster, pick = self.cluster, self.random
        for end in cluster.connections():
            if end.remote_host is master.host and end.remote_port == HA_PORT:
                cluster.stall(end, 20.0, both=True)
        await asyncio.sleep(pick.uniform(1.0, 1.4))  # the slaves are in the SyncStateSet for 2 s
        await self.announce(master)
        await asyncio.sleep(pick.uniform(0.1, 0.3))
        self._end(master, cut=0.0)
        await self._elected(master)

    async def _full(self, master: Node) -> None:
        """The master's disk takes nothing for a moment."""
        self.cluster.full_disk(master)
        await asyncio.sleep(self.random.uniform(1, 4))

    async def _forget(self, master: Node) -> None:
        """The controllers receive nothing from brokers until they give all of them up; nothing else happens.

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

    async def _elected(self, other_than: Node | None = None, seconds: float = 6.0) -> Node | None:
        """The next master, as soon as there is one."""

        def found() -> list[Node]:
            return [node for node in self.cluster.masters() if node is not other_than]

        await self._until(lambda: bool(found()), seconds, 0.01)
        return next(iter(found()), None)

    async def _relapse(self, master: Node) -> None:
        """A master is lost, or cut off, with an end of the log that nobody else has. Its successor is alone,
        takes more, and starts again; then the first one is back.

        A successor that has forgotten where its own term began takes both ends for one history.
        """
        cluster, pick = self.cluster, self.random
        if pick.random() < 0.5:
            cluster.isolate(master)
        else:
            for node in self._slaves(master):
                cluster.partition(master, node)
            await asyncio.sleep(pick.uniform(0.1, 0.8))
            self._end(master)
        successor = await self._elected(master, GIVEN_UP_S)
        if successor is None:
            return
        for node in self._slaves(successor):
            if node is not master:
                self._end(node)
        await asyncio.sleep(pick.uniform(3, 6))  # until it is the only member
        self._end(successor)
        cluster.reconnect()
        await asyncio.sleep(pick.uniform(0.02, 0.5))
        self._start(successor)
        await self._elected()
        await asyncio.sleep(pick.uniform(0.3, 1.5))
        for node in self._slaves(successor):
            self._start(node)
        await self._until(cluster.whole, 6)

    async def _torn(self, master: Node) -> None:
        """The master is lost while its slaves are in the middle of a record."""
        cluster, pick = self.cluster, self.random
        for node in self._slaves(master):
            cluster.slow_link(node, pick.choice((3e3, 10e3, 20e3)))
        await asyncio.sleep(pick.uniform(0.3, 2))
        if pick.random() < 0.8:  # what is under way is lost
            for node in self._slaves(master):
                cluster.partition(master, node, both=False)
        self._end(master, cut=0.5)
        await self._elected(master)
        if pick.random() < 0.5:
            cluster.reconnect()
        await asyncio.sleep(pick.uniform(0, 1))
        self._start(master)
        await asyncio.sleep(pick.uniform(0, 2))

    async def _young(self, master: Node) -> None:
        """The power fails everywhere just after a term has begun, at a master with a slow disk: its slaves
        have the beginning of the term, and it has nothing. It comes back first, and is alone for a while."""
        cluster, pick = self.cluster, self.random
        young = pick.choice(self._slaves(master))
        cluster.slow_disk(young, pick.choice((0.2, 0.4, 1.0)))
        if not await self._order_master(young):
            return
        tracker = young.broker.replication.tracker
        if tracker is None:
            return  # its term has ended already
        await self._until(lambda: tracker.agreed.members >= {n.broker_id for n in cluster.brokers}, 2, 0.01)
        await asyncio.sleep(pick.uniform(0, 0.5))
        self._end(young, cut=1.0)
        for node in self._slaves(young):
            self._end(node, cut=0.0)
        await asyncio.sleep(pick.uniform(0.02, 1))
        self._start(young)
        await self._elected()
        await asyncio.sleep(pick.uniform(0.3, 3))
        for node in self._slaves(young):
            self._start(node)
        await self._until(cluster.whole, 6)

    async def _again(self, master: Node) -> None:
        """A master whose slaves have fallen behind is given up for a moment: it is elected again, for a new
        term, with all its links intact (apache/rocketmq #9689)."""
        cluster, pick = self.cluster, self.random
        tracker = master.broker.replication.tracker
        for end in cluster.connections():
            if end.remote_host is master.host and end.remote_port == HA_PORT:
                cluster.stall(end, pick.uniform(4.5, 6), both=True)
        await self._until(lambda: tracker.agreed.members == {master.broker_id}, 6, 0.01)
        self._reset_to_controllers(master)
        await asyncio.sleep(pick.uniform(2, 5))

    def _reset_to_controllers(self, node: Node) -> None:
        for end in self.cluster.connections():
            if end.host is node.host and end.remote_host.name.startswith("controller"):
                self.cluster.reset(end)

    async def _depose(self, master: Node) -> None:
        """The master is cut off from the controllers only. It rules on for its slaves and clients, until
        they follow another one; then it learns of it."""
        cluster, pick = self.cluster, self.random
        for node in cluster.controllers:
            cluster.partition(node, master)
        await self._until(lambda: len(cluster.masters()) > 1, 15)
        await asyncio.sleep(pick.uniform(0, 2))
        cluster.reconnect()
        await self._until(lambda: len(cluster.masters()) == 1, pick.uniform(1, 6))
        if pick.random() < 0.5:  # and is in charge again
            await self._order_master(master)
            await asyncio.sleep(pick.uniform(0, 2))

    async def _rejoin(self, master: Node, slave: Node) -> bool:
        """`slave` leaves the SyncStateSet and comes back, until the master asks the controllers to take it
        in again; it does not receive their answer."""
        cluster, tracker = self.cluster, master.broker.replication.tracker
        whole = tracker.agreed.members
        self._end(slave, cut=0.0)
        if not await self._until(lambda: tracker.agreed.members < whole, 6, 0.002):
            return False
        for node in cluster.controllers:
            cluster.partition(node, master, both=False)
        self._start(slave)
        return await self._until(lambda: bool((tracker.proposal or set()) - tracker.agreed.members), 4, 0.002)

    async def _refused(self, master: Node) -> None:
        """The controllers have taken a slave into the SyncStateSet. The master does not learn of it, and asks
        again. It is refused, and the slave is cut off from it."""
        cluster, pick = self.cluster, self.random
        slave = pick.choice(self._slaves(master))
        if not await self._rejoin(master, slave):
            return
        cluster.partition(master, slave)
        await asyncio.sleep(pick.uniform(0.05, 1))
        self._reset_to_controllers(master)
        cluster.reconnect()
        cluster.partition(master, slave)
        await asyncio.sleep(pick.uniform(0.5, 4))

    async def _late_word(self, master: Node) -> None:
        """What a master asked the controllers is on its way for so long that it comes when the master has
        started again and rules in another term: by then a slave it asked for has fallen behind."""
        cluster, pick = self.cluster, self.random
        slave = pick.choice(self._slaves(master))
        tracker = master.broker.replication.tracker
        whole = tracker.agreed.members
        self._end(slave, cut=0.0)
        if not await self._until(lambda: tracker.agreed.members < whole, 6, 0.002):
            return
        late_s = pick.uniform(1.5, 4)
        for end in cluster.connections():
            if end.host is master.host and end.remote_host.name.startswith("controller"):
                cluster.stall(end, late_s, both=False)
        self._start(slave)
        await self._until(lambda: bool((tracker.proposal or set()) - tracker.agreed.members), 2, 0.002)
        await asyncio.sleep(0.01)
        cluster.partition(master, slave)
        self._end(master, cut=0.0)
        await asyncio.sleep(pick.uniform(0.01, 0.3))
        self._start(master)
        await asyncio.sleep(late_s + pick.uniform(0, 2))

    async def _stranger(self, master: Node) -> None:
        """Somebody forges acks of a slave, which may be cut off meanwhile."""
        self._forge(master)
        await asyncio.sleep(self.random.uniform(0.5, 3))
