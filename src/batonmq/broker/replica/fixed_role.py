"""The role from the configuration file (`brokerRole`, `brokerId`), for a broker without controllers.

Source: RocketMQ's BrokerStartup (which ids go with which roles) and BrokerController (how a slave finds its
master: `haMasterAddress`, or the answers to its registrations).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from batonmq.broker.replica.slave_sync import SlaveSync
from batonmq.common.config import ConfigError
from batonmq.common.tasks import lasting
from batonmq.protocol.codes import MASTER_ID

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.context import Broker
    from batonmq.broker.replica.role_switch import RoleSwitch

log = logging.getLogger(__name__)

SLAVE: Final = "SLAVE"
SYNC_MASTER: Final = "SYNC_MASTER"


def checked_role(config: BrokerConfig) -> BrokerConfig:
    """The configuration with the broker id that its role has. Raises `ConfigError` for a slave without an
    id."""
    if config.enable_controller_mode:
        return config
    if config.broker_role == SLAVE:
        if config.broker_id <= MASTER_ID:
            raise ConfigError(
                f"brokerId={config.broker_id}: with brokerRole=SLAVE it must be above 0, and no other slave "
                "may have the same"
            )
        if config.enable_slave_acting_master and config.total_replicas <= 1 and not config.skip_pre_online:
            log.warning(
                "totalReplicas=%d, but this broker is a slave: a master that returns does not take over what "
                "its slave did, and delivers it again. Set totalReplicas on all brokers of the set",
                config.total_replicas,
            )
        return config
    if config.broker_id != MASTER_ID:
        log.warning(
            "brokerId=%d has no effect with brokerRole=%s: a master has id 0. A slave has brokerRole=SLAVE",
            config.broker_id,
            config.broker_role,
        )
    return replace(config, broker_id=MASTER_ID)


def starts_isolated(config: BrokerConfig) -> bool:
    """Whether the broker prepares before it takes its role (`broker/preonline`). Source: RocketMQ's
    `BrokerController.start`."""
    return (
        config.enable_slave_acting_master
        and config.total_replicas > 1
        and not config.skip_pre_online
        and not config.enable_controller_mode
    )


class FixedMaster:
    """A `RoleSource` that makes this broker master once, at start."""

    def __init__(self, broker: Broker, switch: RoleSwitch) -> None:
        self._config = broker.settings.broker
        self._switch = switch

    def start(self) -> None:
        config = self._config
        waits = config.broker_role == SYNC_MASTER
        if waits and config.in_sync_replicas <= 1 and config.total_replicas > 1:
            log.warning(
                "brokerRole=SYNC_MASTER waits for no slave with inSyncReplicas=1: with inSyncReplicas=2 a "
                "send is answered when two replicas have the message"
            )
        self._switch.become_fixed_master(config.broker_id, replicates=waits)

    async def stop(self) -> None:
        """Does nothing: no task runs."""


class FixedSlave:
    """A `RoleSource` that makes this broker slave once, and keeps its master's addresses up to date."""

    def __init__(self, broker: Broker, switch: RoleSwitch) -> None:
        self._broker = broker
        self._switch = switch
        self._configured = broker.settings.ha.ha_master_address
        self.slave_sync = SlaveSync(
            broker.client, broker.role, broker.tables, broker.store, self._has_the_masters_log
        )
        self._copied_from: str | None = None
        self._acts = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def _has_the_masters_log(self) -> bool:
        """Tables belong to a log. A master that lost its disk has empty ones, and this slave, whose log it
        refuses, still has the messages of the topics that would be deleted."""
        replication = self._broker.replication
        return replication is None or replication.following

    def start(self) -> None:
        broker = self._broker
        broker.role.on_master_learned = self._learned
        work = lasting(self._copy_tables, "choice of the master to copy tables from")
        self._task = asyncio.get_running_loop().create_task(work)
        self._switch.become_fixed_slave(broker.settings.broker.broker_id, self._configured or None)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.slave_sync.stop()

    def acts(self, acting: bool) -> None:
        """While this slave acts as master it follows nobody and keeps its tables: those of a master that the
        name servers do not list may be older."""
        broker = self._broker
        if acting == self._acts:
            return
        self._acts = acting
        replication = broker.replication
        # A master that returns has announced itself, and this slave may follow it already.
        if replication is not None and (acting or not replication.following):
            replication.set_master_address(None if acting else self._configured or None)
        if acting:
            self.slave_sync.halt()
            broker.role.master_address = None
            broker.role.master_ha_address = self._configured or None
        self._wake.set()

    def _learned(self) -> None:
        role, replication = self._broker.role, self._broker.replication
        if self._acts:
            # The answer to a registration is older than what made this slave act. It registers again when it
            # ends to act.
            role.master_address = None
            return
        if self._configured:
            role.master_ha_address = self._configured
        elif replication is not None and role.master_ha_address is not None:
            replication.set_master_address(role.master_ha_address)
        self._wake.set()

    async def _copy_tables(self) -> None:
        """Copy from whichever master the name servers name."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            address = self._broker.role.master_address
            if self._acts and self._copied_from is not None:
                self._copied_from = None
                await self.slave_sync.stop()
            if address is None or address == self._copied_from:
                continue
            log.info("master is %s, its replication port %s", address, self._broker.role.master_ha_address)
            await self.slave_sync.stop()
            self._copied_from = address
            self.slave_sync.start(address)
