"""Acks of popped messages, and changes of their invisible time.

The acks of one loop turn for the same check point become one record of the revive topic, and are answered
once it is as safe as the configuration demands. Codes and texts are RocketMQ's (`AckMessageProcessor`,
`ChangeInvisibleTimeProcessor`), except that an ack whose record was refused is answered with an error;
RocketMQ answers SUCCESS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from batonmq.broker.messages.answers import CODE_OF, not_stored, overloaded
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.pop import order_core
from batonmq.broker.pop.core import MOST_MESSAGES, Key, Outstanding, record_of
from batonmq.broker.pop.journal import ACK, BATCH_ACK, CHECK_POINT
from batonmq.broker.role import rejected
from batonmq.protocol.bodies.pop import AckRecord
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import FAQ, MQError

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.pop.core import CheckPoints
    from batonmq.broker.pop.journal import Journal
    from batonmq.broker.pop.orders import Orders
    from batonmq.broker.pop.positions import Positions
    from batonmq.broker.pop.taker import Taker
    from batonmq.protocol.pop import Receipt
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

MAX_EARLY: Final = 10_000
"""Acks that are kept for check points which RocketMQ's timers have not delivered yet."""

Done = Callable[[PutStatus], None]


class Acknowledger:
    """Acks and changes of one broker."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        check_points: CheckPoints,
        positions: Positions,
        orders: Orders,
        taker: Taker,
    ) -> None:
        self._broker = broker
        self._journal = journal
        self._check_points = check_points
        self._positions = positions
        self._orders = orders
        self._taker = taker
        self._waiting: dict[Key, tuple[Outstanding, list[tuple[int, Done]]]] = {}
        """Acks of this loop turn, by check point: their bits, and who waits for them."""
        self.early: dict[tuple[Key, str], set[int]] = {}
        """Acked offsets of check points that are unknown so far, by key and foreign broker set."""

    def stop(self) -> None:
        """The role ends: acks that are not in the log yet are refused."""
        waiting, self._waiting = self._waiting, {}
        for _, acks in waiting.values():
            for _, done in acks:
                done(PutStatus.SERVICE_NOT_AVAILABLE)
        self.early.clear()

    # -- checks

    def check(self, topic: str, queue_id: int, offset: int, peer: str, *, end: int) -> None:
        """Raises `MQError` unless the queue exists and holds the offset; `end`: how far behind the last."""
        role = self._broker.role
        if not role.is_master and not role.is_acting:  # `serves`, but quick on a master
            raise rejected(role)
        if self._broker.appender.backlog >= self._broker.settings.broker.send_thread_pool_queue_capacity:
            raise overloaded()
        config = self._broker.tables.topics.get(topic)
        if config is None:
            raise MQError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}"
            )
        if not 0 <= queue_id < config.read_queue_nums:
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{config.read_queue_nums}] consumer:[{peer}]",
            )
        bounds = self._broker.store.queue_bounds(topic, queue_id)
        if not bounds.min_offset <= offset < bounds.max_offset + end:
            raise MQError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, "
                f"store:{bounds.min_offset}~{bounds.max_offset}",
            )

    # -- acks

    def ack(self, key: Key, offsets: Sequence[int], receipt: Receipt, done: Done) -> None:
        """Messages of one check point are consumed. `done` is called once, perhaps at once."""
        entry = self._check_points.get(key)
        if entry is None:
            if self._check_points.is_consumed(key, offsets):
                done(PutStatus.PUT_OK)  # repeated
                return
            self._note_unknown(key, offsets, receipt)
            raise _too_late()
        bits = entry.bits_of(offsets)
        if not bits:
            raise MQError(
                ResponseCode.NO_MESSAGE, f"the receipt's batch has no message at {list(offsets)[:4]}"
            )
        bits &= ~entry.changed
        if entry.reviving or not bits:
            raise _too_late()
        if not bits & ~entry.consumed:
            done(PutStatus.PUT_OK)  # repeated; what is acked but perhaps not safe is written once more
            return
        self._mark(entry, bits, done)

    def _mark(self, entry: Outstanding, bits: int, done: Done) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        waiting = self._waiting.get(entry.key)
        if waiting is None:
            waiting = self._waiting[entry.key] = (entry, [])
        waiting[1].append((bits, done))
        entry.pending |= bits

    def _write(self) -> None:
        """Write the acks of this loop turn."""
        waiting, self._waiting = self._waiting, {}
        for entry, acks in waiting.values():
            self._write_ack(entry, acks)

    def _write_ack(
        self, entry: Outstanding, acks: list[tuple[int, Done]], *, by_broker: bool = False
    ) -> None:
        bits = 0
        for each, _ in acks:
            bits |= each
        tag, record = ack_record(entry.key, entry.offsets_of(bits), entry.broker_name, by_broker=by_broker)
        self._journal.write(entry.revive_queue, tag, record, partial(self._acked, entry, bits, acks))

    def _acked(
        self,
        entry: Outstanding,
        bits: int,
        acks: list[tuple[int, Done]],
        status: PutStatus,
        result: PutResult | None,
    ) -> None:
        entry.pending &= ~bits
        if result is None:
            entry.changed &= ~bits
        else:
            entry.acked |= bits
            if status is PutStatus.PUT_OK:
                entry.consumed |= bits & ~entry.changed
            if entry.done and entry.live:
                self.settled(entry, result.end_offset)
                if entry.consumed:
                    self._check_points.remember(entry)
        for _, done in acks:
            done(status)

    def settled(self, entry: Outstanding, end_offset: int) -> None:
        """Nothing of the check point is left, once the log is safe up to `end_offset`."""
        self._check_points.remove(entry)
        self._journal.after(end_offset, partial(self._release, entry))

    def _release(self, entry: Outstanding) -> None:
        if entry.pinned:
            return
        self._journal.floors.release(entry.revive_queue, entry.revive_offset)

    def _note_unknown(self, key: Key, offsets: Sequence[int], receipt: Receipt) -> None:
        """A check point that is unknown and not due may still come from the timer wheel of a RocketMQ broker
        that had this store before: its ack waits in the revive topic."""
        due_ms = receipt.pop_time + receipt.invisible_time
        now_ms = self._broker.clock.now_ms()
        if receipt.pop_time <= now_ms < due_ms and receipt.revive_queue in self._journal.queues():
            self.note_early(key, offsets)
            tag, record = ack_record(key, list(offsets), receipt.broker_name)
            self._journal.write(receipt.revive_queue, tag, record, lambda status, result: None)

    def note_early(self, key: Key, offsets: Sequence[int], foreign: str = "") -> None:
        """An ack whose check point is unknown so far. Anybody may repeat it, or name any offsets."""
        known = self.early.get((key, foreign))
        if known is None:
            if len(self.early) >= MAX_EARLY:
                del self.early[next(iter(self.early))]
            known = self.early[key, foreign] = set()
        for offset in offsets:
            if len(known) >= MOST_MESSAGES:
                return
            known.add(offset)

    # -- ordered groups

    def ack_ordered(
        self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, done: Done
    ) -> None:
        """As `ack`, for a message of an ordered batch. Raises `MQError`."""
        key = (topic, group, queue_id)
        before = self._positions.get(key)
        if offset < before:
            done(PutStatus.PUT_OK)  # repeated
            return
        refused = self._orders.ack(key, offset, pop_time, done)
        if refused == order_core.ILLEGAL:
            raise MQError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{before}, commit:{offset}",
            )
        if refused == order_core.IGNORED:
            done(PutStatus.PUT_OK)  # of an earlier batch: another consumer has the messages

    def change_ordered(
        self, topic: str, group: str, queue_id: int, receipt: Receipt, invisible_ms: int, done: Done
    ) -> int:
        """As `change`; returns the new invisible time, counted from the unchanged pop time."""
        key = (topic, group, queue_id)
        visible_at = self._broker.clock.now_ms() + invisible_ms
        if (
            receipt.offset < self._positions.get(key)
            or self._orders.change(key, receipt.offset, receipt.pop_time, visible_at, done) is not None
        ):
            done(PutStatus.PUT_OK)
        return max(0, visible_at - receipt.pop_time)

    # -- changes

    def change(
        self, key: Key, offset: int, invisible_ms: int, suspend: bool, done: Callable[[PutStatus], None]
    ) -> int:
        """Hide one message for `invisible_ms` from now on; returns the pop time of its new receipt.

        `done` is called once the new check point and the ack of the old one are safe. Raises `MQError`
        (NO_MESSAGE) if the message is acknowledged, or its invisible time is over.
        """
        old = self._check_points.get(key)
        bits = 0 if old is None else old.bits_of([offset])
        if old is None or not bits or old.reviving or bits & (old.acked | old.pending):
            raise _too_late()
        topic, group, queue_id, _, popped = key
        now_ms = self._broker.clock.now_ms()
        new = Outstanding(
            # Later than the old one: two receipts of one message must not be equal.
            (topic, group, queue_id, offset, max(now_ms, popped + 1)),
            (offset,),
            invisible_ms,
            old.revive_queue,
            suspend=suspend,
            broker_name=old.broker_name,
        )
        if new.key in self._check_points:
            raise _too_late()
        new.physical_offset = old.physical_offset
        new.volatile = old.volatile
        if self._broker.role.is_acting:
            old.pinned = True
        self._journal.write(
            new.revive_queue, CHECK_POINT, record_of(new, again=True), partial(self._changed, new)
        )
        old.pending |= bits
        old.changed |= bits
        self._write_ack(old, [(bits, done)], by_broker=True)
        return new.key[4]

    def _changed(self, new: Outstanding, status: PutStatus, result: PutResult | None) -> None:
        if result is None:
            return  # then the ack of the old one is refused too
        new.revive_offset = result.queue_offset
        self._check_points.add(new)
        self._journal.floors.hold(new.revive_queue, result.queue_offset)
        self._taker.on_check_point()

    def error_of(self, status: PutStatus) -> MQError:
        """The answer to a request whose record has this status, which is not PUT_OK."""
        if status in CODE_OF:
            return MQError(CODE_OF[status], status.name)
        return not_stored(status, self._broker.settings.store.max_message_size)


def _too_late() -> MQError:
    """RocketMQ answers such an ack with SUCCESS, although the message comes again."""
    return MQError(
        ResponseCode.NO_MESSAGE, "the message is acknowledged already, or its invisible time is over"
    )


def ack_record(
    key: Key, offsets: list[int], broker_name: str, *, by_broker: bool = False
) -> tuple[str, AckRecord]:
    """Tag and record of an ack of one or several messages of a check point."""
    topic, group, queue_id, start, pop_time = key
    record = AckRecord(
        offset=offsets[0] if len(offsets) == 1 else -1,
        start_offset=start,
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        pop_time=pop_time,
        broker_name=broker_name,
        by_broker=by_broker,
    )
    if len(offsets) == 1:
        return ACK, record
    record.offsets = offsets
    return BATCH_ACK, record
