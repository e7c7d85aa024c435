"""Reads the revive queues when this broker becomes master, and brings messages back that nobody acknowledged.

A message whose invisible time is over goes to the retry topic of its group and topic, or to the dead-letter
topic after too many attempts. The ack that settles its check point is appended in the same turn, behind it: a
new master that reads both brings the message back once. Source: RocketMQ's `PopReviveService`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.internal import put
from batonmq.broker.pop.acknowledger import ack_record
from batonmq.broker.pop.core import REWRITE_INTERVALS_S, Outstanding, outstanding_of, record_of
from batonmq.broker.pop.counts import Counts
from batonmq.broker.pop.journal import ACK, BATCH_ACK, CHECK_POINT, ORDER
from batonmq.broker.pop.order_core import end_of, plausible
from batonmq.common.tasks import Tasks
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.pop import AckRecord, CheckPoint, OrderRecord
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import decode_request
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import once_more
from batonmq.protocol.message.light import offset_in
from batonmq.protocol.message.properties import (
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_GROUP,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_POP_CK,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TAGS,
)
from batonmq.protocol.message.record import MessageExt, StoredMessage, decode_record, message_of, scan_frames
from batonmq.protocol.names import RETRY_PREFIX, REVIVE_GROUP, dead_letter_topic, pop_retry_topic
from batonmq.store.results import GetStatus

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.messages.appender import PutStatus
    from batonmq.broker.pop.acknowledger import Acknowledger
    from batonmq.broker.pop.core import CheckPoints
    from batonmq.broker.pop.journal import Journal
    from batonmq.broker.pop.orders import Orders
    from batonmq.broker.pop.popper import Popper
    from batonmq.broker.pop.positions import Positions, QueueOfGroup
    from batonmq.broker.pop.taker import Taker
    from batonmq.protocol.buffers import Buffer
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

BATCH: Final = 64
"""Check points that are revived together."""
SLICE: Final = 256
"""Records of a revive queue that are read in one loop turn."""
SLICE_BYTES: Final = 4 << 20
RETRY_MS: Final = 1_000
"""Pause after a refused append, and while acks of a due check point are on their way."""
BEGIN_RETRY_S: Final = 1.0
BEGIN_RETRY_MOST_S: Final = 60.0
"""Pause after a failure to read the revive queues, at first and at most."""
FAILED_MS: Final = 10_000
"""Pause after an unexpected failure."""
LOOK_AGAIN_S: Final = 10.0
"""Longest time between two looks at what is due: the wall clock may be set."""
PIN_RECORDS: Final = 10_000
"""Records that a revive queue may hold behind its oldest check point, besides four for each check point."""
PIN_BATCH: Final = 64


class Reviver:
    """The check points of one broker while it is master or acts as one."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        check_points: CheckPoints,
        positions: Positions,
        orders: Orders,
        taker: Taker,
        popper: Popper,
        acknowledger: Acknowledger,
    ) -> None:
        self._broker = broker
        self._journal = journal
        self._check_points = check_points
        self._positions = positions
        self._orders = orders
        self._popper = popper
        self._acknowledger = acknowledger
        self._tasks = Tasks()
        self._visible = asyncio.Event()
        """Set when more records can be read, or the role ends."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._reviving = False
        self._moving: set[Outstanding] = set()
        """Check points that are being stored further back."""
        self._moves: dict[QueueOfGroup, list[tuple[int, int]]] = {}
        """While the queues are read: next offset, and commit log offset of the check point that says so."""
        self._order_records: dict[QueueOfGroup, tuple[int, OrderRecord, int, int]] = {}
        self._used_resets: list[tuple[QueueOfGroup, int]] = []
        """While the queues are read: offset resets that pops have used, and their numbers."""
        self.retries = Counts()
        """Messages put into retry topics, by group, topic and status."""
        taker.on_check_point = self.arm
        journal.on_tick = self._move_on

    # -- life cycle

    def begin(self) -> None:
        """This broker is master."""
        self._tasks.spawn(self._until_done(self._begin))

    def on_visible(self) -> None:
        """More records can be read."""
        self._visible.set()

    async def end(self) -> None:
        """Wait until no task runs."""
        await self._tasks.cancel()

    def forget(self) -> None:
        """The role ends."""
        self._visible.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for entry in list(self._check_points):
            self._check_points.remove(entry)
        self._check_points.forget_consumed()
        self._moving.clear()
        self._reviving = False

    def forget_topics(self) -> None:
        """A topic was deleted: its check points are void."""
        topics, floors = self._broker.tables.topics, self._journal.floors
        for entry in [each for each in self._check_points if each.key[0] not in topics and not each.foreign]:
            self._check_points.remove(entry)
            floors.release(entry.revive_queue, entry.revive_offset)

    async def _until_done(self, work: Callable[[int], Awaitable[None]]) -> None:
        """Do `work` of this term; after an unexpected failure do it again, with growing pauses.

        Without it no pop would be answered, or messages stay hidden, until another broker is master. The log
        has one traceback of all failures.
        """
        term = self._journal.term
        pause_s = BEGIN_RETRY_S
        failed = False
        while self._journal.term == term:
            try:
                await work(term)
            except Exception:
                if not failed:
                    log.exception("the revive queues cannot be read; trying again until it succeeds")
                failed = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BEGIN_RETRY_MOST_S)
            else:
                if failed:
                    log.info("the revive queues are read")
                return

    async def _begin(self, term: int) -> None:
        """Read what is outstanding, then let pops and acks begin."""
        broker, journal = self._broker, self._journal
        end = broker.store.max_offset
        while broker.store.dispatched_offset < end:
            # The former master's last records are not confirmed yet.
            self._visible.clear()
            await self._visible.wait()
            if journal.term != term:
                return
        self._moves.clear()
        self._order_records.clear()
        self._used_resets.clear()
        for queue in journal.queues():
            bounds = broker.store.queue_bounds(journal.topic, queue)
            settled = broker.tables.offsets.query(REVIVE_GROUP, journal.topic, queue)
            begin = max(settled + 1, bounds.min_offset)
            journal.floors.know(queue, bounds.max_offset - 1)
            await self._read(queue, begin, bounds.max_offset, term)
            if journal.term != term:
                return
        self._apply_positions()
        self._orders.drop_outdated()
        if len(self._check_points):
            log.info("%d batches of pop consumers are outstanding", len(self._check_points))
        self._popper.open()
        self.arm()
        journal.after_all(lambda: None)  # lets the tables follow

    # -- reading the revive queues

    async def _read(self, queue: int, begin: int, end: int, term: int) -> None:
        broker, topic = self._broker, self._journal.topic
        loop = asyncio.get_running_loop()
        while begin < end and self._journal.term == term:
            result = broker.store.get(topic, queue, begin, min(SLICE, end - begin), SLICE_BYTES)
            if result.status is not GetStatus.FOUND:
                if result.next_offset <= begin:
                    return
                begin = result.next_offset
                continue
            if result.fetch is not None:
                try:
                    await loop.run_in_executor(broker.readers, result.fetch)
                except OSError as error:
                    log.error("check points of pop consumers cannot be read: %s", error)
                    await asyncio.sleep(1)
                    continue
                if self._journal.term != term:
                    return
            for view in result.buffers:
                for at in scan_frames(view)[:-1]:
                    self._learn_at(view, at)
            begin = result.next_offset
            await asyncio.sleep(0)

    def read_gaps(self) -> None:
        """Take records into account that RocketMQ's timers have delivered."""
        if self._popper.ready:
            for queue, begin, end in self._journal.find_gaps():
                self._tasks.spawn(self._until_done(partial(self._read_gap, queue, begin, end)))

    async def _read_gap(self, queue: int, begin: int, end: int, term: int) -> None:
        await self._read(queue, begin, end, term)
        self.arm()

    def _learn_at(self, view: Buffer, at: int) -> None:
        try:
            record = decode_record(view, at, inflate=False)
        except MessageFormatError as error:
            # The others must not wait for it.
            log.error("a record of the revive queues is damaged and is left out: %s", error)
            return
        self._learn(record)

    def _learn(self, record: MessageExt) -> None:
        """Take one record into account."""
        tag = record.properties.get(PROPERTY_TAGS)
        try:
            if tag == CHECK_POINT:
                self._learn_check_point(record, decode_request(record.body, CheckPoint))
            elif tag in (ACK, BATCH_ACK):
                self._learn_ack(decode_request(record.body, AckRecord))
            elif tag == ORDER:
                self._learn_order(record, decode_request(record.body, OrderRecord))
        except ValueError:
            # RocketMQ also cancels check points here, with bodies that are not JSON.
            log.debug("record of the revive queues is not a check point: offset %d", record.physical_offset)

    def _learn_check_point(self, record: MessageExt, read: CheckPoint) -> None:
        entry = outstanding_of(read, record.queue_id)
        if entry is None:
            return
        if read.next_offset >= 0:
            self._moves.setdefault(entry.key[:3], []).append((read.next_offset, record.physical_offset))
        entry.foreign = self._foreign_set(read.broker_name)
        known = self._check_points.get(entry.key, entry.foreign)
        if known is not None:
            # It was stored again, further back.
            self._journal.floors.release(known.revive_queue, known.revive_offset)
            entry.acked |= known.acked
            entry.changed |= known.changed
            entry.consumed |= known.consumed
            self._check_points.remove(known)
        early = self._acknowledger.early.pop((entry.key, entry.foreign), None)
        if early is not None:
            entry.acked |= entry.bits_of(early)
        if entry.done:
            return
        entry.revive_offset = record.queue_offset
        entry.physical_offset = read.position if read.position >= 0 else record.physical_offset
        # A clock that runs behind the former master's must not hide messages for hours.
        entry.due_ms = min(entry.due_ms, self._broker.clock.now_ms() + entry.invisible_ms)
        self._check_points.add(entry)
        self._journal.floors.hold(entry.revive_queue, entry.revive_offset)

    def _foreign_set(self, broker_name: str | None) -> str:
        """The broker set that a record names, if it is another one, else the empty name."""
        own = self._broker.settings.broker.broker_name
        return broker_name if broker_name and broker_name != own else ""

    def _learn_ack(self, read: AckRecord) -> None:
        key = (read.topic, read.consumer_group, read.queue_id, read.start_offset, read.pop_time)
        offsets = read.offsets if read.offsets is not None else [read.offset]
        foreign = self._foreign_set(read.broker_name)
        entry = self._check_points.get(key, foreign)
        if entry is None:
            self._acknowledger.note_early(key, offsets, foreign)
            return
        bits = entry.bits_of(offsets)
        entry.acked |= bits
        if read.by_broker:
            entry.changed |= bits
        else:
            entry.consumed |= bits
        if entry.done:
            self._check_points.remove(entry)
            self._journal.floors.release(entry.revive_queue, entry.revive_offset)
            if entry.consumed and not foreign:
                self._check_points.remember(entry)

    def _learn_order(self, record: MessageExt, read: OrderRecord) -> None:
        if not plausible(read):
            return
        key = (read.topic, read.consumer_group, read.queue_id)
        if read.reset and not self._popper.ready:
            self._used_resets.append((key, read.reset))
        known = self._order_records.get(key)
        if known is None or known[0] < record.physical_offset:
            self._order_records[key] = (record.physical_offset, read, record.queue_id, record.queue_offset)

    def _apply_positions(self) -> None:
        """The groups' offsets were copied some time ago; records of the log may be newer.

        The records of one group are in several revive queues, of which some are read further back than
        others. So neither the table nor the newest record is always right: offsets only grow, and the highest
        counts, except after a reset.
        """
        tables = self._broker.tables
        for (topic, group, queue_id), number in self._used_resets:
            # The former master did not live long enough to say so itself.
            tables.offsets.drop_reset(group, topic, queue_id, number)
        self._used_resets.clear()
        for key in {*self._moves, *self._order_records}:
            topic, group, queue_id = key
            if topic not in tables.topics:
                continue
            moves = self._moves.get(key, [])
            least = tables.offsets.query(group, topic, queue_id)
            order = self._order_records.get(key)
            # Its batch tells more than its offset, which may be the first one of both topics.
            if order is not None and self._is_same_queue(key, order[0], end_of(order[1])):
                physical_offset, read, queue, offset = order
                if read.info.offset_list:
                    least = max(least, read.next_offset)
                else:
                    least = read.next_offset
                    moves = [each for each in moves if each[1] > physical_offset]
                self._orders.learn(read, queue, offset)
            for next_offset, physical_offset in sorted(moves, reverse=True):
                if next_offset <= least:
                    break
                if self._is_same_queue(key, physical_offset, next_offset):
                    least = next_offset
                    break
            if least != tables.offsets.query(group, topic, queue_id):
                position = self._positions.move(key, least)
                self._journal.after_all(partial(self._positions.commit, key, position, least))
        self._moves.clear()
        self._order_records.clear()

    def _is_same_queue(self, key: QueueOfGroup, physical_offset: int, next_offset: int) -> bool:
        """Whether the record is about this queue, and not about one of a topic that was deleted since: then
        the messages before `next_offset` are newer than the record."""
        topic, _, queue_id = key
        bounds = self._broker.store.queue_bounds(topic, queue_id)
        if next_offset > bounds.max_offset:
            return False
        before = next_offset - 1
        if before < bounds.min_offset:
            return True
        result = self._broker.store.get(topic, queue_id, before, 1)
        return (
            not result.count
            or decode_record(result.buffers[0], inflate=False).physical_offset < physical_offset
        )

    # -- what is due

    def arm(self) -> None:
        """Set the timer for the next check point that is due."""
        due_ms = self._check_points.next_due_ms()
        if due_ms is None or self._reviving or not self._popper.ready:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        delay_s = max(0, due_ms - self._broker.clock.now_ms()) / 1000
        self._timer_due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(min(delay_s, LOOK_AGAIN_S), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._broker.clock.now_ms()
        due = self._check_points.take_due(now_ms, BATCH, now_ms - self._broker.clock.monotonic_ms())
        if due:
            self._reviving = True
            self._tasks.spawn(self._revive_all(due, self._journal.term))
        else:
            self.arm()

    async def _revive_all(self, due: list[Outstanding], term: int) -> None:
        outcomes = await asyncio.gather(*(self._revive(entry, term) for entry in due), return_exceptions=True)
        if self._journal.term != term:
            return
        for entry, outcome in zip(due, outcomes, strict=True):
            if outcome is not None:
                # Its messages must not stay hidden.
                log.error("messages of topic=%s are not revived yet", entry.key[0], exc_info=outcome)
                self._check_points.postpone(entry, self._broker.clock.now_ms() + FAILED_MS)
        self._reviving = False
        self.arm()

    async def _revive(self, entry: Outstanding, term: int) -> None:
        now_ms = self._broker.clock.now_ms()
        if entry.pending or entry in self._moving:
            self._check_points.postpone(entry, now_ms + RETRY_MS)
            return
        try:
            messages = await self._messages(entry)
        except (OSError, NetError, MQError) as error:
            log.error("messages of a pop cannot be read, topic=%s: %s", entry.key[0], error)
            pause_s = REWRITE_INTERVALS_S[min(entry.put_again, len(REWRITE_INTERVALS_S) - 1)]
            entry.put_again += 1
            if self._journal.term == term:
                self._check_points.postpone(entry, now_ms + pause_s * 1000)
            return
        if self._journal.term != term:
            return
        outcomes = [put(self._broker.appender, message) for _, message in messages]
        settled: asyncio.Future[PutResult | None] = asyncio.get_running_loop().create_future()

        def stored(status: PutStatus, result: PutResult | None) -> None:
            if not settled.done():
                settled.set_result(result)

        tag, record = ack_record(entry.key, entry.unacknowledged, entry.broker_name, by_broker=True)
        self._journal.write(entry.revive_queue, tag, record, stored)
        result = await settled
        statuses = [await outcome for outcome in outcomes]
        for status, _ in statuses:
            self.retries.add(entry.key[1], entry.key[0], status.name)
        if self._journal.term != term:
            return
        if self._broker.role.is_acting and not all(each.ok for each in statuses):
            # No master has taken them: they stay outstanding, and what was taken does not come again.
            for (offset, _), each in zip(messages, statuses, strict=True):
                entry.acked |= entry.bits_of((offset,)) if each.ok else 0
            self._check_points.postpone(entry, now_ms + RETRY_MS)
            return
        refused = [each for each in statuses if each.result is None and not each.ok]
        if result is None:
            self._check_points.postpone(entry, now_ms + RETRY_MS)
            return
        if refused:
            log.error(
                "%d messages of topic=%s could not be revived: %s",
                len(refused),
                entry.key[0],
                refused[0].status,
            )
        entry.acked = entry.all_bits
        self._acknowledger.settled(entry, result.end_offset)

    async def _messages(self, entry: Outstanding) -> list[tuple[int, StoredMessage]]:
        """The retry or dead-letter messages of a check point, with the offsets of the messages themselves;
        none for a topic or group that is gone.

        Raises OSError, `NetError`, `MQError`.
        """
        tables = self._broker.tables
        topic, group, _, _, pop_time = entry.key
        config = tables.subscriptions.get(group)
        if config is None or (not entry.foreign and topic not in tables.topics):
            return []
        messages: list[tuple[int, StoredMessage]] = []
        for offset in entry.unacknowledged:
            record = await (self._foreign(entry, offset) if entry.foreign else self._message(entry, offset))
            if record is None:
                continue
            attempts = record.reconsume_times if entry.suspend else once_more(record.reconsume_times)
            target, dead = self._retry_topic(topic, group), attempts > config.retry_max_times
            properties = dict(record.properties)
            properties.pop(PROPERTY_POP_CK, None)
            if dead:
                target = dead_letter_topic(group)
                properties.setdefault(PROPERTY_RETRY_TOPIC, topic)
                properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, record.offset_message_id)
                log.info("dead letter group=%s topic=%s attempts=%d", group, topic, attempts)
            if record.reconsume_times == 0 or PROPERTY_FIRST_POP_TIME not in properties:
                properties[PROPERTY_FIRST_POP_TIME] = str(pop_time)
            properties[PROPERTY_ORIGIN_GROUP] = group
            queues = 1 if dead else self._retry_queues(topic, group)
            if not self._broker.role.is_acting:  # then it goes to another broker
                await self._ensure(target, group, queues)
            queue = record.queue_id if record.queue_id < queues else 0
            try:
                message = message_of(record, topic=target, queue_id=queue, properties=properties)
            except MessageFormatError:
                # The marks of a retry do not fit; the message itself matters more.
                message = message_of(record, topic=target, queue_id=queue, properties=record.properties)
            message.reconsume_times = attempts
            message.store_host = self._journal.store_host
            messages.append((offset, message))
        return messages

    def _retry_topic(self, topic: str, group: str) -> str:
        if topic.startswith(RETRY_PREFIX):
            return topic
        return pop_retry_topic(group, topic, v2=self._broker.settings.broker.enable_retry_topic_v2)

    def _retry_queues(self, topic: str, group: str) -> int:
        """How many queues the retry topic has; `topic` is the one that was popped, perhaps itself a retry
        topic."""
        if not self._broker.settings.broker.use_separate_retry_queue:
            return 1
        for v2 in (True, False):
            topic = topic.removeprefix(pop_retry_topic(group, "", v2=v2))
        origin = self._broker.tables.topics.get(topic)
        return 1 if origin is None else max(1, origin.write_queue_nums)

    async def _ensure(self, topic: str, group: str, queues: int) -> None:
        """Create a retry or dead-letter topic; slaves have it before it has messages."""
        tables = self._broker.tables
        if tables.topics.widen(topic, queues):
            for queue in range(queues):
                if topic.startswith(RETRY_PREFIX) and tables.offsets.query(group, topic, queue) < 0:
                    tables.offsets.commit(group, topic, queue, 0)
            await tables.durable()

    async def _message(self, entry: Outstanding, offset: int) -> MessageExt | None:
        """A message of the check point; None if the log no longer has it."""
        broker = self._broker
        topic, _, queue_id, _, _ = entry.key
        result = broker.store.get(topic, queue_id, offset, 1)
        if result.fetch is not None:
            await asyncio.get_running_loop().run_in_executor(broker.readers, result.fetch)
        if not result.count:
            log.warning("message to revive is gone topic=%s queue=%d offset=%d", topic, queue_id, offset)
            return None
        record = decode_record(result.buffers[0], inflate=False)
        if offset_in(topic, record) != offset or record.physical_offset >= entry.physical_offset:
            # The topic was deleted and created again: this is another message.
            log.warning("message to revive is gone topic=%s queue=%d offset=%d", topic, queue_id, offset)
            return None
        return record

    async def _foreign(self, entry: Outstanding, offset: int) -> MessageExt | None:
        """A message of a check point that an acting master of another broker set has written here, as
        RocketMQ's do; None if it is gone. Raises OSError, `NetError`, `MQError`."""
        topic, _, queue_id, _, _ = entry.key
        record = await self._broker.read_elsewhere(entry.foreign, topic, queue_id, offset)
        if record is None:
            log.warning(
                "message to revive is gone topic=%s broker=%s queue=%d offset=%d",
                *(topic, entry.foreign, queue_id, offset),
            )
        return record

    # -- keeping revive queues short

    def _move_on(self) -> None:
        """Store old check points again, further back, so that a new master need not read far."""
        floors = self._journal.floors
        if self._broker.role.is_acting:
            return
        for queue in floors.queues():
            first, known = floors.first(queue), floors.known(queue)
            if first is None or known - first <= PIN_RECORDS + 4 * floors.count(queue):
                continue
            before = known - PIN_RECORDS // 2
            self._orders.move_on(queue, before)
            oldest = sorted(
                (
                    each
                    for each in self._check_points
                    if each.revive_queue == queue and self._may_move(each, before)
                ),
                key=lambda each: each.revive_offset,
            )
            for entry in oldest[:PIN_BATCH]:
                self._moving.add(entry)
                self._journal.write(
                    queue, CHECK_POINT, record_of(entry, again=True), partial(self._moved, entry)
                )

    def _may_move(self, entry: Outstanding, before: int) -> bool:
        return entry.revive_offset < before and not entry.reviving and entry not in self._moving

    def _moved(self, entry: Outstanding, status: PutStatus, result: PutResult | None) -> None:
        self._moving.discard(entry)
        if result is None:
            return
        floors, old = self._journal.floors, entry.revive_offset
        if entry.live:
            floors.hold(entry.revive_queue, result.queue_offset)
            entry.revive_offset = result.queue_offset
        release: Callable[[], None] = partial(floors.release, entry.revive_queue, old)
        self._journal.after(result.end_offset, release)
