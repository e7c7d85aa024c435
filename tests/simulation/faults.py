"""What goes wrong in a story: faults at random, and strikes that aim at the master.

Many ways to lose data need a second fault at a certain moment, so a strike is several faults in a row: after
an election, after a start, or in the middle of a program's work on its disk. Longer ones, which begin with a
group that is well, are in `plots.py` and `operators.py`; `nemesis.py` chooses.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.simulation.cluster import Node, SimCluster
from tests.simulation.forger import forge
from tests.simulation.story import Shape, Story
from tests.simulation.witness import Witness

DISK_WORK = ("append", "extend", "truncate_suffix", "clear")
"""Changes of the epoch file: a crash around one leaves log and epochs in every state they can be in."""

T = TypeVar("T")


class Faults:
    """What can be done to a cluster at any moment. Each fault has its own generator, so that one that is left
    out changes no other."""

    def __init__(self, cluster: SimCluster, witness: Witness, story: Story, shape: Shape) -> None:
        self.cluster, self.witness, self.story, self.shape = cluster, witness, story, shape
        self.random = random.Random(f"{story.seed}/0")
        self.over = False
        self._number = 0
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

    # -- choosing -----------------------------------------------------------------------------------------

    def _begin(self, after_epoch: int | None = None) -> bool:
        """Begin the next fault, or the one that follows an election. False: this story leaves it out."""
        if after_epoch is None:
            self._number += 1
        key = str(self._number) if after_epoch is None else f"epoch {after_epoch}"
        self.random = random.Random(f"{self.shape.chooser(self.story.seed, self._number)}/{key}")
        wanted = self.shape.kept is None or key in self.shape.kept
        if wanted:
            self.story.faults.append(key)
        return wanted

    def strike(self) -> None:
        """One or two more faults, aimed at the master."""
        cluster = self.cluster
        brokers = [n for n in cluster.brokers if n.up]
        if not self.over and brokers:
            master = max(cluster.masters(), key=lambda n: int(n.broker.role.epoch), default=brokers[0])
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
        """The controllers receive from the master, but it does not receive from them: answers get lost."""
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
        """An attacker claims that a slave has what nobody sent to it (apache/rocketmq #3015)."""
        ids = [node.broker_id for node in self._slaves(master) if node.broker_id is not None]
        for node in self._slaves(master):
            if self.random.random() < 0.5:
                self.cluster.partition(master, node)  # the slave itself has nothing then
        forge(self.cluster, master, self.random.choice([*ids, 99]))
