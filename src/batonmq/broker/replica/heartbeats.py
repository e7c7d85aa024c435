"""Sends a broker's heartbeats to its controllers.

Each heartbeat carries epoch, offsets and priority of the replica, from which the controllers elect a master.
Source: RocketMQ's BROKER_HEARTBEAT (904) in controller mode.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from batonmq.net.errors import NetError
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.replica.controllers import Controllers
    from batonmq.broker.replica.core import ReplicasCore
    from batonmq.ha.autoswitch.service import HAService

log = logging.getLogger(__name__)


class Heartbeats:
    """`run` sends one per `brokerHeartbeatInterval`; `send` sends one more, as after a role change."""

    def __init__(self, broker: Broker, ha: HAService, core: ReplicasCore, controllers: Controllers) -> None:
        self._broker = broker
        self._ha = ha
        self._core = core
        self._controllers = controllers
        self._sending: dict[str, asyncio.Task[None]] = {}
        """Controller address -> the heartbeat under way."""

    async def run(self) -> None:
        """Until cancelled, or until this master's disk fails: then the broker is stopped."""
        while True:
            if (failure := self._failure()) is not None:
                self._broker.fail(StoreError(failure))
                return
            self.send()
            await asyncio.sleep(self._broker.settings.broker.broker_heartbeat_interval / 1000)

    async def stop(self) -> None:
        """Cancel the heartbeats under way."""
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self) -> None:
        """Send a heartbeat to every controller; a slow controller delays no other."""
        core, config, broker = self._core, self._broker.settings.broker, self._broker
        if core.broker_id is None or not core.may_heartbeat:
            return
        header = BrokerHeartbeat(
            config.broker_cluster_name,
            broker.address,
            config.broker_name,
            broker_id=core.broker_id,
            epoch=self._ha.last_epoch,
            max_offset=broker.store.max_offset,
            confirm_offset=broker.store.confirm_offset,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
        )
        for address in self._controllers.addresses:
            if address not in self._sending:
                task = asyncio.get_running_loop().create_task(self._send_to(address, header))
                self._sending[address] = task

    async def _send_to(self, address: str, header: BrokerHeartbeat) -> None:
        try:
            await self._broker.client.oneway(address, header)
        except NetError as error:
            log.debug("heartbeat to controller %s: %s", address, error)
        finally:
            self._sending.pop(address, None)

    def _failure(self) -> str | None:
        """Why this master must stop: its store accepts no more messages, and another replica in sync can."""
        failure = self._broker.store.failure
        if failure is None or not self._ha.other_members():
            return None
        return f"{failure}. Another replica in sync takes over; check this broker's disk before a restart"
