"""Ports for programs on this machine that are about to be started.

Between the look whether a port is free and the start of the program that is to have it, another process may
look, too, and find it free: two test runs side by side, say. So each process takes a block of ports for
itself, by a socket bound to the block's first one as long as the process lives, and hands them out in turn.
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
"""First ports of the blocks. Below the range from which Linux takes ports for outgoing connections (32,768
on): one of those could be taken between the look and the start."""
STRIDE: Final = 4
"""A broker's listenPort has two more about it: - 2 for its "VIP channel", + 1 for replication."""

_turn = threading.Lock()
_mine: deque[int] = deque()
"""Of this process; what was handed out last is at the end."""


def _bound(port: int) -> socket.socket:
    """Raises OSError when somebody has it."""
    probe = socket.socket()
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    except OSError:
        probe.close()
        raise
    return probe


def _take_block() -> None:
    """Raises RuntimeError when all are taken."""
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
    """Ports that nobody listens on now, nor on their + 1 and - 2, which a broker uses as well; of this
    process's own, those first that were handed out longest ago. Raises RuntimeError when none are left."""
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
