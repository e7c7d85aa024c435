"""Replication of one store with fixed roles: `ClassicHAService` serves slaves or follows a master.

The stream is RocketMQ's plain one (DefaultHAService), in both directions. The log is written by one side
only: by `put` while master, by the link to the master while slave.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from batonmq.ha.classic.copies import acked_by, in_sync
from batonmq.ha.classic.core import ANONYMOUS
from batonmq.ha.classic.local import LocalReplica
from batonmq.ha.classic.master_link import MasterLink
from batonmq.ha.classic.slave_link import SlaveLink
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

TICK_S = 0.2
"""Time between looks at heartbeats and silence."""


class ClassicHAService(Replication):
    """Replication of one store. Create it with an opened store, `start` it, then give it its role."""

    def __init__(
        self,
        store: ReplicatedLog,
        config: HAConfig,
        clock: Clock,
        *,
        broker_id: int,
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
        any peer that reaches the port. `nonce`: randomness for its proofs."""
        self.port = port
        self.role = HARole.NONE
        self.on_progress: Callable[[], None] = self._dispatch
        self.on_followed: Callable[[], None] = lambda: None
        self.config = config
        security = security if security is not None else LinkSecurity()
        self.local = LocalReplica(store, config, clock, security, nonce, file_size, sync_flush, broker_id)
        self.listener: Listener[MasterLink] = Listener(security, clock, self._new_link)
        self._host = host
        self._slaves: list[MasterLink] = []
        """Links whose slave has reported what it has, oldest first."""
        self._flusher = SlaveFlusher(store, sync_flush=sync_flush, interval_ms=flush_interval_ms)
        self._follower: Follower[SlaveLink] = Follower(
            store,
            config,
            security,
            self._flusher,
            self,
            lambda follower, address: SlaveLink(self.local, follower, address),
        )
        self._tick_timer: asyncio.TimerHandle | None = None

    # -- life

    def _dispatch(self) -> None:
        self.local.store.dispatch()

    async def start(self) -> None:
        """See `Replication.start`."""
        self.port = await self.listener.start(self._host, self.port)
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    async def stop(self) -> None:
        """See `Replication.stop`."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
            self._tick_timer = None
        self.role = HARole.NONE
        self.listener.stop()
        self.listener.close_links()
        await self._follower.leave()
        await self._flusher.stop()

    def _new_link(self) -> asyncio.Protocol:
        return MasterLink(self.local, self) if self.role is HARole.MASTER else RefusedLink()

    def _tick(self) -> None:
        now_ms = self.local.clock.monotonic_ms()
        self._tick_timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self._follower.tick(now_ms)
        for link in list(self.listener.links):
            link.tick(now_ms)

    # -- the role: once

    def serve(self) -> None:
        """Be the master: slaves may connect. A second call changes nothing."""
        if self.role is HARole.MASTER:
            return
        self.role = HARole.MASTER
        log.info("replicating as master, max_offset=%d", self.local.store.max_offset)

    def follow(self, master_ha_address: str | None) -> None:
        """Be a slave. Without an address (``host:port``) yet, wait for `set_master_address`. A slave that
        follows one already keeps it then."""
        if self.role is HARole.SLAVE:
            if master_ha_address:
                self.set_master_address(master_ha_address)
            return
        self.role = HARole.SLAVE
        self._follower.start(master_ha_address)
        log.info(
            "replicating as slave of %s, max_offset=%d",
            master_ha_address or "an address not known yet",
            self.local.store.max_offset,
        )

    # -- while master: `Replication`

    def wake(self) -> None:
        """See `Replication.wake`."""
        for link in self._slaves:
            link.pump()

    @property
    def in_sync_replicas(self) -> int:
        """See `Replication.in_sync_replicas`: slaves that lag by less than haMaxGapNotInSync, and the
        master."""
        end, gap = self.local.store.max_offset, self.config.ha_max_gap_not_in_sync
        return 1 + sum(in_sync(end, link.ack_offset, gap) for link in self._slaves)

    def other_members(self) -> frozenset[int]:
        """None: nobody is elected in a group without controllers."""
        return frozenset()

    def acked_by(self, copies: int) -> int:
        """See `Replication.acked_by`."""
        return acked_by(copies, self.local.store.max_offset, [link.held for link in self._slaves])

    def held_by_all(self) -> int:
        """See `Replication.held_by_all`."""
        end, gap = self.local.store.max_offset, self.config.ha_max_gap_not_in_sync
        acks = [link.ack_offset for link in self._slaves]
        return min([end, *(ack for ack in acks if in_sync(end, ack, gap))])

    def replicas(self) -> list[ReplicaStatus]:
        """See `Replication.replicas`."""
        end, gap = self.local.store.max_offset, self.config.ha_max_gap_not_in_sync
        return [
            ReplicaStatus(
                link.session.slave_id,
                link.peer,
                link.ack_offset,
                link.session.next_offset,
                in_sync(end, link.ack_offset, gap),
                False,
                link.bytes_per_second,
            )
            for link in self._slaves
        ]

    # -- links: `MasterSide`

    def admit(self, link: MasterLink) -> bool:
        if self.role is not HARole.MASTER:
            link.close("not master")
            return False
        return self.listener.admit(link, lambda each: each.session.transferring)

    def entered(self, link: MasterLink) -> None:
        slave_id, host = link.session.slave_id, link.peer.rpartition(":")[0]
        for other in list(self._slaves):
            if slave_id != ANONYMOUS:
                if other.session.slave_id == slave_id:
                    other.close("the slave has connected again")
            elif other.peer.rpartition(":")[0] == host:
                link.counts_above = max(link.counts_above, other.session.next_offset)
        self._slaves.append(link)
        session = link.session
        log.info("%s reports %d, sending from %d", link, session.ack_offset, session.next_offset)

    def acked(self, link: MasterLink) -> None:
        self.on_progress()

    def left(self, link: MasterLink) -> None:
        self.listener.left(link)
        if link in self._slaves:
            self._slaves.remove(link)
            for other in self._slaves:
                if not self._has_older(other):
                    other.counts_above = -1
            self.on_progress()

    def _has_older(self, link: MasterLink) -> bool:
        """Whether an older link comes from the same host."""
        host = link.peer.rpartition(":")[0]
        older = self._slaves[: self._slaves.index(link)]
        return any(each.peer.rpartition(":")[0] == host for each in older)

    def warn(self, peer: str, text: str) -> None:
        self.listener.warn(peer, text)

    # -- while slave: `Replication`

    @property
    def link(self) -> SlaveLink | None:
        """The link to the master."""
        return self._follower.link

    @property
    def following(self) -> bool:
        """See `Replication.following`."""
        return self._follower.following

    def set_master_address(self, master_ha_address: str | None) -> None:
        """See `Replication.set_master_address`."""
        self._follower.set_master_address(master_ha_address)

    def hasten(self) -> None:
        """The master has announced itself: connect to it now."""
        self._follower.hasten()

    @property
    def followed(self) -> str:
        """The master's replication port that this slave follows, past the handshake; empty: none."""
        return self._follower.master_address if self.following else ""

    def master(self) -> MasterStatus | None:
        """See `Replication.master`."""
        return self._follower.master()
