"""Appends messages, once per loop turn, and reports when replicas and disk have them.

A caller passes a message and a waiter to `Appender.submit`. All messages of one loop turn are appended to the
log together. A waiter is called when its message is as safe as the configuration demands (replicas, fsync),
or with the reason why it is not. The waiters of one turn are called in log order. This module uses no
sockets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from batonmq.broker.messages.acks import ALL_IN_SYNC, PendingByCopies, acks_needed
from batonmq.broker.messages.alarm import Alarm
from batonmq.store.config import FlushDiskType
from batonmq.store.results import PutResult
from batonmq.store.results import PutStatus as StorePutStatus

if TYPE_CHECKING:
    from batonmq.broker.role import RoleState
    from batonmq.broker.settings import Settings
    from batonmq.broker.stats import BrokerStats
    from batonmq.common.clock import Clock
    from batonmq.ha.port import Replication
    from batonmq.protocol.message.record import StoredMessage
    from batonmq.store.results import QueueKey
    from batonmq.store.store import MessageStore

log = logging.getLogger(__name__)


class PutStatus(Enum):
    """RocketMQ's statuses of an append: those of the store, and those of replicas and disk."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"
    PUT_TO_REMOTE_BROKER_FAIL = "PUT_TO_REMOTE_BROKER_FAIL"
    """This broker acts as master, and no other master took the message."""
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


_STORE_OK: Final = StorePutStatus.PUT_OK
HELD_BYTES: Final = 64 << 20
"""Bodies that may wait while the log is held (`Appender.hold`); more are refused."""
SETTLE_POLL_S: Final = 0.005
UNLIMITED: Final = 1 << 30
"""More replicas than there are: `alive_replicas` before a name server has answered."""


class Waiter(Protocol):
    """Waits for the outcome of one message; `stored` is called once."""

    wait: bool
    """False: do not wait for replicas and disk (property WAIT=false)."""

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        """`result` is set if and only if the message is in the log and this broker is still master. PUT_OK
        without a result: this broker acts as master, and another master has the message."""


class Appender:
    """The only writer of a master's log (a slave's is written by `ha`)."""

    def __init__(
        self,
        store: MessageStore,
        settings: Settings,
        role: RoleState,
        stats: BrokerStats,
        clock: Clock,
        replication: Replication | None,
    ) -> None:
        """`replication`: None without slaves."""
        self._store = store
        self._settings = settings
        self._role = role
        self._stats = stats
        self._clock = clock
        self._replication = replication
        self.listeners: list[Callable[[list[tuple[QueueKey, int]]], None]] = []
        """Called with the queues that have grown and their new max offsets, for example for held pulls."""
        self.escape: Callable[[list[StoredMessage], list[Waiter]], None] | None = None
        """Stores messages on another master while this broker acts as one (RIP-32)."""
        self.divert: Callable[[StoredMessage, Waiter], bool] | None = None
        """Stores a message elsewhere, if it belongs there, and says whether it does so: static topics."""
        self._visible = store.dispatched_offset
        self._messages: list[StoredMessage] = []
        self._waiters: list[Waiter] = []
        self._wholes: list[tuple[int, int]] = []
        """See `keep_whole`: places in `_messages`, begin and end."""
        self._pending: PendingByCopies[tuple[Waiter, PutResult]] = PendingByCopies()
        self._flush_failed = ""
        """What was logged about the last flush, if it failed: once, not at every flush."""
        self._flush_task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._held = False
        self._held_bytes = 0
        self._copies = 1
        self._refusing = False
        """Whether sends are refused because too few replicas are in sync."""
        self._degraded = False
        """Whether sends wait for fewer copies than inSyncReplicas."""
        self.alive_replicas = UNLIMITED
        """Replicas that the name servers count as alive, this one included: no more count as in sync with
        enableSlaveActingMaster. RocketMQ: `aliveReplicasNum` of its message store."""
        self._alarm = Alarm(clock, self._pending.next_deadline_ms, self._on_deadline)

    @property
    def backlog(self) -> int:
        """Number of accepted messages whose waiters were not called yet."""
        return len(self._messages) + len(self._pending)

    def full(self, capacity: int) -> bool:
        """Whether clients' messages are to be refused, `capacity` being the most that may wait. While the log
        is held, their bodies wait in memory, and so count too."""
        return self.backlog >= capacity or self._held_bytes >= HELD_BYTES

    # -- append

    def submit(self, message: StoredMessage, waiter: Waiter) -> None:
        """Append `message` at the end of this loop turn, and later call `waiter` once with the outcome."""
        if self.divert is not None and self.divert(message, waiter):
            return
        if not self._messages:
            # Runs after all sockets that were readable in this turn.
            asyncio.get_running_loop().call_soon(self._end_of_turn)
        self._messages.append(message)
        self._waiters.append(waiter)
        if self._held:
            self._held_bytes += len(message.body)

    def hold(self) -> None:
        """Append nothing until `resume`; messages wait. To hand the role over without losing one."""
        self._held = True

    def resume(self) -> None:
        """Append what has waited, or refuse it if the broker is no longer master."""
        self._held = False
        self._held_bytes = 0
        if self._messages:
            asyncio.get_running_loop().call_soon(self._end_of_turn)

    @property
    def place(self) -> int:
        """The place of the next message that is submitted; for `keep_whole` in the same loop turn."""
        return len(self._messages)

    def keep_whole(self, begin: int) -> None:
        """The messages from the place `begin` on become visible at once."""
        if begin < self.place:
            self._wholes.append((begin, self.place))

    def _end_of_turn(self) -> None:
        """Append the messages of this loop turn."""
        if self._held:
            return
        messages = self._messages
        waiters = self._waiters
        wholes = self._wholes
        self._messages, self._waiters = [], []
        if wholes:
            self._wholes = []
        if not self._role.is_master or self._role.stopping:
            if self.escape is not None and self._role.is_acting and not self._role.stopping:
                self.escape(messages, waiters)
                return
            self._refuse(waiters, PutStatus.SERVICE_NOT_AVAILABLE)
            return
        copies = self._copies_needed()
        if copies != self._copies or self._refusing:
            self._note_copies(copies)
        if copies is None:
            # Messages that do not wait for replicas are appended nevertheless.
            waiting = [waiter for waiter in waiters if waiter.wait]
            self._refuse(waiting, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
            messages = [message for message, waiter in zip(messages, waiters, strict=True) if not waiter.wait]
            waiters = [waiter for waiter in waiters if not waiter.wait]
            if not messages:
                return
            wholes = []
        try:
            results = self._store.put(messages)
        except Exception:
            # Some of them may be in the log; an error for all of them is safe.
            log.exception("appending %d messages failed", len(messages))
            self._refuse(waiters, PutStatus.UNKNOWN_ERROR)
            return
        for begin, end in wholes:
            self._keep_whole(results[begin:end])
        self._stats.count_append(messages, results)
        sync_flush = self._settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
        replicated = copies not in (None, 0, 1)
        if sync_flush or replicated:
            timeout = (
                self._settings.broker.slave_timeout if replicated else self._settings.store.sync_flush_timeout
            )
            deadline = self._clock.monotonic_ms() + timeout
            add = self._pending.waiting_for(self._copies).add
            done: list[tuple[Waiter, PutResult]] = []
            for waiter, result in zip(waiters, results, strict=True):
                if result.status is _STORE_OK and waiter.wait:
                    add(result.end_offset, deadline, (waiter, result))
                else:
                    done.append((waiter, result))
            self._alarm.arm()
        else:
            done = list(zip(waiters, results, strict=True))
        _report(done)
        if self._replication is not None:
            self._replication.wake()
        self.progress()
        if sync_flush:
            self._start_flush()
        else:
            self._flush_later()

    def _keep_whole(self, results: list[PutResult]) -> None:
        stored = [result for result in results if result.status is _STORE_OK]
        if stored:
            self._store.keep_whole(stored[0].physical_offset, stored[-1].end_offset)

    async def settle(self, timeout_ms: int) -> bool:
        """Wait until consumers can read all messages that were submitted so far; False if they cannot in this
        time."""
        deadline = self._clock.monotonic_ms() + timeout_ms
        while self._held:
            if self._clock.monotonic_ms() >= deadline:
                return False
            await asyncio.sleep(SETTLE_POLL_S)
        await asyncio.sleep(0)  # those of this loop turn are appended
        end = self._store.max_offset
        while self._store.dispatched_offset < end:
            if self._clock.monotonic_ms() >= deadline:
                return False
            await asyncio.sleep(SETTLE_POLL_S)
        return True

    # -- progress

    def progress(self) -> None:
        """The log, an ack, the confirm offset or the disk has advanced: dispatch the log and acknowledge
        sends."""
        store = self._store
        visible = store.dispatch()
        if visible != self._visible:
            self._visible = visible
            grown = store.take_grown()
            for listener in self.listeners:
                try:
                    listener(grown)
                except Exception:  # a bug there; the others, and those who wait for an ack, go on
                    log.exception("a part of the broker failed over new messages")
        if self._pending.groups:
            most = self._most_copies()
            for copies, sends in self._pending.groups:
                if sends:
                    _report(sends.complete(self._acked_offset(min(copies, most))))

    def is_acked(self, end_offset: int) -> bool:
        """Whether a message that ends at `end_offset` is as safe as the configuration demands."""
        return self._acked_offset(self._copies) >= end_offset

    def abandon(self) -> None:
        """This broker is no longer master: refuse the unacknowledged sends, which may be cut from the log."""
        self._alarm.cancel()
        self._refuse([waiter for waiter, _ in self._pending.abandon()], PutStatus.SERVICE_NOT_AVAILABLE)

    async def stop(self) -> None:
        """Wait for a running flush and flush once more. The caller submits no more messages.

        A flush that fails is logged; the store's `close` tries it again, or reports it.
        """
        self._alarm.cancel()
        while self._flush_task is not None:
            await self._flush_task
        if self._flush_timer is not None:  # only now: a flush that fails sets it
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._store.failure is None:
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._store.flush)
            except Exception as error:
                self._note_failed_flush(error)

    def _acked_offset(self, copies: int) -> int:
        store = self._store
        if copies == ALL_IN_SYNC:
            acked = store.confirm_offset if self._enough_in_sync() else -1
        elif copies > 1:
            acked = -1 if self._replication is None else self._replication.acked_by(copies)
        else:
            acked = store.max_offset
        if self._settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            acked = min(acked, store.flushed_offset)
        return acked

    def _replicated_offset(self, copies: int) -> int:
        """How far the required replicas have the log, regardless of this broker's disk."""
        if copies in (0, 1):
            return self._store.max_offset
        if self._replication is None:
            return -1
        if copies != ALL_IN_SYNC:
            return self._replication.acked_by(copies)
        return self._replication.held_by_all() if self._enough_in_sync() else -1

    def _in_sync_replicas(self) -> int:
        ha = self._replication
        return 1 if ha is None else ha.in_sync_replicas

    def _enough_in_sync(self) -> bool:
        """Checked again before the acknowledgement: if the SyncStateSet shrank since the append, the confirm
        offset may cover messages with too few copies. RocketMQ checks only before the append, and
        acknowledges such a send with one copy."""
        return self._in_sync_replicas() >= self._settings.broker.min_in_sync_replicas

    def _copies_needed(self) -> int | None:
        config = self._settings.broker
        if not self._role.replicates:
            return 1
        return acks_needed(
            controller_mode=config.enable_controller_mode,
            slave_acting_master=config.enable_slave_acting_master,
            all_in_sync_state_set=config.all_ack_in_sync_state_set,
            in_sync_replicas=config.in_sync_replicas,
            min_in_sync_replicas=config.min_in_sync_replicas,
            auto_in_sync_replicas=config.enable_auto_in_sync_replicas,
            replicas_in_sync=self._replicas_that_count(),
        )

    def _most_copies(self) -> int:
        """Sends under way wait for no more copies than this: with enableAutoInSyncReplicas, no more than a
        new send. RocketMQ lets them wait for a lost slave until slaveTimeout."""
        config = self._settings.broker
        if config.enable_controller_mode or not config.enable_auto_in_sync_replicas:
            return UNLIMITED
        needed = self._copies_needed()
        return UNLIMITED if needed is None else needed

    def _replicas_that_count(self) -> int:
        in_sync = self._in_sync_replicas()
        if self._settings.broker.enable_slave_acting_master:
            return min(in_sync, max(1, self.alive_replicas))
        return in_sync

    def _note_copies(self, copies: int | None) -> None:
        """The number of copies has changed (None: too few replicas are in sync): log it."""
        wanted = self._settings.broker.in_sync_replicas
        if copies is None:
            if not self._refusing:
                self._refusing = True
                log.warning(
                    "sends that wait for replicas are refused: in sync are %d, this master included",
                    self._replicas_that_count(),
                )
            return
        self._copies = copies
        if copies != ALL_IN_SYNC and copies < wanted and self._role.replicates:
            log.warning("sends wait for %d copies, not %d: no more replicas are in sync", copies, wanted)
        elif self._refusing or self._degraded:
            log.info("enough replicas are in sync again")
        self._degraded = copies != ALL_IN_SYNC and copies < wanted
        self._refusing = False

    def _on_deadline(self, now_ms: int) -> None:
        """Report late replicas before a late disk, as RocketMQ does; the disk has until
        `syncFlushTimeout`."""
        more_ms = self._settings.store.sync_flush_timeout - self._settings.broker.slave_timeout
        answered = 0
        most = self._most_copies()
        for copies, sends in self._pending.groups:
            late_twice, late = sends.expire(now_ms)
            for waiter, result in late_twice:
                waiter.stored(PutStatus.FLUSH_DISK_TIMEOUT, result)
            replicated = self._replicated_offset(min(copies, most))
            answered += len(late_twice)
            for waiter, result in late:
                if result.end_offset > replicated:
                    waiter.stored(PutStatus.FLUSH_SLAVE_TIMEOUT, result)
                elif copies in (0, 1) or more_ms <= 0:
                    waiter.stored(PutStatus.FLUSH_DISK_TIMEOUT, result)
                else:
                    sends.postpone(result.end_offset, now_ms + more_ms, (waiter, result))
                    continue
                answered += 1
        if answered:
            log.warning("%d sends were not acknowledged in time", answered)

    @staticmethod
    def _refuse(waiters: list[Waiter], status: PutStatus) -> None:
        for waiter in waiters:
            waiter.stored(status, None)

    # -- disk

    def _flush_later(self) -> None:
        if self._flush_timer is None:
            interval_s = self._settings.store.flush_interval_commit_log / 1000
            self._flush_timer = asyncio.get_running_loop().call_later(interval_s, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        self._start_flush()

    def _start_flush(self) -> None:
        if self._flush_task is None:
            self._flush_task = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        """Group commit: one fsync at a time; the next one covers all messages that arrive meanwhile."""
        loop = asyncio.get_running_loop()
        store = self._store
        try:
            while store.flushed_offset < store.max_offset:
                await loop.run_in_executor(None, store.flush)
                self._flush_failed = ""
                if self._replication is not None:
                    self._replication.wake()  # with SYNC_FLUSH the confirm offset needs this disk too
                self.progress()
                if not self._pending:
                    break
        except Exception as error:  # not only of the disk: there may be no thread for it
            # Sends that wait for the disk get FLUSH_DISK_TIMEOUT, unless another flush helps in time.
            self._note_failed_flush(error)
            if store.failure is None:
                self._flush_later()  # there may be no other send that would
        finally:
            self._flush_task = None

    def _note_failed_flush(self, error: Exception) -> None:
        then = "it is tried again" if self._store.failure is None else "no more messages are accepted"
        if self._flush_failed != then:
            known = isinstance(error, OSError | RuntimeError)
            log.error("flush of the commit log failed, %s: %s", then, error, exc_info=not known)
        self._flush_failed = then


def _report(done: list[tuple[Waiter, PutResult]]) -> None:
    """Call the waiters with the status of the store; one that fails does not keep back the others."""
    ok = PutStatus.PUT_OK
    waiting = iter(done)
    while True:
        try:
            for waiter, result in waiting:
                if result.status is _STORE_OK:
                    waiter.stored(ok, result)
                else:
                    waiter.stored(PutStatus[result.status.name], None)
            return
        except Exception:
            log.exception("a stored message could not be reported")  # and go on with the next one
