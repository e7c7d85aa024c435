"""Ending a TCP connection soon after the network path to the peer fails."""

from __future__ import annotations

import socket
import sys

PROBE_S = 1
"""Seconds of silence before the kernel sends a keepalive probe, and between probes."""


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
