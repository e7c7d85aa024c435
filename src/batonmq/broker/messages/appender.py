"""From a message to its acknowledgement: one append a loop turn, then replicas and disk, then the answers.

Whoever has a message for the store hands it to `Appender.submit` with a waiter. What one turn of the event
loop brought together is put into the log at once; a waiter is told when the message is as safe as the
configuration demands (replicas, fsync), or why it is not. Waiters of one turn are told in log order. No
sockets here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from batonmq.broker.messages.acks import ALL_IN_SYNC, PendingAcks, acks_needed
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
    """How a message fared, in RocketMQ's words: what the store says, and what replicas and disk add to it."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


_STORE_OK: Final = StorePutStatus.PUT_OK


class Waiter(Protocol):
    """Whoever waits for the outcome of one message; `stored` is called once."""

    wait: bool
    """False: do not wait for replicas and disk (property WAIT=false)."""

    def stored(self, status: PutStatus, result: PutResult | None) -> None:
        """`result` is set if and only if the message is in the log and this broker is still its master."""


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
        """`replication`: None on a broker that replicates to nobody."""
        self._store = store
        self._settings = settings
        self._role = role
        self._stats = stats
        self._clock = clock
        self._replication = replication
        self.listeners: list[Callable[[list[tuple[QueueKey, int]]], None]] = []
        """Called with the queues that have grown and their new max offsets: held pulls may have something."""
        self._visible = store.dispatched_offset
        self._messages: list[StoredMessage] = []
        self._waiters: list[Waiter] = []
        self._pending: PendingAcks[tuple[Waiter, PutResult]] = PendingAcks()
        self._disk_failed = False
        """Said once, not with each message that is still in memory."""
        self._flush_task: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._copies = 1
        self._alarm = Alarm(clock, self._pending.next_deadline_ms, self._on_deadline)

    @property
    def backlog(self) -> int:
        """Messages accepted and not yet answered for."""
        return len(self._messages) + len(self._pending)

    # -- in

    def submit(self, message: StoredMessage, waiter: Waiter) -> None:
        """Append `message` at the end of this loop turn and tell `waiter` once how it fared."""
        if not self._messages:
            # Runs when all sockets that were readable in this turn have been read.
            asyncio.get_running_loop().call_soon(self._end_of_turn)
        self._messages.append(message)
        self._waiters.append(waiter)

    def _end_of_turn(self) -> None:
        """Append what this loop turn brought."""
        messages = self._messages
        waiters = self._waiters
        self._messages, self._waiters = [], []
        if not self._role.is_master or self._role.stopping:
            self._refuse(waiters, PutStatus.SERVICE_NOT_AVAILABLE)
            return
        copies = self._copies_needed()
        if copies is None:
            # A message that does not wait for replicas does not need them either.
            wanting = [waiter for waiter in waiters if waiter.wait]
            self._refuse(wanting, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
            messages = [message for message, waiter in zip(messages, waiters, strict=True) if not waiter.wait]
            waiters = [waiter for waiter in waiters if not waiter.wait]
            if not messages:
                return
        else:
            # Not by the messages above, which wait for nobody: sends before them still do.
            self._copies = copies
        try:
            results = self._store.put(messages)
        except Exception:
            # Some of them may be in the log. Nobody is told that his is, which is the safe side.
            log.exception("appending %d messages failed", len(messages))
            self._refuse(waiters, PutStatus.UNKNOWN_ERROR)
            return
        self._stats.count_append(messages, results)
        sync_flush = self._settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
        ok = PutStatus.PUT_OK
        replicated = copies not in (None, 0, 1)
        if sync_flush or replicated:
            timeout = (
                self._settings.broker.slave_timeout if replicated else self._settings.store.sync_flush_timeout
            )
            deadline = self._clock.monotonic_ms() + timeout
            add = self._pending.add
            for waiter, result in zip(waiters, results, strict=True):
                if result.status is not _STORE_OK:
                    waiter.stored(PutStatus[result.status.name], None)
                elif waiter.wait:
                    add(result.end_offset, deadline, (waiter, result))
                else:
                    waiter.stored(ok, result)
            self._alarm.arm()
        else:
            for waiter, result in zip(waiters, results, strict=True):
                if result.status is _STORE_OK:
                    waiter.stored(ok, result)
                else:
                    waiter.stored(PutStatus[result.status.name], None)
        if self._replication is not None:
            self._replication.wake()
        self.progress()
        if sync_flush:
            self._start_flush()
        elif self._flush_timer is None:
            interval_s = self._settings.store.flush_interval_commit_log / 1000
            self._flush_timer = asyncio.get_running_loop().call_later(interval_s, self._flush_due)

    # -- progress

    def progress(self) -> None:
        """The log, the replicas' acks, the confirm offset or the disk have moved on: show and answer what
        can be."""
        store = self._store
        visible = store.dispatch()
        if visible != self._visible:
            self._visible = visible
            grown = store.take_grown()
            for listener in self.listeners:
                listener(grown)
        if self._pending:
            for waiter, result in self._pending.complete(self._acked_offset()):
                waiter.stored(PutStatus.PUT_OK, result)

    def is_acked(self, end_offset: int) -> bool:
        """What ends at `end_offset` is as safe as messages stored now will be when they are acknowledged."""
        return self._acked_offset() >= end_offset

    def abandon(self) -> None:
        """This broker is master no more: what is not acknowledged may be cut from the log, so say so."""
        self._alarm.cancel()
        self._refuse([waiter for waiter, _ in self._pending.abandon()], PutStatus.SERVICE_NOT_AVAILABLE)

    async def stop(self) -> None:
        """Wait for a flush under way and flush once more. The caller has made sure that nothing is
        submitted."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._alarm.cancel()
        if self._flush_task is not None:
            await self._flush_task
        if self._store.failure is None:
            await asyncio.get_running_loop().run_in_executor(None, self._store.flush)

    def _acked_offset(self) -> int:
        store = self._store
        if self._copies == ALL_IN_SYNC:
            acked = store.confirm_offset if self._enough_in_sync() else -1
        elif self._copies > 1:
            acked = -1 if self._replication is None else self._replication.acked_by(self._copies)
        else:
            acked = store.max_offset
        if self._settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            acked = min(acked, store.flushed_offset)
        return acked

    def _replicated_offset(self) -> int:
        """How far the replicas have what they need to have, whatever this broker's own disk has."""
        if self._copies in (0, 1):
            return self._store.max_offset
        if self._replication is None:
            return -1
        if self._copies != ALL_IN_SYNC:
            return self._replication.acked_by(self._copies)
        return self._replication.held_by_all() if self._enough_in_sync() else -1

    def _in_sync_replicas(self) -> int:
        ha = self._replication
        return 1 if ha is None else ha.in_sync_replicas

    def _enough_in_sync(self) -> bool:
        """Asked again when a send is answered: a set that shrank meanwhile confirms what too few have.
        RocketMQ asks before it appends only, and acknowledges such a send with one copy."""
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
            replicas_in_sync=self._in_sync_replicas(),
        )

    def _on_deadline(self, now_ms: int) -> None:
        """Late replicas are told before a late disk, as RocketMQ does; the disk has `syncFlushTimeout`."""
        late_twice, late = self._pending.expire(now_ms)
        for waiter, result in late_twice:
            waiter.stored(PutStatus.FLUSH_DISK_TIMEOUT, result)
        replicated = self._replicated_offset()
        more_ms = self._settings.store.sync_flush_timeout - self._settings.broker.slave_timeout
        answered = len(late_twice)
        for waiter, result in late:
            if result.end_offset > replicated:
                waiter.stored(PutStatus.FLUSH_SLAVE_TIMEOUT, result)
            elif self._copies in (0, 1) or more_ms <= 0:
                waiter.stored(PutStatus.FLUSH_DISK_TIMEOUT, result)
            else:
                self._pending.postpone(result.end_offset, now_ms + more_ms, (waiter, result))
                continue
            answered += 1
        if answered:
            log.warning("%d sends were not acknowledged in time", answered)

    @staticmethod
    def _refuse(waiters: list[Waiter], status: PutStatus) -> None:
        for waiter in waiters:
            waiter.stored(status, None)

    # -- disk

    def _flush_due(self) -> None:
        self._flush_timer = None
        self._start_flush()

    def _start_flush(self) -> None:
        if self._flush_task is None:
            self._flush_task = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        """Group commit: one fsync at a time; what arrives during one is covered by the next."""
        loop = asyncio.get_running_loop()
        store = self._store
        try:
            while store.flushed_offset < store.max_offset:
                await loop.run_in_executor(None, store.flush)
                if self._replication is not None:
                    self._replication.wake()  # with SYNC_FLUSH the confirm offset waits for this disk too
                self.progress()
                if not self._pending:
                    break
        except OSError as error:
            # Nothing more can be promised; senders that wait for the disk get FLUSH_DISK_TIMEOUT.
            if not self._disk_failed:
                log.error("no more messages are accepted: %s", error)
            self._disk_failed = True
        finally:
            self._flush_task = None
