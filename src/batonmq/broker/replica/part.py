"""The part that gives the broker its role and serves the other replicas of its broker set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.part import Part
from batonmq.broker.replica import handlers, metrics
from batonmq.broker.replica.fixed_role import SLAVE, FixedMaster, FixedSlave, starts_isolated
from batonmq.broker.replica.identity import IdentityFiles
from batonmq.broker.replica.replicas_manager import ReplicasManager
from batonmq.broker.replica.role_switch import RoleSwitch

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleSource, RoleState
    from batonmq.common.metrics import Metric, Source
    from batonmq.net import Dispatcher


class ReplicaPart(Part):
    """Behind all parts that need a role: when it starts, they are ready for one."""

    METRICS: ClassVar[tuple[Metric, ...]] = metrics.METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.manager: ReplicasManager | None = None
        """Only in controller mode."""
        self.switch = RoleSwitch(broker)
        self._source: RoleSource
        config = broker.settings.broker
        if config.enable_controller_mode:
            path = broker.settings.ha.store_path_broker_identity
            files = IdentityFiles(path or broker.settings.store.root / "brokerIdentity")
            self._source = self.manager = ReplicasManager(broker, self.switch, files)
        elif config.broker_role == SLAVE:
            self._source = FixedSlave(broker, self.switch)
        else:
            self._source = FixedMaster(broker, self.switch)
        broker.assume_role = self._source.start

    def handlers(self, dispatcher: Dispatcher) -> None:
        handlers.register(dispatcher, self._broker)
        if self.manager is not None:
            self.manager.register(dispatcher)

    def metrics(self) -> Mapping[Metric, Source]:
        return metrics.sources(self._broker)

    async def start(self) -> None:
        if not starts_isolated(self._broker.settings.broker):
            self._source.start()

    def role_changed(self, role: RoleState) -> None:
        if isinstance(self._source, FixedSlave):
            self._source.acts(role.is_acting)

    async def withdraw(self) -> None:
        await self._source.stop()
