"""Carries out the change of a broker's role, in the same order for every source of roles.

A change waits only for the replication, which writes the epoch to disk. Changes never overlap.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from batonmq.ha.autoswitch.service import HAService
from batonmq.ha.classic.service import ClassicHAService

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.ha.autoswitch.sync_state import SyncStateSet

log = logging.getLogger(__name__)


class RoleSwitch:
    """Changes `Broker.role` and calls its listeners."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def become_fixed_master(self, broker_id: int, *, replicates: bool) -> None:
        """Become master by configuration, without a master epoch."""
        broker = self._broker
        replication = broker.replication
        assert isinstance(replication, ClassicHAService), "fixed roles use the plain stream"
        broker.role.set_master(
            address=broker.address,
            ha_address=broker.ha_address,
            epoch=0,
            replicates=replicates,
            log_start=0,
            broker_id=broker_id,
        )
        replication.serve()
        self._announce()

    def become_fixed_slave(self, broker_id: int, master_ha_address: str | None) -> None:
        """Become slave by configuration. The replication port of the master is looked for if it is None."""
        broker = self._broker
        replication = broker.replication
        assert isinstance(replication, ClassicHAService), "fixed roles use the plain stream"
        broker.role.set_slave(
            broker_id=broker_id, epoch=0, master_address=None, master_ha_address=master_ha_address
        )
        replication.follow(master_ha_address)
        self._announce()

    def become_acting(self) -> None:
        """A slave begins to act as master: its broker set has none (RIP-32). It takes no messages."""
        role = self._broker.role
        for listener in role.listeners:
            listener.role_ending()
        role.set_acting(True)
        self._announce()
        log.info("acting as master with broker id %d", role.broker_id)

    def end_acting(self) -> None:
        """A master or a slave with a lower id is back: be a plain slave again."""
        role = self._broker.role
        for listener in role.listeners:
            listener.role_ending()
        role.set_acting(False)
        self._announce()
        log.info("no longer acting as master")

    async def become_master(self, epoch: int, sync_state_set: SyncStateSet, broker_id: int) -> None:
        """Become master of `epoch`. `broker_id`: the id that the controllers assigned to this replica.

        Messages are accepted once this returns. Raises the errors of `HAService.become_master`; the role is
        then unchanged.
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
        role.set_master(
            address=broker.address,
            ha_address=broker.ha_address,
            epoch=epoch,
            replicates=True,
            log_start=broker.store.records_end,
        )
        self._announce()
        log.info("master epoch=%d", epoch)

    async def become_slave(
        self, epoch: int, broker_id: int, master_id: int, master_address: str, master_ha_address: str
    ) -> None:
        """Follow the master of `epoch`; its replication address is empty while unknown. Unacknowledged sends
        are answered with an error, held pulls with the messages found by then. Raises the errors of
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
