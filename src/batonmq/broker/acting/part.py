"""The part that tracks the live members of the broker set, and makes a slave act as master."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from batonmq.broker.acting.core import ActingRule
from batonmq.broker.acting.polling import MemberPolling
from batonmq.broker.part import Part
from batonmq.broker.replica.role_switch import RoleSwitch
from batonmq.broker.role import RoleKind
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.headers.broker.replication import NotifyMinBrokerIdChange

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.context import Broker
    from batonmq.broker.members import MemberGroup
    from batonmq.broker.role import RoleState

log = logging.getLogger(__name__)

LINK_LOOK_S: Final = 0.1
"""Interval of checks of the link to a master that no name server lists."""


class ActingPart(Part):
    """Last in the list: it changes the role that `ReplicaPart` gave."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._switch = RoleSwitch(broker)
        self._rule = ActingRule()
        self._polling = MemberPolling(broker)
        self._timer: asyncio.TimerHandle | None = None
        broker.members.listeners.append(self._members_changed)
        broker.members.refresh = self._polling.now
        if not broker.settings.broker.enable_controller_mode:
            # A slave that may act needs the tables: changes of them are answered when it has them.
            broker.tables.watch.members = lambda: broker.members.others(broker.role.broker_id).keys()
        broker.settings.listeners.append(self._configured)

    def handlers(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(NotifyMinBrokerIdChange, self._min_broker_id_changed)

    async def start(self) -> None:
        self._polling.start()

    async def withdraw(self) -> None:
        self._cancel_timer()
        await self._polling.stop()

    def _min_broker_id_changed(self, request: Request, header: NotifyMinBrokerIdChange) -> Reply:
        """A name server's notice. Anyone may send one, so it only triggers the next request to the name
        servers, and the role if none of them lists the master then."""
        broker = self._broker
        if header.broker_name in (None, broker.settings.broker.broker_name):
            log.info(
                "%s: lowest broker id of the broker set is %s at %.100s, gone: %.100s",
                *(request.connection.peer, header.min_broker_id, header.min_broker_addr),
                header.offline_broker_addr,
            )
            self._rule.reported_offline(header.offline_broker_addr)
            self._polling.now()
        return Reply()

    # -- deciding

    def role_changed(self, role: RoleState) -> None:
        """The members may have been known before this broker had a role."""
        self._decide()

    def _configured(self, before: BrokerConfig) -> None:
        self._decide()

    def _members_changed(self, members: MemberGroup) -> None:
        log.info("live members of the broker set: %s", dict(members.addresses))
        self._rule.seen(members.addresses)
        self._decide()

    def _decide(self) -> None:
        self._cancel_timer()
        broker = self._broker
        role = broker.role
        if role.kind not in (RoleKind.SLAVE, RoleKind.ACTING_MASTER) or role.stopping:
            return
        config = broker.settings.broker
        wait_ms: int | None = None
        if config.enable_slave_acting_master and not config.enable_controller_mode:
            wait_ms = self._rule.wait_ms(
                broker.members.addresses,
                role.broker_id,
                broker.address,
                linked=broker.replication is not None and broker.replication.following,
                now_ms=broker.clock.monotonic_ms(),
            )
        if wait_ms is None:
            if role.is_acting:
                self._switch.end_acting()
        elif wait_ms > 0 and not role.is_acting:
            delay_s = min(LINK_LOOK_S, wait_ms / 1000)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._decide)
        elif not role.is_acting:
            self._switch.become_acting()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
