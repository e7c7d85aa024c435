"""What a replica does about its role, without I/O: how it registers, and which role it takes when.

`ReplicasCore` is told what the controller said and answers with the next request to make and the next role to
take. It never calls anybody; `replica_registration.py` and `replicas.py` do. Source: RIP-44, ReplicasManager.

Rules about roles:
- an epoch not above the one in force changes nothing, whoever says it (notices are repeated and overtake);
- of several changes that came in while one was under way only the newest is made;
- a process never resumes a term that its log has already seen in a former life: bytes it wrote before a
  crash may be at slaves and lost here, and one epoch would then name two histories. It stays silent until the
  controller has given it up, and comes back with a new epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from batonmq.broker.replica.identity import Identity
from batonmq.ha.autoswitch.sync_state import SyncStateSet


class Step(Enum):
    """What a starting replica must do next."""

    GET_NEXT_ID = auto()
    """Ask which id is free, and note down the claim."""
    APPLY_ID = auto()
    """Claim the noted id, and note down that it is ours."""
    REGISTER = auto()
    """Report the address; the answer names the master."""
    ELECT = auto()
    """There is no master: ask to be elected."""
    RUN = auto()
    """The role is known, or others will say it; look at it from time to time."""


@dataclass(frozen=True, slots=True)
class Role:
    """Who is master in which epoch, as the controller said it."""

    epoch: int
    master_id: int
    master_address: str
    sync_state_set: SyncStateSet


class ReplicasCore:
    """One replica, from its start to its end."""

    def __init__(
        self,
        cluster: str,
        broker_name: str,
        identity: Identity | None,
        last_epoch: int,
        *,
        learner: bool = False,
    ) -> None:
        """`identity`: what the files say. `last_epoch`: newest epoch of the log, -1 if none. `learner`: it
        never asks to be elected; the first to ask in a new group becomes its master, and all take its log."""
        self.cluster = cluster
        self.broker_name = broker_name
        self.identity = identity
        self.role: Role | None = None
        """The role in force."""
        self._former_epoch = last_epoch
        self._wanted: Role | None = None
        self._registered = False
        self._master_known = False
        self.learner = learner
        """While there is no master it looks for one instead of asking to be elected."""

    @property
    def broker_id(self) -> int | None:
        """The id, once it is ours."""
        identity = self.identity
        return identity.broker_id if identity is not None and identity.check_code is None else None

    @property
    def is_master(self) -> bool:
        return self.role is not None and self.role.master_id == self.broker_id

    @property
    def master_epoch(self) -> int:
        """Newest master epoch heard of, 0 before any."""
        return max(
            self.role.epoch if self.role is not None else 0,
            self._wanted.epoch if self._wanted is not None else 0,
        )

    @property
    def may_heartbeat(self) -> bool:
        """Whether to tell the controllers that this replica lives: not while it waits to be given up."""
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
        """An id is free: the claim to note down before applying for it."""
        self.identity = Identity(self.cluster, self.broker_name, broker_id, f"{address};{now_ms}")
        return self.identity

    def id_granted(self) -> Identity:
        """The claimed id is ours: what to note down."""
        assert self.identity is not None
        self.identity = Identity(self.cluster, self.broker_name, self.identity.broker_id)
        return self.identity

    def id_refused(self) -> None:
        """Somebody else has the claimed id: begin anew."""
        self.identity = None

    def give_up_id(self) -> None:
        """This replica is not the one any more that the controllers count on: it comes back as a new one."""
        self.identity = None
        self._registered = False

    def registered(self, role: Role | None) -> bool:
        """The answer to a registration. False: it would have us resume a former term; ask again later."""
        if self._resumes_former_epoch(role):
            return False
        self._registered = True
        self.role_reported(role)
        return True

    def registration_lost(self) -> None:
        """The controller does not know this broker (its data was cleaned): register again."""
        self._registered = False

    # -- roles

    def role_reported(self, role: Role | None) -> None:
        """Any news of who is master; None: there is none."""
        if self._resumes_former_epoch(role):
            # Heard after the registration, which found nobody in charge: wait again until that is given up.
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
        """Whether a role would have this process resume a term of a former life."""
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
        """The role is in force."""
        self.role = role
        if self._wanted is role:
            self._wanted = None

    def role_failed(self, role: Role) -> None:
        """The role could not be taken (a stale epoch, a disk): the controller will say it again."""
        if self._wanted is role:
            self._wanted = None
