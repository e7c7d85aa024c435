"""Replication of one store over sockets: `HAService` accepts slaves, or follows a master, as its role says.

Owns the sockets, the timers and the order of effects around `core.py` and `sync_state.py`, which decide. Only
`become_master`, `become_slave` and `stop` change the role; a caller never runs two of them at once (a lock
holds the second back) and an epoch below one that is on record is refused.

The log is written by one side only: by `put` while master, by the link to the master while slave.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from batonmq.ha.core import (
    Append,
    Confirm,
    Effect,
    Learn,
    LogBounds,
    MasterSession,
    SlaveSession,
    StartOver,
    Truncate,
)
from batonmq.ha.epoch_file import EpochFile
from batonmq.ha.epochs import EpochCache
from batonmq.ha.sync_state import Replica, SyncStateSet, SyncStateTracker
from batonmq.net.client import split_address
from batonmq.protocol.ha_frames import HAFrameError
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.common.clock import Clock
    from batonmq.ha.config import HAConfig

log = logging.getLogger(__name__)

TICK_S = 0.2
"""Time between looks at heartbeats, silence and lag; an idle slave hears of a confirm offset this late."""
RECONNECT_S = (0.02, 1.0)
"""First and longest wait before a slave tries its master again; doubled in between."""


class StaleEpoch(Exception):
    """A role change for an epoch older than one this log has already seen."""


class ReplicatedLog(Protocol):
    """What replication needs of a store; `MessageStore` offers it. Offsets are physical, in bytes."""

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...

    confirm_offset: int

    def append_raw(self, offset: int, data: memoryview) -> None: ...
    def read(self, offset: int, max_bytes: int) -> memoryview: ...
    def truncate(self, offset: int) -> None: ...
    def discard(self) -> None: ...
    def cut_torn_tail(self) -> int: ...
    def dispatch(self) -> int: ...
    def flush(self) -> int: ...


class HARole(Enum):
    """What this end of the replication does."""

    NONE = "none"
    MASTER = "master"
    SLAVE = "slave"


class ReplicaStatus(NamedTuple):
    """One slave as the master sees it; offsets in bytes."""

    broker_id: int
    address: str
    ack_offset: int
    next_offset: int
    in_sync: bool
    async_learner: bool
    bytes_per_second: int


class MasterStatus(NamedTuple):
    """The master as a slave sees it; times are wall clock, ms."""

    address: str
    last_read_ms: int
    last_write_ms: int
    bytes_per_second: int


def _nothing() -> None:
    """Default of the callbacks."""


class HAService:
    """Replication of one store. Create it with an opened store, `start` it, then give it a role."""

    def __init__(
        self,
        store: ReplicatedLog,
        config: HAConfig,
        clock: Clock,
        *,
        epoch_file: Path,
        port: int,
        host: str | None = None,
        file_size: int = 1 << 30,
        sync_flush: bool = False,
        flush_interval_ms: int = 500,
        tls_server: ssl.SSLContext | None = None,
        tls_client: ssl.SSLContext | None = None,
    ) -> None:
        """`port` 0 takes a free one. `file_size`: bytes of a commit log file. `sync_flush`: a slave
        acknowledges what is on disk, not what is in the page cache. The TLS contexts, if given, cover the
        replication port; one that demands client certificates keeps strangers out altogether.

        Raises ConfigError if the epoch file cannot be read.
        """
        self.store = store
        self.config = config
        self.clock = clock
        self.port = port
        self.local_id = -1
        """This broker's id at the controller; set before a role is taken."""
        self.role = HARole.NONE
        self.epoch = -1
        """Epoch of the current role."""
        self.tracker: SyncStateTracker | None = None
        """The SyncStateSet of the current term; None unless master."""
        self.on_progress: Callable[[], None] = lambda: cast(None, store.dispatch())
        """Called when the confirm offset or a slave's ack moved; must dispatch the store."""
        self.on_sync_state_change: Callable[[], None] = _nothing
        """Called when the SyncStateSet should become another one: ask `propose`."""

        self._host = host
        self._file_size = file_size
        self._sync_flush = sync_flush
        self._flush_interval_s = flush_interval_ms / 1000
        self._tls_server = tls_server
        self._tls_client = tls_client
        self._epochs = EpochFile.load(epoch_file)
        self._lock = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._links: dict[_MasterLink, None] = {}  # ordered, so that simulated runs can be repeated
        self._by_id: dict[int, _MasterLink] = {}
        self._master_address = ""
        self._address_known = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._link: _SlaveLink | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    # -- life

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        # The log may have lost its end with the power; what lies beyond it has no epoch any more.
        await loop.run_in_executor(None, self._epochs.truncate_suffix, self.store.max_offset + 1)
        await loop.run_in_executor(None, self._epochs.truncate_prefix, self.store.min_offset)
        self._server = await loop.create_server(
            lambda: _MasterLink(self), self._host, self.port, ssl=self._tls_server
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._tick_timer = loop.call_later(TICK_S, self._tick)

    async def stop(self) -> None:
        """Close everything; the store stays open."""
        async with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None
            if self._tick_timer is not None:
                self._tick_timer.cancel()
                self._tick_timer = None
            await self._leave_role()
            if self._flush_timer is not None:
                self._flush_timer.cancel()
                self._flush_timer = None
            if self._flushing is not None:
                await self._flushing

    # -- roles

    async def become_master(self, epoch: int, sync_state_set: SyncStateSet) -> None:
        """Begin the term `epoch`: cut a torn record, put the epoch on disk, then serve slaves.

        The log is complete and writable when this returns. In a newer term of a master that stays one, slaves
        are dropped so that their next handshake tells them the new epoch (apache/rocketmq #9689).
        Raises `StaleEpoch`, OSError if the epoch cannot be put on disk, StoreError if the log is damaged
        further back than a torn record; the role is NONE then.
        """
        async with self._lock:
            if epoch < self.last_epoch:
                raise StaleEpoch(f"epoch {epoch} is over: this log has seen {self.last_epoch}")
            if self.role is HARole.MASTER and epoch == self.epoch:
                self.agree(sync_state_set)
                return
            await self._leave_role()
            store = self.store
            store.cut_torn_tail()
            loop = asyncio.get_running_loop()
            if self._sync_flush and store.flushed_offset < store.max_offset:
                # All of it is confirmed in a moment, and a slave flushes a little later than it appends.
                await loop.run_in_executor(None, store.flush)
            if epoch > self.last_epoch:
                # A log from before controller mode belongs to nobody yet: the first term claims all of it.
                start = store.max_offset if len(self.epochs) else store.min_offset
                await loop.run_in_executor(None, self._epochs.append, epoch, start)
            now_ms = self.clock.monotonic_ms()
            self.epoch = epoch
            self.tracker = SyncStateTracker(
                local_id=self.local_id,
                agreed=sync_state_set,
                epoch_start=self.epochs.last_start,
                confirm_offset=min(store.confirm_offset, store.max_offset),
                max_lag_ms=self.config.max_lag_ms,
                started_ms=now_ms,
            )
            self.role = HARole.MASTER
            self._moved()
            log.info(
                "replicating as master epoch=%d start=%d max_offset=%d confirm_offset=%d sync_state_set=%s",
                epoch,
                self.epochs.last_start,
                store.max_offset,
                store.confirm_offset,
                sorted(sync_state_set.members),
            )

    async def become_slave(self, master_ha_address: str | None, master_id: int, epoch: int) -> None:
        """Follow the master of `epoch`. Without an address (`host:port`) yet, wait for `set_master_address`.

        Nothing is acknowledged to the former master once this was called. Raises `StaleEpoch`.
        """
        async with self._lock:
            if epoch < self.last_epoch:
                raise StaleEpoch(f"epoch {epoch} is over: this log has seen {self.last_epoch}")
            await self._leave_role()
            self.role = HARole.SLAVE
            self.epoch = epoch
            self.set_master_address(master_ha_address)
            self._follower = asyncio.get_running_loop().create_task(self._follow())
            log.info("replicating as slave of broker %d epoch=%d at %s", master_id, epoch, master_ha_address)

    def set_master_address(self, master_ha_address: str | None) -> None:
        """Where the master's replication port is; a link to another address is dropped."""
        address = master_ha_address or ""
        if address != self._master_address and self._link is not None:
            self._link.close("the master has moved")
        self._master_address = address
        if address:
            self._address_known.set()
        else:
            self._address_known.clear()

    async def _leave_role(self) -> None:
        self.role = HARole.NONE
        self.tracker = None
        for slave in list(self._links):
            slave.close("")
        self._by_id.clear()
        link, follower = self._link, self._follower
        self._link = self._follower = None
        if link is not None:
            link.close("")
            await link.settled()
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
        self._master_address = ""
        self._address_known.clear()

    # -- what others ask

    @property
    def epochs(self) -> EpochCache:
        """The log's epochs; live."""
        return self._epochs.cache

    @property
    def last_epoch(self) -> int:
        """Newest epoch of the log, -1 if none; goes into the heartbeats to the controller."""
        return self.epochs.last_epoch

    @property
    def master_ha_address(self) -> str:
        """Replication port of the master while slave, as far as it is known."""
        return self._master_address

    @property
    def following(self) -> bool:
        """Whether a slave's link to its master is past the handshake."""
        return self._link is not None and self._link.session.transferring

    @property
    def in_sync_replicas(self) -> int:
        """Size of the SyncStateSet the next message has to satisfy, this master included."""
        return 1 if self.tracker is None else len(self.tracker.counted | {self.local_id})

    def acked_by(self, copies: int) -> int:
        """Highest offset that `copies` replicas hold, the master included; -1 if there are not so many."""
        return -1 if self.tracker is None else self.tracker.acked_by(copies, self.store.max_offset)

    def bounds(self) -> LogBounds:
        """The log as sessions want to know it."""
        store = self.store
        return LogBounds(store.min_offset, store.max_offset, store.confirm_offset, self._file_size)

    def replicas(self) -> list[ReplicaStatus]:
        """The slaves that are connected."""
        members = self.tracker.agreed.members if self.tracker is not None else frozenset[int]()
        return [
            ReplicaStatus(
                broker_id,
                link.peer,
                link.session.ack_offset,
                link.session.next_offset,
                broker_id in members,
                link.session.async_learner,
                link.bytes_per_second,
            )
            for broker_id, link in self._by_id.items()
        ]

    def master(self) -> MasterStatus | None:
        """The link to the master, None unless there is one."""
        link = self._link
        if link is None:
            return None
        return MasterStatus(link.peer, link.last_read_ms, link.last_write_ms, link.bytes_per_second)

    # -- the SyncStateSet

    def propose(self) -> frozenset[int] | None:
        """The set to ask the controller for now, see `SyncStateTracker.propose`; it counts from here on."""
        if self.tracker is None:
            return None
        return self.tracker.propose(self.clock.monotonic_ms())

    def answered(
        self, tracker: SyncStateTracker, outcome: SyncStateSet | None, *, refused: bool = False
    ) -> None:
        """The outcome of a proposal made by `tracker`; one of a former term is ignored."""
        if tracker is self.tracker:
            tracker.answered(outcome, refused=refused)
            self._moved()

    def agree(self, current: SyncStateSet) -> None:
        """The controller's set, heard from anywhere."""
        if self.tracker is not None:
            self.tracker.agree(current)
            self._moved()

    # -- master

    def _own_end(self) -> int:
        """How far this log counts for the confirm offset: as a slave's would, see `acknowledge`.

        Otherwise consumers could read, with SYNC_FLUSH, what a power cut takes back; its queue offsets go to
        other messages then, which those consumers never see.
        """
        return self.store.flushed_offset if self._sync_flush else self.store.max_offset

    def wake(self) -> None:
        """The store has new bytes, or more of them are on disk: send them, move the confirm offset.

        The caller goes on to dispatch and to answer what it can.
        """
        tracker = self.tracker
        if tracker is not None:
            self.store.confirm_offset = tracker.confirm(self._own_end())
            for link in self._by_id.values():
                link.pump()

    def _moved(self) -> None:
        """The set or an ack changed: the confirm offset may have moved."""
        if self.tracker is not None:
            self.store.confirm_offset = self.tracker.confirm(self._own_end())
            self.on_progress()

    def _entered(self, link: _MasterLink) -> None:
        """A slave's link is in transfer."""
        session = link.session
        assert session.slave_id is not None and self.tracker is not None
        former = self._by_id.get(session.slave_id)
        if former is not None:
            former.close("the slave has connected again")
        self._by_id[session.slave_id] = link
        link.replica = self.tracker.connected(
            session.slave_id, async_learner=session.async_learner, now_ms=self.clock.monotonic_ms()
        )
        log.info(
            "slave %d at %s follows from %d%s",
            session.slave_id,
            link.peer,
            session.next_offset,
            " as learner" if session.async_learner else "",
        )

    def _acked(self, link: _MasterLink) -> None:
        tracker, replica = self.tracker, link.replica
        assert tracker is not None and replica is not None
        replica.ack_offset = link.session.ack_offset
        if link.session.last_caught_up_ms is not None:
            replica.caught_up_ms = max(replica.caught_up_ms, link.session.last_caught_up_ms)
        self._moved()
        if replica.broker_id not in tracker.agreed.members:
            self._look_at_sync_state()

    def _left(self, link: _MasterLink) -> None:
        self._links.pop(link, None)
        slave_id = link.session.slave_id
        if slave_id is not None and self._by_id.get(slave_id) is link:
            del self._by_id[slave_id]
            if self.tracker is not None:
                self.tracker.disconnected(slave_id)
                self._look_at_sync_state()

    def _look_at_sync_state(self) -> None:
        tracker = self.tracker
        if tracker is None or tracker.in_flight:
            return
        if tracker.proposal is not None or (
            tracker.wanted(self.clock.monotonic_ms()) != tracker.agreed.members
        ):
            self.on_sync_state_change()

    # -- slave

    async def _follow(self) -> None:
        """Keep a link to the master, until cancelled."""
        loop = asyncio.get_running_loop()
        wait_s, told = RECONNECT_S[0], ""
        while True:
            await self._address_known.wait()
            address = self._master_address
            link = _SlaveLink(self, address)
            try:
                host, port = split_address(address)
                async with asyncio.timeout(self.config.ha_connect_timeout / 1000):
                    await loop.create_connection(
                        lambda link=link: link,
                        host,
                        port,
                        ssl=self._tls_client,
                        server_hostname=host if self._tls_client else None,
                    )
            except (OSError, ValueError) as error:  # TimeoutError and SSLError are OSErrors
                problem = f"cannot connect to master {address}: {error or type(error).__name__}"
            else:
                await link.ended
                if link.session.transferring:
                    wait_s = RECONNECT_S[0]
                problem = f"lost master {address}: {link.reason}"
            if problem != told:
                log.warning("%s", problem)
                told = problem
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RECONNECT_S[1])

    def _flush_soon(self) -> None:
        """Group commit while slave: one flush at a time; at once with `sync_flush`, else after a while."""
        if self._flushing is not None:
            return
        if self._sync_flush:
            self._start_flush()
        elif self._flush_timer is None:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(self._flush_interval_s, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        if self._flushing is None and self.role is HARole.SLAVE:
            self._start_flush()

    def _start_flush(self) -> None:
        self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self.store.flushed_offset < self.store.max_offset:
                await asyncio.get_running_loop().run_in_executor(None, self.store.flush)
                if self._link is not None:
                    self._link.acknowledge()
                if not self._sync_flush or self.role is not HARole.SLAVE:
                    break
        except OSError as error:
            log.error("flushing the log failed: %s", error)
            if self._link is not None:
                self._link.close(f"flushing the log failed: {error}")
        else:
            if self.role is HARole.SLAVE and self.store.flushed_offset < self.store.max_offset:
                asyncio.get_running_loop().call_soon(self._flush_soon)
        finally:
            self._flushing = None

    async def flushed(self) -> None:
        """Wait for a flush under way: a log must not be cut under one."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    # -- time

    def _tick(self) -> None:
        now_ms = self.clock.monotonic_ms()
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        if self._link is not None:
            self._link.tick(now_ms)
        bounds = self.bounds()
        for link in list(self._links):
            link.tick(bounds, now_ms)
        if self.tracker is not None:
            for link in self._by_id.values():
                caught_up = link.session.caught_up_ms(bounds, now_ms)
                if caught_up is not None and link.replica is not None:
                    link.replica.caught_up_ms = max(link.replica.caught_up_ms, caught_up)
            self._look_at_sync_state()


class _Link(asyncio.Protocol):
    """What both ends of a link have in common."""

    def __init__(self, ha: HAService) -> None:
        self._ha = ha
        self._transport: asyncio.Transport | None = None
        self._bytes = 0
        self._rated = (0, 0.0)
        self.peer = ""
        self.reason = ""
        """Why the link ended, for the log."""
        self.bytes_per_second = 0

    def _opened(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        self.peer = f"{peername[0]}:{peername[1]}" if peername else "?"
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def closed(self) -> bool:
        return self._transport is None

    def close(self, reason: str) -> None:
        """Drop the link at once; nothing is read or sent any more."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self.reason = reason
            transport.abort()

    def _rate(self) -> None:
        now_s = asyncio.get_running_loop().time()
        before, since = self._rated
        if now_s - since >= 1.0:
            self.bytes_per_second = int((self._bytes - before) / (now_s - since)) if since else 0
            self._rated = (self._bytes, now_s)


class _MasterLink(_Link):
    """A slave that connected to us."""

    def __init__(self, ha: HAService) -> None:
        super().__init__(ha)
        self._paused = False
        self.replica: Replica | None = None
        self.session = MasterSession(
            ha.epochs,
            heartbeat_ms=ha.config.ha_send_heartbeat_interval,
            timeout_ms=ha.config.ha_housekeeping_interval,
            now_ms=ha.clock.monotonic_ms(),
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened(transport)
        if self._ha.role is not HARole.MASTER:
            # Nobody may take what is here for the group's log; the slave tries again.
            self.close("not master")
            return
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=self._ha.config.ha_send_buffer_size)
        self._ha._links[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self.reason = str(exc) if exc else "closed by the slave"
            self._transport = None
        if self.session.slave_id is not None and self.reason:
            log.info("slave %d at %s is gone: %s", self.session.slave_id, self.peer, self.reason)
        self._ha._left(self)

    def data_received(self, data: bytes) -> None:
        ha, session = self._ha, self.session
        if self._transport is None or ha.tracker is None:
            return
        known, acked = session.transferring, session.ack_offset
        bounds = ha.bounds()
        try:
            answer = session.receive(data, bounds, ha.clock.monotonic_ms())
        except HAFrameError as error:
            self._misbehaved(error)
            return
        if answer:
            self._transport.write(answer)
        if session.transferring and not known:
            ha._entered(self)
        if session.ack_offset != acked:
            ha._acked(self)
        if session.transferring and not known:
            self.pump()
            self._heartbeat(ha.bounds(), ha.clock.monotonic_ms())

    def _misbehaved(self, error: HAFrameError | StoreError) -> None:
        log.warning("replication port: dropped %s (slave %s): %s", self.peer, self.session.slave_id, error)
        self.close(str(error))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def pump(self) -> None:
        """Send as much as the socket takes."""
        transport, ha, session = self._transport, self._ha, self.session
        if transport is None or self._paused or not session.transferring:
            return
        bounds = ha.bounds()
        if session.next_offset >= bounds.max_offset:
            return
        now_ms = ha.clock.monotonic_ms()
        limit = ha.config.ha_transfer_batch_size
        try:
            while not self._paused:
                batch = session.next_batch(bounds, limit)
                if batch is None:
                    return
                view = ha.store.read(batch.offset, batch.max_bytes)
                size = len(view)
                if not size:
                    return
                transport.writelines([session.frame(batch, size, bounds, now_ms), view])
                self._bytes += size
        except (HAFrameError, StoreError) as error:
            self._misbehaved(error)

    def _heartbeat(self, bounds: LogBounds, now_ms: int) -> None:
        frame = self.session.heartbeat(bounds, now_ms)
        if frame and self._transport is not None:
            self._transport.write(frame)

    def tick(self, bounds: LogBounds, now_ms: int) -> None:
        self._rate()
        if self.session.expired(now_ms):
            self.close("silent for too long")
        elif not self._paused:
            self._heartbeat(bounds, now_ms)


class _SlaveLink(_Link):
    """Our connection to the master."""

    def __init__(self, ha: HAService, address: str) -> None:
        super().__init__(ha)
        self.session = SlaveSession(
            ha.epochs,
            ha.local_id,
            heartbeat_ms=ha.config.ha_send_heartbeat_interval,
            timeout_ms=ha.config.ha_housekeeping_interval,
            now_ms=ha.clock.monotonic_ms(),
            sync_from_last_file=ha.config.sync_from_last_file,
            async_learner=ha.config.async_learner,
        )
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last_read_ms = 0
        self.last_write_ms = 0
        self._address = address
        self._slow: asyncio.Task[None] | None = None
        self._behind: list[bytes] = []
        """Bytes that arrived while slow effects were under way."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened(transport)
        ha = self._ha
        if ha.role is not HARole.SLAVE or ha._master_address != self._address:
            self.close("the role has changed")
            return
        ha._link = self
        self._write(self.session.open())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self.reason = str(exc) if exc else "closed by the master"
            self._transport = None
        if self._slow is None:
            self._end()

    def _end(self) -> None:
        """Nothing touches the log any more: the next link may begin."""
        if self._ha._link is self:
            self._ha._link = None
        if not self.ended.done():
            self.ended.set_result(None)

    async def settled(self) -> None:
        """Wait until no effect is under way any more."""
        if self._slow is not None:
            await asyncio.wait([self._slow])

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)
            self.last_write_ms = self._ha.clock.now_ms()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._slow is not None:
            self._behind.append(data)
            return
        ha = self._ha
        self.last_read_ms = ha.clock.now_ms()
        self._bytes += len(data)
        try:
            effects = self.session.receive(data, ha.bounds(), ha.clock.monotonic_ms())
            if any(not isinstance(effect, Append | Confirm) for effect in effects):
                self._transport.pause_reading()
                self._slow = asyncio.get_running_loop().create_task(self._apply_slowly(effects))
                return
            for effect in effects:
                self._apply(effect)
        except HAFrameError as error:
            log.warning("dropped master %s: %s", self.peer, error)
            self.close(str(error))
        except (OSError, StoreError) as error:
            log.error("cannot append to the log: %s", error)
            self.close(f"cannot append to the log: {error}")
        else:
            self._applied()

    def _apply(self, effect: Effect) -> None:
        store = self._ha.store
        if isinstance(effect, Append):
            store.append_raw(effect.offset, effect.data)
        elif isinstance(effect, Confirm):
            store.confirm_offset = max(store.confirm_offset, effect.offset)

    async def _apply_slowly(self, effects: Sequence[Effect]) -> None:
        """Effects of which some cut the log or wait for the disk; reading is paused meanwhile."""
        ha = self._ha
        store, epochs = ha.store, ha._epochs
        loop = asyncio.get_running_loop()
        try:
            for effect in effects:
                if self._transport is None:
                    break
                if isinstance(effect, Learn):
                    await loop.run_in_executor(None, epochs.extend, effect.epochs)
                elif isinstance(effect, Truncate | StartOver):
                    await ha.flushed()
                    # The log first: an epoch without data is harmless, data without its epoch counts as the
                    # epoch before.
                    cut = effect.offset if isinstance(effect, Truncate) else store.min_offset
                    self._announce_cut(cut)
                    if isinstance(effect, Truncate):
                        store.truncate(cut)
                        await loop.run_in_executor(None, epochs.truncate_suffix, cut)
                    else:
                        store.discard()
                        await loop.run_in_executor(None, epochs.clear)
                else:
                    self._apply(effect)
        except (OSError, StoreError, ValueError) as error:
            log.error("cannot follow master %s: %s", self.peer, error)
            self.close(f"cannot follow: {error}")
        finally:
            self._slow = None
        if self._transport is None:
            self._end()
            return
        self._applied()
        behind, self._behind = b"".join(self._behind), []
        self._transport.resume_reading()
        if behind:
            self.data_received(behind)

    def _announce_cut(self, offset: int) -> None:
        store = self._ha.store
        if offset >= store.max_offset:
            return
        level = logging.WARNING if offset < store.confirm_offset else logging.INFO
        log.log(
            level,
            "cutting the log at %d to follow %s (%d bytes, confirm offset %d, own epochs %s)",
            offset,
            self.peer,
            store.max_offset - offset,
            store.confirm_offset,
            self._ha.epochs,
        )

    def _applied(self) -> None:
        if self._transport is None:
            return
        self._ha.on_progress()
        self._ha._flush_soon()
        self.acknowledge()

    def acknowledge(self) -> None:
        """Tell the master how far this log is safe in the sense of flushDiskType."""
        session, ha = self.session, self._ha
        if not session.transferring or self._slow is not None:
            return
        offset = session.position
        if ha._sync_flush and offset > ha.store.flushed_offset:
            if not session.acked:
                return  # the first ack says where to go on, so it must be the end of the log
            offset = ha.store.flushed_offset
        self._write(session.ack(offset, ha.clock.monotonic_ms()))

    def tick(self, now_ms: int) -> None:
        self._rate()
        if self.session.expired(now_ms):
            self.close("silent for too long")
        elif self._slow is None:
            self._write(self.session.heartbeat(now_ms))
