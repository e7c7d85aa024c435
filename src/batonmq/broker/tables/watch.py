"""Notifies slaves of changed topics and groups, and tracks which changes they have copied.

The log does not carry topics, groups and offsets; slaves copy them (`broker/replica/slave_sync.py`). A slave
sends WATCH_TABLES with the number of changes that it has copied; the answer follows when there are more. So
the next request acknowledges the copy, and a handler can wait until all slaves have a new topic before it
answers that the topic exists. Right after a switch a member of the SyncStateSet may not have sent a request
yet, but may be elected: the master waits for it too. A RocketMQ slave sends no such request, it polls every
few seconds; the master waits for it once per master epoch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

HOLD_S: Final = 3.0
"""Longest time that a request is held without a change; the slave then copies the offsets anyway."""
COPY_WAIT_S: Final = 1.0
"""Longest wait of a handler for the slaves. A slower slave is ignored until its next request."""

C = TypeVar("C")


class TableWatch(Generic[C]):
    """The master's side. `C` identifies a slave's connection."""

    def __init__(self) -> None:
        self.changes = 0
        """Number of changes since this broker started."""
        self.access_control: str | None = None
        """Mark of the users and access control lists (`broker/auth/`), for the answers to slaves."""
        self.members: Callable[[], Collection[int]] = tuple
        """Ids of the slaves that may be elected now; set by the service."""
        self._copied: dict[C, int] = {}
        """Connection -> number of changes that its slave has copied, from its last request."""
        self._ids: dict[C, int] = {}
        """Connection -> broker id of its slave."""
        self._silent: set[int] = set()
        """Members that sent no request within `COPY_WAIT_S`."""
        self._latest: dict[int, int] = {}
        """Broker id -> number of changes that it has copied, from its last request of this master epoch; also
        of slaves that are no longer connected."""
        self._wakeup = asyncio.Event()
        """Set and replaced at every change that a waiting coroutine must check."""

    @property
    def followers(self) -> int:
        """Number of slaves that handlers wait for."""
        return len(self._copied)

    def begin_term(self) -> None:
        """This broker became master: drop the state of the slaves of an earlier master epoch."""
        self._copied.clear()
        self._ids.clear()
        self._silent.clear()
        self._latest.clear()
        self._wake()

    def changed(self) -> None:
        """A table has changed: answer the waiting slaves."""
        self.changes += 1
        self._wake()

    def closed(self, connection: C) -> None:
        """A connection has closed: stop waiting for its slave."""
        self._ids.pop(connection, None)
        if self._copied.pop(connection, None) is not None:
            self._wake()

    async def next_change(self, connection: C, copied: int, broker_id: int | None = None) -> int:
        """A slave has copied `copied` changes. Returns the number of changes once it differs, or after
        `HOLD_S`."""
        self._copied[connection] = copied
        if broker_id is not None:
            self._ids[connection] = broker_id
            self._silent.discard(broker_id)
            self._latest[broker_id] = copied
        self._wake()
        await self._until(lambda: self.changes != copied or connection not in self._copied, HOLD_S)
        return self.changes

    async def wait_until_copied(self) -> bool:
        """Wait until every slave has copied all changes so far. False: after `COPY_WAIT_S` some had not."""
        goal = self.changes

        def behind() -> list[C]:
            return [connection for connection, copied in self._copied.items() if copied < goal]

        def absent() -> set[int]:
            return set(self.members()) - set(self._ids.values()) - self._silent

        if await self._until(lambda: not behind() and not absent(), COPY_WAIT_S):
            return True
        for connection in behind():
            log.warning(
                "slave %s has not copied a change of topics or groups within %g s", connection, COPY_WAIT_S
            )
            self.closed(connection)
        for broker_id in sorted(absent()):
            log.info(
                "slave %d does not watch topics and groups; it copies changes some seconds later",
                broker_id,
            )
            self._silent.add(broker_id)
        return False

    async def lacking(self, goal: int, timeout_s: float) -> set[int]:
        """Wait until the slaves that may be elected have copied so many changes; the ids of those that have
        not in this time. A slower slave is not ignored here. Never among them are RocketMQ's slaves, which
        send no requests, and a slave before its first request of this master epoch."""

        def behind() -> set[int]:
            return {each for each in self.members() if self._latest.get(each, goal) < goal}

        await self._until(lambda: not behind(), timeout_s)
        return behind()

    def _wake(self) -> None:
        self._wakeup.set()
        self._wakeup = asyncio.Event()

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._wakeup.wait()
        except TimeoutError:
            return False
        return True
