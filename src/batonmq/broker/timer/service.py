"""The timer of one broker: opens and flushes its files, and runs what its role asks for.

On every replica `Enqueuer` fills the wheel, so a slave that becomes master delivers at once; only a master
runs `Deliverer`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from batonmq.broker.timer.deliverer import Deliverer
from batonmq.broker.timer.enqueuer import Enqueuer, queue_offset_after
from batonmq.broker.timer.layout import Checkpoint, decode_checkpoint
from batonmq.broker.timer.state import by_slot
from batonmq.broker.timer.timer_store import TimerStore, sync
from batonmq.broker.timer.waiting import OpenMessages
from batonmq.broker.versions import age
from batonmq.common.files import reason
from batonmq.common.tasks import Tasks

if TYPE_CHECKING:
    from batonmq.broker.timer.counts import TimerCounts
    from batonmq.broker.timer.state import TimerState

log = logging.getLogger(__name__)

IDLE_MS: Final = 60_000
"""The checkpoint of an idle broker is written when its read time has advanced this far."""
EXPIRY_S: Final = 30.0
"""Interval at which files of the timer log are deleted whose messages have left the commit log."""


class TimerService:
    """See the module. `open` comes first; afterwards `lead`, `follow` and `rest` switch between roles."""

    def __init__(self, state: TimerState, counts: TimerCounts) -> None:
        self.state = state
        self._counts = counts
        self._enqueuer = Enqueuer(state, counts)
        self._tasks = Tasks()
        self._work: list[asyncio.Task[None]] = []
        """What the role asks for."""
        self._durable = Checkpoint()
        """What the file of the checkpoint holds, or will hold soon."""
        self._changed = False
        self._disk_failed = False

    # -- the checkpoint's file

    def encode(self) -> bytes:
        return self._durable.encode()

    def restore(self, data: bytes) -> None:
        """Load the contents of the file. Raises ValueError."""
        self._durable = decode_checkpoint(data)
        self.state.version = self._durable.version

    def take_changed(self) -> bool:
        """Whether a checkpoint is to be written."""
        changed, self._changed = self._changed, False
        return changed

    # -- life cycle

    async def open(self) -> None:
        """Open the files and find out what waits. Raises `OSError`, `StoreError`."""
        state = self.state
        root, config = state.broker.settings.store.root, state.broker.settings.broker
        by_hash = await asyncio.get_running_loop().run_in_executor(
            None, self._open, root, config.mapped_file_size_timer_log
        )
        state.broker.store.take_cut()  # `recover` has looked at the whole log
        durable = self._durable
        state.done = durable
        state.queue_offset = queue_offset_after(state)
        if state.timers.log.end >= durable.log_end:
            state.queue_offset = max(state.queue_offset, durable.queue_offset)
        state.opened = True
        self._counts.timing.recount(by_hash, state.broker.tables.topics, state.now_ms())
        if state.timers.waiting or state.queue_offset:
            log.info(
                "timer: %d messages wait, queue_offset=%d log_end=%d",
                state.timers.waiting,
                state.queue_offset,
                state.timers.log.end,
            )
        self._tasks.keep(self._flush_regularly, "timer: flush")
        self._tasks.keep(self._expire_regularly, "timer: deletion of old files")

    def _open(self, root: Path, log_file_size: int) -> dict[int, int]:
        state = self.state
        state.timers = TimerStore(root, state.wheel.precision_ms, log_file_size)
        by_hash = state.timers.recover(self._durable, state.broker.store.max_offset)
        for unit in self._durable.open:
            if unit.slot_ms < self._durable.read_ms:  # those in later slots are counted
                by_hash[unit.topic_hash] = by_hash.get(unit.topic_hash, 0) + 1
        return by_hash

    def lead(self) -> None:
        """This broker is master, or acts as one: deliver."""
        state = self.state
        if not state.opened or state.leading:
            return
        self.rest()
        self._enqueuer.take_back()
        state.forget_delivered()
        read_ms, waiting_ms = state.done.read_ms, state.timers.next_ms
        since_ms = read_ms if waiting_ms is None else min(read_ms or waiting_ms, waiting_ms)
        beside = frozenset(unit.physical_offset for unit in state.done.open)
        doubtful = [unit for unit in state.take_doubtful() if unit.physical_offset not in beside]
        state.leave_open(sorted(state.done.open, key=by_slot))  # the first one may wait for its time
        state.leading = True
        state.moved(acting=state.broker.role.is_acting)
        self._keep(self._enqueuer.run, "timer: filling of the wheel")
        self._keep(lambda: Deliverer(state, self._counts, beside).run(since_ms, doubtful), "timer: delivery")
        self._keep(lambda: OpenMessages(state, self._counts).run(), "timer: open messages")

    def follow(self) -> None:
        """This broker is a slave: keep the wheel as its master's."""
        if self.state.opened:
            self.rest()
            self._keep(self._enqueuer.run, "timer: filling of the wheel")

    def rest(self) -> None:
        """The role ends."""
        state = self.state
        if state.leading:
            now = state.checkpoint()
            open_ = tuple(state.all_open())
            state.done = now._replace(master_queue_offset=now.queue_offset, open=open_)
            state.open.clear()
        state.leading = False
        for task in self._work:
            task.cancel()
        self._work.clear()

    def _keep(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        self._work.append(self._tasks.keep(work, what))

    async def close(self, *, failed: bool) -> None:
        """Write everything to disk; `failed`: the disk has failed."""
        self.rest()
        await self._tasks.cancel()
        if self.state.opened:
            if not failed:
                await self.flush()
            self.state.opened = False
            self.state.timers.close()

    def on_visible(self) -> None:
        """The timer topic has grown."""
        self._enqueuer.wake()

    # -- replication

    def checkpoint(self) -> bytes:
        """The answer to GET_TIMER_CHECK_POINT."""
        return (self.state.checkpoint() if self.state.opened else self._durable).encode()

    def replace(self, data: bytes, *, exact: bool = False) -> None:
        """On a slave: the master's checkpoint. Raises ValueError."""
        if not self.state.leading:
            self.state.replace(decode_checkpoint(data))
            self.state.doubts = not exact
            self._enqueuer.wake()

    def take_back(self, data: bytes, *, exact: bool) -> bool:
        """On a master that returns: the checkpoint of a slave, if that is newer or has delivered more.
        `exact`: the slave parks messages in the same slots as this broker; those that it passed are rolled.
        Raises ValueError. True: it was taken."""
        theirs, own = decode_checkpoint(data), self.state.checkpoint()
        if self.state.leading or (age(theirs.version) <= age(own.version) and theirs.read_ms <= own.read_ms):
            return False
        self.replace(data, exact=exact)
        return True

    # -- disk

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(self.state.broker.settings.broker.timer_flush_interval_ms / 1_000)
            await self.flush()

    async def flush(self) -> None:
        """Bring files to disk, then let the checkpoint say so."""
        state, durable = self.state, self._durable
        now = state.checkpoint()
        idle = 0 <= now.read_ms - durable.read_ms < IDLE_MS
        if idle and now[1:3] == durable[1:3] and now.version == durable.version:
            return
        paths = state.timers.syncing(min(durable.log_end, now.log_end))
        try:
            await asyncio.get_running_loop().run_in_executor(None, sync, paths)
        except OSError as error:
            if not self._disk_failed:
                log.error("the timer wheel cannot be flushed: %s", reason(error))
            self._disk_failed = True
            return
        self._disk_failed = False
        self._durable = now
        self._changed = True

    async def _expire_regularly(self) -> None:
        state = self.state
        while True:
            await asyncio.sleep(EXPIRY_S)
            paths = state.timers.log.drop_before(state.broker.store.min_offset)
            if paths:
                await asyncio.get_running_loop().run_in_executor(None, _unlink, paths)
            self._counts.timing.forget_unless(state.broker.tables.topics)


def _unlink(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
