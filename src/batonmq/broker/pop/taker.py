"""Takes messages for pops: reads queues, stores the check points, and makes the answer.

The body of an answer consists of views of the mapped commit log; only records of retry topics are rewritten.
Source: RocketMQ's `PopMessageProcessor.popMsgFromQueue`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batonmq.broker.messages.answers import CODE_OF, not_stored
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.pop.core import NOT_IN_LOG, Outstanding, record_of
from batonmq.broker.pop.journal import CHECK_POINT
from batonmq.broker.pop.looks import TURN_US
from batonmq.broker.pop.order_core import order_count_info
from batonmq.broker.tables.attributes import MESSAGE_TYPE, PRIORITY_FACTOR
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import PopMessage, PopMessageResponse
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import POSITIONS
from batonmq.protocol.message.light import offset_in
from batonmq.protocol.message.properties import PROPERTY_POP_CK
from batonmq.protocol.message.record import (
    decode_record,
    decode_records,
    encode_record,
    message_of,
    scan_frames,
)
from batonmq.protocol.names import is_light
from batonmq.protocol.pop import ORDER_REVIVE_QUEUE, Receipt, msg_offset_info, retry_flag, start_offset_info
from batonmq.store.results import GetResult, GetStatus

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.pop.core import CheckPoints
    from batonmq.broker.pop.journal import Journal
    from batonmq.broker.pop.orders import Orders
    from batonmq.broker.pop.positions import Position, Positions, QueueOfGroup
    from batonmq.protocol.bodies.topics import TopicConfig
    from batonmq.store.policy import MessageFilter
    from batonmq.store.results import PutResult

log = logging.getLogger(__name__)

MAX_POP_BYTES: Final = 128 * 1024 * 1024
LOG_FULL_S: Final = 60
"""How often the log says that too many batches are unacknowledged."""
Place: TypeAlias = tuple[str, int, int]
"""Topic, queue and offset."""
CORRECTED: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)
_PASSED: Final = (GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING)
_QUEUE_OFFSET: Final = struct.Struct(">q")
_QUEUE_OFFSET_AT: Final = POSITIONS["queue_offset"]


class PopAnswer(msgspec.Struct, gc=False):
    """An answer to a pop. `buffers`: whole records; empty unless `code` is SUCCESS."""

    header: PopMessageResponse
    buffers: Sequence[memoryview | bytes]
    code: int
    remark: str


class PopCall(Protocol):
    """The caller of a pop, for example one remoting request."""

    @property
    def peer(self) -> str:
        """``ip:port``, for errors."""

    @property
    def finished(self) -> bool:
        """Whether the caller no longer waits for the answer."""

    def answer(self, answer: PopAnswer) -> None:
        """Answer the pop; called at most once."""

    def fail(self, error: MQError) -> None:
        """Fail the pop; called instead of `answer`."""

    def notify(self, has_message: bool, polling_full: bool) -> None:
        """Answer a request that only asks whether a pop would find a message."""


class _Taken(NamedTuple):
    """Messages of one queue that a pop hands out."""

    topic: str
    queue_id: int
    start: int
    offsets: list[int]
    result: GetResult


class Pop:
    """A pop that passed all checks, and what it takes."""

    __slots__ = (
        "call",
        "count",
        "failure",
        "fetching",
        "header",
        "message_filter",
        "number",
        "order_counts",
        "pop_time",
        "rest",
        "retries",
        "revive_queue",
        "taken",
        "topic",
        "unseen",
        "unstored",
        "until_us",
        "warm",
    )

    def __init__(
        self,
        call: PopCall,
        header: PopMessage,
        topic: TopicConfig,
        message_filter: MessageFilter | None,
        retries: Sequence[str],
    ) -> None:
        self.call = call
        self.header = header
        self.topic = topic
        self.message_filter = message_filter
        self.retries = retries
        """The retry topics of the group, in the order in which they are read."""
        self.warm: tuple[str, int, int] | None = None
        """Topic, queue and offset whose messages were just fetched from disk."""
        self.fetching = False
        """Whether messages for it are on their way into memory."""
        self.number = 0
        self.begin(0, 0)

    def begin(self, pop_time: int, number: int) -> None:
        """Forget what an earlier attempt has found."""
        self.pop_time = pop_time
        self.number = number
        """0 to 99: which queue and which kind of topic comes first."""
        self.revive_queue = -1
        self.count = self.rest = 0
        self.taken: list[_Taken] = []
        self.order_counts: list[str] = []
        self.unstored = 0
        self.unseen = False
        """Whether the filter has passed over as many messages as one look allows, and more are there."""
        self.until_us = 0
        """Monotonic time from which no further queue is filtered in this look, in µs."""
        self.failure: PutStatus | None = None


class Taker:
    """Takes messages for the pops of one broker."""

    def __init__(
        self,
        broker: Broker,
        journal: Journal,
        check_points: CheckPoints,
        positions: Positions,
        orders: Orders,
    ) -> None:
        self._broker = broker
        self._journal = journal
        self._check_points = check_points
        self._positions = positions
        self._orders = orders
        self._full_logged = False
        self.on_check_point: Callable[[], None] = lambda: None
        """Called when a check point is stored, which may be due earlier than the others."""
        self.on_cold: Callable[[Pop, Place, Callable[[], None]], None] = lambda pop, place, fetch: None
        """Called with a job for another thread that brings messages into memory."""

    def attempt(self, pop: Pop) -> bool:
        """Take messages. True: the pop is answered, or will be once its check points are stored."""
        broker, header, topic = self._broker, pop.header, pop.topic
        config = broker.settings.broker
        pop.unseen = False  # or a pop that may take nothing would look for ever
        if len(self._check_points) >= config.pop_ck_max_buffer_size:
            self._log_full()
            return False
        if broker.appender.backlog >= config.send_thread_pool_queue_capacity:
            return False  # replicas or disk are behind; a later look finds the messages
        number = broker.rng.randrange(100)
        pop.begin(broker.clock.now_ms(), number)
        if pop.message_filter is not None:
            pop.until_us = broker.clock.monotonic_us() + TURN_US
        by_priority = self._by_priority(pop)
        share = config.pop_from_retry_probability
        if by_priority:
            share = config.pop_from_retry_probability_for_priority
        retry_first = not header.order and number < share
        if retry_first:
            self._take_retries(pop)
        queues = topic.read_queue_nums
        if header.queue_id >= 0:
            self._take(pop, header.topic, header.queue_id)
        else:
            for queue_id in self._turn(pop, queues, by_priority):
                self._take(pop, header.topic, queue_id)
        if not retry_first and not header.order:
            self._take_retries(pop)
        return bool(pop.taken)

    def _by_priority(self, pop: Pop) -> bool:
        """Whether this pop takes the queues of a topic in the order of their priority, as all do but those of
        groups with a lower ``priority.factor`` (percent)."""
        if pop.header.order or (pop.topic.attributes or {}).get(MESSAGE_TYPE) != "PRIORITY":
            return False
        group = self._broker.tables.subscriptions.get(pop.header.consumer_group)
        factor = "" if group is None else (group.attributes or {}).get(PRIORITY_FACTOR, "")
        return pop.number < (int(factor) if len(factor) <= 3 and factor.isdecimal() else 100)

    def _turn(self, pop: Pop, queues: int, by_priority: bool) -> Sequence[int]:
        """Queue ids in the order in which the pop takes them."""
        if not by_priority:
            return [(pop.number + n) % queues for n in range(queues)]
        ascending = self._broker.settings.broker.priority_order_asc
        return range(queues - 1, -1, -1) if ascending else range(queues)

    def _take_retries(self, pop: Pop) -> None:
        for name in pop.retries:
            retry = self._broker.tables.topics.get(name)
            if retry is not None:
                for queue_id in self._turn(pop, retry.read_queue_nums, self._by_priority(pop)):
                    self._take(pop, name, queue_id)

    def _log_full(self) -> None:
        if self._full_logged:
            return
        log.warning(
            "%d batches are handed out and unacknowledged (popCkMaxBufferSize): no pop finds messages",
            len(self._check_points),
        )
        self._full_logged = True
        asyncio.get_running_loop().call_later(LOG_FULL_S, self._log_again)

    def _log_again(self) -> None:
        self._full_logged = False

    def _take(self, pop: Pop, topic: str, queue_id: int) -> None:
        """Take the next messages of one queue."""
        header, store, positions = pop.header, self._broker.store, self._positions
        key = (topic, header.consumer_group, queue_id)
        reset = positions.take_reset(key)
        if reset is not None:
            self._orders.reset(key, *reset)
        if header.order and self._orders.free_at(key, header.attempt_id, pop.pop_time) is not None:
            return  # not counted as rest: it would wake the pop for nothing
        offset = positions.get(key)
        if offset < 0:
            offset = positions.begin(key, header.init_mode)
        if pop.count >= header.max_msg_nums:
            pop.rest += max(0, store.queue_bounds(topic, queue_id).max_offset - offset)
            return
        if pop.unseen and self._broker.clock.monotonic_us() >= pop.until_us:
            pop.rest += max(0, store.queue_bounds(topic, queue_id).max_offset - offset)
            return  # a later look begins elsewhere
        result = self._get(pop, topic, queue_id, offset)
        if result.status in CORRECTED and not self._may_be_behind(result):
            log.info(
                "pop offset corrected topic=%s queue=%d group=%s from=%d to=%d (%s)",
                topic,
                queue_id,
                header.consumer_group,
                offset,
                result.next_offset,
                result.status.name,
            )
            offset = result.next_offset
            positions.skip(key, offset)
            result = self._get(pop, topic, queue_id, offset)
        if result.count:
            if result.fetch is not None and pop.warm != (topic, queue_id, offset):
                if not pop.taken:
                    self.on_cold(pop, (topic, queue_id, offset), result.fetch)
                pop.rest += result.max_offset - offset
                return
            self._hand_out(pop, key, offset, result)
        elif result.status in _PASSED:
            positions.skip(key, result.next_offset)
            if result.next_offset < result.max_offset:
                pop.unseen = True
        pop.rest += max(0, result.max_offset - result.next_offset)

    def _may_be_behind(self, result: GetResult) -> bool:
        """Whether an offset beyond the end may be right: an acting master may lack messages."""
        return self._broker.role.is_acting and result.status is GetStatus.OFFSET_OVERFLOW_BADLY

    def _get(self, pop: Pop, topic: str, queue_id: int, offset: int) -> GetResult:
        most = pop.header.max_msg_nums - pop.count
        return self._broker.store.get(topic, queue_id, offset, most, MAX_POP_BYTES, pop.message_filter)

    # -- handing out

    def _hand_out(self, pop: Pop, key: QueueOfGroup, start: int, result: GetResult) -> None:
        topic, _, queue_id = key
        header = pop.header
        if result.next_offset - start == result.count:
            offsets = list(range(start, result.next_offset))
        else:
            offsets = _offsets_in(topic, result.buffers)
            if len(offsets) != result.count:  # one is damaged: read them one by one
                result = self._broker.store.get(topic, queue_id, start, 1, MAX_POP_BYTES, pop.message_filter)
                offsets = [result.next_offset - 1]
        if header.order:
            info = self._orders.hand_out(
                key,
                header.attempt_id,
                pop.pop_time,
                header.invisible_time,
                offsets,
                partial(self._stored_order, pop),
            )
            pop.order_counts.append(order_count_info(info, topic, queue_id))
        else:
            if pop.revive_queue < 0:
                pop.revive_queue = self._journal.next_queue()
            entry = Outstanding(
                (topic, header.consumer_group, queue_id, start, pop.pop_time),
                tuple(offsets),
                header.invisible_time,
                pop.revive_queue,
                broker_name=self._broker.settings.broker.broker_name,
            )
            if entry.key in self._check_points:
                return  # after a reset within this millisecond: two receipts would be equal
            position = self._positions.move(key, result.next_offset)
            record = record_of(entry, result.next_offset)
            self._journal.write(
                pop.revive_queue,
                CHECK_POINT,
                record,
                partial(self._stored, pop, entry, position, result.next_offset),
            )
        pop.count += result.count
        pop.unstored += 1
        pop.taken.append(_Taken(topic, queue_id, start, offsets, result))

    def _stored(
        self,
        pop: Pop,
        entry: Outstanding,
        position: Position,
        next_offset: int,
        status: PutStatus,
        result: PutResult | None,
    ) -> None:
        key = entry.key[:3]
        if result is None:
            self._positions.take_back(key, position, entry.key[3])
        else:
            entry.revive_offset = result.queue_offset
            entry.physical_offset = result.physical_offset
            entry.volatile = result.queue_offset >= NOT_IN_LOG
            self._check_points.add(entry)
            self._journal.floors.hold(entry.revive_queue, result.queue_offset)
            self._journal.after(
                result.end_offset, partial(self._positions.commit, key, position, next_offset)
            )
            self.on_check_point()
        self._stored_order(pop, status)

    def _stored_order(self, pop: Pop, status: PutStatus) -> None:
        pop.unstored -= 1
        if status is not PutStatus.PUT_OK:
            pop.failure = status
        if not pop.unstored:
            self._answer(pop)

    def _count(self, header: PopMessage, taken: Sequence[_Taken], size: int) -> None:
        stats, group = self._broker.stats, header.consumer_group
        stats.count_get(group, header.topic, sum(each.result.count for each in taken), size)
        for each in taken:
            result, retry = each.result, each.topic != header.topic
            stats.count_pop(group, header.topic, result.count, result.size, retry=retry)

    def _answer(self, pop: Pop) -> None:
        header, taken = pop.header, pop.taken
        if pop.call.finished:
            return
        if pop.failure is not None:
            # What is in the log nevertheless comes back after its invisible time.
            code = CODE_OF.get(pop.failure)
            if code is None:
                pop.call.fail(not_stored(pop.failure, self._broker.settings.store.max_message_size))
            else:
                pop.call.fail(MQError(code, pop.failure.name))
            return
        size = sum(each.result.size for each in taken)
        self._count(header, taken, size)
        answer = PopMessageResponse(
            pop_time=pop.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE if header.order else pop.revive_queue,
            rest_num=pop.rest,
            start_offset_info=start_offset_info(
                (retry_flag(each.topic), each.queue_id, each.start) for each in taken
            ),
            msg_offset_info=msg_offset_info(
                (retry_flag(each.topic), each.queue_id, each.offsets) for each in taken
            ),
            order_count_info=";".join(pop.order_counts) if header.order else None,
        )
        pop.call.answer(PopAnswer(answer, self._buffers(pop), ResponseCode.SUCCESS, GetStatus.FOUND.name))

    def _buffers(self, pop: Pop) -> Sequence[memoryview | bytes]:
        buffers: list[memoryview | bytes] = []
        actual = self._broker.settings.broker.pop_response_return_actual_retry_topic
        for each in pop.taken:
            if each.topic == pop.header.topic or actual:
                buffers += each.result.buffers
            else:
                buffers += self._rewritten(pop, each)
        return buffers

    def _rewritten(self, pop: Pop, taken: _Taken) -> Iterable[memoryview | bytes]:
        """Records of a retry topic, as messages of the topic that was asked for, with their receipts."""
        name = self._broker.settings.broker.broker_name
        for view in taken.result.buffers:
            at = 0
            while at < len(view):
                try:
                    record = decode_record(view, at, inflate=False)
                except MessageFormatError as error:
                    # As for other topics, what follows goes out as the log has it.
                    log.error("pop: %s, queue %d: %s", taken.topic, taken.queue_id, error)
                    yield view[at:]
                    break
                at += record.store_size
                receipt = Receipt(
                    taken.start,
                    pop.pop_time,
                    pop.header.invisible_time,
                    pop.revive_queue,
                    retry_flag(taken.topic),
                    name,
                    taken.queue_id,
                    record.queue_offset,
                )
                properties = {**record.properties, PROPERTY_POP_CK: str(receipt)}
                try:
                    message = message_of(
                        record, topic=pop.header.topic, queue_id=record.queue_id, properties=properties
                    )
                except MessageFormatError:
                    # No room for the receipt: clients make it from the answer's header, as for other topics.
                    yield view[at - record.store_size : at]
                    continue
                yield encode_record(
                    message,
                    queue_offset=record.queue_offset,
                    physical_offset=record.physical_offset,
                    store_timestamp=record.store_timestamp,
                )


def _offsets_in(topic: str, buffers: Sequence[memoryview]) -> list[int]:
    """Offsets of records, one after another, in a queue of `topic`; fewer if one is damaged."""
    offsets: list[int] = []
    if is_light(topic):
        for view in buffers:
            try:
                offsets += [offset_in(topic, record) for record in decode_records(view, inflate=False)]
            except MessageFormatError:
                return []
        return offsets
    for view in buffers:
        offsets += [
            _QUEUE_OFFSET.unpack_from(view, at + _QUEUE_OFFSET_AT)[0] for at in scan_frames(view)[:-1]
        ]
    return offsets
