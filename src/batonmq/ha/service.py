"""Replication of one store over sockets: `HAService` accepts slaves, or follows a master, as its role says.

Owns the sockets, the timers and the order of effects around `core.py` and `sync_state.py`, which decide. Only
`become_master`, `become_slave` and `stop` change the role; a caller never runs two of them at once (a lock
holds the second back) and an epoch below one that is on record is refused.

The log is written by one side only: by `put` while master, by the link to the master while slave.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.ha.core import LogBounds
from batonmq.ha.epoch_file import EpochFile
from batonmq.ha.epochs import EpochCache
from batonmq.ha.master_link import INTRODUCTION_MS, MasterLink
from batonmq.ha.role import HARole
from batonmq.ha.security import LinkSecurity
from batonmq.ha.slave_link import SlaveLink
from batonmq.ha.sync_state import SyncStateSet, SyncStateTracker
from batonmq.net.client import split_address
from batonmq.net.tls import ServerTls, TlsSniffer
from batonmq.protocol.ha_frames import NONCE_SIZE

if TYPE_CHECKING:
    from batonmq.common.clock import Clock
    from batonmq.ha.config import HAConfig

log = logging.getLogger(__name__)

TICK_S = 0.2
"""Time between looks at heartbeats, silence and lag; an idle slave hears of a confirm offset this late."""
RECONNECT_S = (0.02, 1.0)
"""First and longest wait before a slave tries its master again; doubled in between."""
RECONNECT_STRANGER_S = 10.0
"""Longest wait where one side does not take the other for a member of the group."""
MAX_LINKS = 64
"""Connections to the replication port at a time; strangers make room for replicas the controller knows."""


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
    def reading(self, offset: int, size: int) -> Callable[[], bytes]: ...
    def truncate(self, offset: int) -> None: ...
    def discard(self) -> None: ...
    def cut_torn_tail(self) -> int: ...
    def dispatch(self) -> int: ...
    def flush(self) -> int: ...


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
        security: LinkSecurity | None = None,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_SIZE),
    ) -> None:
        """`port` 0 takes a free one. `file_size`: bytes of a commit log file. `sync_flush`: a slave
        acknowledges what is on disk, not what is in the page cache. `security`: who may take part; without it
        whoever reaches the port. `nonce`: randomness for its proofs.

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
        """Called when the SyncStateSet should become another one (ask `propose`), or when a slave has come
        whose id is not known here (ask the controller for the group's ids and tell them to `registered`)."""
        self.security = security if security is not None else LinkSecurity()
        self.nonce = nonce
        self.sync_flush = sync_flush
        self.epoch_file = EpochFile.load(epoch_file)
        self.link: SlaveLink | None = None
        """The link to the master while slave."""

        self._host = host
        self._file_size = file_size
        self._flush_interval_s = flush_interval_ms / 1000
        self._lock = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._links: dict[MasterLink, None] = {}  # ordered, so that simulated runs can be repeated
        self._by_id: dict[int, MasterLink] = {}
        self._sniffers: set[TlsSniffer] = set()
        self._warnings = RepeatedWarnings(log)
        self._master_address = ""
        self._address_known = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    # -- life

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        loop = asyncio.get_running_loop()
        # The log may have lost its end with the power; what lies beyond it has no epoch any more.
        await loop.run_in_executor(None, self.epoch_file.truncate_suffix, self.store.max_offset + 1)
        await loop.run_in_executor(None, self.epoch_file.truncate_prefix, self.store.min_offset)
        self._server = await loop.create_server(self._accept, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("replication port %d is %s", self.port, self.security)
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
            for sniffer in list(self._sniffers):
                sniffer.abort()
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
            if self.sync_flush and store.flushed_offset < store.max_offset:
                # All of it is confirmed in a moment, and a slave flushes a little later than it appends.
                await loop.run_in_executor(None, store.flush)
            if epoch > self.last_epoch:
                # A log from before controller mode belongs to nobody yet: the first term claims all of it.
                start = store.max_offset if len(self.epochs) else store.min_offset
                await loop.run_in_executor(None, self.epoch_file.append, epoch, start)
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
            where = master_ha_address or "an address that it has not told yet"
            log.info("replicating as slave of broker %d epoch=%d at %s", master_id, epoch, where)

    def set_master_address(self, master_ha_address: str | None) -> None:
        """Where the master's replication port is; a link to another address is dropped."""
        address = master_ha_address or ""
        if address != self._master_address and self.link is not None:
            self.link.close("the master has moved")
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
        link, follower = self.link, self._follower
        self.link = self._follower = None
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
        return self.epoch_file.cache

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
        return self.link is not None and self.link.session.transferring

    @property
    def in_sync_replicas(self) -> int:
        """Size of the SyncStateSet the next message has to satisfy, this master included."""
        return 1 if self.tracker is None else len(self.tracker.counted | {self.local_id})

    def other_members(self) -> frozenset[int]:
        """Who else is in the SyncStateSet, and may be elected; none unless this replica is master."""
        return frozenset() if self.tracker is None else self.tracker.agreed.members - {self.local_id}

    def acked_by(self, copies: int) -> int:
        """Highest offset that `copies` replicas hold, the master included; -1 if there are not so many."""
        return -1 if self.tracker is None else self.tracker.acked_by(copies, self.store.max_offset)

    def held_by_all(self) -> int:
        """How far the whole SyncStateSet has the log, be it on this master's disk or not; -1 if unknown."""
        return -1 if self.tracker is None else self.tracker.held_by_all(self.store.max_offset)

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
        link = self.link
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

    def registered(self, broker_ids: Iterable[int]) -> None:
        """The ids the controller has given to this group, all of them. Others are strangers: they may read
        (unless `security` keeps them out), but their word moves nothing."""
        if self.tracker is not None:
            self.tracker.registered = frozenset(broker_ids)
            self._moved()
            self._look_at_sync_state()

    def strangers(self) -> list[int]:
        """Ids that slaves gave and that are not known to be the controller's."""
        tracker = self.tracker
        return [] if tracker is None else [each for each in self._by_id if not tracker.knows(each)]

    # -- master: connections

    def _accept(self) -> asyncio.Protocol:
        context = self.security.server
        if context is None:
            return MasterLink(self)
        if len(self._sniffers) >= MAX_LINKS:
            next(iter(self._sniffers)).abort()

        def refused(peer: object, why: str) -> None:
            host, port = peer[:2] if isinstance(peer, tuple) else (peer, "?")
            self.complain(f"{host}:{port}", why)

        tls = ServerTls(context, enforcing=True)
        return TlsSniffer(tls, lambda: MasterLink(self), self._sniffers, INTRODUCTION_MS / 1000, refused)

    def complain(self, peer: str, text: str) -> None:
        """One line about a peer that does what no replica does; a flood of them makes no flood of lines."""
        self._warnings.warn(f"replication port: {peer}", text, self.clock.monotonic_ms())

    def admit(self, link: MasterLink) -> bool:
        """A connection was made. False: it was closed again."""
        if self.role is not HARole.MASTER:
            # Nobody may take what is here for the group's log; the slave tries again.
            link.close("not master")
            return False
        if len(self._links) >= MAX_LINKS:
            stranger = next((each for each in self._links if not self._is_replica(each)), None)
            self.complain(link.peer, f"is one connection too many ({MAX_LINKS})")
            if stranger is None:
                link.close("too many connections")
                return False
            stranger.close("made room for another connection")
        self._links[link] = None
        return True

    def _is_replica(self, link: MasterLink) -> bool:
        replica, tracker = link.replica, self.tracker
        return replica is not None and tracker is not None and tracker.knows(replica.broker_id)

    # -- master

    def _own_end(self) -> int:
        """How far this log counts for the confirm offset: as a slave's would, see `acknowledge`.

        Otherwise consumers could read, with SYNC_FLUSH, what a power cut takes back; its queue offsets go to
        other messages then, which those consumers never see.
        """
        return self.store.flushed_offset if self.sync_flush else self.store.max_offset

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

    def entered(self, link: MasterLink) -> None:
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
        known = self.tracker.knows(session.slave_id)
        log.log(
            # Who has just got its id is told of when the SyncStateSet grows; strangers come in any number.
            logging.INFO if known else logging.DEBUG,
            "slave %d at %s follows from %d%s",
            session.slave_id,
            link.peer,
            session.next_offset,
            " as learner" if session.async_learner else "",
        )
        if not known:
            self.on_sync_state_change()

    def acked(self, link: MasterLink) -> None:
        tracker, replica = self.tracker, link.replica
        assert tracker is not None and replica is not None
        replica.ack_offset = link.session.ack_offset
        if link.session.last_caught_up_ms is not None:
            replica.caught_up_ms = max(replica.caught_up_ms, link.session.last_caught_up_ms)
        self._moved()
        if replica.broker_id not in tracker.agreed.members:
            self._look_at_sync_state()

    def left(self, link: MasterLink) -> None:
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
            link = SlaveLink(self, address)
            dialled_s, end = loop.time(), self.store.max_offset
            longest_s = RECONNECT_S[1]
            try:
                host, port = split_address(address)
                async with asyncio.timeout(self.config.ha_connect_timeout / 1000):
                    await loop.create_connection(
                        lambda link=link: link,
                        host,
                        port,
                        ssl=self.security.client,
                        server_hostname=host if self.security.client else None,
                    )
            except (OSError, ValueError) as error:  # TimeoutError and SSLError are OSErrors
                problem = f"cannot connect to master {address}: {error or type(error).__name__}"
                if isinstance(error, ssl.SSLError):
                    longest_s = RECONNECT_STRANGER_S
            else:
                await link.ended
                # A master that cannot read what comes next drops every link at once.
                lasted = link.session.transferring and loop.time() - dialled_s > longest_s
                if lasted or self.store.max_offset != end:
                    wait_s = RECONNECT_S[0]
                if link.stranger:
                    longest_s = RECONNECT_STRANGER_S
                problem = f"lost master {address}: {link.reason}"
            if problem != told:
                log.warning("%s", problem)
                told = problem
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)

    def flush_soon(self) -> None:
        """Group commit while slave: one flush at a time; at once with `sync_flush`, else after a while."""
        if self._flushing is not None:
            return
        if self.sync_flush:
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
                if self.link is not None:
                    self.link.acknowledge()
                if not self.sync_flush or self.role is not HARole.SLAVE:
                    break
        except OSError as error:
            log.error("flushing the log failed: %s", error)
            if self.link is not None:
                self.link.close(f"flushing the log failed: {error}")
        else:
            if self.role is HARole.SLAVE and self.store.flushed_offset < self.store.max_offset:
                asyncio.get_running_loop().call_soon(self.flush_soon)
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
        if self.link is not None:
            self.link.tick(now_ms)
        bounds = self.bounds()
        for link in list(self._links):
            link.tick(bounds, now_ms)
        if self.tracker is not None:
            for link in self._by_id.values():
                caught_up = link.session.caught_up_ms(bounds, now_ms)
                if caught_up is not None and link.replica is not None:
                    link.replica.caught_up_ms = max(link.replica.caught_up_ms, caught_up)
            self._look_at_sync_state()
