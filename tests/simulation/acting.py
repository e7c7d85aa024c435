"""One seeded story of two broker sets without controllers, of which one loses its master again and again.

A producer sends delayed and timed messages to the set `a`, another one transactions, and a group pops. The
master of `a` is killed, stopped, paused and cut off; so are its slave, the name server and the other set, but
no disk loses anything. Invariants:

- an acting slave never writes to its copy of the log: it stays the begin of its master's;
- once the faults stop, every acknowledged message is delivered, on either set; no timed message came early
  by the clock of the broker that delivered it;
- once the faults stop, every committed half message is delivered; none that was rolled back ever is;
- once the faults stop, a pop consumer has got and acknowledged every message that was acknowledged to its
  sender;
- once the faults stop, no slave acts.

A message may be delivered more than once: when an answer of the other set is lost, or when the master returns
with an older position than its slave's.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.ha.classic.service import ClassicHAService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import decode_records
from batonmq.store.config import StoreConfig
from tests.simulation.acting_clients import COMMIT, POPPED, Popper, Transactions
from tests.simulation.cluster import (
    BROKER_PORT,
    COMMIT_LOG_FILE,
    NAMESRV_PORT,
    TIMER_LOG_FILE,
    TIMER_WINDOW,
    Node,
    SimClock,
    SimCluster,
)
from tests.simulation.loop import SimLoop
from tests.simulation.story import FAULTS_S, HEAL_S, START_UP_S, Violation, play, scratch
from tests.simulation.timers import check_time
from tests.simulation.witness import _first_difference

TOPIC, QUEUES = "later", 2
TIMED = {"TIMER_DELAY_MS", "TIMER_DELIVER_MS"}
SETS = "ab"
LATEST_S = 400.0
"""All clocks' mistakes together, and some: time after which every message must have come."""


@dataclass
class ActingStory:
    """What happened."""

    seed: int
    acked: set[str] = field(default_factory=set)
    delivered: Counter[str] = field(default_factory=Counter)
    escaped: int = 0
    """Messages that were delivered on the other set."""
    acted: int = 0
    """How often a slave began to act."""
    waited: int = 0
    """Most timed messages that waited at an acting slave, of a topic that no other set has."""
    events: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """Deliveries beyond the first one of each message."""
        return sum(self.delivered.values()) - len(self.delivered)


class ActingCluster(SimCluster):
    """A name server that shows acting masters, and two sets of a master and a slave."""

    def __init__(self, loop: SimLoop, root: Path, sets: str = SETS) -> None:
        super().__init__(loop, root, replicas=2 * len(sets), controllers=0)
        self.sets = sets

    def set_of(self, node: Node) -> str:
        return self.sets[node.index // 2]

    @property
    def replicas(self) -> Sequence[Any]:
        """All brokers of all sets."""
        return self.brokers

    def pair(self, name: str) -> tuple[Node, Node]:
        at = 2 * self.sets.index(name)
        return self.brokers[at], self.brokers[at + 1]

    def _make_namesrv(self, node: Node) -> NamesrvService:
        config = NamesrvConfig(
            listen_port=NAMESRV_PORT,
            kv_config_path=str(node.directory / "kv.json"),
            config_store_path=str(node.directory / "namesrv.properties"),
            support_acting_master=True,
            notify_min_broker_id_changed=self.random.random() < 0.7,
        )
        return NamesrvService(config, clock=self._clock())

    def _make_broker(self, node: Node) -> BrokerService:
        slave = node.index % 2
        config = BrokerConfig(
            broker_name=self.set_of(node),
            broker_ip1=node.address,
            listen_port=BROKER_PORT,
            namesrv_addr=f"{self.namesrv.address}:{NAMESRV_PORT}",
            broker_id=slave,
            broker_role="SLAVE" if slave else "SYNC_MASTER",
            in_sync_replicas=2,
            total_replicas=2,
            enable_auto_in_sync_replicas=True,
            enable_slave_acting_master=True,
            enable_remote_escape=True,
            message_delay_level="1s 3s 8s 15s",
            transaction_time_out=2_000,
            transaction_check_interval=1_500,
            transaction_check_max=10_000,
            transaction_op_batch_interval=500,
            vip_channel_enabled=False,
            timer_roll_window_slot=TIMER_WINDOW,
            mapped_file_size_timer_log=TIMER_LOG_FILE,
        )
        store = StoreConfig(
            store_path_root_dir=str(node.directory),
            store_path_commit_log=str(node.directory / "commitlog"),
            mapped_file_size_commit_log=COMMIT_LOG_FILE,
            mapped_file_size_consume_queue=20 * 200,
            max_hash_slot_num=100,
            max_index_num=400,
        )
        return BrokerService(config, store, HAConfig(), clock=self._clock(), rng=self._rng())

    def acting(self, node: Node) -> bool:
        return node.up and node.broker is not None and node.broker.role.is_acting

    def whole(self) -> bool:
        """All are up, all slaves follow and have everything, and none acts."""
        if any(not node.up or node.broker is None or node.stopping for node in self.brokers):
            return False
        for name in SETS:
            master, slave = self.pair(name)
            ha = slave.broker.replication
            assert isinstance(ha, ClassicHAService)
            if not master.broker.role.is_master or not ha.following or slave.broker.role.is_acting:
                return False
            if slave.broker.store.max_offset != master.broker.store.max_offset:
                return False
        return True


def run(seed: int, faults_s: float = FAULTS_S, scenario: type[ActingScenario] | None = None) -> ActingStory:
    """Run the story of `seed`; raises `Violation` (with the events before it) if an invariant breaks.
    `scenario`: another one than `ActingScenario`."""
    loop = SimLoop(seed)
    story = ActingStory(seed)
    with scratch("acting", seed) as root:
        cluster = ActingCluster(loop, root)
        story.events = cluster.events
        with cluster.world.in_force():
            play(loop, seed, story.events, (scenario or ActingScenario)(cluster, story, faults_s).play)
        return story


class ActingScenario:
    """Traffic, faults, and the looks in between, from the start to the end."""

    def __init__(self, cluster: ActingCluster, story: ActingStory, faults_s: float) -> None:
        self.cluster, self.story, self.faults_s = cluster, story, faults_s
        self.random: random.Random = cluster.random
        self._number = 0
        self.sending = True
        self.over = False
        self._transactions = Transactions(self, TOPIC, QUEUES)
        self._popper = Popper(self)
        self._popped: set[str] = set()
        """Acknowledged messages of the topic that is popped."""
        self._acting: set[str] = set()
        """Lives of slaves that act."""

    async def play(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(cluster.whole, START_UP_S, "slaves that follow at the start")
        await cluster.on(cluster.client_host, self._create_topic())
        working = [
            cluster.on(cluster.client_host, work)
            for work in (
                self._send(self._later, self.story.acked, TOPIC),
                self._send(self._later, self.story.acked, TOPIC),
                self._send(dict, self._popped, POPPED),
                self._transactions.run(),
                self._popper.run(),
            )
        ]
        end = cluster.loop.now + self.faults_s
        while cluster.loop.now < end:
            await self._pass(self.random.expovariate(1 / 1.5))
            self._fault()
        cluster.heal()
        await self._until(cluster.whole, HEAL_S, "healing: slaves that follow, and act no more")
        self.sending = False
        await self._until(self._all_delivered, LATEST_S, "delivery of all messages", look_s=1.0)
        await self._until(lambda: self._popped <= self._popper.done, LATEST_S, "acks of all popped messages")
        await self._pass(10)
        self.over = True
        await asyncio.gather(*working)
        await self._until(cluster.whole, HEAL_S, "equal logs at the end")
        self._all_delivered()

    # -- traffic

    async def _create_topic(self) -> None:
        async with self.cluster.admin() as admin:
            await admin.create_topic(TOPIC, QUEUES)
            await admin.create_topic(POPPED, QUEUES)

    async def _send(self, properties: Callable[[], dict[str, str]], acked: set[str], topic: str) -> None:
        pick = self.random
        async with self.cluster.producer() as producer:
            while self.sending:
                self._number += 1
                key = f"k{self._number}"
                message = Message(topic, key.encode(), keys=key, properties=properties())
                try:
                    await producer.send(message, queue=MessageQueue(topic, "a", pick.randrange(QUEUES)))
                except (ClientError, MQError, NetError):
                    await asyncio.sleep(0.2)  # it may come or not
                else:
                    acked.add(key)
                await asyncio.sleep(pick.expovariate(1 / 0.1))

    def _later(self) -> dict[str, str]:
        pick = self.random
        if pick.random() < 0.5:
            return {"DELAY": str(pick.randint(1, 4))}
        delay_ms = int(pick.choice((1, 2, 5, 8, 12)) * pick.uniform(500, 1_500))
        if pick.random() < 0.5:
            return {"TIMER_DELAY_MS": str(delay_ms)}
        return {"TIMER_DELIVER_MS": str(SimClock(self.cluster.loop).now_ms() + delay_ms)}

    # -- faults

    def _fault(self) -> None:
        cluster, pick = self.cluster, self.random
        down = [node for node in cluster.nodes if not node.up]
        if down and pick.random() < 0.4:
            cluster.start(pick.choice(down))
            return
        up = [node for node in cluster.nodes if node.up and not node.stopping]
        if not up:
            return
        victim = self._victim()
        node = pick.choice([*up, *[victim] * 4 * (victim in up)])
        other = pick.choice(cluster.nodes)
        faults: list[tuple[int, Callable[[], Any]]] = [
            (24, lambda: cluster.crash(node)),
            (8, lambda: cluster.pause(node, pick.uniform(0.5, 14))),
            (8, lambda: other is node or cluster.partition(node, other, both=pick.random() < 0.6)),
            (6, lambda: cluster.isolate(node)),
            (6, lambda: cluster.stop(node)),
            (4, lambda: cluster.slow_packets(node, pick.uniform(0.01, 0.3))),
            (10, self._reset),
            (10, cluster.reconnect),
            *self._more_faults(node),
        ]
        pick.choices([do for _, do in faults], [weight for weight, _ in faults])[0]()

    def _victim(self) -> Node:
        """Most faults hit this one."""
        return self.cluster.pair("a")[0]

    def _more_faults(self, node: Node) -> list[tuple[int, Callable[[], Any]]]:
        """Weights and faults of a kind of cluster."""
        return []

    def _reset(self) -> None:
        ends = self.cluster.connections()
        if ends:
            self.cluster.reset(self.random.choice(ends))

    # -- looking

    def _look(self) -> None:
        cluster = self.cluster
        for name in SETS:
            master, slave = cluster.pair(name)
            if cluster.acting(slave) and slave.life not in self._acting:
                self._acting.add(slave.life)
                self.story.acted += 1
                cluster.log(f"{slave.name} acts")
            elif not cluster.acting(slave) and slave.life in self._acting:
                self._acting.discard(slave.life)
                cluster.log(f"{slave.name} acts no more")
            if not (slave.up and slave.broker is not None and master.up and master.broker is not None):
                continue
            if not cluster.acting(slave):
                continue
            one, copy = master.broker.store, slave.broker.store
            begin, end = max(one.min_offset, copy.min_offset), copy.max_offset
            if end > one.max_offset or _first_difference(one, copy, begin, end) is not None:
                raise Violation(f"{slave.name} acts and has a log that is not the begin of its master's")

    def _all_delivered(self) -> bool:
        found: Counter[str] = Counter()
        self.story.escaped = 0
        for name in SETS:
            master = self.cluster.pair(name)[0]
            if master.broker is None:  # its container starts it
                return False
            store = master.broker.store
            for queue_id in range(QUEUES):
                offset = store.queue_bounds(TOPIC, queue_id).min_offset
                while (result := store.get(TOPIC, queue_id, offset, 32)).buffers:
                    for view in result.buffers:
                        for record in decode_records(view):
                            found[self._kept(record.properties["KEYS"])] += 1
                            if TIMED & record.properties.keys():
                                check_time(record)
                            self.story.escaped += name != "a"
                    offset = result.next_offset
        self.story.delivered = found
        return self.story.acked | self._transactions.committed <= found.keys()

    def _kept(self, key: str) -> str:
        if self._transactions.kinds.get(key, COMMIT) != COMMIT:
            raise Violation(f"{key} was rolled back, and is delivered")
        return key

    async def _pass(self, seconds: float) -> None:
        end = self.cluster.loop.now + seconds
        while self.cluster.loop.now < end:
            await asyncio.sleep(min(0.05, max(0.001, end - self.cluster.loop.now)))
            self._look()

    async def _until(
        self, condition: Callable[[], bool], seconds: float, what: str, *, look_s: float = 0.05
    ) -> None:
        end = self.cluster.loop.now + seconds
        while not condition():
            if self.cluster.loop.now > end:
                wanted = self.story.acked | self._transactions.committed
                missing = sorted(wanted - self.story.delivered.keys())[:5]
                unpopped = sorted(self._popped - self._popper.done)[:5]
                raise Violation(
                    f"no {what} within {seconds:g} s of virtual time; "
                    f"missing {missing}, not popped {unpopped}"
                )
            await asyncio.sleep(look_s)
            self._look()
