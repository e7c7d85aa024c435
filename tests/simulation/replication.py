"""Replica groups alone: the real replication of two to five replicas, their logs and controllers in memory.

A story of a whole cluster takes two seconds of processor time, most of it for what surrounds replication.
Here run only `HAService` with its links, the replica's `ReplicasCore`, `SetProposals`, and the controllers'
`ControllerMachine`, which is one: Raft has stories for itself. So a story takes some milliseconds, and a
hundred times as many can be searched for the interleaving that loses a message.

Sent messages are acknowledged as with ``allAckInSyncStateSet=true``. What must hold: what one replica has
confirmed, every replica that confirms as much has, and every later master from the beginning of its term; an
epoch has one master; in the end, when all is repaired, one master and a full SyncStateSet with equal logs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from batonmq.ha.config import HAConfig
from batonmq.ha.role import HARole
from tests.simulation.loop import SimLoop
from tests.simulation.memory_log import SIZES, MemoryLog
from tests.simulation.replication_controllers import Controllers
from tests.simulation.replication_faults import Faults
from tests.simulation.replication_replica import Life, Replica
from tests.simulation.story import Violation, play, scratch

HEAL_S: Final = 30.0
"""At most, in virtual seconds."""
MANY_RECORDS: Final = 400
"""A story sends no more."""
MAX_TURNS: Final = 100_000
"""Turns of the loop in one story; a story has some 3,000."""


@dataclass(frozen=True)
class Shape:
    """What kind of story a seed makes."""

    replicas: int
    sync_flush: bool = False
    """Acknowledge only what is on disk; only then may the power be cut."""
    batch: int = 256 * 1024
    """haTransferBatchSize: frames end within records that are longer."""


def shape_of(seed: int) -> Shape:
    """Seeds cover all shapes in turn."""
    return Shape(
        replicas=(2, 3, 2, 3, 5)[seed % 5],
        sync_flush=seed // 5 % 2 == 1,
        batch=(64, 150, 500, 256 * 1024)[seed // 10 % 4],
    )


@dataclass
class Story:
    """What happened."""

    seed: int
    shape: Shape
    events: list[str] = field(default_factory=list)
    masters: dict[int, int] = field(default_factory=dict)
    """Master epoch -> broker id."""
    acked: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    trace: int = 0
    """Checksum of all that was sent between replicas."""


class Witness:
    """What must hold at every moment."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.confirmed = bytearray()
        """Every record that any replica has confirmed."""

    def confirms(self, log: MemoryLog, offset: int) -> None:
        """Consumers of this replica may read all whole records up to `offset`."""
        end = log.whole(offset)
        common = min(end, len(self.confirmed))
        if log.data[:common] != self.confirmed[:common]:
            raise Violation(f"a replica confirms {end} bytes that differ from confirmed ones")
        self.confirmed += log.data[common:end]

    def acknowledges(self, end: int) -> None:
        """A producer was answered: its message ends here."""
        if end > len(self.confirmed):
            raise Violation(f"acknowledged up to {end}, confirmed is {len(self.confirmed)}")
        self._story.acked += 1

    def begins_term(self, broker_id: int, epoch: int, log: MemoryLog) -> None:
        former = self._story.masters.setdefault(epoch, broker_id)
        if former != broker_id:
            raise Violation(f"epoch {epoch} has two masters, {former} and {broker_id}")
        if not log.data.startswith(self.confirmed):
            raise Violation(f"master {broker_id} of epoch {epoch} lacks confirmed messages: {len(log.data)}")


class World:
    """One story."""

    def __init__(self, loop: SimLoop, story: Story, directory: Path) -> None:
        self.loop, self.story, self.shape = loop, story, story.shape
        self.chance = random.Random(loop.random.getrandbits(64))
        self.witness = Witness(story)
        self.config = HAConfig(
            ha_send_heartbeat_interval=100,
            ha_housekeeping_interval=2_000,
            ha_max_time_slave_not_catch_up=500,
            ha_transfer_batch_size=self.shape.batch,
            ha_connect_timeout=500,
        )
        self.loss = 0.0
        """Which part of the requests to controllers, and of their answers, is lost or comes very late."""
        self.disk_s = 0.002
        self._session = 0
        self.healed = False
        self.controllers = Controllers(self)
        self.replicas = [Replica(self, number, directory) for number in range(1, self.shape.replicas + 1)]
        self._sent = 0
        self._failure: asyncio.Future[None] = loop.create_future()

    def note(self, text: str) -> None:
        self.story.events.append(f"{self.loop.now - 1_000:8.3f} {text}")

    def ended(self, task: asyncio.Task[None]) -> None:
        """A task ended that never should."""
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    def next_session(self) -> int:
        """The number of a new connection to the controllers."""
        self._session += 1
        return self._session

    def way_s(self) -> float:
        return 0.000_2 + self.chance.expovariate(1_000)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self.loop.network.cuts

    # -- the story

    async def play(self) -> None:
        """Raises the first `Violation`."""
        work = [asyncio.ensure_future(each) for each in (self._play(), self.controllers.scan())]
        await asyncio.wait([*work, self._failure], return_when=asyncio.FIRST_COMPLETED)
        for each in (self._failure, *work):
            if each.done():
                each.result()
        for failure in self.loop.failures:  # what a callback raised
            raise failure.get("exception") or Violation(str(failure))

    async def _play(self) -> None:
        for replica in self.replicas:
            replica.start()
        await self._until(lambda: self._master() is not None, "a first master")
        sending = asyncio.ensure_future(self._send())
        await Faults(self).run()
        self._heal()
        await self._until(self._settled, "one master, a full SyncStateSet and equal logs")
        sending.cancel()
        before = self.story.acked
        await self._until(lambda: self._one_more(before), "a last message")
        await self._until(self._settled, "equal logs in the end")
        self._judge()

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        end = self.loop.now + HEAL_S
        while not condition():
            if self.loop.now > end:
                raise Violation(f"not within {HEAL_S:g} s of virtual time: {what}")
            await asyncio.sleep(0.05)

    def _one_more(self, before: int) -> bool:
        """Whether more than `before` messages are acknowledged; if not, another is sent."""
        life = self._master()
        if self.story.acked == before and life is not None:
            self._put(life)
        return self.story.acked > before

    def _put(self, life: Life) -> None:
        """Send to this process, unless it is paused."""
        if life.serving and life.host.paused_until <= self.loop.now:
            self._sent += 1
            size = self.chance.randint(*SIZES)
            self.loop.network.run_on(life.host, lambda: life.put(self._sent, size))

    def _master(self) -> Life | None:
        """The master that the controllers know, if it serves."""
        group = self.controllers.broker_set
        if group.master_id is None:
            return None
        life = self.replicas[group.master_id - 1].life
        if life is None or life.ha.role is not HARole.MASTER or life.ha.epoch != group.master_epoch:
            return None
        return life if life.serving else None

    def _settled(self) -> bool:
        logs = [replica.log for replica in self.replicas]
        return (
            self._master() is not None
            and len(self.controllers.broker_set.sync_state_set) == len(self.replicas)
            and all(log.data == logs[0].data for log in logs)
        )

    async def _send(self) -> None:
        """Producers send to every replica that takes messages: a deposed master may not know it yet."""
        while self._sent < MANY_RECORDS:
            for replica in self.replicas:
                life = replica.life
                if life is not None:
                    for _ in range(self.chance.choice((1, 1, 1, 4))):
                        self._put(life)
            await asyncio.sleep(self.chance.expovariate(20))

    def _judge(self) -> None:
        for replica in self.replicas:
            if not replica.log.data.startswith(self.witness.confirmed):
                raise Violation(f"{replica.name} lacks confirmed messages in the end")
        counts = self.story.counts
        counts["terms"] = len(self.story.masters)
        counts["acknowledged"] = self.story.acked
        counts["cut logs"] = sum(replica.log.cuts for replica in self.replicas)

    def _heal(self) -> None:
        self.note("all is repaired")
        self.healed = True
        self.loop.network.heal()
        self.loss, self.disk_s = 0.0, 0.002
        self.controllers.down_until = 0.0
        for replica in self.replicas:
            replica.restart()


def run(seed: int, shape: Shape | None = None) -> Story:
    """Run the story of `seed`; raises `Violation` with the events before it."""
    loop = SimLoop(seed, max_turns=MAX_TURNS)
    story = Story(seed, shape_of(seed) if shape is None else shape)
    with scratch("group", seed) as directory:
        story.trace = play(loop, seed, story.events, lambda: World(loop, story, directory).play())
    return story
