"""One seeded story: a cluster, producers that number their messages, readers, faults, and what must hold.

Invariants: no acknowledged message is lost, moved, replaced or reordered, nor one that a reader has seen, and
all members of the SyncStateSet have them (`witness.py`); no master epoch has two masters; the logs of any two
replicas are equal below the confirm offsets of both; readers see queues without gaps, and in the end all
acknowledged messages; and, once the faults (`faults.py`) stop, the group heals: one master, all replicas in
the SyncStateSet, equal logs, and sends are acknowledged again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from batonmq.client.errors import ClientError
from batonmq.client.message import Message, SendResult
from batonmq.client.producer import Producer
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.message.record import decode_records
from tests.simulation.cluster import BROKER_NAME, SimCluster
from tests.simulation.loop import SimLoop
from tests.simulation.nemesis import Nemesis
from tests.simulation.story import HEAL_S, QUEUES, START_UP_S, TOPIC, Shape, Story, Violation, play, scratch
from tests.simulation.witness import Witness

WORKERS = 3


def run(
    seed: int,
    shape: Shape,
    kind: Callable[[SimCluster, Story, Shape], Scenario] | None = None,
    story: Story | None = None,
) -> Story:
    """Run the story of `seed`, with the traffic of `kind`; raises `Violation` (with the events before it)
    if an invariant breaks. `story`: filled while it runs, for callers who need what preceded a violation."""
    loop = SimLoop(seed)
    story = Story(seed) if story is None else story
    with scratch("sim", seed) as root:
        cluster = SimCluster(
            loop, root, replicas=shape.replicas, controllers=shape.controllers, sync_flush=shape.sync_flush
        )
        cluster.hand_back = shape.hand_back
        story.events = cluster.events
        with cluster.world.in_force():
            story.trace = play(loop, seed, story.events, (kind or Scenario)(cluster, story, shape).play)
        return story


class Scenario:
    """Traffic, faults, and the looks in between, from the start to the end."""

    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        self.cluster, self.story = cluster, story
        self.random = cluster.random
        self.witness = Witness(cluster, story, shape)
        self.nemesis = Nemesis(cluster, self.witness, story, shape)
        self._number = 0
        self._sending = self._reading = True
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._broken: asyncio.Future[None] = cluster.loop.create_future()
        """Fails with the first violation."""

    async def play(self) -> None:
        """Raises the first `Violation`, at the moment at which it is found."""
        playing = asyncio.ensure_future(self._play())
        await asyncio.wait([playing, self._broken], return_when=asyncio.FIRST_COMPLETED)
        await (self._broken if self._broken.done() else playing)

    async def _play(self) -> None:
        cluster = self.cluster
        cluster.start_all()
        await self._until(cluster.whole, START_UP_S, "the first SyncStateSet of all replicas")
        watcher = asyncio.ensure_future(self._watch())
        await cluster.on(cluster.client_host, self._create_topic())
        workers = [cluster.on(cluster.client_host, self._work()) for _ in range(WORKERS)]
        for queue in range(QUEUES):
            self._follow(queue)
        await self.nemesis.run()
        cluster.heal()
        before, over = len(self.story.acked), cluster.loop.now
        if self.cluster.hand_back:
            await self._until(
                lambda: cluster.masters() == [cluster.brokers[0]], HEAL_S, "the preferred master"
            )
        await self._until(cluster.whole, HEAL_S, "healing: one master and the whole SyncStateSet")
        self.story.healed_s = cluster.loop.now - over
        await self._until(
            lambda: len(self.story.acked) > before + 10, HEAL_S, "acknowledged sends after healing"
        )
        self._sending = False
        await asyncio.gather(*workers)
        await self._until(cluster.level, HEAL_S, "equal logs after healing")
        await self._until(self._all_read, HEAL_S, "readers at the end of their queues")
        self._reading = False
        await asyncio.gather(*self._readers.values())
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await self._until(lambda: bool(cluster.masters()), HEAL_S, "master at the end")
        self.witness.check_end(cluster.masters()[0])

    # -- the client ---------------------------------------------------------------------------------------

    async def _create_topic(self) -> None:
        """Again if the master is killed meanwhile: the nemesis may strike soon after the first election."""
        loop = self.cluster.loop
        async with self.cluster.admin() as admin, asyncio.timeout(HEAL_S):
            began = loop.now
            while True:
                try:
                    await admin.create_topic(TOPIC, QUEUES)
                except (ClientError, MQError, NetError, LookupError):
                    if loop.now - began > START_UP_S:
                        self.cluster.heal()  # it may have struck all, and starts none before its turn
                    await asyncio.sleep(0.2)
                else:
                    return

    async def _work(self) -> None:
        async with self.cluster.producer() as producer:
            while self._sending:
                await self._send(producer)
                await asyncio.sleep(self.random.expovariate(1 / 0.06))

    async def _send(self, producer: Producer) -> None:
        """One message, now and then a batch."""
        keys = []
        for _ in range(1 if self.random.random() < 0.9 else self.random.randint(2, 5)):
            self._number += 1
            keys.append(f"m{self._number}")
        messages = [Message(TOPIC, key.encode() * self.random.randint(1, 40), keys=key) for key in keys]
        ends = self.witness.ends()
        try:
            result = await producer.send(messages if len(keys) > 1 else messages[0])
        except (ClientError, MQError, NetError):
            self.story.unknown += len(keys)
            return
        self._note(keys, result, ends)
        self._follow(result.queue.queue_id)

    def _note(self, keys: list[str], result: SendResult, ends: dict[int, int]) -> None:
        queue, offset = result.queue.queue_id, result.queue_offset
        places = [decode_message_id(part)[2] for part in result.offset_message_id.split(",")]
        with self._noting():
            for at, (key, place) in enumerate(zip(keys, places, strict=True)):
                self.witness.acked(key, queue, offset + at, place, ends)

    def _follow(self, queue_id: int) -> None:
        # Tables are copied to slaves every few seconds. A switch may lose a topic just created, which is then
        # created by the next send, with another number of queues.
        if queue_id not in self._readers:
            reader = self.cluster.on(self.cluster.client_host, self._read(queue_id))
            self._readers[queue_id] = reader

    async def _read(self, queue_id: int) -> None:
        """Follow one queue from its beginning, as a consumer does."""
        offset = 0
        queue = MessageQueue(topic=TOPIC, broker_name=BROKER_NAME, queue_id=queue_id)
        async with self.cluster.reader() as reader:
            while self._reading:
                try:
                    pulled = await reader.pull(queue, offset)
                except (NetError, MQError) as error:
                    if isinstance(error, TopicNotExistError) and not self.nemesis.over:
                        await asyncio.sleep(0.5)  # a master that does not know the topic yet
                    continue
                with self._noting():
                    if pulled.next_offset < offset:
                        raise Violation(
                            f"queue {queue_id} was read up to {offset}, now ends at {pulled.next_offset}"
                        )
                    for record in decode_records(pulled.records):
                        if record.queue_offset != offset:
                            raise Violation(
                                f"queue {queue_id}: read offset {record.queue_offset} after {offset - 1}"
                            )
                        key = record.properties["KEYS"]
                        self.witness.seen(key, queue_id, offset, record.physical_offset)
                        offset += 1
                if not pulled.records:
                    await asyncio.sleep(0.2)

    # -- looking ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """A violation ends the story, not only the task that has found it."""
        try:
            yield
        except Violation as violation:
            if not self._broken.done():
                self._broken.set_exception(violation)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            with self._noting():
                self.witness.look()
            self.nemesis.look()

    async def _until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        end = self.cluster.loop.now + seconds
        while not condition():
            if self.cluster.loop.now > end:
                raise Violation(f"no {what} within {seconds:g} s of virtual time")
            await asyncio.sleep(0.05)

    def _all_read(self) -> bool:
        masters = self.cluster.masters()
        if not masters:
            return False  # the controllers noticed late connections that the faults had broken
        store = masters[0].broker.store
        count: int = sum(store.queue_bounds(TOPIC, queue).max_offset for queue in self._readers)
        return len(self.story.seen) >= count
