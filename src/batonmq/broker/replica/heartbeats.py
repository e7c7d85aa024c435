"""Sends a broker's heartbeats to its controllers.

A heartbeat has the replica's epoch, offsets and priority; the controllers use them to elect a master. The
leader's answer shows that it can be reached; without an answer the other controllers forward heartbeats to
it. Source: RocketMQ's BROKER_HEARTBEAT (904) in controller mode, where no heartbeat is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from batonmq.broker.replica.controllers import LATE_S
from batonmq.net.errors import CallTimeout, NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, NotLeaderError
from batonmq.protocol.headers.namesrv import BrokerHeartbeat, BrokerHeartbeatReply
from batonmq.store.errors import StoreError

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.replica.controllers import Controllers
    from batonmq.broker.replica.core import ReplicasCore
    from batonmq.ha.autoswitch.service import HAService

log = logging.getLogger(__name__)

ANSWER_MS: Final = 900
"""A leader that has not answered a heartbeat after this time is suspected. A heartbeat forwarded then arrives
before a silent broker counts as down (docs/decisions/hang-3s.md). It is below one second so that the
client keeps the connection: if it closed, a leader that is only slow would count this broker as down."""


class Heartbeats:
    """`run` sends one per `brokerHeartbeatInterval`; `send` sends an additional one, for example after a role
    change."""

    def __init__(
        self,
        broker: Broker,
        ha: HAService,
        core: ReplicasCore,
        controllers: Controllers,
        *,
        on_epoch: Callable[[int], None],
    ) -> None:
        """`on_epoch`: called with the master epoch of each answer to a forwarded heartbeat, because the
        leader's notice of a new master may not reach this broker."""
        self._broker = broker
        self._ha = ha
        self._core = core
        self._controllers = controllers
        self._on_epoch = on_epoch
        self._sending: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Link (direct or forwarded) and controller address -> the pending heartbeat."""

    async def run(self) -> None:
        """Send heartbeats until cancelled, or until this master's disk fails; then the broker stops."""
        while True:
            if (failure := self._failure()) is not None:
                self._broker.fail(StoreError(failure))
                return
            self._ha.suspect_after(self._broker.settings.broker.controller_heart_beat_timeout_mills)
            self.send()
            await asyncio.sleep(self._broker.settings.broker.broker_heartbeat_interval / 1000)

    async def stop(self) -> None:
        """Cancel pending heartbeats."""
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
            silent_master_epoch=self._ha.silent_master,
        )
        controllers = self._controllers
        for address in controllers.addresses:
            if address == controllers.leader:
                self._start("leader", address, header, self._send_to_leader)
                continue
            self._start("other", address, header, self._broker.client.oneway)
            if not controllers.leader_answers:
                self._forward(address, header)

    def _forward(self, address: str, header: BrokerHeartbeat) -> None:
        """Two may be pending: the controller may still wait for a leader that is cut off when it learns of a
        new one, and the next heartbeat must reach that one."""
        if self._controllers.may_forward(address):
            way = "through" if ("through", address) not in self._sending else "through again"
            self._start(way, address, header, self._send_through)

    def _start(
        self,
        way: str,
        address: str,
        header: BrokerHeartbeat,
        send: Callable[[str, BrokerHeartbeat], Awaitable[None]],
    ) -> None:
        """Send one, unless the last one on this link is still pending."""
        key = (way, address)
        if key not in self._sending:
            self._sending[key] = asyncio.get_running_loop().create_task(self._guard(key, header, send))

    async def _guard(
        self,
        key: tuple[str, str],
        header: BrokerHeartbeat,
        send: Callable[[str, BrokerHeartbeat], Awaitable[None]],
    ) -> None:
        way, address = key
        try:
            await send(address, header)
        except (NetError, MQError) as error:
            log.debug("heartbeat to controller %s (%s): %s", address, way, error)
        finally:
            self._sending.pop(key, None)

    async def _send_to_leader(self, address: str, header: BrokerHeartbeat) -> None:
        controllers, loop = self._controllers, asyncio.get_running_loop()

        def late() -> None:
            for other in controllers.addresses:
                if other != address:
                    self._forward(other, header)

        timer = loop.call_later(LATE_S, late)
        try:
            await self._broker.client.call(address, header, timeout_ms=ANSWER_MS)
        except (NetError, NotLeaderError) as error:
            log.debug("heartbeat to the leading controller %s: %s", address, error)
            if isinstance(error, CallTimeout):
                controllers.unanswered(address)
            if controllers.suspect(address):
                self.send()
            if isinstance(error, NotLeaderError):
                await controllers.seek()
                if not controllers.leader_answers:
                    self.send()  # to the new leader, which may not wait for the next one
        except MQError as error:
            if error.code == ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR:  # it has no quorum
                controllers.suspect(address)
            else:
                controllers.answered(address)
            raise
        else:
            controllers.answered(address)
        finally:
            timer.cancel()

    async def _send_through(self, address: str, header: BrokerHeartbeat) -> None:
        """Send it to the leader through the controller at `address`."""
        forwarded = BrokerHeartbeat.from_ext({**header.to_ext(), "forwarded": "true"})
        answer = await self._controllers.call_through(address, forwarded, timeout_ms=ANSWER_MS)
        if isinstance(answer.header, BrokerHeartbeatReply) and answer.header.master_epoch is not None:
            self._on_epoch(answer.header.master_epoch)

    def _failure(self) -> str | None:
        """The reason why this master must stop: its store accepts no more messages, and another replica in
        sync can replace it. None if it need not."""
        failure = self._broker.store.failure
        if failure is None or not self._ha.other_members():
            return None
        return f"{failure}. Another replica in sync takes over; check this broker's disk before a restart"
