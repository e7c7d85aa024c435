"""One seeded story of a static topic whose queues move between two broker sets under faults.

Producers send each to a queue, an operator moves the queues and carries each plan out until that succeeds, a
reader follows each queue, and brokers, the controller and the name server are killed, paused and cut off.
Invariants:

- a message that was acknowledged at a logical offset is there, and at no second one unless its producer tried
  again; one that was acknowledged without an offset, during a move, is in its queue;
- the offsets that a producer gets in a queue increase, also through moves. Not checked are sends during a
  move that failed at first while a broker set got another master: this one may lead a queue that has moved,
  until the plan is carried out again;
- what a reader that follows sees is what is there at the end: it leaves nothing out and reads nothing twice;
- once the faults are over, the plan under way is carried out, and another one, and sends go on.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from batonmq.admin import static_plans
from batonmq.admin.operations import static_topics
from batonmq.admin.session import Admin, AdminError
from batonmq.broker.service import BrokerService
from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.topics import TopicRemappingDetailWrapper
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import decode_records
from tests.simulation.cluster import NAMESRV_PORT, WALL_EPOCH_MS, Node, SimCluster
from tests.simulation.loop import SimLoop
from tests.simulation.story import HEAL_S, START_UP_S, TOPIC, Violation, play, scratch

SETS = ("a", "b")
QUEUES, WORKERS = 2, 6
FAULTS_S = 60.0
SCOPE = "__syslo__global__"

Place = tuple[int, int]
"""Logical queue, offset in it."""


@dataclass
class StaticStory:
    """What happened."""

    seed: int
    acked: dict[str, Place] = field(default_factory=dict)
    """Key -> place; the offset is -1 for a message that was sent during a move."""
    unknown: int = 0
    """Sends whose outcome the producer does not know."""
    moves: int = 0
    """Plans that were carried out."""
    again: int = 0
    """Plans that failed at first."""
    stored: dict[Place, str] = field(default_factory=dict)
    """What is there at the end."""
    events: list[str] = field(default_factory=list)


class StaticCluster(SimCluster):
    """A name server, one controller and two broker sets of two replicas."""

    def __init__(self, loop: SimLoop, root: Path, *, sync_flush: bool) -> None:
        super().__init__(loop, root, replicas=2 * len(SETS), controllers=1, sync_flush=sync_flush)

    def members(self, name: str) -> list[Node]:
        number = SETS.index(name)
        return self.brokers[2 * number : 2 * number + 2]

    def _make_broker(self, node: Node) -> BrokerService:
        service = super()._make_broker(node)
        settings = service._settings
        settings.broker = replace(settings.broker, broker_name=SETS[node.index // 2])
        return service

    def whole(self) -> bool:
        """Each set has one master, and its replicas are in the SyncStateSet."""
        for name in SETS:
            nodes = self.members(name)
            masters = [node for node in self.masters() if node in nodes]
            ids = {node.broker_id for node in nodes if node.up}
            if len(masters) != 1 or len(ids) < len(nodes) or None in ids:
                return False
            tracker = masters[0].broker.replication.tracker
            if tracker is None or tracker.agreed.members != ids:
                return False
        return True


def run(seed: int, faults_s: float = FAULTS_S) -> StaticStory:
    """Run the story of `seed`; raises `Violation` if an invariant breaks."""
    loop = SimLoop(seed)
    story = StaticStory(seed)
    with scratch("static", seed) as root:
        cluster = StaticCluster(loop, root, sync_flush=seed % 2 == 1)
        story.events = cluster.events
        clock = mock.patch.object(static_topics, "_now_ms", lambda: WALL_EPOCH_MS + int(loop.now * 1000))
        # In every second pair of seeds nearly any message beyond the end of a part has an offset of the next.
        begin = _close if seed // 2 % 2 else static_plans.logic_offset_after
        gap = mock.patch.object(static_plans, "logic_offset_after", begin)
        with cluster.world.in_force(), clock, gap:
            play(loop, seed, story.events, StaticScenario(cluster, story, faults_s).play)
        return story


def _close(end: int) -> int:
    """Where a part begins after one that ended here, nearly without a gap."""
    return end + 1


class StaticScenario:
    """Producers, readers, an operator and faults."""

    def __init__(self, cluster: StaticCluster, story: StaticStory, faults_s: float) -> None:
        self.cluster, self.story, self.faults_s = cluster, story, faults_s
        self.random: random.Random = cluster.random
        self._sending = self._moving = self._reading = True
        self._over = False
        """The faults are over."""
        self._plan: TopicRemappingDetailWrapper | None = None
        """The plan that is to be carried out; None: the last one was."""
        self._failed = False
        """An attempt at the plan has failed."""
        self._epochs: list[int] = []
        """Master epochs of the broker sets when the plan was made."""
        self._sending_now: set[str] = set()
        self._sent_during: set[str] = set()
        """Keys that were being sent at any time since the plan was made."""
        self._unordered: set[str] = set()
        """Keys that were sent during a move that failed at first while a broker set got another master."""
        self._sent: dict[int, list[str]] = defaultdict(list)
        """Worker -> what it was acknowledged, in order."""
        self._seen: dict[int, list[tuple[int, str]]] = {queue: [] for queue in range(QUEUES)}
        """Queue -> what its reader saw."""

    @property
    def _namesrv(self) -> str:
        return f"{self.cluster.namesrv.address}:{NAMESRV_PORT}"

    async def play(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(cluster.whole, START_UP_S, "two whole broker sets")
        host = cluster.client_host
        await cluster.on(host, self._create())
        workers = [cluster.on(host, self._work(number)) for number in range(WORKERS)]
        readers = [cluster.on(host, self._read(queue)) for queue in range(QUEUES)]
        operator = cluster.on(host, self._operate())
        end = cluster.loop.now + self.faults_s
        while cluster.loop.now < end:
            await asyncio.sleep(self.random.expovariate(1 / 1.5))
            self._fault()
        self._over = True
        cluster.heal()
        await self._until(cluster.whole, HEAL_S, "healing: two whole broker sets")
        await self._until(lambda: self._plan is None, HEAL_S, "end of the move under way")
        before = self.story.moves
        await self._until(lambda: self.story.moves > before, HEAL_S, "another move")
        self._moving = False
        await operator
        sent = len(self.story.acked)
        await self._until(lambda: len(self.story.acked) > sent + 10, HEAL_S, "acknowledged sends")
        self._sending = False
        await asyncio.gather(*workers)
        await cluster.on(host, self._read_all())
        await self._until(self._all_seen, HEAL_S, "readers at the end of their queues")
        self._reading = False
        await asyncio.gather(*readers)
        self._check()

    # -- the operator

    async def _create(self) -> None:
        async with Admin(self._namesrv) as admin:
            end = self.cluster.loop.now + START_UP_S
            while True:
                try:
                    if len(await admin.masters()) < len(SETS):  # registered a moment later
                        raise AdminError("not yet")
                    _, plan = await static_topics.plan_queues(admin, TOPIC, QUEUES, [SETS[0]])
                    await static_topics.update(admin, plan)
                except (AdminError, MQError, NetError):
                    if self.cluster.loop.now > end:
                        raise
                    await asyncio.sleep(0.2)
                else:
                    return

    async def _operate(self) -> None:
        async with Admin(self._namesrv) as admin:
            while self._moving:
                try:
                    await self._move(admin)
                except (AdminError, MQError, NetError) as error:
                    self._failed = True
                    self.cluster.log(f"the move is to be carried out again: {error}")
                    self.story.again += 1
                    await asyncio.sleep(0.5)
                else:
                    await asyncio.sleep(self.random.expovariate(1 / 2))

    async def _move(self, admin: Admin) -> None:
        if self._plan is None:
            targets = self.random.choice([SETS[:1], SETS[1:], SETS])
            _, plan = await static_topics.plan_remapping(admin, TOPIC, targets)
            self._plan = plan
            self._failed, self._epochs = False, self._master_epochs()
            self._sent_during = set(self._sending_now)
            self.cluster.log(f"plan {plan.epoch}: {static_topics.leaders(plan)}")
        await static_topics.remap(admin, self._plan)
        self.cluster.log(f"plan {self._plan.epoch} is carried out")
        if self._failed and self._epochs != self._master_epochs():
            self._unordered |= self._sent_during
        self._plan = None
        self.story.moves += 1

    def _master_epochs(self) -> list[int]:
        return [
            max(
                (node.broker.role.epoch for node in self.cluster.members(name) if node.up and node.broker),
                default=0,
            )
            for name in SETS
        ]

    # -- clients

    async def _work(self, number: int) -> None:
        queue = MessageQueue(TOPIC, SCOPE, number % QUEUES)
        async with self.cluster.producer() as producer:
            count = 0
            while self._sending:
                count += 1
                await self._send(producer, number, queue, f"{number}-{count}")
                await asyncio.sleep(self.random.expovariate(1 / 0.1))

    async def _send(self, producer: Producer, number: int, queue: MessageQueue, key: str) -> None:
        message = Message(TOPIC, key.encode() * self.random.randint(1, 20), keys=key)
        self._sending_now.add(key)
        self._sent_during.add(key)
        try:
            result = await producer.send(message, queue=queue)
        except (ClientError, MQError, NetError):
            self.story.unknown += 1
            return
        finally:
            self._sending_now.discard(key)
        if result.queue != queue:
            raise Violation(f"{key} was sent to {queue} and stored in {result.queue}")
        self.story.acked[key] = queue.queue_id, result.queue_offset
        self._sent[number].append(key)

    async def _read(self, queue_id: int) -> None:
        """Follow one queue from its beginning, as a consumer does."""
        queue, offset, seen = MessageQueue(TOPIC, SCOPE, queue_id), 0, self._seen[queue_id]
        async with self.cluster.reader() as reader:
            while self._reading:
                try:
                    pulled = await reader.pull(queue, offset)
                except (ClientError, MQError, NetError):
                    await asyncio.sleep(0.2)
                    continue
                for record in decode_records(pulled.records):
                    seen.append((record.queue_offset, record.properties["KEYS"]))
                if pulled.next_offset <= offset:
                    await asyncio.sleep(0.2)
                offset = max(offset, pulled.next_offset)

    async def _read_all(self) -> None:
        async with self.cluster.reader() as reader:
            for queue_id in range(QUEUES):
                await self._read_queue(reader, MessageQueue(TOPIC, SCOPE, queue_id))

    async def _read_queue(self, reader: QueueReader, queue: MessageQueue) -> None:
        offset, end = await reader.min_offset(queue), await reader.max_offset(queue)
        while offset < end:
            pulled = await reader.pull(queue, offset)
            for record in decode_records(pulled.records):
                if record.queue_offset < offset or record.queue_id != queue.queue_id:
                    raise Violation(f"{queue} has {record.queue_id}:{record.queue_offset} after {offset - 1}")
                self.story.stored[queue.queue_id, record.queue_offset] = record.properties["KEYS"]
                offset = record.queue_offset + 1
            if not pulled.records and pulled.next_offset <= offset:
                raise Violation(f"{queue} ends at {end}, and cannot be read from {offset} on")
            offset = max(offset, pulled.next_offset)

    # -- faults

    def _fault(self) -> None:
        """At most one program of each set, and one of the others, is down at a time."""
        cluster, pick = self.cluster, self.random
        down = [node for node in cluster.nodes if not node.up]
        if down and pick.random() < 0.5:
            cluster.start(pick.choice(down))
            return
        masters = cluster.masters()
        node = pick.choice([*cluster.brokers, *masters, *masters, *cluster.controllers, cluster.namesrv])
        beside = cluster.members(SETS[node.index // 2]) if node.kind == "broker" else []
        if not node.up or any(each in down for each in beside):
            return
        other = pick.choice(cluster.nodes)
        faults: list[tuple[int, Callable[[], Any]]] = [
            (20, lambda: cluster.crash(node)),
            (5, lambda: cluster.stop(node)),
            (8, lambda: cluster.pause(node, pick.uniform(0.5, 6))),
            (8, lambda: self._cut(node, other, both=pick.random() < 0.6)),
            (6, lambda: cluster.isolate(node)),
            (4, lambda: cluster.slow_disk(node, pick.uniform(0.05, 0.8))),
            (4, lambda: cluster.slow_packets(node, pick.uniform(0.01, 0.3))),
            (12, lambda: self._hang_and_kill(node, beside)),
            (14, cluster.reconnect),
        ]
        if cluster.sync_flush and node.kind == "broker":
            faults.append((10, lambda: cluster.power_cut(node, pick.random())))
        pick.choices([do for _, do in faults], [weight for weight, _ in faults])[0]()

    def _cut(self, node: Node, other: Node, *, both: bool) -> None:
        if other is not node:
            self.cluster.partition(node, other, both=both)

    def _hang_and_kill(self, node: Node, beside: list[Node]) -> None:
        """A slave hangs, but not so long that it is no longer in sync when its master is killed."""
        slaves = [each for each in beside if each is not node and each.up]
        if not slaves or node not in self.cluster.masters():
            return
        life, seconds = node.life, self.random.uniform(1.1, 1.5)
        self.cluster.pause(slaves[0], seconds)

        def kill() -> None:
            if node.up and node.life == life and not self._over:
                self.cluster.crash(node)

        asyncio.get_running_loop().call_later(seconds - self.random.uniform(0, 0.1), kill)

    # -- looking

    def _all_seen(self) -> bool:
        ends = {
            queue: max((at for q, at in self.story.stored if q == queue), default=-1)
            for queue in range(QUEUES)
        }
        return all(end < 0 or ((seen := self._seen[q]) and seen[-1][0] >= end) for q, end in ends.items())

    def _check(self) -> None:
        stored = self.story.stored
        places: dict[str, list[Place]] = defaultdict(list)
        for place, key in sorted(stored.items()):
            places[key].append(place)
        for key, (queue, offset) in self.story.acked.items():
            if offset >= 0 and stored.get((queue, offset)) != key:
                raise Violation(f"{key} was acknowledged at {queue}:{offset}, it is at {places[key]}")
            if not any(place[0] == queue for place in places[key]):
                raise Violation(f"{key} was acknowledged in queue {queue}, it is at {places[key]}")
        for number, keys in self._sent.items():
            last = -1
            for key in keys:
                queue, offset = self.story.acked[key]
                at = offset if offset >= 0 else places[key][-1][1]
                if at <= last and key not in self._unordered:
                    raise Violation(
                        f"{key} of producer {number} is at {queue}:{at}, the one before at {last}"
                    )
                last = max(last, at)
        for queue, seen in self._seen.items():
            there = [(at, key) for (q, at), key in sorted(stored.items()) if q == queue]
            if seen[: len(there)] != there:
                wrong = next(pair for pair in zip([*seen, None], there, strict=False) if pair[0] != pair[1])
                raise Violation(f"the reader of queue {queue} saw {wrong[0]}, there is {wrong[1]}")

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = self.cluster.loop.now + seconds
        while not condition():
            if self.cluster.loop.now > end:
                raise Violation(f"no {what} within {seconds:g} s of virtual time")
            await asyncio.sleep(0.05)
