"""What Linux can say and do about a TCP connection whose segments get lost. No effect on other systems."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

PROBE_S: Final = 1
"""Seconds of silence before the kernel sends a keepalive probe, and between probes."""
LOOK_AGAIN_S: Final = 0.02
_THIN_LINEAR_TIMEOUTS: Final = 16
"""TCP_THIN_LINEAR_TIMEOUTS of <linux/tcp.h>: the waits before the first six repetitions do not grow."""
_RETRANSMITS: Final = 2
"""Place of tcpi_retransmits in struct tcp_info of <linux/tcp.h>."""


def set_tcp_timeout(sock: socket.socket, timeout_ms: int) -> None:
    """Let the kernel end the connection when the peer's kernel acknowledges nothing for `timeout_ms`.

    Without this TCP doubles the wait before each retry and notices late that the path works again; a side
    that has nothing to send notices nothing at all. The kernels handle it among themselves: the other program
    needs no support for it, and a stopped process does not count as a failed path unless its receive buffer
    is full. No effect on systems other than Linux.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        sock.setsockopt(socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS, 1)


class Retransmits:
    """Whether a connection waits for the answer to a segment that TCP has repeated after a timeout."""

    __slots__ = ("_looked_s", "_transport", "_under_way")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._looked_s = -1.0
        self._under_way: bool | None = None

    def under_way(self, now_s: float) -> bool | None:
        """None: the system does not say. `now_s`: loop time. Looks every `LOOK_AGAIN_S` at most, because a
        look takes 2 µs."""
        if sys.platform == "linux" and now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now_s
            sock = self._transport.get_extra_info("socket")
            if sock is not None and not self._transport.is_closing():
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RETRANSMITS + 1)
                self._under_way = info[_RETRANSMITS] > 0
        return self._under_way
