"""Notifies the replicas of a broker set of their new master, until each shows that it knows.

Each replica has its own task: a slow or dead broker delays nobody. A notice is repeated, ever more seldom,
until the replica's heartbeat carries the new master epoch, until the new master counts it as in sync, until
it stops being alive, or until the next election makes the notice pointless.
"""

from __future__ import annotations

import asyncio
import logging

from batonmq.controller.machine import ControllerMachine
from batonmq.controller.replicas import BrokerSet
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import encode

log = logging.getLogger(__name__)

FIRST_PAUSE_MS = 1_000
LAST_PAUSE_MS = 8_000
CALL_TIMEOUT_MS = 3_000
AT_ONCE = 512
"""Most notices under way. Each may need a connection, which takes an open file: with thousands of broker sets
that elect at once the controller would have none left to accept its brokers."""
KEPT = 512
"""Most connections that are kept for further notices."""
OPEN_FILES = AT_ONCE + KEPT
"""What notices may need at most."""


class RoleChangeNotices:
    """Belongs to the leading controller: `stop` when it no longer leads."""

    def __init__(self, machine: ControllerMachine, client: RemotingClient) -> None:
        self._machine = machine
        self._client = client
        self._room = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[tuple[str, int], tuple[int, asyncio.Task[None]]] = {}

    @property
    def pending(self) -> int:
        """Replicas to which a notice is under way."""
        return len(self._tasks)

    def announce(self, broker_set: BrokerSet) -> None:
        """A master was elected: notify every living replica now."""
        for broker_id in broker_set.live:
            self._start(broker_set, broker_id, pause_ms=0)

    def remind(self, broker_set: BrokerSet, broker_id: int) -> None:
        """A replica appeared, which may have missed an election; it is also asking on its own."""
        live = broker_set.live.get(broker_id)
        if broker_set.master_id is not None and live is not None and not _follows(broker_set, broker_id):
            self._start(broker_set, broker_id, pause_ms=FIRST_PAUSE_MS)

    def remind_all(self) -> None:
        """A new leader does not know which notices the former one got delivered."""
        for broker_set in self._machine.broker_sets.values():
            for broker_id in broker_set.live:
                self.remind(broker_set, broker_id)

    async def stop(self) -> None:
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, broker_set: BrokerSet, broker_id: int, pause_ms: int) -> None:
        key = (broker_set.broker_name, broker_id)
        running = self._tasks.get(key)
        if running is not None:
            if running[0] == broker_set.master_epoch:
                return
            running[1].cancel()
        epoch = broker_set.master_epoch
        task = asyncio.get_running_loop().create_task(self._notify(key, epoch, pause_ms))
        self._tasks[key] = (epoch, task)
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        if key in self._tasks and self._tasks[key][1] is task:
            del self._tasks[key]
        if not task.cancelled() and task.exception() is not None:
            log.error("notifying replica %d of %s failed", key[1], key[0], exc_info=task.exception())

    async def _notify(self, key: tuple[str, int], epoch: int, pause_ms: int) -> None:
        name, broker_id = key
        attempt = 0
        if pause_ms:
            await asyncio.sleep(pause_ms / 1000)
        while True:
            broker_set = self._machine.broker_sets.get(name)
            live = None if broker_set is None else broker_set.live.get(broker_id)
            if broker_set is None or live is None or broker_set.master_epoch != epoch:
                return
            if (attempt or pause_ms) and _follows(broker_set, broker_id):
                return
            address = broker_set.address(broker_id)
            if address is not None:
                async with self._room:
                    await self._call(broker_set, broker_id, address)
            await asyncio.sleep(min(LAST_PAUSE_MS, FIRST_PAUSE_MS << min(attempt, 8)) / 1000)
            attempt += 1

    async def _call(self, broker_set: BrokerSet, broker_id: int, address: str) -> None:
        header, body = notice(broker_set)
        try:
            await self._client.call(address, header, body, timeout_ms=CALL_TIMEOUT_MS)
            log.debug(
                "replica %d of %s (%s) was notified of its master", broker_id, broker_set.broker_name, address
            )
        except (NetError, MQError) as error:
            log.info(
                "replica %d of %s could not be notified of master %s epoch=%d: %s",
                broker_id,
                broker_set.broker_name,
                broker_set.master_id,
                broker_set.master_epoch,
                error,
            )


def notice(broker_set: BrokerSet) -> tuple[wire.NotifyBrokerRoleChanged, bytes]:
    """What a replica is notified of: its master, and the SyncStateSet as body."""
    header = wire.NotifyBrokerRoleChanged(
        broker_set.master_address,
        broker_set.master_epoch,
        broker_set.sync_state_set_epoch,
        broker_set.master_id,
    )
    return header, encode(SyncStateSetBody(broker_set.sync_state_set, broker_set.sync_state_set_epoch))


def _follows(broker_set: BrokerSet, broker_id: int) -> bool:
    """Whether the replica knows the master: it shows the epoch, or the SyncStateSet proves it.

    If nothing is being written, Java brokers keep showing the old epoch: a slave learns a new one with
    its first message, and a master records none that begins where the last one began. But an election
    leaves the master alone in the SyncStateSet; others in it mean that the master, in this epoch, has asked
    for that, and that they have connected to it.
    """
    live = broker_set.live.get(broker_id)
    if live is not None and live.epoch >= broker_set.master_epoch:
        return True
    return broker_id in broker_set.sync_state_set and len(broker_set.sync_state_set) > 1
