"""Once per turn of the event loop: run the batch hooks, then write each connection's answers in one piece.

Requests that arrive in one turn of the loop, on any connection, form a batch. Handlers may leave work behind
for the hooks (the broker's group append); the answers of handlers and hooks alike go out together. One system
call per connection and turn instead of one per answer is most of what makes the Python server fast.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batonmq.common.log import Log

if TYPE_CHECKING:
    from batonmq.net.connection import Connection

_log = logging.getLogger(__name__)


class LoopTurn:
    """Shared by all connections of one server or client."""

    __slots__ = ("_dirty", "_hooks_due", "_log", "_loop", "_scheduled", "hooks", "tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop, log: Log | None = None) -> None:
        self._loop = loop
        self._log = _log if log is None else log
        self._dirty: list[Connection] = []
        self._scheduled = False
        self._hooks_due = False
        self.hooks: list[Callable[[], None]] = []
        self.tasks: set[asyncio.Future[Any]] = set()
        """Handlers that still run; they outlive the connection their request came on."""

    def requests_dispatched(self) -> None:
        """Requests were given to their handlers in this turn: the hooks are due."""
        self._hooks_due = True
        if not self._scheduled and self.hooks:
            self._scheduled = True
            self._loop.call_soon(self._end)

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
        if self._hooks_due:
            self._hooks_due = False
            for hook in self.hooks:
                try:
                    hook()
                except Exception:
                    self._log.exception(
                        "batch hook failed; its requests stay unanswered until their deadline"
                    )
        self._scheduled = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection.flush()
