"""Which cut links stop sends, in theory and in the simulation.

The small world: three controllers, two or three replicas in sync that acknowledge together, one client and a
name server that everybody reaches. A *case* is a set of cut links among the others. `served` computes from
the rules whether sends could be served without risk; `measure` cuts the links of a running cluster and looks.
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
SECOND_SLAVE = "slave2"
BROKERS: Final = (MASTER, SLAVE, SECOND_SLAVE)
CONTROLLERS: Final = (LEADER, *FOLLOWERS)
"""Roles are those before the cut."""


def links(replicas: int) -> tuple[Link, ...]:
    """What can be cut."""
    brokers = BROKERS[:replicas]
    return (
        *((CLIENT, broker) for broker in brokers),
        *itertools.combinations(brokers, 2),
        *((broker, controller) for broker in brokers for controller in CONTROLLERS),
        *itertools.combinations(CONTROLLERS, 2),
    )


LINKS: Final = links(2)

SAME_LEADER: Final = "the same"
NEW_LEADER: Final = "a follower is elected"
MOVED_LEADER: Final = "the leadership moves"
NO_DECISION: Final = "none"
SMALLER_SET: Final = "a slave leaves the SyncStateSet"
REPORTED_MASTER: Final = "another master, after a slave's report"
SILENT_MASTER: Final = "another master, without a report"

LEADER_S: Final = {SAME_LEADER: 0.0, NEW_LEADER: 2.2, MOVED_LEADER: 4.5}
"""A follower asks for votes after one to two election timeouts of 1 s. The leadership moves when a voter has
not answered for three, as soon as this voter asks the others for pre-votes again."""
DECISION_S: Final = {
    NO_DECISION: 0.5,
    SMALLER_SET: 2.5,
    REPORTED_MASTER: 3.75,
    SILENT_MASTER: 3.75,
}
"""A slave that lags leaves after 2 s. A master is replaced 1.5 to 1.8 s after its last sign of life if a
slave reports it, otherwise at the first scan after its heartbeats' timeout of 3 s. The new master then
registers, and the client refreshes its route."""
FOUND_S: Final = 3.2
"""Without a leader, a master proposes its SyncStateSet again after up to 1 s. The proposal then goes to the
leader and, 0.3 s later each, through the two other controllers. It may be refused first, if the controllers
count a member as down: 0.5 s, and again up to 1 s."""
RETURN_S: Final = 1.0
"""If no heartbeat reaches the leader for 3 s, all replicas count as down before the leadership moves. The
master's timeout then begins with the first heartbeat of another replica that reaches the new leader."""

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


@dataclass(frozen=True)
class Outcome:
    """What the rules say of a case, and what has to happen until sends are served."""

    served: bool | None
    """None: that depends on which of two slaves is elected, and so on which has the later end of its log."""
    leader: str = SAME_LEADER
    """Who takes the decision."""
    decision: str = NO_DECISION

    @property
    def within_s(self) -> float:
        """Longest time until sends are served, by the timeouts of the shipped configuration. A slave already
        lags while the controllers have no leader, so these times are not added up."""
        if self.leader != SAME_LEADER and self.decision == SMALLER_SET:
            return LEADER_S[self.leader] + FOUND_S
        if self.leader == MOVED_LEADER and self.decision == SILENT_MASTER:
            return LEADER_S[self.leader] + DECISION_S[self.decision] + RETURN_S
        return LEADER_S[self.leader] + DECISION_S[self.decision]


def outcome(cut: Case, replicas: int = 2) -> Outcome:
    """Whether sends could be served without risk, by the rules of controller mode, and how.

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

    slaves = BROKERS[1:replicas]
    whole = all(linked(MASTER, slave) for slave in slaves)

    def by(leaders: dict[str, str]) -> Outcome:
        """With these leaders, one after the other; each with how it became leader."""
        for leader, how in leaders.items():
            if decides(leader, MASTER):
                if whole:
                    return Outcome(linked(CLIENT, MASTER))
                return Outcome(linked(CLIENT, MASTER), how, SMALLER_SET)
            reached_by_client = {linked(CLIENT, slave) for slave in slaves if decides(leader, slave)}
            if reached_by_client:
                served = reached_by_client.pop() if len(reached_by_client) == 1 else None
                reported = any(not linked(MASTER, slave) and decides(leader, slave) for slave in slaves)
                return Outcome(served, how, REPORTED_MASTER if reported else SILENT_MASTER)
        return Outcome(whole and linked(CLIENT, MASTER))

    reached = {x: sum(linked(x, y) for y in CONTROLLERS) for x in CONTROLLERS}
    most = max(reached, key=reached.__getitem__)
    if reached[LEADER] > 1:
        return by({LEADER: SAME_LEADER} if most == LEADER else {LEADER: SAME_LEADER, most: MOVED_LEADER})
    if reached[most] > 1:
        # The followers reach the same brokers, through each other.
        return by({FOLLOWERS[0]: NEW_LEADER})
    return by({})


def served(cut: Case, replicas: int = 2) -> bool | None:
    """`Outcome.served` of a case."""
    return outcome(cut, replicas).served


def all_cases() -> Iterator[Case]:
    """Every set of cut links with two replicas."""
    for size in range(len(LINKS) + 1):
        for cut in itertools.combinations(LINKS, size):
            yield frozenset(cut)


def some_cases(count: int, seed: int) -> list[Case]:
    """So many cases with three replicas, whose outcome the rules know; few and many cut links as often."""
    chance, cases = random.Random(seed), dict[Case, None]()
    every = links(3)
    while len(cases) < count:
        case = frozenset(chance.sample(every, chance.randint(1, len(every))))
        if served(case, 3) is not None:
            cases[case] = None
    return list(cases)


def measure(
    cut: Case, seed: int = 0, *, one_way: bool = False, replicas: int = 2, earlier: Case = frozenset()
) -> Measured:
    """Cut these links of a whole cluster; with `one_way` each in one direction, chosen by the seed. Those of
    `earlier` were cut long before."""
    loop = SimLoop(seed)
    measured: list[Measured] = []
    logging.disable(logging.CRITICAL)
    try:
        with scratch("availability", seed) as root:
            cluster = SimCluster(loop, root, replicas=replicas)

            async def work() -> None:
                measured.append(await _measure(cluster, cut, seed, one_way, earlier))

            with cluster.world.in_force():
                play(loop, seed, cluster.events, work)
    finally:
        logging.disable(logging.NOTSET)
    return measured[0]


async def _measure(cluster: SimCluster, cut: Case, seed: int, one_way: bool, earlier: Case) -> Measured:
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
    for a, b in sorted(earlier):
        loop.network.cut(names[a], names[b])
    if earlier:
        await asyncio.sleep(SETTLE_S)
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
    slaves = [node for node in cluster.brokers if node is not master]
    leader = next(node for node in cluster.controllers if cluster.leads(node))
    others: list[Node] = [node for node in cluster.controllers if node is not leader]
    names = {CLIENT: "client", MASTER: master.name, LEADER: leader.name}
    names.update(zip(BROKERS[1:], (node.name for node in slaves), strict=False))
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
