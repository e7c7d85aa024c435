"""A slave's side of replication: a link to the master, dialled again whenever it ends."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from batonmq.common.addresses import host_and_port
from batonmq.ha.port import MasterStatus

if TYPE_CHECKING:
    from batonmq.ha.config import HAConfig
    from batonmq.ha.flusher import SlaveFlusher
    from batonmq.ha.port import ReplicatedLog
    from batonmq.ha.security import LinkSecurity

log = logging.getLogger(__name__)

RECONNECT_S = (0.02, 1.0)
"""First and longest wait before a slave tries its master again; doubled in between."""
RECONNECT_UNTRUSTED_S = 10.0
"""Longest wait where one side has not proved to the other that it belongs to the group."""


class FollowerObserver(Protocol):
    """Callbacks, as `Replication` has them."""

    on_progress: Callable[[], None]
    on_followed: Callable[[], None]


class FollowedLink(Protocol):
    """One connection to the master, of any kind of stream."""

    address: str
    """The master's replication port, ``host:port``."""
    peer: str
    local_address: str
    reason: str
    """Why it ended, for the log."""
    untrusted: bool
    """Trying again soon is useless: one side has not proved to belong to the group, or the logs differ."""
    ended: asyncio.Future[None]
    last_read_ms: int
    last_write_ms: int
    bytes_per_second: int

    @property
    def following(self) -> bool:
        """Whether the link is past its handshake."""

    @property
    def protocol(self) -> asyncio.Protocol:
        """The link as the loop wants it."""

    def acknowledge(self) -> None: ...
    def close(self, reason: str) -> None: ...
    async def settled(self) -> None: ...
    def tick(self, now_ms: int) -> None: ...


L = TypeVar("L", bound="FollowedLink")


class Follower(Generic[L]):
    """One for the life of a broker: between `start` and `leave` it follows; the `SlaveSide` of its link."""

    def __init__(
        self,
        store: ReplicatedLog,
        config: HAConfig,
        security: LinkSecurity,
        flusher: SlaveFlusher,
        observer: FollowerObserver,
        new_link: Callable[[Follower[L], str], L],
    ) -> None:
        """`new_link` makes the link to a master's address."""
        self.link: L | None = None
        """The connection to the master."""
        self._follows: L | None = None
        """The link that `on_followed` was called for."""
        self._store = store
        self._config = config
        self._security = security
        self._flusher = flusher
        self._observer = observer
        self._new_link = new_link
        self._address = ""
        self._address_known = asyncio.Event()
        self._again = asyncio.Event()
        """Ends the wait before the next attempt."""
        self._distrusts = False
        """Whether the last link was `untrusted`."""
        self._task: asyncio.Task[None] | None = None

    def start(self, master_ha_address: str | None) -> None:
        """Follow the master at this address, or wait for `set_master_address`."""
        self._flusher.observer = self
        self.set_master_address(master_ha_address)
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def leave(self) -> None:
        """Stop following; nothing writes to the log on behalf of a master once this returns."""
        self._flusher.observer = None
        link, task = self.link, self._task
        self.link = self._task = None
        if link is not None:
            link.close("")
            await link.settled()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.set_master_address(None)

    def set_master_address(self, master_ha_address: str | None) -> None:
        """See `Replication.set_master_address`."""
        address = master_ha_address or ""
        if address != self._address and self.link is not None:
            self.link.close("the master has moved")
        self._address = address
        if address:
            self._address_known.set()
        else:
            self._address_known.clear()

    def hasten(self) -> None:
        """The master is there: connect now instead of after the usual wait, unless the last link ended with a
        distrust that another attempt will not change."""
        if not self._distrusts:
            self._again.set()

    @property
    def following(self) -> bool:
        """Whether the link to the master is past the handshake."""
        return self.link is not None and self.link.following

    def master(self) -> MasterStatus | None:
        """The link to the master; None without one."""
        link = self.link
        if link is None:
            return None
        return MasterStatus(
            link.peer, link.last_read_ms, link.last_write_ms, link.bytes_per_second, link.local_address
        )

    @property
    def master_address(self) -> str:
        """The replication port to follow, ``host:port``; empty while unknown."""
        return self._address

    def tick(self, now_ms: int) -> None:
        """Look at heartbeats and silence."""
        if self.link is not None:
            self.link.tick(now_ms)

    # -- the link: `SlaveSide`

    def opened(self, link: L) -> bool:
        if self._task is None or link.address != self._address:
            return False
        self.link = link
        return True

    def ended(self, link: L) -> None:
        if self.link is link:
            self.link = None

    def applied(self) -> None:
        self._observer.on_progress()
        self._flusher.soon()
        if self.link is not self._follows and self.following:
            self._follows = self.link
            asyncio.get_running_loop().call_soon(self._observer.on_followed)

    async def flush_settled(self) -> None:
        await self._flusher.settled()

    # -- the disk: `FlushObserver`

    def flushed(self) -> None:
        if self.link is not None:
            self.link.acknowledge()

    def flush_failed(self, error: Exception) -> None:
        if self.link is not None:
            self.link.close(f"flushing the log failed: {error}")

    # -- dialling

    async def _follow(self) -> None:
        """Keep a link to the master, until cancelled."""
        store, security, loop = self._store, self._security, asyncio.get_running_loop()
        wait_s, logged = RECONNECT_S[0], ""
        while True:
            await self._address_known.wait()
            address = self._address
            self._again.clear()
            link = self._new_link(self, address)
            dialled_s, end = loop.time(), store.max_offset
            longest_s = RECONNECT_S[1]
            tls = security.client.current() if security.client is not None else None
            try:
                host, port = host_and_port(address)
                async with asyncio.timeout(self._config.ha_connect_timeout / 1000):
                    await loop.create_connection(
                        lambda link=link: link.protocol,
                        host,
                        port,
                        ssl=tls,
                        server_hostname=host if tls else None,
                    )
            except (OSError, ValueError) as error:
                # TimeoutError and SSLError are OSErrors; ValueError: what a name server or the master gave as
                # its address is none.
                problem = f"cannot connect to master {address}: {str(error) or type(error).__name__}"
                if isinstance(error, ssl.SSLError):
                    longest_s = RECONNECT_UNTRUSTED_S
            else:
                await link.ended
                # A master that cannot read what comes next drops every link at once.
                lasted = link.following and loop.time() - dialled_s > longest_s
                if lasted or store.max_offset != end:
                    wait_s = RECONNECT_S[0]
                self._distrusts = link.untrusted
                if link.untrusted:
                    longest_s = RECONNECT_UNTRUSTED_S
                problem = f"lost master {address}: {link.reason}"
            if problem != logged:
                log.warning("%s", problem)
                logged = problem
            try:
                async with asyncio.timeout(wait_s):
                    await self._again.wait()
            except TimeoutError:
                wait_s = min(2 * wait_s, longest_s)
            else:
                wait_s = RECONNECT_S[0]
