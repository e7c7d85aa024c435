"""What both ends of a replication link have in common: the connection, its rate, and its end."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import cast

PROBE_S = 1
"""Silence after which the kernel asks the peer's whether it is there, and between such questions, s."""
MIN_PATIENCE_MS = 3_000
"""The peer's kernel is given so long at least to answer."""


class Link(asyncio.Protocol):
    """One connection of the replication port."""

    def __init__(self, max_lag_ms: int) -> None:
        """`max_lag_ms`: who lags by more is not in sync, so that nobody waits for a link as slow as that."""
        self._transport: asyncio.Transport | None = None
        self._patience_ms = max(max_lag_ms, MIN_PATIENCE_MS)
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
            self._give_up_early(sock)

    def _give_up_early(self, sock: socket.socket) -> None:
        """A cut or lossy line ends the link on both sides, and the slave dials anew.

        TCP by itself doubles its wait with every try, and finds out late that the line works again; a side
        that has nothing to send finds out when `haHousekeepingInterval` is over. The kernels do this among
        themselves: RocketMQ's replicas need not know of it, and a process that stands still is not taken for
        a dead line, unless it leaves more unread than a socket takes.
        """
        if sys.platform == "linux":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._patience_ms)

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
