"""The replication port of a master: it accepts connections, bounds their number, and logs what is wrong with
them without flooding the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from batonmq.common.repeated_warnings import RepeatedWarnings
from batonmq.ha.link import INTRODUCTION_MS, Link
from batonmq.net.tls import ServerTls
from batonmq.net.tls_sniffer import TlsSniffer

if TYPE_CHECKING:
    from batonmq.common.clock import Clock
    from batonmq.ha.security import LinkSecurity

log = logging.getLogger(__name__)

MAX_LINKS = 64
"""Connections to the replication port at a time; others make room for registered replicas."""

L = TypeVar("L", bound=Link)


class Listener(Generic[L]):
    """Connections of slaves, from the TCP accept to the end of their link."""

    def __init__(
        self, security: LinkSecurity, clock: Clock, new_link: Callable[[], asyncio.Protocol]
    ) -> None:
        """`new_link` makes the protocol of a connection; a link asks `admit` once it is connected, and calls
        `left` at its end."""
        self.links: dict[L, None] = {}
        """Those admitted, oldest first. Ordered, so that simulated runs can be repeated."""
        self.handshakes: set[TlsSniffer] = set()
        """Connections whose TLS handshake is under way."""
        self._security = security
        self._clock = clock
        self._new_link = new_link
        self._warnings = RepeatedWarnings(log)
        self._server: asyncio.Server | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Listen; returns the port, of which 0 means any free one. Raises OSError if it is taken."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        listening: int = self._server.sockets[0].getsockname()[1]
        log.info("replication port %d is %s", listening, self._security)
        return listening

    def stop(self) -> None:
        """Accept nothing more and drop TLS handshakes; links stay, see `close_links`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for sniffer in list(self.handshakes):
            sniffer.abort()

    def close_links(self) -> None:
        """Drop every link at once."""
        for link in list(self.links):
            link.close("")

    def admit(self, link: L, is_replica: Callable[[L], bool]) -> bool:
        """Count a new connection. False: there was no room, and it was closed again. Links of which
        `is_replica` is false make room."""
        if len(self.links) >= MAX_LINKS:
            self.warn(link.peer, f"is one connection too many ({MAX_LINKS})")
            victim = next((each for each in self.links if not is_replica(each)), None)
            if victim is None:
                link.close("too many connections")
                return False
            victim.close("made room for another connection")
        self.links[link] = None
        return True

    def left(self, link: L) -> None:
        """The connection is closed."""
        self.links.pop(link, None)

    def warn(self, peer: str, text: str) -> None:
        """One line about a peer that does what no replica does; repetitions are counted, not logged."""
        self._warnings.warn(f"replication port: {peer}", text, self._clock.monotonic_ms())

    def _accept(self) -> asyncio.Protocol:
        contexts = self._security.server
        if contexts is None:
            return self._new_link()
        if len(self.handshakes) >= MAX_LINKS:
            next(iter(self.handshakes)).abort()

        def refused(peer: object, why: str) -> None:
            host, port = peer[:2] if isinstance(peer, tuple) else (peer, "?")
            self.warn(f"{host}:{port}", why)

        tls = ServerTls(contexts, enforcing=True)
        return TlsSniffer(tls, self._new_link, self.handshakes, INTRODUCTION_MS / 1000, refused)
