"""Stories with pop consumers: `scenario.py`'s cluster, traffic and faults, and two groups that pop the topic.

One group pops without order. Its consumers acknowledge at once, late, partly or not at all, or change
invisible times. The other group is ordered. What must hold besides the rest:

* a record is handed out at most once by pops that were answered: what was not acknowledged comes back as
  another record, in the retry topic;
* a message whose ack was answered never comes again: there are no more such acks of a key than copies in the
  log, those of revivals that a switch cut in two included (`revivals.py`);
* everything that was sent comes until it is acknowledged, whatever became of the pops that took it;
* the ordered group gets a message only if all before it in its queue are acknowledged or in the same batch,
  and gets it again only when its invisible time is over, also from another master.

Half of the seeds refuse what fewer than two replicas would have (minInSyncReplicas). Two plots aim at the
moment between a pop and the safety of its check point; both begin with messages that nobody has popped yet.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from batonmq.broker.pop.part import PopPart
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
)
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.pop import Receipt
from batonmq.routing.session import Session
from tests.simulation import scenario
from tests.simulation.cluster import BROKER_NAME, HA_PORT, Node, SimCluster
from tests.simulation.receipts import with_receipts
from tests.simulation.revivals import all_records, cut_revivals
from tests.simulation.scenario import Scenario
from tests.simulation.story import TOPIC, Shape, Story, Violation

GROUP, ORDERED = "poppers", "ordered"
CONSUMERS = 2
SLAVE_TIMEOUT_MS = 1_000
"""A pop fails after so long without its replicas, while the SyncStateSet still has them."""


class PopScenario(Scenario):
    """A story with pop consumers."""

    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        super().__init__(cluster, story, shape)
        keys = cluster.broker_keys
        keys["slave_timeout"] = SLAVE_TIMEOUT_MS
        if story.seed % 2 == 0:
            keys["min_in_sync_replicas"] = 2
        self.nemesis.add_plot("offsets", 10, self._offsets_alone)
        self.nemesis.add_plot("alone", 10, self._alone)
        self._popping = asyncio.Event()
        """Cleared while the first group lets messages pile up."""
        self._popping.set()
        self._handed_out: dict[tuple[str, int, int], str] = {}
        """(Retry flag, queue, offset) of the records that the first group has got -> key."""
        self.answered: Counter[str] = Counter()
        """Acks of the first group that were answered, by key."""
        self.tried: set[str] = set()
        """Keys of messages that the first group has tried to acknowledge."""
        self.ordered_acks: dict[int, set[int]] = {}
        """Queue -> offsets that the ordered group has acknowledged, or tried to."""
        self.ordered_done: dict[int, int] = {}
        """Queue -> last offset whose ack in the ordered group was answered."""
        self._hidden: dict[tuple[int, int], tuple[int, float, int]] = {}
        """(Queue, offset) that the ordered group has got -> until when it is invisible (wall ms of the
        master), when the pop was sent (virtual s), and its invisible time (ms)."""

    async def _create_topic(self) -> None:
        await super()._create_topic()
        for _ in range(CONSUMERS):
            self.cluster.on(self.cluster.client_host, self._consume())
        self.cluster.on(self.cluster.client_host, self._consume_in_order())

    # -- consumers

    async def _pop(
        self, session: Session, group: str, invisible_ms: int, *, ordered: bool
    ) -> list[tuple[MessageExt, Receipt]]:
        """What one pop hands out; nothing if it fails."""
        header = PopMessage(
            consumer_group=group,
            topic=TOPIC,
            queue_id=-1,
            max_msg_nums=32 if self.nemesis.over else self.random.randint(1, 16),
            invisible_time=invisible_ms,
            poll_time=1_000,
            born_time=0,
            init_mode=0,
            order=ordered,
        )
        try:
            answer = await session.call_master(BROKER_NAME, TOPIC, header, timeout_ms=6_000)
        except (NetError, MQError):
            await asyncio.sleep(0.2)
            return []
        return with_receipts(answer, BROKER_NAME)

    async def _ack(self, session: Session, group: str, receipt: Receipt) -> bool:
        """Whether the ack was answered."""
        header = AckMessage(
            consumer_group=group,
            topic=receipt.stored_topic(TOPIC, group),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
        )
        try:
            await session.call_master(BROKER_NAME, TOPIC, header, timeout_ms=3_000)
        except (NetError, MQError):
            return False
        return True

    async def _consume(self) -> None:
        session = self.cluster._session()
        try:
            while self._reading:
                await self._popping.wait()
                batch = await self._pop(session, GROUP, self.random.randint(1_000, 5_000), ordered=False)
                await asyncio.gather(*(self._handle(session, record, receipt) for record, receipt in batch))
        finally:
            await session.close()

    async def _handle(self, session: Session, record: MessageExt, receipt: Receipt) -> None:
        key, place = record.properties["KEYS"], (receipt.retry, receipt.queue_id, receipt.offset)
        with self._noting():
            if place in self._handed_out:
                raise Violation(f"{key} at {place} was handed out a second time")
            self._handed_out[place] = key
        fate = 1.0 if self.nemesis.over else self.random.random()
        if fate < 0.1:
            return  # it comes again
        if fate < 0.2:
            changed = await self._change(session, receipt)
            if changed is None:
                return
            receipt = changed
        elif fate < 0.25:
            await asyncio.sleep(self.random.uniform(0.5, 4))
        self.tried.add(key)
        if await self._ack(session, GROUP, receipt):
            self.answered[key] += 1

    async def _change(self, session: Session, receipt: Receipt) -> Receipt | None:
        header = ChangeInvisibleTime(
            consumer_group=GROUP,
            topic=receipt.stored_topic(TOPIC, GROUP),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
            invisible_time=self.random.randint(500, 4_000),
        )
        try:
            answer = await session.call_master(BROKER_NAME, TOPIC, header, timeout_ms=3_000)
        except (NetError, MQError):
            return None
        got = answer.header
        assert isinstance(got, ChangeInvisibleTimeResponse)
        return receipt._replace(
            start_offset=receipt.offset, pop_time=got.pop_time, invisible_time=got.invisible_time
        )

    async def _consume_in_order(self) -> None:
        session = self.cluster._session()
        try:
            while self._reading:
                # After a switch of the master the longer ones are not over yet.
                invisible_ms = 3_000 if self.nemesis.over else self.random.choice((3_000, 15_000))
                sent = self.cluster.loop.now
                batch = await self._pop(session, ORDERED, invisible_ms, ordered=True)
                self._check_order(batch)
                self._check_hidden(batch, sent)
                for _, receipt in batch:
                    if self.random.random() < 0.05 and not self.nemesis.over:
                        break
                    queue, offset = receipt.queue_id, receipt.offset
                    self.ordered_acks.setdefault(queue, set()).add(offset)
                    if not await self._ack(session, ORDERED, receipt):
                        break
                    self.ordered_done[queue] = max(offset, self.ordered_done.get(queue, -1))
        finally:
            await session.close()

    def _check_order(self, batch: list[tuple[MessageExt, Receipt]]) -> None:
        first: dict[int, int] = {}
        for _, receipt in batch:
            first.setdefault(receipt.queue_id, receipt.offset)
        with self._noting():
            for queue, offset in first.items():
                acked = self.ordered_acks.get(queue, set())
                missing = [each for each in range(offset) if each not in acked]
                if missing:
                    raise Violation(
                        f"ordered: {queue}:{offset} came before {queue}:{missing[0]} was acknowledged"
                    )
                if offset <= self.ordered_done.get(queue, -1):
                    raise Violation(f"ordered: acknowledged {queue}:{offset} came again")

    def _check_hidden(self, batch: list[tuple[MessageExt, Receipt]], sent: float) -> None:
        """An earlier batch with the same message must have been due.

        The new master's clock may be behind: then the whole invisible time counts once more. A queue has one
        batch at a time: with the first message that comes again, the rest of its batch is free, too. So it is
        although a later master's clock has not reached that time.
        """
        with self._noting():
            for _, receipt in batch:
                place = receipt.queue_id, receipt.offset
                until, before, invisible_ms = self._hidden.get(place, (0, 0.0, 0))
                early_ms = min(
                    until - receipt.pop_time, invisible_ms - (self.cluster.loop.now - before) * 1000
                )
                if early_ms > 0:
                    raise Violation(
                        f"ordered: {place[0]}:{place[1]} came again {early_ms:.0f} ms before its time"
                    )
            queues = {receipt.queue_id for _, receipt in batch}
            self._hidden = {place: due for place, due in self._hidden.items() if place[0] not in queues}
            for _, receipt in batch:
                due = receipt.pop_time + receipt.invisible_time
                self._hidden[receipt.queue_id, receipt.offset] = due, sent, receipt.invisible_time

    # -- plots

    async def _pile_up(self) -> None:
        self._popping.clear()
        await asyncio.sleep(self.random.uniform(1.2, 2))  # the last long poll is over

    async def _offsets_alone(self, master: Node) -> None:
        """Slaves get the tables of the master, but not its log; then it is lost.

        Pops that they have no check points of must not have moved the offsets in those tables.
        """
        cluster, pick = self.cluster, self.random
        await self._pile_up()
        try:
            for end in cluster.connections():
                if end.remote_host is master.host and end.remote_port == HA_PORT:
                    cluster.stall(end, 10, both=True)
        finally:
            self._popping.set()
        await asyncio.sleep(SLAVE_TIMEOUT_MS / 1000 + pick.uniform(0.05, 0.3))
        await self.nemesis.announce(master)
        await asyncio.sleep(pick.uniform(0.1, 0.3))  # the slaves are in the SyncStateSet for 2 s
        self.nemesis._end(master)
        await asyncio.sleep(pick.uniform(0, 3))

    async def _alone(self, master: Node) -> None:
        """The slaves are gone, and the SyncStateSet shrinks: with minInSyncReplicas pops are refused."""
        cluster, pick = self.cluster, self.random
        await self._pile_up()
        try:
            for node in cluster.brokers:
                if node is not master:
                    self.nemesis._end(node, cut=0.0)
            tracker = master.broker.replication.tracker
            await self.nemesis._until(lambda: tracker.agreed.members == {master.broker_id}, 8)
        finally:
            self._popping.set()
        await asyncio.sleep(pick.uniform(0.5, 2))

    # -- at the end

    def _all_read(self) -> bool:
        if not super()._all_read():
            return False
        if not self.story.acked.keys() <= self.tried:
            return False
        masters = self.cluster.masters()
        if not masters or len(masters[0].service.part(PopPart).check_points):
            return False
        for queue in self._readers:
            bounds = masters[0].broker.store.queue_bounds(TOPIC, queue)
            if not set(range(bounds.max_offset)) <= self.ordered_acks.get(queue, set()):
                return False
        master = masters[0]
        assert master.broker is not None
        log = all_records(master.broker.store)
        starts = [entry.start_offset for entry in master.broker.replication.epochs.entries]
        topic = master.service.part(PopPart).journal.topic
        copies = Counter(self.story.seen.values()) + cut_revivals(log, starts, topic)
        with self._noting():
            for key, count in self.answered.items():
                if count > copies[key]:
                    raise Violation(
                        f"{key} was acknowledged, and came again ({count} acks, {copies[key]} copies)"
                    )
        return True


def run(seed: int, shape: Shape) -> Story:
    """As `scenario.run`, with pop consumers."""
    return scenario.run(seed, shape, PopScenario)
