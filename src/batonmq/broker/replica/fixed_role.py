"""The role from the configuration file (`brokerRole`, `brokerId`), for a broker without controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from batonmq.common.config import ConfigError

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.replica.role_switch import RoleSwitch

SLAVE: Final = "SLAVE"
SYNC_MASTER: Final = "SYNC_MASTER"


def check_role(config: BrokerConfig) -> None:
    """Raises `ConfigError` for a slave role outside controller mode."""
    if config.broker_role == SLAVE and not config.enable_controller_mode:
        raise ConfigError(
            "brokerRole=SLAVE: a slave needs enableControllerMode=true and controllerAddr here; "
            "fixed master and slave roles are not available"
        )


class FixedRole:
    """A `RoleSource` that sets the role once, at start."""

    def __init__(self, config: BrokerConfig, switch: RoleSwitch) -> None:
        self._config = config
        self._switch = switch

    def start(self) -> None:
        config = self._config
        self._switch.become_fixed_master(config.broker_id, replicates=config.broker_role == SYNC_MASTER)

    async def stop(self) -> None:
        """Does nothing: no task runs."""
