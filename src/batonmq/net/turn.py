"""Writes the answers of one turn of the event loop together.

Requests that arrive in one turn of the loop are answered at its end, connection by connection. One system
call for each connection and turn, instead of one for each answer, is most of what makes the Python server
fast.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batonmq.net.connection import Connection


class LoopTurn:
    """Shared by all connections of one server or client."""

    __slots__ = ("_dirty", "_loop", "_scheduled", "tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._dirty: list[Connection] = []
        self._scheduled = False
        self.tasks: set[asyncio.Future[Any]] = set()
        """Handlers that still run; they outlive the connection their request came on."""

    def has_output(self, connection: Connection) -> None:
        """The connection collected its first frame of this turn."""
        self._dirty.append(connection)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._end)

    async def cancel_tasks(self) -> None:
        """Cancel the handlers that still run and wait for them; their requests are answered SYSTEM_BUSY."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        self._scheduled = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
