"""One seeded story: a cluster, a producer that numbers its messages, faults, and what must hold throughout.

Invariants: no acknowledged message is lost, moved or replaced; no master epoch has two masters; the logs of
any two replicas are equal below the confirm offsets of both; and, once the faults stop, the group heals: one
master, both (all) replicas in the SyncStateSet, equal logs, and sends are acknowledged again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batonmq.client.errors import ClientError
from batonmq.client.message import Message
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from tests.simulation.cluster import Node, SimCluster
from tests.simulation.loop import SimLoop

TOPIC, QUEUES = "numbers", 2
START_UP_S, FAULTS_S, HEAL_S = 30.0, 40.0, 90.0
WORKERS = 3


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


@dataclass
class Story:
    """What happened, for whoever has to understand a failure."""

    seed: int
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Key -> (queue id, queue offset)."""
    unknown: int = 0
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
    try:
        asyncio.set_event_loop(loop)
        cluster = SimCluster(
            loop, root, replicas=shape.replicas, controllers=shape.controllers, sync_flush=shape.sync_flush
        )
        story.events = cluster.events
        teller = _Teller(cluster, story, shape)
        loop.run_until_complete(teller.tell())
        bugs = [c for c in loop.failures if c.get("exception") is not None]
        if bugs:
            raise Violation(f"unhandled in the loop: {bugs[0]}") from bugs[0]["exception"]
        return story
    except Violation as violation:
        tail = "\n".join(story.events[-60:])
        raise Violation(f"seed {seed}: {violation}\n{tail}") from violation
    finally:
        asyncio.set_event_loop(None)
        loop.dispose()
        shutil.rmtree(root, ignore_errors=True)


class _Teller:
    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        self.cluster, self.story, self.shape = cluster, story, shape
        self.random = cluster.random
        self._number = 0
        self._sending = True
        self._compared: dict[tuple[str, str], int] = {}
        self._violation: Violation | None = None

    async def tell(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(self._whole, START_UP_S, "the first SyncStateSet of all replicas")
        watcher = asyncio.ensure_future(self._watch())
        await cluster.on(cluster.client_host, self._create_topic())
        workers = [cluster.on(cluster.client_host, self._work()) for _ in range(WORKERS)]
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
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        self._check_masters()
        self._check_logs(whole=True)
        self._check_acked(self.cluster.masters()[0])

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
                await asyncio.sleep(self.random.expovariate(1 / 0.06))

    # -- the faults ---------------------------------------------------------------------------------------

    async def _faults(self) -> None:
        cluster, end = self.cluster, self.cluster.loop.now + self.shape.faults_s
        while cluster.loop.now < end:
            await asyncio.sleep(self.random.expovariate(1 / 2.0))
            self._one_fault()
        self._check_masters()

    def _one_fault(self) -> None:
        cluster, pick = self.cluster, self.random
        # Brokers twice: what happens to them matters most.
        up = [n for n in [*cluster.controllers, *cluster.brokers, *cluster.brokers] if n.up]
        down = [n for n in cluster.nodes if not n.up]
        kind = pick.random()
        if down and kind < 0.35:
            cluster.start(pick.choice(down))
        elif kind < 0.5 and up:
            cluster.crash(pick.choice(up))
        elif kind < 0.6 and up and self.shape.sync_flush:
            cluster.power_cut(pick.choice(up))
        elif kind < 0.68 and up:
            cluster.pause(pick.choice(up), pick.uniform(0.1, 8))
        elif kind < 0.8:
            a, b = pick.sample(cluster.nodes, 2)
            cluster.partition(a, b, both=pick.random() < 0.7)
        elif kind < 0.86 and up:
            cluster.isolate(pick.choice(up))
        else:
            cluster.log("reconnect")
            cluster.loop.network.heal()

    # -- what must hold -----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check after every bit of time; a violation ends the story through the failed task's exception."""
        while True:
            await asyncio.sleep(0.05)
            try:
                self._check_masters()
                self._check_logs()
            except Violation as violation:
                self._violation = violation
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

    def _check_acked(self, node: Node) -> None:
        store = self.cluster.broker_of(node).store
        for key, (queue_id, offset) in self.story.acked.items():
            got = store.get(TOPIC, queue_id, offset, 1, 1 << 20)
            data = b"".join(bytes(part) for part in got.buffers)
            if f"KEYS\x01{key}\x02".encode() not in data:
                found = "nothing" if not data else "another message"
                raise Violation(f"acknowledged {key} is lost: {node.name} has {found} at {queue_id}:{offset}")

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
