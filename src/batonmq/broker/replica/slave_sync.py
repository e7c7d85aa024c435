"""Copies the tables that the log does not carry from the master: topics, groups, consumer and delay offsets.

A slave copies every few seconds, as RocketMQ's SlaveSynchronize does. It also copies at once

- after a change of the master, so that a second switch right after the first one loses no table;
- when the master announces a new topic, group or first offset of a group (`broker/tables/watch.py`). A
  RocketMQ master announces nothing; the slave then copies again when a message of an unknown topic is
  replicated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from batonmq.broker.tables.persistence import UNKNOWN_MARK
from batonmq.broker.tables.watch import HOLD_S
from batonmq.common.tasks import lasting
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
"""Interval of the check for unknown topics, and wait after a failure before the first complete copy."""
COPY_SHARE: Final = 4
"""A pause after copying is this many times as long as the copying, so that the master stays free."""
GRACE_S: Final = 1.0
"""A new master may take its role a little later than its slaves; failures in this time are not logged."""
FIRST_RETRY_S: Final = 0.02
"""Wait after a failure in that time: the first copy must be complete before this slave may be elected."""
TIMEOUT_MS: Final = 3_000
WATCH_MS: Final = int(HOLD_S * 1000) + TIMEOUT_MS


class RemoteMaster:
    """The master, over the network (`persistence.Master`)."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self.address = address
        self.announces_changes = True
        """False once it answered that it does not support WATCH_TABLES."""
        self.access_control: str | None = UNKNOWN_MARK

    async def fetch(self, header: Header) -> bytes:
        response = await self._client.call(self.address, header, timeout_ms=TIMEOUT_MS)
        return bytes(response.body)


class SlaveSync:
    """Copies the master's tables while this broker is a slave."""

    def __init__(
        self,
        client: RemotingClient,
        role: RoleState,
        tables: Tables,
        store: MessageStore,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`ready`: nothing is copied while it returns False."""
        self._ready = ready
        self._client = client
        self._role = role
        self._tables = tables
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._queues = 0
        self.complete = False
        """Whether all tables were copied at least once from the current master."""

    def start(self, master_address: str) -> None:
        """Copy from this master from now on."""
        assert self._task is None
        self.complete = False
        work = lasting(partial(self._run, master_address), f"copies of the tables of master {master_address}")
        self._task = asyncio.get_running_loop().create_task(work)

    def halt(self) -> None:
        """Apply nothing more from this master; `stop` must follow."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Stop copying; nothing from this master is applied afterwards."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def copy(self, master: Master) -> None:
        """Copy every table once, and apply each at once. Raises `NetError`, `MQError`, ValueError."""
        failure: MQError | ValueError | None = None
        for table in self._tables.persistence:
            if table.copy is None:
                continue
            try:
                await table.copy(master)
            except (MQError, ValueError) as error:
                # The other tables are copied all the same. A lost connection (`NetError`) ends the round.
                failure = failure or error
        if failure is not None:
            raise failure

    async def _run(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        master = RemoteMaster(self._client, address)
        logged, copied = "", -1
        while True:
            if not self._ready():
                await asyncio.sleep(FIRST_RETRY_S)
                continue
            try:
                if master.announces_changes:
                    copied = await self._next_change(master, copied)
                if not self._ready():
                    copied = -1
                    continue
                began = loop.time()
                await self.copy(master)
                logged, self.complete = "", True
                if master.announces_changes:
                    await asyncio.sleep(min(COPY_SHARE * (loop.time() - began), PERIOD_S))
                    continue
            except (NetError, MQError, ValueError) as error:
                copied = -1  # a restarted master counts its changes from 0
                if str(error) != logged and loop.time() - started > GRACE_S:
                    log.warning("tables of master %s cannot be copied: %s", address, error)
                    logged = str(error)
            if not self.complete and loop.time() - started < GRACE_S:
                await asyncio.sleep(FIRST_RETRY_S)
            else:
                await self._pause()

    async def _next_change(self, master: RemoteMaster, copied: int) -> int:
        header = WatchTables(copied=copied, broker_id=self._role.broker_id)
        try:
            response = await self._client.call(master.address, header, timeout_ms=WATCH_MS)
        except MQError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            master.announces_changes = False
            return -1
        if not isinstance(response.header, WatchTablesResponse):
            raise MQError(ResponseCode.SYSTEM_ERROR, "the answer lacks the number of changes")
        master.access_control = response.header.access_control
        return response.header.changes

    async def _pause(self) -> None:
        """Wait until the next round is due."""
        loop = asyncio.get_running_loop()
        due = loop.time() + (PERIOD_S if self.complete else POLL_S)
        while loop.time() < due:
            await asyncio.sleep(POLL_S)
            found = self._store.queues()
            if len(found) != self._queues:
                self._queues = len(found)
                if any(topic not in self._tables.topics for topic, _ in found):
                    return
