"""A slave's copy of what the log does not carry: topics, subscription groups, consumer and delay offsets.

Copied from the master every few seconds, as RocketMQ's SlaveSynchronize does; at once after a change of the
master, so that a second switch right after the first loses nothing that the first master knew; and at once
when the master says that a topic, a group or a group's first offset is new (`table_watch.py`). A RocketMQ
master does not say it; with one, the copy is renewed when a message of an unknown topic is replicated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.tables.watch import HOLD_S
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import WatchTables, WatchTablesResponse

if TYPE_CHECKING:
    from batonmq.broker.role import RoleState
    from batonmq.broker.tables.persistence import Master
    from batonmq.broker.tables.tables import Tables
    from batonmq.net.client import RemotingClient
    from batonmq.protocol.registry import Header
    from batonmq.store.store import MessageStore

log = logging.getLogger(__name__)

PERIOD_S: Final = 3.0
POLL_S: Final = 0.1
"""Time between looks for unknown topics; also the wait after a failure before the first copy is complete."""
COPY_SHARE: Final = 4
"""Copying rests this many times as long as it took, so that it never keeps the master busy."""
GRACE_S: Final = 1.0
"""A master just elected may learn of it a little later than its slaves; that needs no log line."""
FIRST_RETRY_S: Final = 0.02
"""The wait in that time: the first copy is to be here before this slave may be elected."""
TIMEOUT_MS: Final = 3_000
WATCH_MS: Final = int(HOLD_S * 1000) + TIMEOUT_MS


class RemoteMaster:
    """The broker that the tables are copied from (`persistence.Master`)."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self.address = address
        self.announces_changes = True
        """Until it answers that it does not know WATCH_TABLES."""

    async def fetch(self, header: Header) -> bytes:
        response = await self._client.call(self.address, header, timeout_ms=TIMEOUT_MS)
        return bytes(response.body)


class SlaveSync:
    """Copies the master's tables while this broker is a slave."""

    def __init__(self, client: RemotingClient, role: RoleState, tables: Tables, store: MessageStore) -> None:
        self._client = client
        self._role = role
        self._tables = tables
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._queues = 0
        self.complete = False
        """Whether everything was copied at least once from the current master."""

    def start(self, master_address: str) -> None:
        """Follow this master, beginning now."""
        assert self._task is None
        self.complete = False
        self._task = asyncio.get_running_loop().create_task(self._run(master_address))

    async def stop(self) -> None:
        """Nothing of a former master is taken over after this."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def copy(self, master: Master) -> None:
        """One round: each table in force as soon as it is here. Raises `NetError`, `MQError`, ValueError."""
        for table in self._tables.persistence:
            if table.copy is not None:
                await table.copy(master)

    async def _run(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        master = RemoteMaster(self._client, address)
        logged, copied = "", -1
        while True:
            try:
                if master.announces_changes:
                    copied = await self._next_change(address, copied)
                began = loop.time()
                await self.copy(master)
                logged, self.complete = "", True
                if master.announces_changes:
                    await asyncio.sleep(min(COPY_SHARE * (loop.time() - began), PERIOD_S))
                    continue
            except (NetError, MQError, ValueError) as error:
                copied = -1  # a master that was restarted counts its changes from 0
                if (
                    master.announces_changes
                    and isinstance(error, MQError)
                    and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                ):
                    master.announces_changes = False
                    continue
                if str(error) != logged and loop.time() - started > GRACE_S:
                    log.warning("tables of master %s cannot be copied: %s", address, error)
                    logged = str(error)
            if not self.complete and loop.time() - started < GRACE_S:
                await asyncio.sleep(FIRST_RETRY_S)
            else:
                await self._pause()

    async def _next_change(self, master: str, copied: int) -> int:
        header = WatchTables(copied=copied, broker_id=self._role.broker_id)
        response = await self._client.call(master, header, timeout_ms=WATCH_MS)
        if not isinstance(response.header, WatchTablesResponse):
            raise MQError(ResponseCode.SYSTEM_ERROR, "an answer without the number of changes")
        return response.header.changes

    async def _pause(self) -> None:
        """Until the next round is due."""
        loop = asyncio.get_running_loop()
        due = loop.time() + (PERIOD_S if self.complete else POLL_S)
        while loop.time() < due:
            await asyncio.sleep(POLL_S)
            found = self._store.queues()
            if len(found) != self._queues:
                self._queues = len(found)
                if any(topic not in self._tables.topics for topic, _ in found):
                    return
