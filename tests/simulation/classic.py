"""One seeded story of a group without controllers: master and slaves by their files, faults, what must hold.

Invariants:

- an acknowledged message is on as many replicas as the rule promises (`Rule.copies`), with SYNC_FLUSH on
  their disks, and on the master among them, at every moment from the acknowledgement on;
- a slave that follows has a log that is part of its master's, byte by byte: histories are never joined;
- no two messages are acknowledged for one place;
- once the faults stop, the group heals: an operator empties the slaves that refuse to follow (`_operate`),
  all slaves then have the master's log, and sends are acknowledged again.

A power cut takes from the master what it had sent to its slaves, but not what it had acknowledged. Such a
slave must refuse to follow, also when the master has written something else meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.ha.classic.service import ClassicHAService
from batonmq.ha.config import HAConfig
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.ids import decode_message_id
from batonmq.store.config import FlushDiskType, StoreConfig
from batonmq.store.mapped import file_name
from tests.simulation.cluster import (
    BROKER_NAME,
    BROKER_PORT,
    COMMIT_LOG_FILE,
    NAMESRV_PORT,
    Node,
    SimCluster,
)
from tests.simulation.loop import SimLoop
from tests.simulation.network import Endpoint
from tests.simulation.story import FAULTS_S, HEAL_S, START_UP_S, TOPIC, Violation, play, scratch
from tests.simulation.witness import _first_difference, _is_at

WORKERS = 3
REFUSING_S = 5.0
"""A slave that has not followed for so long, with everything else well, refuses its master's log."""


@dataclass(frozen=True)
class Rule:
    """What the group's files say of acknowledgements."""

    replicas: int
    in_sync: int
    min_in_sync: int
    auto: bool
    sync_flush: bool
    whole_log: bool

    @property
    def copies(self) -> int:
        """Replicas that an acknowledged message is on, the master among them."""
        return self.min_in_sync if self.auto else self.in_sync


def rule_of(seed: int) -> Rule:
    """Seeds cover all rules in turn."""
    replicas, in_sync, least, auto = ((2, 2, 1, False), (3, 2, 1, False), (3, 3, 1, False), (3, 3, 2, True))[
        seed % 4
    ]
    return Rule(replicas, in_sync, least, auto, sync_flush=seed // 4 % 2 == 1, whole_log=seed // 8 % 2 == 1)


@dataclass
class ClassicStory:
    """What happened."""

    seed: int
    acked: dict[str, int] = field(default_factory=dict)
    """Key -> physical offset."""
    unknown: int = 0
    emptied: int = 0
    """Slaves that an operator had to empty."""
    events: list[str] = field(default_factory=list)


class ClassicCluster(SimCluster):
    """A name server and brokers with fixed roles; `brokers[0]` is the master."""

    def __init__(self, loop: SimLoop, root: Path, rule: Rule) -> None:
        super().__init__(loop, root, replicas=rule.replicas, controllers=0, sync_flush=rule.sync_flush)
        self.rule = rule

    @property
    def master(self) -> Node:
        return self.brokers[0]

    def ha(self, node: Node) -> ClassicHAService:
        ha = node.broker.replication
        assert isinstance(ha, ClassicHAService)
        return ha

    def _make_broker(self, node: Node) -> BrokerService:
        rule = self.rule
        config = BrokerConfig(
            broker_name=BROKER_NAME,
            broker_ip1=node.address,
            listen_port=BROKER_PORT,
            namesrv_addr=f"{self.namesrv.address}:{NAMESRV_PORT}",
            broker_id=node.index,
            broker_role="SLAVE" if node.index else "SYNC_MASTER",
            in_sync_replicas=rule.in_sync,
            min_in_sync_replicas=rule.min_in_sync,
            total_replicas=rule.replicas,
            enable_auto_in_sync_replicas=rule.auto,
            enable_slave_acting_master=rule.auto,
            vip_channel_enabled=False,
        )
        store = StoreConfig(
            store_path_root_dir=str(node.directory),
            store_path_commit_log=str(node.directory / "commitlog"),
            mapped_file_size_commit_log=COMMIT_LOG_FILE,
            mapped_file_size_consume_queue=20 * 200,
            max_hash_slot_num=100,
            max_index_num=400,
            flush_disk_type=FlushDiskType.SYNC_FLUSH if rule.sync_flush else FlushDiskType.ASYNC_FLUSH,
        )
        ha = HAConfig(ha_send_whole_log=rule.whole_log)
        return BrokerService(config, store, ha, clock=self._clock(), rng=self._rng())

    def whole(self) -> bool:
        """All are up, and all slaves follow and have everything."""
        if any(not node.up or node.broker is None for node in self.brokers):
            return False
        end = self.master.broker.store.max_offset
        return self.master.broker.role.is_master and all(
            self.ha(node).following and node.broker.store.max_offset == end for node in self.brokers[1:]
        )


def run(seed: int, faults_s: float = FAULTS_S, plot: str = "") -> ClassicStory:
    """Run the story of `seed`; raises `Violation` (with the events before it) if an invariant breaks.

    `plot`: this one again and again, instead of faults at random.
    """
    loop = SimLoop(seed)
    story = ClassicStory(seed)
    with scratch("classic", seed) as root:
        cluster = ClassicCluster(loop, root, rule_of(seed))
        story.events = cluster.events
        with cluster.world.in_force():
            play(loop, seed, story.events, ClassicScenario(cluster, story, faults_s, plot).play)
        return story


class ClassicScenario:
    """Traffic, faults, and the looks in between, from the start to the end."""

    def __init__(self, cluster: ClassicCluster, story: ClassicStory, faults_s: float, plot: str = "") -> None:
        self.cluster, self.story, self.faults_s = cluster, story, faults_s
        self.plot = {"": None, "two links": self._two_links}[plot]
        self.random: random.Random = cluster.random
        self._number = 0
        self._sending = True
        self._places: dict[int, str] = {}
        self._checked: dict[str, tuple[object, int, list[int]]] = {}
        self._held: list[set[str]] = []
        """Of each fact, in the order of `story.acked`: the brokers whose files have it."""
        self._compared: dict[tuple[str, str], int] = {}
        self._since: dict[str, float] = {}
        """Slave -> since when it should follow and does not."""
        self._promised_from = 0
        """Facts before this index may be on fewer replicas: an operator emptied one."""

    async def play(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(cluster.whole, START_UP_S, "slaves that follow at the start")
        await cluster.on(cluster.client_host, self._create_topic())
        workers = [cluster.on(cluster.client_host, self._work()) for _ in range(WORKERS)]
        end = cluster.loop.now + self.faults_s
        while cluster.loop.now < end:
            await self._pass(self.random.expovariate(1 / 1.2))
            if self.plot is None:
                self._fault()
            else:
                await self.plot()
        cluster.heal()
        before = len(self.story.acked)
        await self._until(lambda: self._operate() or cluster.whole(), HEAL_S, "healing: slaves that follow")
        await self._until(lambda: len(self.story.acked) > before + 10, HEAL_S, "acknowledged sends")
        self._sending = False
        await asyncio.gather(*workers)
        await self._until(cluster.whole, HEAL_S, "equal logs at the end")
        self._look()
        self._check_end()

    # -- traffic

    async def _create_topic(self) -> None:
        async with self.cluster.admin() as admin:
            await admin.create_topic(TOPIC, 2)

    async def _work(self) -> None:
        async with self.cluster.producer() as producer:
            while self._sending:
                await self._send(producer)
                await asyncio.sleep(self.random.expovariate(1 / 0.05))

    async def _send(self, producer: Producer) -> None:
        self._number += 1
        key = f"m{self._number}"
        try:
            result = await producer.send(Message(TOPIC, key.encode() * self.random.randint(1, 60), keys=key))
        except (ClientError, MQError, NetError):
            self.story.unknown += 1
            return
        place = decode_message_id(result.offset_message_id)[2]
        other = self._places.setdefault(place, key)
        if other != key:
            raise Violation(f"{key} and {other} were both acknowledged at byte {place}")
        self.story.acked[key] = place
        self._held.append(set())

    # -- faults

    def _fault(self) -> None:
        cluster, pick = self.cluster, self.random
        down = [node for node in cluster.nodes if not node.up]
        if down and pick.random() < 0.6:
            cluster.start(pick.choice(down))
            return
        up = [node for node in cluster.nodes if node.up]
        if not up:
            return
        node = pick.choice([*up, *[each for each in up if each is cluster.master]])
        brokers = [each for each in up if each.kind == "broker" and each.broker is not None]
        other = pick.choice(cluster.nodes)
        faults: list[tuple[int, Callable[[], Any]]] = [
            (20, lambda: cluster.crash(node)),
            (5, lambda: cluster.pause(node, pick.uniform(0.5, 6))),
            (8, lambda: other is node or cluster.partition(node, other, both=pick.random() < 0.6)),
            (4, lambda: cluster.isolate(node)),
            (4, lambda: cluster.slow_disk(node, pick.uniform(0.05, 0.8))),
            (4, lambda: cluster.slow_link(node, pick.choice((2_000, 20_000, 200_000)))),
            (3, lambda: cluster.slow_packets(node, pick.uniform(0.01, 0.3))),
            (3, lambda: node.kind == "broker" and cluster.full_disk(node)),
            (3, lambda: cluster.stop(node)),
            (8, self._reset),
            (8, cluster.reconnect),
        ]
        if cluster.rule.sync_flush and brokers:
            victim = pick.choice(brokers)
            faults.append((14, lambda: cluster.power_cut(victim, pick.random())))
            faults.append((14, self._cut_before_flush))
        pick.choices([do for _, do in faults], [weight for weight, _ in faults])[0]()

    def _cut_before_flush(self) -> None:
        """The master loses its power when slaves have what its own disk has not."""
        cluster, master = self.cluster, self.cluster.master
        if not master.up or master.broker is None:
            return
        host, left = master.host, self.random.randint(0, 3)
        assert host is not None
        store = master.broker.store

        def strike(host: Any, name: str) -> None:
            nonlocal left
            ahead = any(
                node.up and node.broker is not None and node.broker.store.max_offset > store.flushed_offset
                for node in cluster.brokers[1:]
            )
            if host.alive and ahead:
                left -= 1
                if left < 0:
                    host.before_work = None
                    cluster.log(f"at work: {name}")
                    cluster.power_cut(master, 1.0)

        cluster.slow_disk(master, self.random.uniform(0.02, 0.3))
        host.before_work = strike

    async def _two_links(self) -> None:
        """One slave is cut off, so sends wait. The other one's link breaks at its end only: it connects again
        while the master has the former link, too."""
        cluster, pick = self.cluster, self.random
        gone, again = pick.sample(cluster.brokers[1:], 2)
        cluster.partition(cluster.master, gone)
        await self._pass(pick.uniform(0.1, 1.0))
        link = cluster.ha(again).link
        if link is not None and isinstance(link._transport, Endpoint):
            cluster.log(f"the link of {again.name} breaks at its end")
            cluster.loop.network.stall(link._transport, 15.0)
            link._transport._end(ConnectionResetError(104, "connection reset by peer"))
        await self._pass(pick.uniform(1, 3))
        cluster.reconnect()
        await self._pass(2)

    def _reset(self) -> None:
        ends = self.cluster.connections()
        if ends:
            self.cluster.reset(self.random.choice(ends))

    def _operate(self) -> bool:
        """What the log lines ask an operator to do: a slave that refuses its master's log gets an empty disk.

        The master has every acknowledged message; that was looked at. False, for `or`.
        """
        cluster = self.cluster
        now = cluster.loop.now
        for node in cluster.brokers[1:]:
            well = cluster.master.up and node.up and node.broker is not None and not node.stopping
            if not well or cluster.ha(node).following:
                self._since.pop(node.name, None)
            elif now - self._since.setdefault(node.name, now) > REFUSING_S + 15:
                self._check_refusal(node)
                self._since.pop(node.name)
                cluster.crash(node)
                cluster.new_disk(node)
                self.story.emptied += 1
                self._promised_from = len(self.story.acked)
                cluster.start(node)
        return False

    def _check_refusal(self, node: Node) -> None:
        """A slave whose log is the begin of its master's has no reason to refuse it."""
        one, other = self.cluster.master.broker.store, node.broker.store
        begin = max(one.min_offset, other.min_offset)
        part = begin <= other.max_offset <= one.max_offset
        if part and _first_difference(one, other, begin, other.max_offset) is None:
            raise Violation(f"{node.name} does not follow although its log is part of its master's")

    # -- looking

    def _look(self) -> None:
        self._check_copies()
        self._check_prefixes()

    def _check_copies(self) -> None:
        cluster, facts = self.cluster, list(self.story.acked.items())
        for node in cluster.brokers:
            store = node.broker.store if node.up and node.broker is not None else None
            state = (node.life, node.up, node.disks, None if store is None else store._log.truncations)
            before, count, missing = self._checked.get(node.name, (None, 0, []))
            if before != state:
                count, missing = 0, []
            files: dict[Path, tuple[bytes, bytes]] = {}
            still = []
            for index in (*missing, *range(count, len(facts))):
                key, place = facts[index]
                at = place % COMMIT_LOG_FILE
                path = node.directory / "commitlog" / file_name(place - at)
                written, durable = files.get(path) or files.setdefault(path, self._read(path))
                there = _is_at(key, durable if cluster.rule.sync_flush else written, at)
                (self._held[index].add if there else self._held[index].discard)(node.name)
                if there:
                    continue
                if node is cluster.master:
                    raise Violation(f"acknowledged {key} is lost at the master, byte {place}")
                still.append(index)
            # A living slave's log grows: what it lacks now it may have later.
            self._checked[node.name] = (state, len(facts), still if store is not None else [])
        for index in range(self._promised_from, len(facts)):
            if len(self._held[index]) < cluster.rule.copies:
                key, place = facts[index]
                raise Violation(
                    f"acknowledged {key} (byte {place}) is on {sorted(self._held[index])}, "
                    f"{cluster.rule.copies} copies are promised"
                )

    def _read(self, path: Path) -> tuple[bytes, bytes]:
        """A file as programs see it, and as a power cut would leave it."""
        try:
            return path.read_bytes(), self.cluster.world.synced.get(path.stat().st_ino, b"")
        except FileNotFoundError:
            return b"", b""

    def _check_prefixes(self) -> None:
        cluster, master = self.cluster, self.cluster.master
        if not master.up or master.broker is None:
            return
        for node in cluster.brokers[1:]:
            if not node.up or node.broker is None or not cluster.ha(node).following:
                continue
            one, other = master.broker.store, node.broker.store
            link = cluster.ha(node).link
            if link is None or link._transport is None or link._transport.remote_host is not master.host:
                continue  # a link to a former life of the master, which the slave does not know to be over
            pair = (master.life, node.life)
            begin = max(one.min_offset, other.min_offset, self._compared.get(pair, 0))
            at = _first_difference(one, other, begin, other.max_offset)
            if at is not None:
                raise Violation(f"{node.name} follows with another history: byte {at} differs")
            self._compared[pair] = other.max_offset

    def _check_end(self) -> None:
        for node in self.cluster.brokers:
            one, other = self.cluster.master.broker.store, node.broker.store
            begin = max(one.min_offset, other.min_offset)
            if one.max_offset != other.max_offset or _first_difference(one, other, begin, one.max_offset):
                raise Violation(f"{node.name} has another log at the end")
            for queue in range(2):
                if one.queue_bounds(TOPIC, queue).max_offset != other.queue_bounds(TOPIC, queue).max_offset:
                    raise Violation(f"{node.name} shows another end of queue {queue}")

    async def _pass(self, seconds: float) -> None:
        """Let time pass, looking all the while."""
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
