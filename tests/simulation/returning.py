"""One seeded story of a broker set whose slaves act as master: strict queue locks, and masters that return.

Consumers of one group lock two queues at whichever broker answers, give them back, and sometimes die. Brokers
are killed, cut off, paused, and come back. Invariants:

- with `lockInStrictMode` no two consumers believe at the same time that they hold one queue. A consumer
  believes for 30 s after it asked, as RocketMQ's and our clients do;
- an offset that an acting slave has accepted is not lost when the master returns, if that slave lives on;
- a master that returns serves nobody before the slaves follow it that the name server lists;
- once the faults stop, one master serves, all slaves follow it, and both queues can be locked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from batonmq.broker.service import BrokerService
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import LockBatchMq, UnlockBatchMq
from batonmq.protocol.headers.broker.pull import UpdateConsumerOffset
from batonmq.protocol.json import decode, encode
from tests.simulation.classic import ClassicCluster, Rule
from tests.simulation.cluster import BROKER_NAME, BROKER_PORT, NAMESRV_PORT, Node
from tests.simulation.loop import SimLoop
from tests.simulation.story import HEAL_S, START_UP_S, TOPIC, Violation, play, scratch

GROUP = "orderly"
QUEUES, CONSUMERS = 2, 3
FAULTS_S = 150.0
BELIEF_S = 30.0
LOCK_TIMEOUT_MS = 3_000
HANDED_OVER_S = 5.0
"""A slave copies its master's tables every 3 s, and hands its late offsets over before."""
VERSION_STEP = 10
"""Commits between two data versions; few, so that brokers differ in them."""
LOCKS_AGAIN_S = 100.0
"""Locks of consumers that died expire after 60 s."""


@dataclass
class ReturningStory:
    """What happened."""

    seed: int
    granted: int = 0
    at_slaves: int = 0
    """Locks that brokers with another role than master granted."""
    handed_on: int = 0
    """Times that a queue got another owner."""
    acting: int = 0
    """Times that a slave acted as master."""
    returned: int = 0
    """Times that a master was ready after it had waited for slaves."""
    commits: int = 0
    """Offsets that acting slaves accepted."""
    events: list[str] = field(default_factory=list)


class ReturningCluster(ClassicCluster):
    """A name server that knows acting slaves, and one broker set with strict locks."""

    strict = True

    def _make_namesrv(self, node: Node) -> NamesrvService:
        config = NamesrvConfig(
            listen_port=NAMESRV_PORT,
            kv_config_path=str(node.directory / "kv.json"),
            config_store_path=str(node.directory / "namesrv.properties"),
            support_acting_master=True,
            notify_min_broker_id_changed=True,
        )
        return NamesrvService(config, clock=self._clock())

    def _make_broker(self, node: Node) -> BrokerService:
        service = super()._make_broker(node)
        settings = service._settings
        settings.broker = replace(
            settings.broker, lock_in_strict_mode=self.strict, consumer_offset_update_version_step=VERSION_STEP
        )
        return service


@dataclass
class Consumer:
    """One consumer of the group."""

    name: str
    until: dict[int, float] = field(default_factory=dict)
    """Queue -> until when it believes to hold it."""


def run(seed: int, faults_s: float = FAULTS_S) -> ReturningStory:
    """Run the story of `seed`; raises `Violation` if an invariant breaks."""
    loop = SimLoop(seed)
    story = ReturningStory(seed)
    with scratch("return", seed) as root:
        replicas = 3 if seed % 3 else 2
        rule = Rule(replicas, 2, 1, True, sync_flush=seed % 2 == 1, whole_log=False)
        cluster = ReturningCluster(loop, root, rule)
        story.events = cluster.events
        with cluster.world.in_force():
            play(loop, seed, story.events, ReturningScenario(cluster, story, faults_s).play)
        return story


class ReturningScenario:
    """Consumers, faults, and the looks in between."""

    def __init__(self, cluster: ReturningCluster, story: ReturningStory, faults_s: float) -> None:
        self.cluster, self.story, self.faults_s = cluster, story, faults_s
        self.random: random.Random = cluster.random
        self._working = True
        self._consumers: list[Consumer] = []
        self._last_owner: dict[int, str] = {}
        self._granted_at: dict[int, float] = {}
        self._accepted: dict[int, tuple[int, str]] = {}
        """Queue -> the last offset that an acting slave accepted, and that slave's life."""
        self._next = [1] * QUEUES
        self._whole_since: float | None = None
        self._roles: dict[str, str] = {}
        self._named = 0

    async def play(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(cluster.whole, START_UP_S, "slaves that follow at the start")
        await cluster.on(cluster.client_host, self._prepare())
        workers = [cluster.on(cluster.client_host, self._consume()) for _ in range(CONSUMERS)]
        workers.append(cluster.on(cluster.client_host, self._commit_on()))
        end = cluster.loop.now + self.faults_s
        while cluster.loop.now < end:
            await self._pass(self.random.expovariate(1 / 4))
            self._fault()
        cluster.heal()
        await self._until(self._healed, HEAL_S, "a master that serves, followed by all")
        healed = cluster.loop.now
        await self._until(
            lambda: all(self._granted_at.get(queue, 0) > healed for queue in range(QUEUES)),
            LOCKS_AGAIN_S,
            "locks of both queues",
        )
        self._working = False
        await asyncio.gather(*workers)
        await self._pass(4)
        self._check_accepted(self.cluster.master)

    def _healed(self) -> bool:
        master = self.cluster.master
        return self.cluster.whole() and master.broker.members.addresses.keys() == set(
            range(len(self.cluster.brokers))
        )

    async def _prepare(self) -> None:
        async with self.cluster.admin() as admin:
            await admin.create_topic(TOPIC, QUEUES)
        self.cluster.master.broker.tables.subscriptions.get_or_create(GROUP)
        await asyncio.sleep(4)  # until the slaves have the group

    # -- consumers

    async def _consume(self) -> None:
        """One consumer after the other; one that dies gives nothing back."""
        client = RemotingClient()
        try:
            while self._working:
                self._named += 1
                consumer = Consumer(f"c{self._named}")
                self._consumers.append(consumer)
                lives_until = self.cluster.loop.now + self.random.uniform(20, 120)
                while self._working and self.cluster.loop.now < lives_until:
                    await self._step(client, consumer)
                    await asyncio.sleep(self.random.expovariate(1 / 0.7))
                # What it believed while it lived is no threat any more: it does nothing now.
                consumer.until.clear()
        finally:
            await client.close()

    async def _step(self, client: RemotingClient, consumer: Consumer) -> None:
        queue = self.random.randrange(QUEUES)
        held = self._believes(consumer, queue)
        if held and self.random.random() < 0.25:
            await self._give_back(client, consumer, queue)
        elif not held or self.random.random() < 0.5:
            await self._lock(client, consumer, queue)

    def _believes(self, consumer: Consumer, queue: int) -> bool:
        return consumer.until.get(queue, 0) > self.cluster.loop.now

    def _asked(self) -> Node:
        """Mostly the broker that the route shows as master, sometimes any other."""
        cluster = self.cluster
        if self.random.random() < 0.7:
            serving = [
                node for node in cluster.brokers if node.up and node.broker and node.broker.role.serves
            ]
            if serving:
                return self.random.choice(serving)
        return self.random.choice(cluster.brokers)

    async def _lock(self, client: RemotingClient, consumer: Consumer, queue: int) -> None:
        node, asked = self._asked(), self.cluster.loop.now
        body = LockBatchRequestBody(GROUP, consumer.name, False, [self._queue(queue)])
        locked = False
        try:
            answer = await client.call(
                f"{node.address}:{BROKER_PORT}", LockBatchMq(), encode(body), timeout_ms=LOCK_TIMEOUT_MS
            )
            locked = bool(decode(answer.body, LockBatchResponseBody).lock_ok_mq_set)
        except (NetError, MQError):
            return  # it believes in what it was granted before, for as long as that lasts
        if not locked:
            consumer.until.pop(queue, None)
            return
        consumer.until[queue] = asked + BELIEF_S
        self.story.granted += 1
        self._granted_at[queue] = self.cluster.loop.now
        self.story.at_slaves += node.broker is not None and not node.broker.role.is_master
        if self._last_owner.get(queue) not in (None, consumer.name):
            self.story.handed_on += 1
            self.cluster.log(f"{consumer.name} has queue {queue}, by {node.name}")
        self._last_owner[queue] = consumer.name

    async def _give_back(self, client: RemotingClient, consumer: Consumer, queue: int) -> None:
        consumer.until.pop(queue, None)
        body = UnlockBatchRequestBody(GROUP, consumer.name, False, [self._queue(queue)])
        node = self._asked()
        try:
            await client.call(
                f"{node.address}:{BROKER_PORT}", UnlockBatchMq(), encode(body), timeout_ms=LOCK_TIMEOUT_MS
            )
        except (NetError, MQError):
            return

    async def _commit_on(self) -> None:
        """Commits growing offsets to whichever broker serves."""
        client = RemotingClient()
        try:
            while self._working:
                await self._commit(client)
                await asyncio.sleep(self.random.expovariate(1 / 0.06))
        finally:
            await client.close()

    async def _commit(self, client: RemotingClient) -> None:
        serving = [
            each for each in self.cluster.brokers if each.up and each.broker and each.broker.role.serves
        ]
        if not serving:
            return
        node = self.random.choice(serving)
        acting, life = node.broker.role.is_acting, node.life
        # Queue 1 only at acting slaves: a later commit to the master hides what it has lost.
        queue = self.random.randrange(QUEUES) if acting else 0
        offset = self._next[queue]
        header = UpdateConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=queue, commit_offset=offset)
        self._next[queue] += self.random.randint(1, 3)
        try:
            await client.call(f"{node.address}:{BROKER_PORT}", header, timeout_ms=1_000)
        except (NetError, MQError):
            return
        if acting and node.up and node.life == life and node.broker.role.is_acting:
            self.story.commits += 1
            self._accepted[queue] = offset, life
            self._whole_since = None

    @staticmethod
    def _queue(number: int) -> MessageQueue:
        return MessageQueue(TOPIC, BROKER_NAME, number)

    # -- faults

    def _fault(self) -> None:
        """At most one broker is down at a time."""
        cluster, pick = self.cluster, self.random
        down = [node for node in cluster.nodes if not node.up]
        if down:
            if pick.random() < 0.5:
                cluster.start(pick.choice(down))
            return
        if pick.random() < 0.15:
            self._restart_one_and_cut_another()
            return
        node = pick.choice([*cluster.brokers, cluster.master, cluster.master, cluster.namesrv])
        other = pick.choice(cluster.nodes)
        faults: list[tuple[int, Callable[[], Any]]] = [
            (20, lambda: cluster.crash(node)),
            (6, lambda: cluster.stop(node)),
            (6, lambda: cluster.pause(node, pick.uniform(0.5, 8))),
            (8, lambda: other is node or cluster.partition(node, other, both=pick.random() < 0.6)),
            (8, lambda: cluster.isolate(node)),
            (4, lambda: cluster.slow_disk(node, pick.uniform(0.05, 0.8))),
            (4, lambda: cluster.slow_packets(node, pick.uniform(0.01, 0.3))),
            (24, cluster.reconnect),
        ]
        if cluster.rule.sync_flush and node.kind == "broker":
            faults.append((10, lambda: cluster.power_cut(node, pick.random())))
        pick.choices([do for _, do in faults], [weight for weight, _ in faults])[0]()

    def _restart_one_and_cut_another(self) -> None:
        """Two of three that granted a lock: one forgets what it does not have on disk, the other is alone."""
        cluster, pick = self.cluster, self.random
        one, other = pick.sample(cluster.brokers, 2)
        cluster.isolate(one)
        cluster.crash(other)
        cluster.start(other)

    # -- looking

    def _look(self) -> None:
        for queue in range(QUEUES):
            owners = [each.name for each in self._consumers if self._believes(each, queue)]
            if len(owners) > 1:
                raise Violation(f"queue {queue} has the owners {owners}")
        for node in self.cluster.brokers:
            role = "" if not node.up or node.broker is None else node.broker.role.kind.name
            before = self._roles.get(node.name)
            if role == before:
                continue
            self._roles[node.name] = role
            self.cluster.log(f"{node.name} is {role or 'gone'}")
            if role == "ACTING_MASTER":
                self.story.acting += 1
            elif role == "MASTER" and before == "NONE":
                self.story.returned += 1
        if not self._linked() or self._roles.get(self.cluster.master.name) != "MASTER":
            self._whole_since = None
        elif self._whole_since is None:
            self._whole_since = self.cluster.loop.now
        elif self.cluster.loop.now - self._whole_since > HANDED_OVER_S:
            self._check_accepted(self.cluster.master)
        lives = {node.life for node in self.cluster.brokers if node.up}
        self._accepted = {q: each for q, each in self._accepted.items() if each[1] in lives}

    def _linked(self) -> bool:
        """Whether the master has all slaves that follow it. A slave that is cut off still takes itself for
        linked to a master that was killed meanwhile."""
        cluster = self.cluster
        return cluster.whole() and len(cluster.ha(cluster.master)._slaves) == len(cluster.brokers) - 1

    def _check_accepted(self, master: Node) -> None:
        for queue, (offset, life) in self._accepted.items():
            found = master.broker.tables.offsets.query(GROUP, TOPIC, queue)
            if queue and found < offset:
                raise Violation(f"queue {queue}: {life} accepted offset {offset}, the master has {found}")

    async def _pass(self, seconds: float) -> None:
        end = self.cluster.loop.now + seconds
        while self.cluster.loop.now < end:
            await asyncio.sleep(min(0.05, max(0.001, end - self.cluster.loop.now)))
            self._look()

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = self.cluster.loop.now + seconds
        while not condition():
            if self.cluster.loop.now > end:
                raise Violation(f"no {what} within {seconds:g} s of virtual time")
            await asyncio.sleep(0.05)
            self._look()
