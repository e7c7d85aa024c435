"""Notices a master that does not answer because it is frozen or cut off.

Its connections stay open, so a call to it ends only with its timeout. While a call is overdue the route is
asked for. As soon as it names another master, the session drops the connections to the former one, and the
call fails.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.routing.session import Session

log = logging.getLogger(__name__)

OVERDUE_S = 0.3
"""A call is overdue after this time: many times what an acknowledgement takes under full load."""
CHECK_INTERVAL_S = 0.1
"""How often calls are checked, and the route is asked for while one is overdue."""


class OverdueCalls:
    """Calls under way which a healthy master answers at once. Refreshes the route while one is overdue."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._under_way: dict[int, tuple[float, str]] = {}  # oldest first
        self._numbers = itertools.count()
        self._watcher: asyncio.Task[None] | None = None

    def began(self, topic: str) -> int:
        """A call about a topic begins; pass the number that this returns to `ended`."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        self._under_way[number] = loop.time(), topic
        if self._watcher is None or self._watcher.done():
            self._watcher = loop.create_task(self._watch())
        return number

    def ended(self, number: int) -> None:
        """The call was answered, or failed."""
        del self._under_way[number]

    async def close(self) -> None:
        """Watch no more calls."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def _watch(self) -> None:
        """Runs as long as there are calls; an idle client has no timer."""
        while self._under_way:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for topic in self._overdue_topics():
                try:
                    await self._session.refresh(topic)
                except (NetError, MQError) as error:
                    log.debug("a call is overdue, and no name server gives the route of %s: %s", topic, error)
        self._watcher = None

    def _overdue_topics(self) -> list[str]:
        overdue: dict[str, None] = {}
        before = asyncio.get_running_loop().time() - OVERDUE_S
        for began, topic in self._under_way.values():
            if began > before:
                break
            overdue[topic] = None
        return list(overdue)
