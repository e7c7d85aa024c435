"""What enqueuing, delivery and replication of timed messages share: how far this replica is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from batonmq.broker.timer.layout import Checkpoint
from batonmq.broker.versions import next_version
from batonmq.protocol.bodies.common import DataVersion

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.timer.core import Wheel
    from batonmq.broker.timer.timer_store import TimerStore


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
        """Messages before its `master_queue_offset` in slots before its `read_ms` are delivered: on a master
        as it took its role, on a slave by the master's last word."""
        self.version = DataVersion()
        self.filled = asyncio.Event()
        """Set when the wheel has got messages."""
        self.behind_since_ms: int | None = None
        """Store time of the message that was enqueued last, while others wait behind it."""

    def now_ms(self) -> int:
        return self.broker.clock.now_ms()

    @property
    def read_ms(self) -> int:
        """All slots before this time are delivered."""
        if not self.leading:
            return self.done.read_ms
        times = [self.wheel.floor(self.now_ms()), self.timers.next_ms, self.firing_ms]
        return min(time for time in times if time is not None)

    def checkpoint(self) -> Checkpoint:
        """The state now, `log_end` not necessarily on disk."""
        master = self.queue_offset if self.leading else max(self.done.master_queue_offset, self.queue_offset)
        return Checkpoint(self.read_ms, self.timers.log.end, self.queue_offset, master, self.version)

    def forget_delivered(self) -> None:
        """On a slave: take out of the wheel what the master has delivered. Raises `OSError`."""
        done = self.done
        if self.queue_offset <= done.master_queue_offset:
            # Otherwise the wheel has messages that the master may not have put into its own.
            self.timers.forget_before(done.read_ms)

    def moved(self, *, acting: bool = False) -> None:
        """The master has made progress: slaves copy the checkpoint of another version. `acting`: a slave
        begins to act as master."""
        self.version = next_version(self.version, self.now_ms(), self.broker.role.epoch, acting=acting)
