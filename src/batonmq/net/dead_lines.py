"""Giving up a connection over a line that is cut or loses most packets, so that it is dialled anew."""

from __future__ import annotations

import socket
import sys

PROBE_S = 1
"""Silence after which the kernel asks the peer's whether it is there, and between such questions, s."""


def give_up_early(sock: socket.socket, patience_ms: int) -> None:
    """End the connection when nothing sent has been acknowledged by the peer's kernel for `patience_ms`.

    TCP by itself doubles its wait with every try, and finds out late that the line works again; a side that
    has nothing to send would not find out at all. The kernels do this among themselves: the program at the
    other end need not know of it, and a process that stands still is not taken for a dead line, unless it
    leaves more unread than a socket takes. Without effect on systems other than Linux.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, patience_ms)
