"""Ordered pops of all groups: their batches, stored as records of the revive topic.

A batch is in memory, in the log (tag ``order``, always in the same revive queue), and now and then in
consumerOrderInfo.json for RocketMQ brokers that open this store. The log makes it survive a switch of the
master: RocketMQ keeps it in the file only, which no slave has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from zlib import crc32

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.pop import order_core as core
from batonmq.broker.pop.journal import ORDER
from batonmq.protocol.bodies.pop import ConsumerOrderInfo, OrderInfo, OrderRecord
from batonmq.protocol.json import decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from batonmq.broker.context import Broker
    from batonmq.broker.pop.journal import Journal
    from batonmq.broker.pop.positions import Position, Positions, QueueOfGroup
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3600 * 1000
"""A batch that nobody consumed for so long leaves the file (`ConsumerOrderInfoManager`)."""

Done = Callable[[PutStatus], None]


class Batch:
    """The current batch of one queue of a group."""

    __slots__ = ("info", "waiting")

    def __init__(self, info: OrderInfo) -> None:
        self.info = info
        self.waiting: list[tuple[int, Done]] = []
        """Acks and changes of this loop turn: their bits, and who waits for them."""


class Orders:
    """Batches by topic, group and queue."""

    def __init__(self, broker: Broker, journal: Journal, positions: Positions) -> None:
        self._broker = broker
        self._journal = journal
        self._positions = positions
        self._batches: dict[QueueOfGroup, Batch] = {}
        self._dirty: dict[QueueOfGroup, Batch] = {}
        self._stored_at: dict[QueueOfGroup, int] = {}
        """Offset of the last record of each queue in its revive queue, while that record is needed."""
        self._changed = False
        self.on_free: Callable[[str, str], None] = lambda topic, group: None
        """Called with topic and group when a queue may hand out its next batch."""

    def __len__(self) -> int:
        return len(self._batches)

    def reset(self, key: QueueOfGroup, offset: int, number: int) -> None:
        """An administrator set the offset: the batch no longer counts. Also for groups without order:
        the record makes the reset survive a switch of the master. `number`: of the reset."""
        self._drop(key)
        self._write(key, Batch(OrderInfo()), offset, lambda status, result: None, reset=number)

    def _drop(self, key: QueueOfGroup) -> None:
        """Neither the batch nor its acks of this loop turn count from now on: to store them would bring
        it back."""
        batch = self._batches.pop(key, None)
        self._dirty.pop(key, None)
        if batch is not None:
            waiting, batch.waiting = batch.waiting, []
            for _, done in waiting:
                done(PutStatus.PUT_OK)

    def forget_topics(self) -> None:
        """A topic was deleted."""
        topics = self._broker.tables.topics
        for key in [key for key in self._batches if key[0] not in topics]:
            self._drop(key)
            self._changed = True
        for key in [key for key in self._stored_at if key[0] not in topics]:
            self._journal.floors.release(self._queue_of(key), self._stored_at.pop(key))

    def stop(self) -> None:
        """The role ends: acks that are not in the log yet are refused."""
        dirty, self._dirty = self._dirty, {}
        self._stored_at.clear()
        for batch in dirty.values():
            waiting, batch.waiting = batch.waiting, []
            for _, done in waiting:
                done(PutStatus.SERVICE_NOT_AVAILABLE)

    # -- reading

    def get(self, key: QueueOfGroup) -> OrderInfo | None:
        batch = self._batches.get(key)
        return None if batch is None else batch.info

    def free_at(self, key: QueueOfGroup, attempt_id: str | None, now_ms: int) -> int | None:
        """When the next batch may be handed out; None: now."""
        info = self.get(key)
        if info is not None and info.pop_time > now_ms:
            core.limit_wait(info, now_ms)
        return core.free_at(info, attempt_id, now_ms)

    # -- changing

    def hand_out(
        self,
        key: QueueOfGroup,
        attempt_id: str | None,
        pop_time: int,
        invisible_ms: int,
        offsets: Sequence[int],
        done: Done,
    ) -> OrderInfo:
        """The new batch of a queue. `done` is called once its record is safe, or refused."""
        before = self._batches.get(key)
        info = core.new_batch(
            None if before is None else before.info, attempt_id, pop_time, invisible_ms, offsets
        )
        batch = Batch(info)
        if before is not None:
            batch.waiting = [(0, waits) for _, waits in before.waiting]
            before.waiting = []
        self._batches[key] = batch
        self._write(key, batch, core.next_offset(info), partial(self._handed_out, key, batch, before, done))
        return info

    def _handed_out(
        self,
        key: QueueOfGroup,
        batch: Batch,
        before: Batch | None,
        done: Done,
        status: PutStatus,
        result: PutResult | None,
    ) -> None:
        if result is None and self._batches.get(key) is batch:
            if before is None:
                del self._batches[key]
            else:
                self._batches[key] = before
        done(status)

    def ack(self, key: QueueOfGroup, offset: int, pop_time: int, done: Done) -> int | None:
        """A message is consumed. None: `done` is called later; else ILLEGAL or IGNORED."""
        batch = self._batches.get(key)
        if batch is None:
            return core.ILLEGAL
        bit = core.bit_of(batch.info, offset, pop_time)
        if bit < 0:
            return bit
        new = bit & ~batch.info.acked
        batch.info.acked |= bit
        self._mark(key, batch, new, done)
        return None

    def change(
        self, key: QueueOfGroup, offset: int, pop_time: int, visible_at: int, done: Done
    ) -> int | None:
        """A message is to be invisible until `visible_at`; the result is as `ack`'s."""
        batch = self._batches.get(key)
        if batch is None:
            return core.ILLEGAL
        bit = core.bit_of(batch.info, offset, pop_time)
        if bit < 0:
            return bit
        batch.info.next_visible[offset] = visible_at
        self._mark(key, batch, 0, done)
        return None

    def _mark(self, key: QueueOfGroup, batch: Batch, bits: int, done: Done) -> None:
        """Store the batch at the end of this loop turn: once for all its acks."""
        batch.waiting.append((bits, done))
        if not self._dirty:
            asyncio.get_running_loop().call_soon(self._write_dirty)
        self._dirty[key] = batch

    def _write_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for key, batch in dirty.items():
            current = self._batches.get(key, batch)
            waiting, current.waiting = current.waiting, []
            self._write(
                key, current, core.next_offset(current.info), partial(self._marked, key, current, waiting)
            )

    def _marked(
        self,
        key: QueueOfGroup,
        batch: Batch,
        waiting: list[tuple[int, Done]],
        status: PutStatus,
        result: PutResult | None,
    ) -> None:
        if result is None:
            for bits, _ in waiting:
                batch.info.acked &= ~bits
        for _, done in waiting:
            done(status)
        topic, group, _ = key
        if self.free_at(key, None, self._broker.clock.now_ms()) is None:
            self.on_free(topic, group)

    # -- the log

    def _queue_of(self, key: QueueOfGroup) -> int:
        return revive_queue_of(key, len(self._journal.queues()))

    def _write(
        self,
        key: QueueOfGroup,
        batch: Batch,
        next_offset: int,
        stored: Callable[[PutStatus, PutResult | None], None],
        *,
        reset: int | None = None,
    ) -> None:
        topic, group, queue_id = key
        start = self._positions.get(key)
        position = self._positions.move(key, next_offset)
        record = OrderRecord(topic, group, queue_id, next_offset, batch.info, reset or 0)
        queue = self._queue_of(key)
        self._changed = True

        def written(status: PutStatus, result: PutResult | None) -> None:
            if result is None:
                self._positions.take_back(key, position, start)
                if reset is not None:
                    self._positions.reset_refused(key, reset)
            else:
                self._stored(key, batch, position, next_offset, queue, result, reset)
            stored(status, result)

        self._journal.write(queue, ORDER, record, written)

    def _stored(
        self,
        key: QueueOfGroup,
        batch: Batch,
        position: Position,
        next_offset: int,
        queue: int,
        result: PutResult,
        reset: int | None,
    ) -> None:
        floors, before = self._journal.floors, self._stored_at.get(key, -1)
        floors.hold(queue, result.queue_offset)
        self._stored_at[key] = result.queue_offset

        def safe() -> None:
            if reset is not None:
                self._positions.reset_done(key, reset)
            self._positions.commit(key, position, next_offset)
            floors.release(queue, before)
            if core.is_done(batch.info) and self._stored_at.get(key) == result.queue_offset:
                # The offset of the group says it all now.
                floors.release(queue, self._stored_at.pop(key))

        self._journal.after(result.end_offset, safe)

    def move_on(self, queue: int, before: int) -> None:
        """Store the batches again whose records in this revive queue are older than offset `before`."""
        for key, offset in list(self._stored_at.items()):
            batch = self._batches.get(key)
            if offset < before and batch is not None and self._queue_of(key) == queue:
                self._mark(key, batch, 0, lambda status: None)

    def learn(self, record: OrderRecord, revive_queue: int, revive_offset: int) -> None:
        """A record of the log is the newest of its queue."""
        key = (record.topic, record.consumer_group, record.queue_id)
        self._batches.pop(key, None)
        self._changed = True
        before = self._stored_at.pop(key, None)
        if before is not None:
            self._journal.floors.release(revive_queue, before)
        if not core.is_done(record.info):
            core.limit_wait(record.info, self._broker.clock.now_ms())
            self._batches[key] = Batch(record.info)
            self._stored_at[key] = revive_offset
            self._journal.floors.hold(revive_queue, revive_offset)

    # -- the file

    def encode(self) -> bytes:
        """Contents of consumerOrderInfo.json, as a RocketMQ broker reads them."""
        now_ms, tables = self._broker.clock.now_ms(), self._broker.tables
        table: dict[str, dict[int, OrderInfo]] = {}
        for key, batch in list(self._batches.items()):
            topic, group, queue_id = key
            config = tables.topics.get(topic)
            gone = config is None or group not in tables.subscriptions or queue_id >= config.read_queue_nums
            if gone or now_ms - batch.info.last_consume > KEPT_MS:
                if gone and key in self._stored_at:
                    self._journal.floors.release(self._queue_of(key), self._stored_at.pop(key))
                if key not in self._stored_at:
                    del self._batches[key]
                continue
            table.setdefault(f"{topic}@{group}", {})[queue_id] = batch.info
        return encode(ConsumerOrderInfo(table))

    def restore(self, data: bytes) -> None:
        """Load a consumerOrderInfo.json. Raises ValueError and then changes nothing."""
        read = decode(data, ConsumerOrderInfo)
        batches: dict[QueueOfGroup, Batch] = {}
        for name, queues in read.table.items():
            topic, at, group = name.partition("@")
            for queue_id, info in queues.items():
                if at and info.offset_list:
                    batches[topic, group, queue_id] = Batch(info)
        self._batches = batches

    def drop_outdated(self) -> None:
        """After the log was read: forget batches of the file that the groups' offsets have passed."""
        for key, batch in list(self._batches.items()):
            if key not in self._stored_at and core.next_offset(batch.info) < self._positions.get(key):
                del self._batches[key]

    def take_changed(self) -> bool:
        """Whether a batch changed since the last call."""
        changed, self._changed = self._changed, False
        return changed


def revive_queue_of(key: QueueOfGroup, queues: int) -> int:
    """The revive queue of a batch's records: always the same one, so that their order is kept."""
    topic, group, queue_id = key
    return crc32(f"{topic}@{group}@{queue_id}".encode()) % max(1, queues)
