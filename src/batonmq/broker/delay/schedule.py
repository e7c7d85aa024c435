"""Delivers delayed messages when they are due, and stores the delivered offset of each level.

One level is one queue of the delay topic, and its messages become due in storage order. So a level needs one
offset and at most one timer; an empty level needs no timer. The offset of a level advances only after the
delivered message is acknowledged like any other: a message may be delivered twice but is never lost.
Source: RocketMQ's `ScheduleMessageService` and its file ``config/delayOffset.json``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from batonmq.broker.delay.core import KnownSince, deliver_at_ms, from_schedule_topic
from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.versions import age, next_version
from batonmq.common.files import reason
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.names import SCHEDULE_TOPIC
from batonmq.store.results import GetResult, GetStatus, PutResult, QueueKey

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from batonmq.broker.messages.appender import Appender
    from batonmq.broker.role import RoleState
    from batonmq.common.clock import Clock
    from batonmq.store.store import MessageStore

log = logging.getLogger(__name__)

BATCH: Final = 32
"""Messages of a level that are delivered together."""
BATCH_BYTES: Final = 1 << 22
RETRY_MS: Final = 1_000
"""Pause of a level after a failed delivery."""
UNCONFIRMED_MS: Final = 100
"""Pause of a level while the last messages of the former master are not confirmed."""
STEPS: Final = 256
"""After the clock was set back, a message may be late by its delay divided by this."""


class _DelayOffsets(msgspec.Struct, rename="camel"):
    """delayOffset.json."""

    offset_table: dict[int, int] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class _Delivery:
    """Waits for the acknowledgement of one delivered message (`Waiter`)."""

    __slots__ = ("_level", "_offset", "_schedule", "_term", "wait")

    def __init__(self, schedule: DelaySchedule, term: int, level: int, offset: int) -> None:
        """`offset`: of the delayed message in its level's queue."""
        self._schedule = schedule
        self._term = term
        self._level = level
        self._offset = offset
        self.wait = True

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        if result is not None and status is not PutStatus.PUT_OK:
            # The message is in the log, but replicas or disk are late. Another delivery would duplicate it.
            asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._check_again, result)
            return
        self._schedule.delivered(self._term, self._level, self._offset, status is PutStatus.PUT_OK)

    def _check_again(self, result: PutResult) -> None:
        if self._schedule.is_current(self._term):
            safe = self._schedule.is_safe(result)
            self.stored(PutStatus.PUT_OK if safe else PutStatus.FLUSH_SLAVE_TIMEOUT, result)


class DelaySchedule:
    """All levels of one broker. Runs only while the broker is master or acts as one."""

    def __init__(
        self,
        delays_ms: Sequence[int],
        store: MessageStore,
        appender: Appender,
        role: RoleState,
        clock: Clock,
        version_step: Callable[[], int] = lambda: 1,
        readers: Executor | None = None,
    ) -> None:
        """`delays_ms`: the delay of each level, the first is level 1. `version_step`: moves of offsets to the
        next data version (`delayOffsetUpdateVersionStep`). `readers`: threads that read from disk."""
        self._version_step = version_step
        self._delays = delays_ms
        self._store = store
        self._appender = appender
        self._role = role
        self._clock = clock
        self._readers = readers
        self._offsets: dict[int, int] = {}
        """Level -> first message of its queue that is not delivered."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._in_flight: dict[int, int] = {}
        """Level -> number of unacknowledged deliveries."""
        self._batch_end: dict[int, int] = {}
        """Level -> offset behind the deliveries in flight."""
        self._failed: dict[int, int] = {}
        """Level -> first message of the deliveries in flight that was refused."""
        self._ahead: dict[int, set[int]] = {}
        """Level -> messages from its offset on that are delivered: one before them was refused, and they must
        not come again with each of its attempts. At most `BATCH`."""
        self._reading: set[int] = set()
        """Levels whose next messages are being read from disk."""
        self._unreadable: set[int] = set()
        """Levels whose last read failed: it is logged once."""
        self._known = {level: KnownSince(delay_ms // STEPS) for level, delay_ms in enumerate(delays_ms, 1)}
        self._term = 0
        """Number of starts and stops; acknowledgements of an earlier one are ignored."""
        self._running = False
        self.version = DataVersion(timestamp=clock.now_ms())
        self._moves = 0
        self._acts = False
        """Whether the next move is the first one since this slave acts as master."""
        self._changed = False

    def take_changed(self) -> bool:
        """Whether an offset moved since the last call."""
        changed, self._changed = self._changed, False
        return changed

    @property
    def max_level(self) -> int:
        return len(self._delays)

    @property
    def offsets(self) -> dict[int, int]:
        """Level -> first message of its queue that is not delivered."""
        return dict(self._offsets)

    # -- file and replication

    def encode(self) -> bytes:
        """Contents of delayOffset.json, as a RocketMQ broker reads them."""
        return encode(_DelayOffsets(self._offsets, self.version))

    def restore(self, data: bytes) -> None:
        """Load the contents of a delayOffset.json, from disk or from the master. Raises ValueError."""
        read = decode(data, _DelayOffsets)
        self._offsets = dict(read.offset_table)
        self.version = read.data_version

    def replace(self, data: bytes) -> None:
        """On a slave: load the master's table. Raises ValueError."""
        self.restore(data)
        self._changed = True

    def take_back(self, data: bytes) -> bool:
        """On a master that returns: take the table of a slave where it is further. Raises ValueError.

        A level's offset only grows, and what is before it was delivered, by whichever broker. True: something
        has changed."""
        read = decode(data, _DelayOffsets)
        further = {
            level: offset
            for level, offset in read.offset_table.items()
            if offset > self._offsets.get(level, 0)
        }
        self._offsets.update(further)
        self.version = max(self.version, read.data_version, key=age)
        self._changed |= bool(further)
        return bool(further)

    # -- running

    def start(self) -> None:
        """This broker is master, or acts as one: deliver the messages that are due, and set timers for the
        others."""
        self._running = True
        self._acts = self._role.is_acting
        self._term += 1
        self._in_flight.clear()
        self._failed.clear()
        self._ahead.clear()
        self._reading.clear()
        self._unreadable.clear()
        for level in range(1, self.max_level + 1):
            known = self._known[level] = KnownSince(self._delays[level - 1] // STEPS)
            end = self._store.queue_bounds(SCHEDULE_TOPIC, level - 1).max_offset
            known.note(end, self._clock.monotonic_ms())
            self._deliver(level)

    def stop(self) -> None:
        """This broker is no longer master, or stops."""
        self._running = False
        self._term += 1
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def on_visible(self, queues: Iterable[tuple[QueueKey, int]]) -> None:
        """These queues have grown; set the timer of a level that was empty."""
        if not self._running:
            return
        for (topic, queue_id), end in queues:
            level = queue_id + 1
            if topic != SCHEDULE_TOPIC or level not in self._known:
                continue
            self._known[level].note(end, self._clock.monotonic_ms())
            if not (level in self._timers or level in self._reading or self._in_flight.get(level)):
                self._deliver(level)

    def is_current(self, term: int) -> bool:
        """Whether `term` is the current one."""
        return term == self._term

    def is_safe(self, result: PutResult) -> bool:
        """Whether the message is as safe as the configuration demands."""
        return self._appender.is_acked(result.end_offset)

    def delivered(self, term: int, level: int, offset: int, ok: bool) -> None:
        """The delivery of the message at this offset was acknowledged (`ok`) or refused; called once for
        each."""
        if term != self._term:
            return
        self._in_flight[level] -= 1
        if ok:
            self._ahead.setdefault(level, set()).add(offset)
        else:
            self._failed[level] = min(offset, self._failed.get(level, offset))
        if self._in_flight[level]:
            return
        refused = self._failed.pop(level, None)
        if refused is None:
            self._move_to(level, self._batch_end[level])
            self._deliver(level)
        else:
            if refused != self._offsets.get(level, 0):
                self._move_to(level, refused)
            self._arm(level, RETRY_MS)

    def _move_to(self, level: int, offset: int) -> None:
        self._offsets[level] = offset
        self._ahead[level] = {each for each in self._ahead.get(level, ()) if each >= offset}
        self._known[level].forget_before(offset)
        self._changed = True
        self._moves += 1
        if self._acts or self._moves % self._version_step() == 0:
            self.version = next_version(
                self.version, self._clock.now_ms(), self._role.epoch, acting=self._acts
            )
            self._acts = False

    def _arm(self, level: int, delay_ms: int) -> None:
        self._timers[level] = asyncio.get_running_loop().call_later(delay_ms / 1000, self._on_timer, level)

    def _on_timer(self, level: int) -> None:
        del self._timers[level]
        self._deliver(level)

    def _deliver(self, level: int, *, in_memory: bool = False) -> None:
        """Deliver the due messages and wait for their acknowledgements, or set a timer for the next one.
        `in_memory`: they were read from disk right before."""
        offset = self._offsets.get(level, 0)
        result = self._store.get(SCHEDULE_TOPIC, level - 1, offset, BATCH, BATCH_BYTES)
        if result.status is not GetStatus.FOUND:
            if result.status not in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
                self._correct(level, offset, result)
            return
        if result.fetch is not None and not in_memory:
            self._fetch(level, result.fetch)
            return
        records, end = self._decoded(level, offset, result)
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        delay_ms, known, due_ms = self._delays[level - 1], self._known[level], now_ms
        ahead = self._ahead.get(level, ())
        deliveries = []
        for record in records:
            known_ms = known.known_ms(record.queue_offset, monotonic_ms)
            due_ms = deliver_at_ms(record.store_timestamp, delay_ms, now_ms, known_ms)
            if due_ms > now_ms:
                end = record.queue_offset
                break
            if record.queue_offset in ahead:
                continue
            try:
                message = from_schedule_topic(record)
            except MessageFormatError as error:
                log.error("delayed message level=%d queue_offset=%d: %s", level, record.queue_offset, error)
                continue
            if message is None:
                log.error(
                    "delayed message without its topic level=%d queue_offset=%d", level, record.queue_offset
                )
            else:
                deliveries.append((message, record.queue_offset))
        else:
            due_ms = now_ms
        if deliveries:
            self._in_flight[level] = len(deliveries)
            self._batch_end[level] = end
            for message, queue_offset in deliveries:
                self._appender.submit(message, _Delivery(self, self._term, level, queue_offset))
            return
        if end != offset:
            self._move_to(level, end)
        self._arm(level, due_ms - now_ms)

    def _decoded(self, level: int, offset: int, result: GetResult) -> tuple[list[MessageExt], int]:
        """The messages that were found, and the offset behind them. A damaged one is left out: the others of
        its level must not wait for it."""
        try:
            records = [record for view in result.buffers for record in decode_records(view, inflate=False)]
        except MessageFormatError:
            records = []
        if len(records) == result.count and all(
            record.topic == SCHEDULE_TOPIC and offset <= record.queue_offset < result.next_offset
            for record in records
        ):
            return records, result.next_offset
        if result.count > 1:  # which one is it?
            one = self._store.get(SCHEDULE_TOPIC, level - 1, offset, 1, BATCH_BYTES)
            return self._decoded(level, offset, one)
        log.error("the record of delay level %d at queue_offset=%d is damaged and is left out", level, offset)
        return [], max(result.next_offset, offset + 1)

    def _fetch(self, level: int, fetch: Callable[[], None]) -> None:
        """Read from disk in another thread, then deliver."""
        term, loop = self._term, asyncio.get_running_loop()
        self._reading.add(level)
        reading = loop.run_in_executor(self._readers, fetch)
        reading.add_done_callback(lambda done: self._fetched(term, level, done))

    def _fetched(self, term: int, level: int, done: asyncio.Future[None]) -> None:
        if done.cancelled() or term != self._term:
            return
        error = done.exception()
        self._reading.discard(level)
        if error is None:
            self._unreadable.discard(level)
            self._deliver(level, in_memory=True)
            return
        if level not in self._unreadable:
            cause = reason(error) if isinstance(error, OSError) else error
            log.error("messages of delay level %d cannot be read, trying again: %s", level, cause)
        self._unreadable.add(level)
        self._arm(level, RETRY_MS)

    def _correct(self, level: int, offset: int, result: GetResult) -> None:
        """Nothing can be read at the offset. It is outside the queue, because the file is older than the log
        or the log was cut, or there is a gap in the queue."""
        store = self._store
        if result.status is GetStatus.OFFSET_OVERFLOW_BADLY and store.dispatched_offset < store.max_offset:
            # Right after a switch the queue only seems to end before: the log is not confirmed yet.
            self._arm(level, UNCONFIRMED_MS)
            return
        corrected = min(max(result.next_offset, result.min_offset), result.max_offset)
        if corrected == offset:
            return
        log.warning("delay level %d: offset corrected from %d to %d", level, offset, corrected)
        self._move_to(level, corrected)
        if corrected < result.max_offset:
            self._arm(level, 0)
