"""Limits the open connections of the process: each needs a file descriptor, and these are bounded."""

from __future__ import annotations

import asyncio
import resource
from typing import Final

RESERVE: Final = 512
"""Descriptors for all that is not an accepted connection: files, connections made to others, pipes."""


def raise_file_limit(connections: int) -> int:
    """Let this process open files for `connections`, as far as it may; returns for how many it now can.

    Raises the soft limit of RLIMIT_NOFILE up to the hard one: to go beyond that is for an administrator.
    """
    wanted = connections + RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(1, soft - RESERVE))


def spare_file(transport: asyncio.BaseTransport) -> bool:
    """Whether enough files can still be opened with this accepted connection open.

    A process gets the lowest descriptor that is free, so the connection's own says how many there are,
    whoever has them. The last ones are kept for files: a store that cannot open its log has to stop.
    """
    sock = transport.get_extra_info("socket")
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if sock is None or soft == resource.RLIM_INFINITY:
        return True
    descriptor: int = sock.fileno()
    return descriptor < max(soft // 2, soft - RESERVE)
