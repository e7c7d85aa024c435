"""The role of one broker: master, slave, acting master, or none yet.

`RoleState` says which role is in force; it decides nothing. Who decides is behind `RoleSource`: the file
(`replica/fixed_role.py`) or the controllers (`replica/replicas_manager.py`). Both change the state through
`replica/role_switch.py`, which calls every `RoleListener` in the right order.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from batonmq.protocol.codes import MASTER_ID

NO_ID = -1
"""Broker id of a replica that has none yet."""


class RoleKind(Enum):
    """Who a broker is in its replica group."""

    NONE = "NONE"
    """Not known yet: the controllers have not answered."""
    MASTER = "MASTER"
    SLAVE = "SLAVE"
    ACTING_MASTER = "ACTING_MASTER"
    """A slave that serves reads and locks while its group has no master (RIP-32)."""


class RoleListener(Protocol):
    """What depends on the role. The methods are called in the order of the parts."""

    def role_ending(self) -> None:
        """The role in force ends, by a change or by a stop: answer everything that waits for it."""

    def term_begins(self, epoch: int) -> None:
        """This broker becomes master of `epoch`; it accepts no message before this returns."""

    def role_changed(self, role: RoleState) -> None:
        """A new role is in force."""


class RoleSource(Protocol):
    """Who decides which role this broker has."""

    def start(self) -> None:
        """Begin to decide; the ports listen. Returns at once."""

    async def stop(self) -> None:
        """Decide no more; the role stays as it is."""


class RoleState:
    """The role in force. Changed by `RoleSwitch` alone."""

    __slots__ = (
        "broker_id",
        "epoch",
        "is_master",
        "kind",
        "listeners",
        "master_address",
        "master_ha_address",
        "replicates",
        "stopping",
    )

    def __init__(self) -> None:
        self.kind = RoleKind.NONE
        self.is_master = False
        """Whether messages are accepted; an attribute of its own because each send looks at it."""
        self.replicates = False
        """A master that waits for its slaves (`SYNC_MASTER`)."""
        self.broker_id = NO_ID
        """0 (`MASTER_ID`) on a master; in controller mode a slave's own id is above 0."""
        self.epoch = 0
        """Master epoch in controller mode, else 0."""
        self.master_address: str | None = None
        """``ip:port`` of the master while this broker is a slave, when known."""
        self.master_ha_address: str | None = None
        """``ip:port`` of the master's replication port, when known."""
        self.stopping = False
        """The broker stops: it accepts no message any more, whatever its role."""
        self.listeners: list[RoleListener] = []

    def set_master(
        self, *, address: str, ha_address: str, epoch: int, replicates: bool, broker_id: int = MASTER_ID
    ) -> None:
        """This broker is master."""
        self.kind = RoleKind.MASTER
        self.is_master = True
        self.replicates = replicates
        self.broker_id = broker_id
        self.epoch = epoch
        self.master_address = address
        self.master_ha_address = ha_address

    def set_slave(
        self, *, broker_id: int, epoch: int, master_address: str | None, master_ha_address: str | None
    ) -> None:
        """This broker follows the master at `master_address`."""
        self.kind = RoleKind.SLAVE
        self.is_master = False
        self.replicates = False
        self.broker_id = broker_id
        self.epoch = epoch
        self.master_address = master_address
        self.master_ha_address = master_ha_address
