"""Replication of one store in controller mode: `HAService` serves slaves or follows a master.

Owns the order in which a role is left and another one taken; `master_term.py` and `follower.py` do the work
of each. Only `become_master`, `become_slave` and `stop` change the role; a lock makes a second change wait
for the first, and an epoch below one that is on record is refused.

The log is written by one side only: by `put` while master, by the link to the master while slave.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from batonmq.common.running_time import TICK_S, RunningTime
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.ha.autoswitch.epochs import EpochCache
from batonmq.ha.autoswitch.local import LocalReplica
from batonmq.ha.autoswitch.master_link import MasterLink
from batonmq.ha.autoswitch.master_term import MasterTerm
from batonmq.ha.autoswitch.slave_link import SlaveLink
from batonmq.ha.autoswitch.sync_state import SyncStateSet, SyncStateTracker
from batonmq.ha.flusher import SlaveFlusher
from batonmq.ha.follower import Follower
from batonmq.ha.link import RefusedLink
from batonmq.ha.listener import Listener
from batonmq.ha.port import MasterStatus, ReplicaStatus, ReplicatedLog, Replication
from batonmq.ha.role import HARole
from batonmq.ha.security import LinkSecurity
from batonmq.protocol.ha_frames import NONCE_SIZE

if TYPE_CHECKING:
    from batonmq.common.clock import Clock
    from batonmq.ha.config import HAConfig

log = logging.getLogger(__name__)


REPEAT_MS: Final = 250
"""Time between two reports of a silent master."""


class StaleEpoch(Exception):
    """A role change for an epoch older than one this log has already seen."""


def _nothing() -> None:
    """Default of the callbacks."""


class HAService(Replication):
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
        any peer that reaches the port. `nonce`: randomness for its proofs.

        Raises ConfigError if the epoch file cannot be read.
        """
        self.port = port
        self.role = HARole.NONE
        self.epoch = -1
        """Epoch of the current role."""
        self.on_progress: Callable[[], None] = self._dispatch
        self.on_followed: Callable[[], None] = lambda: None
        self.on_sync_state_change: Callable[[], None] = _nothing
        """Called when the SyncStateSet should become another one (ask `propose`), or when a slave has
        connected whose id is not known here (ask the controller for the group's ids and pass them to
        `registered`)."""
        self.on_master_silent: Callable[[], None] = _nothing
        """Called every `REPEAT_MS` while the master is silent for unusually long (`silent_master`)."""
        self.suspect_master_ms = (1_000, 2_500)
        """Least and most silence of a master that is unusual, ms; in between it depends on how late the
        master was lately."""
        self._silent_master: int | None = None
        self._reported_ms = 0
        self.config = config
        self.epoch_file = EpochFile.load(epoch_file)
        security = security if security is not None else LinkSecurity()
        self.local = LocalReplica(
            store, self.epoch_file, config, clock, RunningTime(clock), security, nonce, file_size, sync_flush
        )
        self.listener: Listener[MasterLink] = Listener(security, clock, self._new_link)
        self.term: MasterTerm | None = None
        """None unless master."""

        self._host = host
        self._flusher = SlaveFlusher(store, sync_flush=sync_flush, interval_ms=flush_interval_ms)
        self._follower: Follower[SlaveLink] = Follower(
            store,
            config,
            security,
            self._flusher,
            self,
            lambda follower, address: SlaveLink(self.local, follower, address),
        )
        self._lock = asyncio.Lock()
        self._tick_timer: asyncio.TimerHandle | None = None

    # -- life

    def _dispatch(self) -> None:
        self.local.store.dispatch()

    async def start(self) -> None:
        """See `Replication.start`."""
        loop, store = asyncio.get_running_loop(), self.local.store
        # The log may have lost its end with the power; what lies beyond it no longer has an epoch.
        await loop.run_in_executor(None, self.epoch_file.truncate_suffix, store.max_offset + 1)
        await loop.run_in_executor(None, self.epoch_file.truncate_prefix, store.min_offset)
        self.port = await self.listener.start(self._host, self.port)
        self._tick_timer = loop.call_later(TICK_S, self._tick)

    async def stop(self) -> None:
        """See `Replication.stop`."""
        async with self._lock:
            if self._tick_timer is not None:
                self._tick_timer.cancel()
                self._tick_timer = None
            self.listener.stop()
            await self._leave_role()
            await self._flusher.stop()

    def _new_link(self) -> asyncio.Protocol:
        return RefusedLink() if self.term is None else self.term.new_link()

    def _tick(self) -> None:
        now_ms = self.local.running.now_ms()
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._follower.tick(now_ms)
        if self.term is not None:
            self.term.tick(now_ms)
        elif self.role is HARole.SLAVE:
            self._listen_for_master(now_ms)

    def _listen_for_master(self, now_ms: int) -> None:
        link = self._follower.link
        if link is not None and link.following:
            silent = link.unusually_silent(now_ms, *self.suspect_master_ms)
            self._silent_master = self.epoch if silent else None
        # Without a link nothing new is known: the system may have closed it because the master is cut off.
        if self._silent_master is not None and now_ms - self._reported_ms >= REPEAT_MS:
            self._reported_ms = now_ms
            self.on_master_silent()

    # -- roles

    @property
    def local_id(self) -> int:
        """This broker's id at the controller; set before a role is taken."""
        return self.local.broker_id

    @local_id.setter
    def local_id(self, broker_id: int) -> None:
        self.local.broker_id = broker_id

    async def become_master(self, epoch: int, sync_state_set: SyncStateSet) -> None:
        """Begin the term `epoch`: cut a torn record, put the epoch on disk, then serve slaves.

        The log is complete and writable when this returns. In a newer term of a master that stays one, slaves
        are dropped so that they learn the new epoch with their next handshake (apache/rocketmq #9689).
        Raises `StaleEpoch`, OSError if the epoch cannot be put on disk, StoreError if the log is damaged
        further back than a torn record; the role is NONE then.
        """
        async with self._lock:
            self._check_epoch(epoch)
            if self.term is not None and epoch == self.epoch:
                self.agree(sync_state_set)
                return
            await self._leave_role()
            local, store = self.local, self.local.store
            store.cut_torn_tail()
            loop = asyncio.get_running_loop()
            if local.sync_flush and store.flushed_offset < store.max_offset:
                # All of it is confirmed in a moment, and a slave flushes a little later than it appends.
                await loop.run_in_executor(None, store.flush)
            if epoch > self.last_epoch:
                # A log from before controller mode has no epoch yet: the first term claims all of it.
                start = store.max_offset if len(self.epochs) else store.min_offset
                await loop.run_in_executor(None, self.epoch_file.append, epoch, start)
            tracker = SyncStateTracker(
                local_id=self.local_id,
                agreed=sync_state_set,
                epoch_start=self.epochs.last_start,
                confirm_offset=min(store.confirm_offset, store.max_offset),
                max_lag_ms=self.config.max_lag_ms,
                started_ms=local.running.now_ms(),
            )
            self.epoch = epoch
            self.term = term = MasterTerm(local, tracker, self.listener, self)
            self.role = HARole.MASTER
            term.moved()
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
            self._check_epoch(epoch)
            await self._leave_role()
            self.role = HARole.SLAVE
            self.epoch = epoch
            self._follower.start(master_ha_address)
            where = master_ha_address or "an address not known yet"
            log.info("replicating as slave of broker %d epoch=%d at %s", master_id, epoch, where)

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.last_epoch:
            raise StaleEpoch(f"epoch {epoch} is over: this log has seen {self.last_epoch}")

    async def _leave_role(self) -> None:
        self.role = HARole.NONE
        self._silent_master = None
        term, self.term = self.term, None
        if term is not None:
            term.end()
        await self._follower.leave()

    # -- the log's epochs

    @property
    def epochs(self) -> EpochCache:
        """The log's epochs; live."""
        return self.epoch_file.cache

    @property
    def last_epoch(self) -> int:
        """Newest epoch of the log, -1 if none; goes into the heartbeats to the controller."""
        return self.epochs.last_epoch

    # -- while master: `Replication`

    def wake(self) -> None:
        """See `Replication.wake`."""
        if self.term is not None:
            self.term.wake()

    @property
    def in_sync_replicas(self) -> int:
        """Size of the SyncStateSet the next message has to satisfy, this master included."""
        return 1 if self.term is None else len(self.term.tracker.counted | {self.local_id})

    def other_members(self) -> frozenset[int]:
        """The other members of the SyncStateSet, which may be elected; none unless this replica is master."""
        return frozenset() if self.term is None else self.term.tracker.agreed.members - {self.local_id}

    def acked_by(self, copies: int) -> int:
        """See `Replication.acked_by`."""
        return -1 if self.term is None else self.term.tracker.acked_by(copies, self.local.store.max_offset)

    def held_by_all(self) -> int:
        """See `Replication.held_by_all`."""
        return -1 if self.term is None else self.term.tracker.held_by_all(self.local.store.max_offset)

    def replicas(self) -> list[ReplicaStatus]:
        """See `Replication.replicas`."""
        return [] if self.term is None else self.term.replicas()

    # -- while master: the SyncStateSet

    @property
    def tracker(self) -> SyncStateTracker | None:
        """The SyncStateSet of the current term; None unless master."""
        return None if self.term is None else self.term.tracker

    def propose(self) -> frozenset[int] | None:
        """The set to ask the controller for now, see `SyncStateTracker.propose`; it counts from here on."""
        return None if self.term is None else self.term.tracker.propose(self.local.running.now_ms())

    def answered(
        self, tracker: SyncStateTracker, outcome: SyncStateSet | None, *, refused: bool = False
    ) -> None:
        """The outcome of a proposal made by `tracker`; one of a former term is ignored."""
        if self.term is not None and tracker is self.term.tracker:
            self.term.answered(outcome, refused=refused)

    def agree(self, current: SyncStateSet) -> None:
        """The controller's set, wherever it was learned."""
        if self.term is not None:
            self.term.agree(current)

    def registered(self, broker_ids: Iterable[int]) -> None:
        """The ids the controller has given to this group, all of them. Slaves with other ids may read (unless
        the port's security keeps them out), but their acks move nothing."""
        if self.term is not None:
            self.term.registered(broker_ids)

    def unregistered(self) -> list[int]:
        """Ids of connected slaves that are not known to be the controller's."""
        return [] if self.term is None else self.term.unregistered()

    # -- while slave: `Replication`

    @property
    def link(self) -> SlaveLink | None:
        """The link to the master."""
        return self._follower.link

    def suspect_after(self, timeout_ms: int) -> None:
        """`timeout_ms`: after so long without heartbeats the controllers count a master as down."""
        least_ms = max(timeout_ms // 3, 3 * self.config.beat_ms)
        self.suspect_master_ms = (least_ms, max(timeout_ms * 5 // 6, least_ms))

    @property
    def silent_master(self) -> int | None:
        """The epoch of the master that this slave follows, if it sends nothing for unusually long."""
        return self._silent_master

    @property
    def following(self) -> bool:
        """See `Replication.following`."""
        return self._follower.following

    def set_master_address(self, master_ha_address: str | None) -> None:
        """See `Replication.set_master_address`."""
        self._follower.set_master_address(master_ha_address)

    def master(self) -> MasterStatus | None:
        """See `Replication.master`."""
        return self._follower.master()
