"""One node of a simulated Raft group: the real core and storage, and a shell on virtual time.

It does what `batonmq.raft.node` does with asyncio, on a disk that can lose power and a clock that runs
faster or slower than others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.errors import RaftError
from batonmq.raft.messages import Entry, Kind, Members, Message, Snapshot, SnapshotMeta
from batonmq.raft.state import Offer, Save
from batonmq.raft.storage import Storage
from tests.simulation.memory_disk import MemoryDisk, PowerCut
from tests.simulation.raft_checks import Invariants


class DriftingClock:
    """A monotonic clock that begins anywhere and whose speed may change, within the world's bounds."""

    def __init__(self, offset_ms: float, rate: float) -> None:
        self._local_ms, self._since, self._rate = offset_ms, 0.0, rate

    def at(self, now: float) -> float:
        """What it shows at the world's time ``now``, ms."""
        return self._local_ms + (now - self._since) * self._rate

    def when(self, local_ms: float) -> float:
        """When it will show ``local_ms``, if its speed stays."""
        return self._since + (local_ms - self._local_ms) / self._rate

    def change_rate(self, now: float, rate: float) -> None:
        self._local_ms, self._since, self._rate = self.at(now), now, rate


class Spread:
    """What a core draws of the world's generator: as `random.randrange` draws it, but without calls of
    functions that are not compiled."""

    def __init__(self, rng: random.Random) -> None:
        self._bits = rng.getrandbits

    def randrange(self, start: int, stop: int, /) -> int:
        width = stop - start
        bits = width.bit_length()
        drawn = self._bits(bits)
        while drawn >= width:
            drawn = self._bits(bits)
        return start + drawn


class World:
    """What a node needs of the simulation around it."""

    now: float
    rng: random.Random
    config: RaftConfig
    checks: Invariants
    segment_bytes: int
    allocate_bytes: int
    snapshot_entries: int

    def at(self, when: float, action: Callable[[], None]) -> None:
        raise NotImplementedError

    def disk_ms(self) -> float:
        raise NotImplementedError

    def send(self, sender: str, target: str, message: Message) -> None:
        raise NotImplementedError


class Guarded:
    """An event of a node: it takes place only in the life in which it was made, and not while the node is
    paused."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.life = node.life

    def __call__(self) -> None:
        node = self.node
        if not node.alive or node.life != self.life:
            return
        world = node.world
        if world.now < node.paused_until:
            world.at(node.paused_until, self)
            return
        self.act()

    def act(self) -> None:
        raise NotImplementedError


class Call(Guarded):
    def __init__(self, node: Node, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        super().__init__(node)
        self.action = action
        self.args = args

    def act(self) -> None:
        self.action(*self.args)


class Delivery(Guarded):
    """A message arrives."""

    def __init__(self, node: Node, sender: str, message: Message) -> None:
        super().__init__(node)
        self.sender = sender
        self.message = message

    def act(self) -> None:
        self.node.receive(self.sender, self.message)


class Alarm(Guarded):
    """The time has come that the core asked for."""

    def act(self) -> None:
        self.node.tick()


class Node:
    def __init__(self, world: World, name: str, members: Members, clock: DriftingClock) -> None:
        self.world = world
        self.name = name
        self.bootstrap = members
        self.clock = clock
        self.disk = MemoryDisk(world.rng, world.allocate_bytes)
        self.alive = False
        self.gone = False
        """Taken out of service for ever."""
        self.life = 0
        self.paused_until = 0.0
        self.core: RaftCore
        self.storage: Storage
        self.applied: list[bytes] = []
        self.applied_index = 0
        self.applied_term = 0
        self.pending: dict[int, tuple[int, bytes, int]] = {}
        """Index -> term, payload, and what was visible when it was proposed."""
        self.reads: dict[int, int] = {}
        """Number -> what was visible when it was asked."""
        self.reads_to_apply: list[tuple[int, int]] = []
        self.read_number = 0
        self.saving: Save | None = None
        self.snapshot_running = False
        self.load_running = False
        self.timer_at = -1.0

    def now(self) -> int:
        return int(self.clock.at(self.world.now))

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        world = self.world
        self.alive = True
        self.life += 1
        self.storage = Storage(self.disk, "g", self.name, segment_bytes=world.segment_bytes)
        recovered = self.storage.open()
        world.checks.recovered(self.name, recovered)
        self.applied, self.applied_index, self.applied_term = [], 0, 0
        meta = None
        if recovered.snapshot is not None:
            meta = recovered.snapshot.meta
            self.restore(recovered.snapshot)
        self.core = RaftCore(
            self.name,
            world.config,
            members=self.bootstrap,
            rng=Spread(world.rng),
            now_ms=self.now(),
            hard_state=recovered.hard_state,
            log=recovered.log,
            snapshot=meta,
        )
        self.pending, self.reads, self.reads_to_apply = {}, {}, []
        self.saving = None
        self.snapshot_running = self.load_running = False
        self.timer_at = -1.0
        self.settle()

    def crash(self) -> None:
        """Lose power, perhaps in the middle of what the disk is doing."""
        rng = self.world.rng
        torn = self.saving
        self.disk.operations_left = rng.randint(0, 12)
        try:
            if torn is not None and rng.random() < 0.7:
                self.storage.save(torn)
            elif self.snapshot_running:
                self.storage.write_snapshot(self.take_snapshot())
        except PowerCut:
            pass
        self.disk.lose_power()
        self.world.checks.crashed(self.name, torn)
        self.alive = False
        self.life += 1

    # ------------------------------------------------------------------ the shell

    def settle(self) -> None:
        """What a shell does after each input: pass on all that came out, then check."""
        world, core, checks = self.world, self.core, self.world.checks
        ready = core.ready(self.now())
        checks.committing(self)
        for peer, message in ready.messages:
            world.send(self.name, peer, message)
        if ready.entries:
            for place, entry in enumerate(ready.entries):
                self.apply(ready.first_index + place, entry)
        if ready.offer is not None:
            self.judge(ready.offer)
        checks.refused += len(ready.refused)
        for number, index in ready.reads:
            if number in self.reads:
                if index is None:
                    del self.reads[number]
                else:
                    self.reads_to_apply.append((number, index))
        if self.reads_to_apply:
            self.answer_reads()
        if ready.needs_snapshot and not self.load_running:
            self.load_running = True
            self.later(world.disk_ms(), self.load_snapshot)
        save = core.take_save()
        if save is not None:
            self.saving = save
            self.later(world.disk_ms(), self.saved, save)
        snapshot = core.snapshot
        if self.applied_index - (snapshot.index if snapshot is not None else 0) >= world.snapshot_entries:
            self.begin_snapshot()
        self.arm()
        checks.after_step(self)

    def answer_reads(self) -> None:
        for number, index in list(self.reads_to_apply):
            if index <= self.applied_index:
                self.reads_to_apply.remove((number, index))
                self.world.checks.read_answered(self, self.reads.pop(number))

    def arm(self) -> None:
        now = self.world.now
        deadline = self.clock.when(self.core.next_deadline_ms() + 1)
        if self.timer_at < now or self.timer_at > deadline:
            self.timer_at = max(deadline, now + 0.1)
            self.world.at(self.timer_at, Alarm(self))

    def tick(self) -> None:
        self.timer_at = -1.0
        now = self.now()
        if now >= self.core.next_deadline_ms():
            self.core.tick(now)
        self.settle()

    def later(self, delay: float, action: Callable[..., None], *args: Any) -> None:
        self.world.at(self.world.now + delay, Call(self, action, args))

    def guard(self, action: Callable[..., None], *args: Any) -> Callable[[], None]:
        """Runs only in this life of the node, and not while it is paused."""
        return Call(self, action, args)

    def receive(self, sender: str, message: Message) -> None:
        self.core.step(sender, message, self.now())
        self.settle()

    def lost(self, peer: str) -> None:
        self.core.peer_lost(peer, self.now())
        self.settle()

    # ------------------------------------------------------------------ disk

    def saved(self, save: Save) -> None:
        self.storage.save(save)
        self.saving = None
        self.world.checks.saved(self.name, save)
        for peer, message in self.core.saved(save, self.now()):
            self.world.send(self.name, peer, message)
        if save.snapshot is not None:
            self.storage.drop_before(save.snapshot.meta.index)
        self.settle()

    def restore(self, snapshot: Snapshot) -> None:
        self.applied = msgspec.msgpack.decode(snapshot.data, type=list[bytes])
        self.applied_index, self.applied_term = snapshot.meta.index, snapshot.meta.term

    def judge(self, offer: Offer) -> None:
        try:
            self.restore(offer.snapshot)
        except msgspec.DecodeError as error:
            self.core.refuse(offer, str(error))
            self.world.at(self.world.now, self.guard(self.settle))
            return
        self.core.install(offer, self.now())
        self.world.checks.installs += 1
        for index in [i for i in self.pending if i <= self.applied_index]:
            del self.pending[index]

    def take_snapshot(self) -> Snapshot:
        meta = SnapshotMeta(
            self.applied_index, self.applied_term, self.core.memberships.members_at(self.applied_index)
        )
        return Snapshot(meta, msgspec.msgpack.encode(self.applied))

    def begin_snapshot(self) -> None:
        snapshot_index = self.core.snapshot.index if self.core.snapshot else 0
        if not self.snapshot_running and self.applied_index > snapshot_index:
            self.snapshot_running = True
            self.later(self.world.disk_ms(), self.write_snapshot, self.take_snapshot())

    def write_snapshot(self, snapshot: Snapshot) -> None:
        self.storage.write_snapshot(snapshot)
        self.world.checks.snapshot_written(self.name, snapshot.meta)
        self.snapshot_running = False
        self.core.compacted(snapshot.meta)
        if self.saving is None:
            self.storage.drop_before(snapshot.meta.index)
        self.settle()

    def load_snapshot(self) -> None:
        self.load_running = False
        snapshot = self.storage.load_snapshot()
        if snapshot is not None:
            self.core.snapshot_loaded(snapshot)
        self.settle()

    # ------------------------------------------------------------------ what clients ask

    def apply(self, index: int, entry: Entry) -> None:
        self.world.checks.applying(self, index, entry)
        self.applied_index, self.applied_term = index, entry.term
        if entry.kind == Kind.DATA:
            self.applied.append(entry.data)
        waiting = self.pending.pop(index, None)
        if waiting is not None and waiting[0] == entry.term:
            self.world.checks.acknowledged_at(index, waiting[1], waiting[2])

    def propose(self, payloads: list[bytes]) -> None:
        try:
            first = self.core.propose(payloads)
        except RaftError:
            return
        for place, payload in enumerate(payloads):
            self.pending[first + place] = (self.core.term, payload, self.world.checks.visible)
        self.settle()

    def read(self) -> None:
        self.read_number += 1
        self.reads[self.read_number] = self.world.checks.visible
        self.core.read(self.read_number, self.now())
        self.settle()
