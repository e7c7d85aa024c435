"""One seeded story: a cluster, producers that number their messages, readers, faults, and what must hold.

Invariants: no acknowledged message is lost, moved or replaced; no master epoch has two masters; the logs of
any two replicas are equal below the confirm offsets of both; readers see queues without gaps, never a message
that is not in the log in the end, and in the end all acknowledged ones; and, once the faults stop, the group
heals: one master, all replicas in the SyncStateSet, equal logs, and sends are acknowledged again.

Faults come at random, and aimed: many ways to lose data need a second fault at a certain moment, so some
follow an election or a start, and some hit a program in the middle of its work on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.net.errors import NetError
from batonmq.protocol.bodies import MessageQueue
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.message import decode_records
from tests.simulation.cluster import BROKER_NAME, Node, SimCluster
from tests.simulation.loop import Livelock, SimLoop

TOPIC, QUEUES = "numbers", 2
START_UP_S, FAULTS_S, HEAL_S = 30.0, 30.0, 90.0
WORKERS = 3
DISK_WORK = ("append", "extend", "truncate_suffix", "clear")
"""Changes of the epoch file: a crash around one leaves log and epochs in every state they can be in."""


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Shape:
    """What kind of story a seed tells."""

    replicas: int = 2
    controllers: int = 3
    sync_flush: bool = False
    """Acknowledge only what is on disk; only then may the power be cut."""
    faults_s: float = FAULTS_S
    """How long the faults last, in virtual seconds."""


@dataclass
class Story:
    """What happened, for whoever has to understand a failure."""

    seed: int
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Key -> (queue id, queue offset)."""
    unknown: int = 0
    seen: dict[tuple[int, int], str] = field(default_factory=dict)
    """(Queue id, queue offset) -> key, as the readers saw it."""
    trace: int = 0
    """Checksum of all that was sent between hosts: equal for two runs of one seed."""
    masters: dict[int, int] = field(default_factory=dict)
    """Master epoch -> broker id."""
    switches: int = 0
    events: list[str] = field(default_factory=list)


def run(seed: int, shape: Shape = Shape()) -> Story:
    """Tell the story of `seed`; raises `Violation` (with the events before it) if an invariant breaks."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix=f"batonmq-sim-{seed}-", dir=memory if memory.is_dir() else None))
    loop = SimLoop(seed)
    story = Story(seed)
    # Memory is collected only afterwards: a collection at a moment of its own choosing would run `finally`
    # clauses of programs that were killed long ago.
    collecting = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        cluster = SimCluster(
            loop, root, replicas=shape.replicas, controllers=shape.controllers, sync_flush=shape.sync_flush
        )
        story.events = cluster.events
        with cluster.world.in_force():
            teller = _Teller(cluster, story, shape)
            loop.run_until_complete(teller.tell())
            story.trace = loop.network.trace
        bugs = [c for c in loop.failures if c.get("exception") is not None]
        if bugs:
            raise Violation(f"unhandled in the loop: {bugs[0]}") from bugs[0]["exception"]
        return story
    except (Violation, Livelock) as violation:
        tail = "\n".join(story.events[-60:])
        raise Violation(f"seed {seed}: {violation}\n{tail}") from violation
    finally:
        asyncio.set_event_loop(None)
        loop.dispose()
        gc.collect()
        if collecting:
            gc.enable()
        _close_files(root)
        shutil.rmtree(root, ignore_errors=True)


def _close_files(root: Path) -> None:
    """What killed programs had open: a dead process's kernel would close it."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            if entry.readlink().is_relative_to(root):
                os.close(int(entry.name))


class _Teller:
    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        self.cluster, self.story, self.shape = cluster, story, shape
        self.random = cluster.random
        self._number = 0
        self._sending = self._reading = self._faulting = True
        self._newest = 0
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._compared: dict[tuple[str, str], int] = {}
        self._violation: Violation | None = None

    async def tell(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(self._whole, START_UP_S, "the first SyncStateSet of all replicas")
        watcher = asyncio.ensure_future(self._watch())
        await cluster.on(cluster.client_host, self._create_topic())
        workers = [cluster.on(cluster.client_host, self._work()) for _ in range(WORKERS)]
        for queue in range(QUEUES):
            self._follow(queue)
        await self._faults()
        cluster.heal()
        before = len(self.story.acked)
        await self._until(self._whole, HEAL_S, "healing: one master and the whole SyncStateSet")
        await self._until(
            lambda: len(self.story.acked) > before + 10, HEAL_S, "acknowledged sends after healing"
        )
        self._sending = False
        await asyncio.gather(*workers)
        await self._until(self._level, HEAL_S, "equal logs after healing")
        await self._until(self._all_read, HEAL_S, "readers at the end of their queues")
        self._reading = False
        await asyncio.gather(*self._readers.values())
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        self._check_masters()
        self._check_logs(whole=True)
        master = self.cluster.masters()[0]
        self._check_acked(master)
        self._check_seen(master)

    # -- the client ---------------------------------------------------------------------------------------

    async def _create_topic(self) -> None:
        async with self.cluster.admin() as admin:
            await admin.create_topic(TOPIC, QUEUES)

    async def _work(self) -> None:
        async with self.cluster.producer() as producer:
            while self._sending:
                self._number += 1
                key = f"m{self._number}"
                body = key.encode() * self.random.randint(1, 40)
                try:
                    result = await producer.send(Message(TOPIC, body, keys=key))
                except (ClientError, MQError, NetError):
                    self.story.unknown += 1
                else:
                    self.story.acked[key] = (result.queue.queue_id, result.queue_offset)
                    self._follow(result.queue.queue_id)
                await asyncio.sleep(self.random.expovariate(1 / 0.06))

    def _follow(self, queue_id: int) -> None:
        # Tables are copied to slaves every few seconds. A switch may lose a topic just created, which is then
        # created by the next send, with another number of queues.
        if queue_id not in self._readers:
            reader = self.cluster.on(self.cluster.client_host, self._read(queue_id))
            self._readers[queue_id] = reader

    async def _read(self, queue_id: int) -> None:
        """Follow one queue from its beginning, as a consumer does."""
        seen, offset = self.story.seen, 0
        queue = MessageQueue(topic=TOPIC, broker_name=BROKER_NAME, queue_id=queue_id)
        async with self.cluster.reader() as reader:
            while self._reading and self._violation is None:
                try:
                    pulled = await reader.pull(queue, offset)
                except (NetError, MQError) as error:
                    if isinstance(error, TopicNotExistError) and self._faulting:
                        await asyncio.sleep(0.5)  # a master that has not heard of the topic yet
                    continue
                if pulled.next_offset < offset:
                    self._fail(f"queue {queue_id} was read up to {offset}, now ends at {pulled.next_offset}")
                for record in decode_records(pulled.records):
                    if record.queue_offset != offset:
                        self._fail(f"queue {queue_id}: read offset {record.queue_offset} after {offset - 1}")
                    seen[queue_id, offset] = record.properties["KEYS"]
                    offset += 1
                if not pulled.records:
                    await asyncio.sleep(0.2)

    def _fail(self, what: str) -> None:
        self._violation = self._violation or Violation(what)

    # -- the faults ---------------------------------------------------------------------------------------

    async def _faults(self) -> None:
        cluster, pick = self.cluster, self.random
        end = cluster.loop.now + self.shape.faults_s
        while cluster.loop.now < end:
            if pick.random() < 0.3:
                # A group that is well again has most to lose.
                cluster.heal()
                patience = cluster.loop.now + pick.uniform(1, 6)
                while cluster.loop.now < patience and not self._whole():
                    await asyncio.sleep(0.05)
                await asyncio.sleep(pick.expovariate(1 / 0.3))
                if pick.random() < 0.35 and self._whole():
                    await self._join()
                else:
                    self._strike()
            else:
                await asyncio.sleep(pick.expovariate(1 / 1.5))
                self._one_fault()
        self._faulting = False
        self._check_masters()

    def _one_fault(self) -> None:
        cluster, pick = self.cluster, self.random
        # Brokers twice: what happens to them matters most.
        up = [n for n in [*cluster.controllers, *cluster.brokers, *cluster.brokers] if n.up]
        down = [n for n in cluster.nodes if not n.up]
        kind = pick.random()
        # Where much is down little can go wrong any more: it comes back soon.
        if down and kind < (0.35 if len(down) < 3 else 0.6):
            node = pick.choice(down)
            cluster.start(node)
            if node.kind == "broker" and pick.random() < 0.4:
                if pick.random() < 0.5:
                    cluster.slow_link(node, pick.choice((10e3, 50e3)))
                self._strike_soon(1.5)  # while it catches up
        elif kind < 0.45 and up:
            cluster.crash(pick.choice(up))
        elif kind < 0.55 and up and self.shape.sync_flush:
            cluster.power_cut(pick.choice(up))
        elif kind < 0.60 and up:
            cluster.pause(pick.choice(up), pick.uniform(0.1, 8))
        elif kind < 0.70:
            a, b = pick.sample(cluster.nodes, 2)
            cluster.partition(a, b, both=pick.random() < 0.7)
        elif kind < 0.75 and up:
            cluster.isolate(pick.choice(up))
        elif kind < 0.80 and (connections := cluster.connections()):
            cluster.reset(pick.choice(connections))
        elif kind < 0.83 and (connections := cluster.connections()):
            cluster.stall(pick.choice(connections), pick.uniform(1, 15), both=pick.random() < 0.5)
        elif kind < 0.845 and up:
            cluster.slow_disk(pick.choice(up), pick.choice((0.02, 0.1, 0.4)))
        elif kind < 0.86 and up:
            cluster.slow_link(pick.choice(up), pick.choice((5e3, 20e3, 100e3)))
        elif kind < 0.88:
            cluster.full_disk(pick.choice(cluster.brokers))
        elif kind < 0.90:
            self._strike_at_work()
        elif kind < 0.95:
            self._strike()
        else:
            cluster.reconnect()

    def _strike_at_work(self) -> None:
        brokers = [n for n in self.cluster.brokers if n.up]
        if brokers:
            moments = [*DISK_WORK, *(f"after {name}" for name in DISK_WORK)]
            self.cluster.crash_at_work(self.random.choice(brokers), self.random.sample(moments, 3))

    def _strike_soon(self, within_s: float) -> None:
        self.cluster.loop.call_later(self.random.uniform(0, within_s), self._strike)

    def _strike(self) -> None:
        """One or two more faults, aimed at the master."""
        cluster, pick = self.cluster, self.random
        brokers = [n for n in cluster.brokers if n.up]
        if not self._faulting or not brokers:
            return
        master = max(cluster.masters(), key=lambda n: int(cluster.broker_of(n).epoch), default=brokers[0])
        kind = pick.random()
        if kind < 0.2:
            self._end(master)
        elif kind < 0.3:
            for node in brokers:
                self._end(node)
        elif kind < 0.5:
            # The slaves fall behind, and then the master is gone before the SyncStateSet can shrink.
            for node in brokers:
                if node is not master:
                    cluster.partition(master, node, both=pick.random() < 0.5)
            self._later(pick.uniform(0.1, 2.5), lambda: self._end(master))
        elif kind < 0.65:
            # The controllers hear the master, but it does not hear them: answers get lost.
            for node in cluster.controllers:
                cluster.partition(node, master, both=False)
            self._later(pick.uniform(0.5, 6), lambda: self._end(master))
        elif kind < 0.8:
            # The leading controller is alone with the brokers, and must decide something.
            leaders = [n for n in cluster.controllers if n.up and cluster.leads(n)]
            for leader in leaders:
                for node in cluster.controllers:
                    if node is not leader:
                        cluster.partition(leader, node)
            self._later(pick.uniform(0, 0.5), lambda: self._end(master))
        elif kind < 0.87:
            self._blink(master)
        elif kind < 0.91:
            cluster.pause(master, pick.uniform(0.5, 5))
        elif kind < 0.95:
            cluster.isolate(master)
        else:
            self._strike_at_work()

    async def _join(self) -> None:
        """A slave leaves the SyncStateSet and comes back; when it is about to join, the master is lost.

        Either the controllers' answer to the master gets lost and then the link to the slave, or the slave
        is slow to catch up. Whoever counts it in too early, or too late, loses messages.
        """
        cluster, pick = self.cluster, self.random
        (master,) = cluster.masters()
        slave = pick.choice([n for n in cluster.brokers if n is not master])
        self._end(slave)
        tracker = cluster.broker_of(master).ha.tracker

        async def until(condition: Callable[[], bool], seconds: float) -> None:
            end = cluster.loop.now + seconds
            while cluster.loop.now < end and not condition():
                await asyncio.sleep(0.002)

        await until(lambda: len(tracker.agreed.members) < self.shape.replicas, 6)
        await asyncio.sleep(pick.uniform(0, 1))
        deaf = pick.random() < 0.5
        if deaf:
            for node in cluster.controllers:
                cluster.partition(node, master, both=False)
        else:
            cluster.slow_link(slave, pick.choice((3e3, 10e3, 30e3)))
        cluster.start(slave)
        before = tracker.agreed.members
        await until(lambda: (tracker.proposal or before) > before or tracker.agreed.members > before, 4)
        if deaf:
            cluster.partition(master, slave)
        await asyncio.sleep(pick.uniform(0.1, 1))
        self._end(master)

    def _blink(self, master: Node) -> None:
        """The power of a master with a slow disk fails for a moment: slaves have what it has lost."""
        self.cluster.slow_disk(master, 0.4)
        if self.random.random() < 0.4:  # or nobody has
            for node in self.cluster.brokers:
                if node is not master:
                    self._end(node)

        def fail() -> None:
            self._end(master)
            self._later(self.random.uniform(0.05, 0.5), lambda: master.up or self.cluster.start(master))

        self._later(self.random.uniform(0.3, 1), fail)

    def _later(self, seconds: float, fault: Callable[[], object]) -> None:
        def unless_over() -> None:
            if self._faulting:
                fault()

        self.cluster.loop.call_later(seconds, unless_over)

    def _end(self, node: Node) -> None:
        """Kill a program, or cut the power of its machine."""
        if node.up:
            cut = self.shape.sync_flush and self.random.random() < 0.6
            (self.cluster.power_cut if cut else self.cluster.crash)(node)

    # -- what must hold -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check after every bit of time; a violation ends the story through the failed task's exception."""
        while True:
            await asyncio.sleep(0.05)
            try:
                self._check_masters()
                self._check_logs()
            except Violation as violation:
                self._violation = self._violation or violation
                raise

    async def _until(self, condition: Any, seconds: float, what: str) -> None:
        end = self.cluster.loop.now + seconds
        while not condition():
            if self._violation is not None:
                raise self._violation
            if self.cluster.loop.now > end:
                raise Violation(f"no {what} within {seconds:g} s of virtual time")
            await asyncio.sleep(0.05)

    def _check_masters(self) -> None:
        for node in self.cluster.masters():
            broker = self.cluster.broker_of(node)
            epoch, identity = broker.epoch, node.index
            if epoch > self._newest:
                self._newest = epoch
                if self._faulting and self.random.random() < 0.3:
                    self._strike_soon(1.0)
            known = self.story.masters.setdefault(epoch, identity)
            if known != identity:
                raise Violation(f"epoch {epoch} has two masters: broker{known} and broker{identity}")
        self.story.switches = len(self.story.masters)

    def _check_logs(self, *, whole: bool = False) -> None:
        """Compare what is new since the last look; `whole`: from the beginning."""
        stores = [
            (n, self.cluster.broker_of(n).store)
            for n in self.cluster.brokers
            if n.up and self.cluster.broker_of(n) is not None
        ]
        for i, (a, one) in enumerate(stores):
            for b, other in stores[i + 1 :]:
                pair = (_life(a), _life(b))
                begin = max(one.min_offset, other.min_offset, 0 if whole else self._compared.get(pair, 0))
                end = min(one.confirm_offset, other.confirm_offset, one.max_offset, other.max_offset)
                at = _first_difference(one, other, begin, end)
                if at is not None:
                    raise Violation(
                        f"{a.name} and {b.name} differ at {at}, below both confirm offsets ({end})"
                    )
                self._compared[pair] = end

    def _check_acked(self, node: Node) -> None:
        for key, (queue_id, offset) in self.story.acked.items():
            self._check_stored(node, key, queue_id, offset, "acknowledged")
            if self.story.seen.get((queue_id, offset)) != key:
                raise Violation(f"acknowledged {key} at {queue_id}:{offset} was not read")

    def _check_seen(self, node: Node) -> None:
        for (queue_id, offset), key in self.story.seen.items():
            self._check_stored(node, key, queue_id, offset, "read")

    def _check_stored(self, node: Node, key: str, queue_id: int, offset: int, what: str) -> None:
        got = self.cluster.broker_of(node).store.get(TOPIC, queue_id, offset, 1, 1 << 20)
        data = b"".join(bytes(part) for part in got.buffers)
        if f"KEYS\x01{key}\x02".encode() not in data:
            found = "nothing" if not data else "another message"
            raise Violation(f"{what} {key} is lost: {node.name} has {found} at {queue_id}:{offset}")

    def _all_read(self) -> bool:
        store = self.cluster.broker_of(self.cluster.masters()[0]).store
        count = sum(store.queue_bounds(TOPIC, queue).max_offset for queue in self._readers)
        return len(self.story.seen) >= count

    def _whole(self) -> bool:
        masters = self.cluster.masters()
        if len(masters) != 1:
            return False
        ha = self.cluster.broker_of(masters[0]).ha
        return ha.tracker is not None and len(ha.tracker.agreed.members) == self.shape.replicas

    def _level(self) -> bool:
        stores = [self.cluster.broker_of(n).store for n in self.cluster.brokers]
        return len({s.max_offset for s in stores}) == 1 and len({s.confirm_offset for s in stores}) == 1


def _life(node: Node) -> str:
    """One life of one node: after a restart its log is another object."""
    return f"{node.name}.{node.lives}"


def _first_difference(one: Any, other: Any, begin: int, end: int) -> int | None:
    at = begin
    while at < end:
        a, b = one.read(at, end - at), other.read(at, end - at)
        size = min(len(a), len(b))
        if size == 0:
            return at
        if a[:size] != b[:size]:
            return next(at + i for i in range(size) if a[i] != b[i])
        at += size
    return None
