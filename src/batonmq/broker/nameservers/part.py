"""The part that registers the broker with the name servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batonmq.broker.nameservers.registration import Registration
from batonmq.broker.part import Part
from batonmq.common.addresses import split_addresses

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleState
    from batonmq.protocol.bodies.topics import TopicConfig


class NameServersPart(Part):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.registration = Registration(broker)
        broker.tables.topics.listeners.append(self._topics_changed)
        broker.settings.listeners.append(self._configured)

    def role_changed(self, role: RoleState) -> None:
        self.registration.start()

    async def withdraw(self) -> None:
        await self.registration.stop()

    def _topics_changed(self, changed: Sequence[TopicConfig]) -> None:
        self.registration.now()

    def _configured(self, before: BrokerConfig) -> None:
        now = self._broker.settings.broker
        if before.namesrv_addr != now.namesrv_addr:
            self.registration.set_addresses(split_addresses(now.namesrv_addr))
        if before.broker_permission != now.broker_permission:
            # It limits the permission of every registered topic.
            self._broker.tables.topics.touch()
            self.registration.now()
