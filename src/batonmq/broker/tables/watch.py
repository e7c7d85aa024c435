"""How slaves hear at once of changed topics and groups, and how the master knows that they have.

The log does not carry topics, groups and offsets; slaves copy them (`slave_sync.py`). A slave that has copied
everything up to some count of changes asks `WATCH_TABLES` with it, and is answered when there are more. Its
next question thus says what it has copied, so a handler can wait until all slaves know a new topic before
it says that the topic exists. Right after a switch a member of the SyncStateSet may not have asked yet, and
can be elected all the same: it is waited for, too. A RocketMQ slave never asks, it looks every few seconds;
it is waited for once a term.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

HOLD_S: Final = 3.0
"""How long a question is held when nothing changes; offsets are then copied anyway."""
COPY_WAIT_S: Final = 1.0
"""How long a handler waits for the slaves; one that is slower is not waited for again until it asks."""

C = TypeVar("C")


class TableWatch(Generic[C]):
    """The master's side. `C` identifies a slave's connection."""

    def __init__(self) -> None:
        self.changes = 0
        """Changes since this broker started."""
        self.members: Callable[[], Collection[int]] = tuple
        """Ids of the slaves that may be elected now."""
        self._copied: dict[C, int] = {}
        """Connection -> changes that its slave has copied, as it said last."""
        self._ids: dict[C, int] = {}
        """Connection -> broker id of its slave."""
        self._silent: set[int] = set()
        """Members that did not ask while they were waited for."""
        self._wakeup = asyncio.Event()
        """Replaced whenever something below may have to look again."""

    @property
    def followers(self) -> int:
        """Slaves that are waited for."""
        return len(self._copied)

    def begin_term(self) -> None:
        """This broker became master: what slaves of an earlier term have copied says nothing."""
        self._copied.clear()
        self._ids.clear()
        self._silent.clear()
        self._wake()

    def changed(self) -> None:
        """A table has changed: answer the slaves that wait for it."""
        self.changes += 1
        self._wake()

    def closed(self, connection: C) -> None:
        """A connection is gone, and the slave behind it is not waited for."""
        self._ids.pop(connection, None)
        if self._copied.pop(connection, None) is not None:
            self._wake()

    async def next_change(self, connection: C, copied: int, broker_id: int | None = None) -> int:
        """A slave has copied `copied` changes; returns how many there are when that differs, or after
        `HOLD_S`."""
        self._copied[connection] = copied
        if broker_id is not None:
            self._ids[connection] = broker_id
            self._silent.discard(broker_id)
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
                "slave %d does not ask for changes of topics and groups; it has them some seconds later",
                broker_id,
            )
            self._silent.add(broker_id)
        return False

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
