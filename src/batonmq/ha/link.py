"""What both ends of a replication link share: the connection, its rate, and its end."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from batonmq.net.tcp import set_tcp_timeout

MIN_TCP_TIMEOUT_MS = 3_000
"""Least TCP timeout of a link."""
INTRODUCTION_MS = 5_000
"""A connection that has not said by then which replica it is, is dropped."""


class Link(asyncio.Protocol):
    """One connection of the replication port."""

    def __init__(self, max_lag_ms: int) -> None:
        """`max_lag_ms`: a slave that lags by more is not in sync; no ack has to wait for a link that slow."""
        self._transport: asyncio.Transport | None = None
        self._tcp_timeout_ms = max(max_lag_ms, MIN_TCP_TIMEOUT_MS)
        self._bytes = 0
        self._rated = (0, 0.0)
        self.peer = ""
        """The other end, ``ip:port``."""
        self.local_address = ""
        """This end, ``ip:port``."""
        self.reason = ""
        """Why the link ended, for the log."""
        self.bytes_per_second = 0

    def _opened(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peername = transport.get_extra_info("peername")
        self.peer = f"{peername[0]}:{peername[1]}" if peername else "?"
        sockname = transport.get_extra_info("sockname")
        self.local_address = f"{sockname[0]}:{sockname[1]}" if sockname else ""
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # `haHousekeepingInterval`, which ends a silent link otherwise, is much longer.
            set_tcp_timeout(sock, self._tcp_timeout_ms)

    @property
    def closed(self) -> bool:
        return self._transport is None

    def close(self, reason: str) -> None:
        """Drop the link at once; nothing more is read or sent."""
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


class RefusedLink(asyncio.Protocol):
    """A connection to a replica that is not master: closed at once, since what is in its log may not be the
    group's. The slave tries again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()
