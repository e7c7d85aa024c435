"""Stories with pop consumers: `scenario.py`'s cluster, traffic and faults, and two groups that pop the topic.

One group pops without order. Its consumers acknowledge at once, late, partly or not at all, or change
invisible times. The other group is ordered. What must hold besides the rest:

* a record is handed out at most once by pops that were answered: what was not acknowledged comes back as
  another record, in the retry topic;
* a message whose ack was answered never comes again: there are no more such acks of a key than copies in the
log; * everything that was sent comes until it is acknowledged; * the ordered group gets a message only if all
before it in its queue are acknowledged or in the same batch.
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
    PopMessageResponse,
)
from batonmq.protocol.message.properties import PROPERTY_POP_CK
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.pop import Receipt, parse_receipt, parse_start_offset_info
from batonmq.routing.session import Session
from tests.simulation import scenario
from tests.simulation.cluster import BROKER_NAME, SimCluster
from tests.simulation.scenario import Teller
from tests.simulation.story import TOPIC, Shape, Story, Violation

GROUP, ORDERED = "poppers", "ordered"
CONSUMERS = 2


class PopTeller(Teller):
    """Tells a story with pop consumers."""

    def __init__(self, cluster: SimCluster, story: Story, shape: Shape) -> None:
        super().__init__(cluster, story, shape)
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
        got = answer.header
        assert isinstance(got, PopMessageResponse)
        starts = parse_start_offset_info(got.start_offset_info)
        found = []
        for record in decode_records(answer.body):
            known = record.properties.get(PROPERTY_POP_CK)
            receipt = (
                parse_receipt(known)
                if known
                else Receipt(
                    starts["0", record.queue_id],
                    got.pop_time,
                    got.invisible_time,
                    got.revive_qid,
                    "0",
                    BROKER_NAME,
                    record.queue_id,
                    record.queue_offset,
                )
            )
            found.append((record, receipt))
        return found

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
                batch = await self._pop(session, ORDERED, 3_000, ordered=True)
                self._check_order(batch)
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
        copies = Counter(self.story.seen.values())
        with self._noting():
            for key, count in self.answered.items():
                if count > copies[key]:
                    raise Violation(
                        f"{key} was acknowledged, and came again ({count} acks, {copies[key]} copies)"
                    )
        return True


def run(seed: int, shape: Shape) -> Story:
    """As `scenario.run`, with pop consumers."""
    return scenario.run(seed, shape, PopTeller)
