"""The progress of this replica, which enqueuing, delivery and replication of timed messages share."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections import deque
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from batonmq.broker.timer.layout import Checkpoint
from batonmq.broker.versions import next_version
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.names import TIMER_TOPIC
from batonmq.store.scan import Record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from batonmq.broker.context import Broker
    from batonmq.broker.timer.core import Wheel
    from batonmq.broker.timer.layout import Unit
    from batonmq.broker.timer.timer_store import TimerStore


DOUBTFUL_MS: Final = 10_000
"""How much later than this broker a master may park a message."""
by_slot = attrgetter("slot_ms")


class TimerState:
    """The progress of one replica."""

    def __init__(self, broker: Broker, wheel: Wheel) -> None:
        self.broker = broker
        self.wheel = wheel
        self.timers: TimerStore
        """Set once the part has started."""
        self.opened = False
        self.leading = False
        """Whether this broker delivers: it is master, or acts as one."""
        self.queue_offset = 0
        """First message of the timer topic that is not in the wheel."""
        self.refused = False
        """Whether the disk has refused the last messages for the wheel."""
        self.firing_ms: int | None = None
        """Slot that is being delivered."""
        self.done = Checkpoint()
        """Messages before its `master_queue_offset` in slots before its `read_ms` are delivered, but for its
        open ones: on a master as it took its role, on a slave by the master's last word."""
        self.open: dict[int, deque[Unit]] = {}
        """While this broker delivers: messages of slots that are done otherwise, by hash of their topic. No
        master has taken them."""
        self.version = DataVersion()
        self.filled = asyncio.Event()
        """Set when the wheel has got messages."""
        self.doubtful: deque[Unit] = deque()
        """On a slave: messages of the last seconds before `done.read_ms` that were to be rolled, by slot. A
        RocketMQ master parks them by the time at which it saw them, a little later than this broker does by
        their store time, so it may not have rolled them yet."""
        self.doubts = True
        """Whether `done` may be a RocketMQ broker's."""
        self.behind_since_ms: int | None = None
        """Store time of the message that was enqueued last, while others wait behind it."""

    def now_ms(self) -> int:
        return self.broker.clock.now_ms()

    @property
    def read_ms(self) -> int:
        """All slots before this time are delivered."""
        # A slave's wheel may hold messages behind `done.master_queue_offset`, in slots before `done.read_ms`
        # if the clock went back.
        now_ms = self.wheel.floor(self.now_ms()) if self.leading else self.done.read_ms
        times = [now_ms, self.timers.next_ms, self.firing_ms]
        return min(time for time in times if time is not None)

    def checkpoint(self) -> Checkpoint:
        """The state now, `log_end` not necessarily on disk."""
        master = self.queue_offset if self.leading else max(self.done.master_queue_offset, self.queue_offset)
        open_ = tuple(self.all_open())
        return Checkpoint(self.read_ms, self.timers.log.end, self.queue_offset, master, self.version, open_)

    def all_open(self) -> Iterable[Unit]:
        """Messages that are not delivered although their slots were done, here or at the broker before. By
        this broker's clock they may be due later."""
        return chain(*self.open.values()) if self.leading else self.done.open

    def leave_open(self, units: Iterable[Unit]) -> None:
        """These wait beside the wheel from now on."""
        for unit in units:
            self.open.setdefault(unit.topic_hash, deque()).append(unit)

    def replace(self, done: Checkpoint) -> None:
        """On a slave: the state of the broker that delivers. What that has still in its wheel, or has yet to
        put there, this one may have taken out of its own and left open."""
        theirs = {unit.physical_offset for unit in done.open}
        open_ = (unit for unit in self.done.open if unit.physical_offset not in theirs)
        kept = (unit for unit in open_ if unit.slot_ms >= done.read_ms or not self._is_before(unit, done))
        self.done = done._replace(open=(*done.open, *kept))
        self.version = done.version

    def _is_before(self, unit: Unit, done: Checkpoint) -> bool:
        """Whether the broker that delivers had put this message into its wheel."""
        if self.queue_offset <= done.master_queue_offset:
            return True
        record = self.record(unit)
        return record is not None and record.queue_offset < done.master_queue_offset

    def record(self, unit: Unit) -> Record | None:
        """The record of this message, confirmed or not; None if the log no longer has it."""
        store = self.broker.store
        if not store.min_offset <= unit.physical_offset <= store.max_offset - unit.size:
            return None
        view = store.read(unit.physical_offset, unit.size)
        record = next(read_records(view, 0, len(view)), None)
        if record is None or record.size != unit.size or record.physical_offset != unit.physical_offset:
            return None
        return record if record.topic == TIMER_TOPIC else None

    def forget_delivered(self) -> None:
        """On a slave: take out of the wheel what the master has delivered. Raises `OSError`."""
        done = self.done
        if self.queue_offset <= done.master_queue_offset:
            # Otherwise the wheel has messages that the master may not have put into its own.
            rolled = self.timers.forget_before(done.read_ms)
            if self.doubts:
                self.doubtful += rolled
        while self.doubtful and self.doubtful[0].slot_ms < done.read_ms - DOUBTFUL_MS:
            self.doubtful.popleft()

    def doubt(self, unit: Unit) -> None:
        """As `doubtful`: this one comes late, and is not put into the wheel."""
        if self.doubts and unit.slot_ms >= self.done.read_ms - DOUBTFUL_MS:
            insort(self.doubtful, unit, key=by_slot)

    def take_doubtful(self) -> list[Unit]:
        """The doubtful messages, which count no more."""
        doubtful, self.doubtful = list(self.doubtful), deque()
        return doubtful

    def cut(self, max_physical: int) -> None:
        """The commit log was cut at `max_physical`. Raises `OSError`."""
        self.timers.cut(max_physical)
        kept = [unit for unit in self.doubtful if unit.physical_offset + unit.size <= max_physical]
        self.doubtful = deque(kept)
        open_ = [unit for unit in self.done.open if unit.physical_offset + unit.size <= max_physical]
        self.done = self.done._replace(open=tuple(open_))

    def moved(self, *, acting: bool = False) -> None:
        """The master has made progress: slaves copy the checkpoint of another version. `acting`: a slave
        begins to act as master."""
        self.version = next_version(self.version, self.now_ms(), self.broker.role.epoch, acting=acting)
