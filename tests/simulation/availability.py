"""Which cut links stop sends, in theory and in the simulation.

The small world: three controllers, two replicas in sync that acknowledge together, one client and a name
server that everybody reaches. A *case* is a set of cut links among the others. `served` computes from the
rules whether sends could be served without risk; `measure` cuts the links of a running cluster and looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from tests.simulation.cluster import Node, SimCluster
from tests.simulation.loop import SimLoop
from tests.simulation.story import play, scratch

Link = tuple[str, str]
Case = frozenset[Link]

CLIENT, MASTER, SLAVE, LEADER, FOLLOWERS = "client", "master", "slave", "leader", ("follower1", "follower2")
CONTROLLERS: Final = (LEADER, *FOLLOWERS)
LINKS: Final[tuple[Link, ...]] = (
    (CLIENT, MASTER),
    (CLIENT, SLAVE),
    (MASTER, SLAVE),
    *((broker, controller) for broker in (MASTER, SLAVE) for controller in CONTROLLERS),
    *itertools.combinations(CONTROLLERS, 2),
)
"""Roles are those before the cut."""
WARM_S: Final = 60.0
SETTLE_S: Final = 20.0
"""Virtual time after the cut in which service must come back."""
WATCH_S: Final = 5.0
"""Then sends must be answered at least once in so long."""


@dataclass(frozen=True)
class Measured:
    """What the simulation showed. Times in virtual seconds after the cut."""

    served: bool
    """Whether sends were acknowledged at the end."""
    gap_s: float | None
    """Longest time without an acknowledged send, from the cut on; None without any."""


def served(cut: Case) -> bool:
    """Whether sends could be served without risk, by the rules of controller mode.

    - A link that is cut in one direction is of no use: connections need both.
    - Controllers decide if one of them, the leader, has links to another one: a majority. The leader remains
      while it has. If another one reaches more controllers, that one becomes the leader, but first a master
      that the former leader does not reach is replaced. Brokers may reach it through another controller.
    - The master serves while its SyncStateSet acknowledges. A slave that is cut off leaves the set only by a
      decision, and another master is elected only by one, if the former cannot reach the leader.
    - No decision depends on what clients reach.
    """

    def linked(a: str, b: str) -> bool:
        return a == b or ((a, b) not in cut and (b, a) not in cut)

    def decides(leader: str, broker: str) -> bool:
        return any(linked(broker, through) and linked(through, leader) for through in CONTROLLERS)

    def by(*leaders: str) -> bool:
        """With these leaders, one after the other."""
        for leader in leaders:
            if decides(leader, MASTER):
                return linked(CLIENT, MASTER)
            if decides(leader, SLAVE):
                return linked(CLIENT, SLAVE)
        return linked(MASTER, SLAVE) and linked(CLIENT, MASTER)

    reached = {x: sum(linked(x, y) for y in CONTROLLERS) for x in CONTROLLERS}
    most = max(reached, key=reached.__getitem__)
    if reached[LEADER] > 1:
        return by(LEADER, most)
    if reached[most] > 1:
        return any(by(x) for x in FOLLOWERS)
    return by()


def all_cases() -> Iterator[Case]:
    """Every set of cut links."""
    for size in range(len(LINKS) + 1):
        for links in itertools.combinations(LINKS, size):
            yield frozenset(links)


def measure(cut: Case, seed: int = 0, *, one_way: bool = False) -> Measured:
    """Cut these links of a whole cluster; with `one_way` each in one direction, chosen by the seed."""
    loop = SimLoop(seed)
    measured: list[Measured] = []
    logging.disable(logging.CRITICAL)
    try:
        with scratch("availability", seed) as root:
            cluster = SimCluster(loop, root)

            async def tell() -> None:
                measured.append(await _measure(cluster, cut, seed, one_way))

            with cluster.world.in_force():
                play(loop, seed, cluster.events, tell)
    finally:
        logging.disable(logging.NOTSET)
    return measured[0]


async def _measure(cluster: SimCluster, cut: Case, seed: int, one_way: bool) -> Measured:
    acked: list[float] = []
    loop = cluster.loop
    cluster.start_all()
    sending = cluster.on(cluster.client_host, _send(cluster, acked))
    async with asyncio.timeout(WARM_S):
        while not (cluster.whole() and acked and any(cluster.leads(each) for each in cluster.controllers)):
            await asyncio.sleep(0.05)
    chance = random.Random(repr((sorted(cut), one_way, seed)))
    await asyncio.sleep(chance.random())  # heartbeats are sent each second: the cut may come at any point
    names = _roles(cluster)
    for a, b in sorted(cut):
        pair = (names[a], names[b])
        if one_way and chance.random() < 0.5:
            pair = (pair[1], pair[0])
        loop.network.cut(*pair, both=not one_way)
    at = loop.now
    await asyncio.sleep(SETTLE_S + WATCH_S)
    end = loop.now
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    after = [when for when in acked if when > at]
    if not after:
        return Measured(served=False, gap_s=None)
    gap_s = max(b - a for a, b in itertools.pairwise([at, *after]))
    return Measured(served=after[-1] > end - WATCH_S, gap_s=gap_s)


def _roles(cluster: SimCluster) -> dict[str, str]:
    """Role -> name of the node."""
    (master,) = cluster.masters()
    (slave,) = (node for node in cluster.brokers if node is not master)
    leader = next(node for node in cluster.controllers if cluster.leads(node))
    others: list[Node] = [node for node in cluster.controllers if node is not leader]
    names = {CLIENT: "client", MASTER: master.name, SLAVE: slave.name, LEADER: leader.name}
    names.update(zip(FOLLOWERS, (node.name for node in others), strict=True))
    return names


async def _send(cluster: SimCluster, acked: list[float]) -> None:
    """Several senders, so that one that waits for a dead broker does not hide that another one is served."""

    async def one(number: int) -> None:
        async with cluster.producer() as producer:
            while True:
                with contextlib.suppress(ClientError, MQError, NetError):
                    await producer.send(Message("availability", b"x" * 16, keys=str(number)))
                    acked.append(cluster.loop.now)
                await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(one(number))
            await asyncio.sleep(0.05)
