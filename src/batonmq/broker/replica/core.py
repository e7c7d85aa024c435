"""Decides, without I/O, how a replica registers and which role it takes.

`ReplicasCore` receives the controllers' answers and returns the next step of the registration and the next
role. `registration.py` and `replicas_manager.py` carry them out. Source: RIP-44, ReplicasManager.

Rules about roles:
- A role with an epoch not above the current one changes nothing: notices are repeated and may arrive out of
  order.
- If several roles arrive during a switch, only the newest one is taken afterwards.
- A process never resumes a master epoch in which it was master before it was restarted. Slaves may have bytes
  of that epoch that this replica lost in a crash; one epoch would then name two histories. The replica sends
  no heartbeats until the controllers have dropped it as master, and returns with a new epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from batonmq.broker.replica.identity import Identity
from batonmq.ha.autoswitch.sync_state import SyncStateSet


class Step(Enum):
    """The next step of a starting replica."""

    GET_NEXT_ID = auto()
    """Ask for a free id, and save the claim to it."""
    APPLY_ID = auto()
    """Apply for the claimed id, and save it."""
    REGISTER = auto()
    """Report the address; the answer names the master."""
    ELECT = auto()
    """There is no master: ask for an election."""
    RUN = auto()
    """The role is known, or the replica waits for a master: refresh it periodically."""


@dataclass(frozen=True, slots=True)
class Role:
    """The master of an epoch, as the controllers report it."""

    epoch: int
    master_id: int
    master_address: str
    sync_state_set: SyncStateSet


class ReplicasCore:
    """The state of one replica."""

    def __init__(
        self,
        cluster: str,
        broker_name: str,
        identity: Identity | None,
        last_epoch: int,
        *,
        learner: bool = False,
    ) -> None:
        """`identity`: from the files. `last_epoch`: newest epoch of the log, -1 if none. `learner`: the
        replica never asks for an election. In a new broker set the first replica that asks becomes master,
        and all others copy its log."""
        self.cluster = cluster
        self.broker_name = broker_name
        self.identity = identity
        self.role: Role | None = None
        """The current role."""
        self._former_epoch = last_epoch
        self._wanted: Role | None = None
        self._registered = False
        self._master_known = False
        self.learner = learner
        """An async learner: it waits for a master instead of asking for an election."""

    @property
    def broker_id(self) -> int | None:
        """The id that the controllers granted; None before."""
        identity = self.identity
        return identity.broker_id if identity is not None and identity.check_code is None else None

    @property
    def is_master(self) -> bool:
        return self.role is not None and self.role.master_id == self.broker_id

    @property
    def master_epoch(self) -> int:
        """Newest known master epoch, 0 if none is known."""
        return max(
            self.role.epoch if self.role is not None else 0,
            self._wanted.epoch if self._wanted is not None else 0,
        )

    @property
    def may_heartbeat(self) -> bool:
        """Whether to send heartbeats: not while the controllers must drop this replica as master."""
        return self._registered

    # -- start

    def next_step(self) -> Step:
        if self.identity is None:
            return Step.GET_NEXT_ID
        if self.identity.check_code is not None:
            return Step.APPLY_ID
        if not self._registered:
            return Step.REGISTER
        return Step.RUN if self._master_known or self.learner else Step.ELECT

    def claim_id(self, broker_id: int, address: str, now_ms: int) -> Identity:
        """An id is free. Returns the claim, which must be saved before applying for the id."""
        self.identity = Identity(self.cluster, self.broker_name, broker_id, f"{address};{now_ms}")
        return self.identity

    def id_granted(self) -> Identity:
        """The controllers granted the claimed id. Returns the identity to save."""
        assert self.identity is not None
        self.identity = Identity(self.cluster, self.broker_name, self.identity.broker_id)
        return self.identity

    def id_refused(self) -> None:
        """Another replica has the claimed id: start over."""
        self.identity = None

    def give_up_id(self) -> None:
        """Drop the id: this replica lacks data that the controllers count on, and registers as a new one."""
        self.identity = None
        self._registered = False

    def registered(self, role: Role | None) -> bool:
        """The answer to a registration. False: it names a former epoch of this replica; ask again later."""
        if self._resumes_former_epoch(role):
            return False
        self._registered = True
        self.role_reported(role)
        return True

    def registration_lost(self) -> None:
        """The controllers do not know this broker (its data was cleaned): register again."""
        self._registered = False

    # -- roles

    def role_reported(self, role: Role | None) -> None:
        """The controllers report the current role; None: there is no master."""
        if self._resumes_former_epoch(role):
            # The registration found no master, but this answer names a former epoch: wait again.
            self._registered = self._master_known = False
            return
        self._master_known = role is not None
        if role is None:
            return
        moved = (
            self.role is not None
            and role.epoch == self.role.epoch
            and role.master_id == self.role.master_id != self.broker_id
            and role.master_address != self.role.master_address
        )
        if role.epoch > self.master_epoch or (moved and self._wanted is None):
            self._wanted = role

    def _resumes_former_epoch(self, role: Role | None) -> bool:
        """Whether the role would make this process resume an epoch from before its restart."""
        return (
            role is not None
            and self.role is None
            and self._wanted is None
            and role.master_id == self.broker_id
            and role.epoch <= self._former_epoch
        )

    def next_role(self) -> Role | None:
        """The role to take now, for `role_taken` or `role_failed`; None: the newest is in force."""
        return self._wanted

    def role_taken(self, role: Role) -> None:
        """The role is now in effect."""
        self.role = role
        if self._wanted is role:
            self._wanted = None

    def role_failed(self, role: Role) -> None:
        """The role could not be taken (stale epoch, failed disk): the controllers will report it again."""
        if self._wanted is role:
            self._wanted = None
