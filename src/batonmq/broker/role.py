"""The role of one broker: master, slave, acting master, or none yet.

`RoleState` holds the current role and decides nothing. A `RoleSource` decides: the configuration file
(`replica/fixed_role.py`) or the controllers (`replica/replicas_manager.py`). Both change the state through
`replica/role_switch.py`, which calls every `RoleListener` in the right order.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from batonmq.protocol.codes import MASTER_ID, ResponseCode
from batonmq.protocol.errors import MQError

NO_ID = -1
"""Broker id before the controllers have assigned one."""


class RoleKind(Enum):
    """Role of a broker in its broker set."""

    NONE = "NONE"
    """Unknown: the controllers have not answered yet."""
    MASTER = "MASTER"
    SLAVE = "SLAVE"
    ACTING_MASTER = "ACTING_MASTER"
    """A slave that serves reads and locks while its broker set has no master (RIP-32)."""


class RoleListener(Protocol):
    """Is notified of role changes. Listeners are called in the order of the parts."""

    def role_ending(self) -> None:
        """The current role ends, because it changes or the broker stops: answer all requests that wait."""

    def term_begins(self, epoch: int) -> None:
        """This broker becomes master of `epoch`; it accepts messages only after this returns."""

    def role_changed(self, role: RoleState) -> None:
        """The new role is in effect."""


class RoleSource(Protocol):
    """Decides which role this broker has."""

    def start(self) -> None:
        """Start; the ports listen already. Returns at once."""

    async def stop(self) -> None:
        """Stop; the role stays unchanged."""


def _nothing() -> None:
    """Default of `RoleState.on_master_learned`."""


class RoleState:
    """The current role. Only `RoleSwitch` changes it."""

    __slots__ = (
        "broker_id",
        "epoch",
        "is_master",
        "kind",
        "listeners",
        "log_start",
        "master_address",
        "master_ha_address",
        "on_master_learned",
        "replicates",
        "stopping",
    )

    def __init__(self) -> None:
        self.kind = RoleKind.NONE
        self.is_master = False
        """Whether messages are accepted. A plain attribute because every send reads it."""
        self.replicates = False
        """Whether this master waits for its slaves (`SYNC_MASTER`)."""
        self.broker_id = NO_ID
        """0 (`MASTER_ID`) on a master, above 0 on a slave."""
        self.epoch = 0
        """Master epoch in controller mode, else 0."""
        self.log_start = 0
        """Commit log offset where the messages of earlier terms end; 0 without terms."""
        self.master_address: str | None = None
        """``ip:port`` of the master, if known."""
        self.master_ha_address: str | None = None
        """``ip:port`` of the master's replication port, if known."""
        self.stopping = False
        """Whether the broker is stopping: it then accepts no messages in any role."""
        self.listeners: list[RoleListener] = []
        self.on_master_learned: Callable[[], None] = _nothing
        """Called when a name server has said where the master of this slave is; only with fixed roles."""

    def set_master(
        self,
        *,
        address: str,
        ha_address: str,
        epoch: int,
        replicates: bool,
        log_start: int,
        broker_id: int = MASTER_ID,
    ) -> None:
        """Make this broker master."""
        self.kind = RoleKind.MASTER
        self.is_master = True
        self.replicates = replicates
        self.log_start = log_start
        self.broker_id = broker_id
        self.epoch = epoch
        self.master_address = address
        self.master_ha_address = ha_address

    @property
    def is_acting(self) -> bool:
        """Whether this is a slave that acts as master."""
        return self.kind is RoleKind.ACTING_MASTER

    @property
    def serves(self) -> bool:
        """Whether this broker does a master's work except for taking messages: master or acting master."""
        return self.is_master or self.kind is RoleKind.ACTING_MASTER

    def set_acting(self, acting: bool) -> None:
        """Begin or end to act as master. Only for a slave."""
        assert self.kind in (RoleKind.SLAVE, RoleKind.ACTING_MASTER), self.kind
        self.kind = RoleKind.ACTING_MASTER if acting else RoleKind.SLAVE

    def learn_master(self, address: str | None, ha_address: str | None) -> None:
        """A name server's word on where this slave's master is; None or empty changes nothing."""
        self.master_address = address or self.master_address
        self.master_ha_address = ha_address or self.master_ha_address
        self.on_master_learned()

    def set_slave(
        self, *, broker_id: int, epoch: int, master_address: str | None, master_ha_address: str | None
    ) -> None:
        """Make this broker a slave of the master at `master_address`."""
        self.kind = RoleKind.SLAVE
        self.is_master = False
        self.replicates = False
        self.broker_id = broker_id
        self.epoch = epoch
        self.master_address = master_address
        self.master_ha_address = master_ha_address


def rejected(role: RoleState, what: str = "requests of clients") -> MQError:
    """The broker's role does not allow the request: clients retry elsewhere. `what` it does not take."""
    if role.stopping:
        why = "this broker is stopping"
    elif role.kind is RoleKind.NONE:
        why = "this broker is neither master nor slave yet"
    elif role.is_acting:
        why = f"this broker is a slave that acts as master, and takes no {what}"
    elif role.is_master:
        why = f"this broker has just become master, and takes no {what}"
    else:
        master = f" of {role.master_address}" if role.master_address else ""
        why = f"this broker is a slave{master}, and takes no {what}"
    # A new object each time: an exception that is raised again keeps all earlier tracebacks.
    return MQError(
        ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST]system busy, start flow control for a while: {why}"
    )
