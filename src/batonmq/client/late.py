"""Noticing a master that says nothing: frozen, or cut off.

Its connections stay open, so a call to it ends only with its timeout. While a call is late the route is asked
for. As soon as it names another master, the session drops the connection to the former: then the call fails.
"""

from __future__ import annotations

import asyncio
import itertools
import logging

from batonmq.client.session import Session
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError

log = logging.getLogger(__name__)

LATE_S = 0.3
"""A call without an answer for so long is late: many times what an acknowledgement takes under full load."""
LOOK_S = 0.1
"""How often late calls are looked for, and the route is asked for while there are any."""


class LateCalls:
    """Calls under way that a master answers at once when it is well."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._under_way: dict[int, tuple[float, str]] = {}  # oldest first
        self._numbers = itertools.count()
        self._watcher: asyncio.Task[None] | None = None

    def began(self, topic: str) -> int:
        """A call about a topic begins; `ended` must be told the number this returns."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        self._under_way[number] = loop.time(), topic
        if self._watcher is None or self._watcher.done():
            self._watcher = loop.create_task(self._watch())
        return number

    def ended(self, number: int) -> None:
        del self._under_way[number]

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def _watch(self) -> None:
        """Goes on as long as there are calls; an idle client has no timer."""
        while self._under_way:
            await asyncio.sleep(LOOK_S)
            for topic in self._late_topics():
                try:
                    await self._session.refresh(topic)
                except (NetError, MQError) as error:
                    log.debug("a call is late, and the route of %s is not to be had: %s", topic, error)
        self._watcher = None

    def _late_topics(self) -> list[str]:
        late: dict[str, None] = {}
        before = asyncio.get_running_loop().time() - LATE_S
        for began, topic in self._under_way.values():
            if began > before:
                break
            late[topic] = None
        return list(late)
