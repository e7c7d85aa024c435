"""Faults of simulated controllers: at random, and aimed at the end of a leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from batonmq.net.errors import NetError
from batonmq.raft.errors import RaftError
from batonmq.raft.state import Role
from tests.simulation.cluster import Node
from tests.simulation.controller_clients import PROBED, Client
from tests.simulation.controller_group import ControllerGroup, endpoint, raft_id, role

T = TypeVar("T")


class Faults:
    """`prober`, who runs on a separate host, asks two leaders where there are two."""

    def __init__(self, group: ControllerGroup, prober: Client) -> None:
        self.group, self.random, self.prober = group, group.random, prober
        self.over = False
        self._at_one: tuple[tuple[int, Callable[[Node], object]], ...] = (
            (12, group.crash),
            (12, group.power_cut),
            (8, group.power_cut_at_work),
            (3, self._stop),
            (8, self._pause),
            (10, self._isolate_for_a_while),
            (4, self._contest_for_a_while),
            (5, lambda node: self._cut_some()),
            (4, lambda node: self._split()),
            (5, lambda node: self._connection()),
            (5, self._slow),
            (8, lambda node: self._clocks()),
            (4, self._amnesia),
            (6, self._hand_over),
            (7, self._change_members),
            (7, lambda node: group.reconnect()),
        )
        self._ends: tuple[tuple[int, Callable[[Node], object]], ...] = (
            (20, self._transfer_and_isolate),
            (20, self._amnesia),
            (15, self._pause),
            (15, self._contest),
            (30, self._deafen_and_ask),
            (140 if group.lease_read else 15, self._outrun),
        )

    async def run(self) -> None:
        """Faults for as long as the story's shape says; what is broken in the end stays broken."""
        group, end = self.group, self.group.loop.now + self.group.shape.faults_s
        while group.loop.now < end:
            if group.at_reigns:
                await self._end_a_reign()
            else:
                await asyncio.sleep(self.random.expovariate(1 / 0.35))
                self._one()
        self.over = True

    def _one(self) -> None:
        group, pick = self.group, self.random
        up = [node for node in group.controllers if node.up]
        down = [node for node in group.controllers if not node.up]
        if not up or (down and pick.random() < (0.3 if len(down) < 2 else 0.6)):
            group.start(pick.choice(down))
            return
        leader = group.leader()
        target = leader if leader is not None and pick.random() < 0.5 else pick.choice(up)
        self._one_of(self._at_one)(target)

    def _one_of(self, choices: Sequence[tuple[int, T]]) -> T:
        return self.random.choices([choice for _, choice in choices], [weight for weight, _ in choices])[0]

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        def unless_over() -> None:
            if not self.over:
                what()

        self.group.loop.outside_at(self.group.loop.now + seconds, unless_over)

    def _start(self, node: Node) -> None:
        if not node.up:
            self.group.start(node)

    # -- aimed: two leaders, one of whom does not know that it is none any more ------------------------------

    async def _end_a_reign(self) -> None:
        """A leader loses its peers in one of the ways that make it most likely that another leads while it
        still believes to lead itself. What the new one grants, the old one must not deny."""
        group, pick = self.group, self.random
        leader = group.leader()
        if leader is not None and leader.service.leading:
            await self._ask(self.prober.read(PROBED, endpoint(leader)))
            ended = self._one_of(self._ends)(leader)
            if asyncio.iscoroutine(ended):
                await ended
            if await group.within(1.2, lambda: self._successor(leader), 0.001):
                successor = self._successor(leader)
                assert successor is not None
                await self._ask(self.prober.overtake(PROBED, endpoint(successor), endpoint(leader)))
        await asyncio.sleep(pick.uniform(0.02, 0.3))
        group.reconnect()
        for node in group.controllers:
            self._start(node)
        await asyncio.sleep(pick.uniform(0.05, 0.5))

    async def _ask(self, asking: Coroutine[Any, Any, object]) -> None:
        await self.group.on(self.group.client_host, asking)

    def _successor(self, old: Node) -> Node | None:
        return next((c for c in self.group.controllers if c is not old and c.up and c.service.leading), None)

    async def _outrun(self, leader: Node) -> None:
        """The worst for a lease: the leader's clock is the slowest, and it is cut off just when its lease was
        renewed; the others' are the fastest, they wait no longer than they must, and disks are fast."""
        group, pick = self.group, self.random
        slowest, fastest = group.shape.clock_rates
        group.log(f"{leader.name} has the slowest clock")
        for node in group.controllers:
            group.change_clock(node, slowest if node is leader else fastest)
            if node.host is not None:
                node.host.disk_s = 0.0002
        others = [node for node in group.controllers if node is not leader]
        for node in others:
            group.chances[node.name].hurried = True
        await asyncio.sleep(pick.uniform(0.1, 0.4))
        since = self._lease_until(leader)
        await group.within(0.1, lambda: self._lease_until(leader) > since, 0.0005)
        name, self_id = leader.name, leader.service.topology.self_id
        self.group.isolate(leader)
        group.log(f"{name} is taken for gone")
        for node in others:
            if node.up:
                node.service.node.peer_lost(self_id)

    def _lease_until(self, leader: Node) -> int:
        """Until when all peers have promised to give no vote, as of the last heartbeat that all answered."""
        if role(leader) is not Role.LEADER:
            return -1
        core = leader.service.node.core
        return min(peer.lease_until_ms for name, peer in core.peers.items() if name != core.id)

    async def _transfer_and_isolate(self, leader: Node) -> None:
        self._hand_over(leader)
        controllers = self.group.controllers
        await self.group.within(0.3, lambda: any(role(c) is Role.CANDIDATE for c in controllers), 0.001)
        self.group.isolate(leader)

    async def _deafen_and_ask(self, leader: Node) -> None:
        """What it is asked now happens, but under its successor: it cannot know."""
        self._deafen(leader)
        await self._ask(self.prober.change(PROBED, endpoint(leader)))

    def _deafen(self, node: Node) -> None:
        """Its peers receive from it, and it receives nothing from them."""
        for other in self.group.controllers:
            if other is not node:
                self.group.partition(other, node, both=False)

    def _pause(self, node: Node) -> None:
        self.group.pause(node, self.random.uniform(0.05, 1.5))

    def _contest(self, leader: Node) -> None:
        """A follower loses the leader first and stands for election; then the others lose it too."""
        rival = self.random.choice(self.group.controllers)
        if rival is not leader:
            self.group.partition(leader, rival)
            self._later(self.random.uniform(0.25, 0.65), lambda: self.group.isolate(leader))

    def _amnesia(self, leader: Node) -> None:
        """It is cut off; all others lose power and come back at once."""
        self.group.isolate(leader)
        for node in self.group.controllers:
            if node is not leader and node.up:
                self.group.power_cut(node)
                self._later(self.random.uniform(0.005, 0.05), lambda node=node: self._start(node))  # type: ignore[misc]

    # -- links, disks, clocks --------------------------------------------------------------------------------

    def _isolate_for_a_while(self, node: Node) -> None:
        self.random.choice((self.group.isolate, self._deafen, self._mute))(node)
        self._later(self.random.uniform(0.2, 2.0), self.group.reconnect)

    def _contest_for_a_while(self, node: Node) -> None:
        self._contest(node)
        self._later(self.random.uniform(0.7, 2.0), self.group.reconnect)

    def _mute(self, node: Node) -> None:
        """It receives from its peers, but none of them receives from it."""
        for other in self.group.controllers:
            if other is not node:
                self.group.partition(node, other, both=False)

    def _cut_some(self) -> None:
        a, b = self.random.sample(self.group.controllers, 2)
        self.group.partition(a, b, both=self.random.random() < 0.5)

    def _split(self) -> None:
        side = {node.name for node in self.group.controllers if self.random.random() < 0.5}
        for a in self.group.controllers:
            for b in self.group.controllers:
                if a.name in side and b.name not in side:
                    self.group.partition(a, b)
        self._later(self.random.uniform(0.2, 2.0), self.group.reconnect)

    def _connection(self) -> None:
        ends = self.group.connections()
        if not ends:
            return
        if self.random.random() < 0.6:
            self.group.reset(self.random.choice(ends))
        else:
            self.group.stall(
                self.random.choice(ends), self.random.uniform(0.2, 3), both=self.random.random() < 0.5
            )

    def _slow(self, node: Node) -> None:
        if self.random.random() < 0.5:
            self.group.slow_disk(node, self.random.choice((0.01, 0.05, 0.2)))
        else:
            self.group.slow_link(node, self.random.choice((5e3, 30e3)))

    def _clocks(self) -> None:
        """Other speeds, within the world's bounds; some wall clocks jump."""
        self.group.log("clocks change")
        for node in self.group.controllers:
            self.group.change_clock(node, self.group.clock_rate())
            if self.random.random() < 0.3:
                self.group.wall_clocks[node.name].skew_ms = self.random.randint(-120_000, 120_000)

    # -- operators -------------------------------------------------------------------------------------------

    def _stop(self, node: Node) -> None:
        """SIGTERM; it hands over first, if it leads."""
        if role(node) is not None and not node.stopping:
            self.group.stop(node)

    def _hand_over(self, node: Node) -> None:
        target = self.random.choice(self.group.controllers)
        self._operate(lambda leader: self._transfer(leader, target))

    def _change_members(self, node: Node) -> None:
        target = self.random.choice(self.group.controllers)
        self._operate(lambda leader: self._toggle(leader, target))

    def _operate(self, work: Callable[[Node], Awaitable[None]]) -> None:
        leader = self.group.leader()
        if leader is not None and leader.host is not None:
            self.group.on(leader.host, self._try(leader, work))

    async def _try(self, leader: Node, work: Callable[[Node], Awaitable[None]]) -> None:
        try:
            await work(leader)
        except (RaftError, TimeoutError, NetError) as error:
            self.group.log(f"{leader.name} did not: {error}")

    async def _transfer(self, leader: Node, target: Node) -> None:
        self.group.log(f"{leader.name} hands over to {target.name}")
        await leader.service.node.changes.transfer_leadership(raft_id(target))

    async def _toggle(self, leader: Node, target: Node) -> None:
        """Take a controller out, or bring it back: as learner, then with a vote."""
        raft, name = leader.service.node, raft_id(target)
        if name in raft.members.voters:
            if len(raft.members.voters) > 2:
                self.group.log(f"{leader.name} removes {target.name}")
                await raft.changes.remove(name)
            return
        self.group.log(f"{leader.name} adds {target.name}")
        if name not in raft.members.learners:
            await raft.changes.add_learner(name, endpoint(target))
        await raft.changes.promote(name, timeout_ms=1_000)
