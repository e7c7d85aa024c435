"""A simulated machine, and which one the running code belongs to."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.network import Endpoint, SimServer

current_host: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


@dataclass(eq=False)
class Host:
    """One simulated machine; a restart is a new `Host` object with the same address."""

    name: str
    address: str
    alive: bool = True
    paused_until: float = 0.0
    """Virtual time before which nothing of this host runs (a stopped process: SIGSTOP, a long pause)."""
    held: list[asyncio.Handle] = field(default_factory=list)
    """What was due while it was paused."""
    disk_s: float = 0.002
    """Mean duration of one piece of executor work (fsync, reading at start)."""
    before_work: Callable[[Host, str], None] | None = None
    """Called with the name of each piece of executor work, before and after it; may crash the host."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """Also those of a dead host: were they collected, their `finally` clauses would run in the story."""
    endpoints: dict[Endpoint, None] = field(default_factory=dict)
    servers: dict[int, SimServer] = field(default_factory=dict)
    next_port: int = 40_000
