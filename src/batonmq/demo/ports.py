"""Free ports for programs that are about to start on this machine.

A port that is free when it is checked may be taken before the program starts: two test runs side by side
would choose the same ones. So each process reserves a block of ports, by a socket that stays bound to the
block's first port while the process lives, and hands out ports of its block in turn.
"""

from __future__ import annotations

import atexit
import contextlib
import random
import socket
import threading
from collections import deque
from typing import Final

BLOCKS: Final = range(12_000, 32_000, 400)
"""First ports of the blocks. All are below 32,768, where Linux's ports for outgoing connections begin: one of
those could be taken between check and start."""
STRIDE: Final = 4
"""A broker uses two more ports beside its listenPort: - 2 for its "VIP channel", + 1 for replication."""

_turn = threading.Lock()
_mine: deque[int] = deque()
"""The ports of this process; the one handed out last is at the end."""


def _bound(port: int) -> socket.socket:
    """A socket on that port. Raises OSError if the port is in use."""
    probe = socket.socket()
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    except OSError:
        probe.close()
        raise
    return probe


def _take_block() -> None:
    """Reserve a block for this process. Raises RuntimeError if all are taken."""
    for first in random.sample(BLOCKS, len(BLOCKS)):
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", first))
        except OSError:
            guard.close()
            continue
        atexit.register(guard.close)
        _mine.extend(range(first + STRIDE + 2, first + BLOCKS.step, STRIDE))
        return
    raise RuntimeError(f"no free ports from {BLOCKS.start} to {BLOCKS.stop} on 127.0.0.1")


def _free(port: int) -> bool:
    with contextlib.ExitStack() as probes:
        try:
            for each in (port - 2, port, port + 1):
                probes.enter_context(_bound(each))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports of this process's blocks that are free, also at + 1 and - 2; those handed out longest ago first.

    Raises RuntimeError if no ports are left.
    """
    found: list[int] = []
    with _turn:
        looked_at = 0
        while len(found) < count:
            if looked_at == len(_mine):
                _take_block()
                _mine.rotate(-looked_at)
            port = _mine[0]
            _mine.rotate(-1)
            looked_at += 1
            if _free(port):
                found.append(port)
    return found
