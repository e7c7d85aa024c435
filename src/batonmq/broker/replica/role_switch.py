"""The change of a broker's role: what happens in which order, whoever decided it.

A change waits for nothing but the replication, which needs the epoch on disk. Changes never overlap.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from batonmq.ha.autoswitch.service import HAService

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.ha.autoswitch.sync_state import SyncStateSet

log = logging.getLogger(__name__)


class RoleSwitch:
    """Changes `Broker.role` and calls its listeners."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def become_fixed_master(self, broker_id: int, *, replicates: bool) -> None:
        """Master by configuration, with no term."""
        broker = self._broker
        broker.role.set_master(
            address=broker.address,
            ha_address=broker.ha_address,
            epoch=0,
            replicates=replicates,
            broker_id=broker_id,
        )
        self._announce()

    async def become_master(self, epoch: int, sync_state_set: SyncStateSet, broker_id: int) -> None:
        """This replica was elected for `epoch`. `broker_id` is its own id at the controller.

        Messages are accepted when this returns. Raises as `HAService.become_master`; the role stays as it is
        then.
        """
        broker, role = self._broker, self._broker.role
        replication = self._replication()
        if not role.is_master:
            for listener in role.listeners:
                listener.role_ending()
        replication.local_id = broker_id
        await replication.become_master(epoch, sync_state_set)
        role.epoch = epoch
        for listener in role.listeners:
            listener.term_begins(epoch)
        role.set_master(address=broker.address, ha_address=broker.ha_address, epoch=epoch, replicates=True)
        self._announce()
        log.info("master epoch=%d", epoch)

    async def become_slave(
        self, epoch: int, broker_id: int, master_id: int, master_address: str, master_ha_address: str
    ) -> None:
        """Follow the master of `epoch`; its replication address may be unknown yet (empty). Sends that were
        not acknowledged are answered with an error, held pulls with what there is. Raises as
        `HAService.become_slave`."""
        role = self._broker.role
        replication = self._replication()
        role.set_slave(
            broker_id=broker_id,
            epoch=epoch,
            master_address=master_address,
            master_ha_address=master_ha_address or None,
        )
        for listener in role.listeners:
            listener.role_ending()
        replication.local_id = broker_id
        await replication.become_slave(master_ha_address or None, master_id, epoch)
        self._announce()
        log.info("slave of %s epoch=%d", master_address, epoch)

    def _replication(self) -> HAService:
        replication = self._broker.replication
        assert isinstance(replication, HAService), "elected roles need AutoSwitch replication"
        return replication

    def _announce(self) -> None:
        role = self._broker.role
        for listener in role.listeners:
            listener.role_changed(role)
