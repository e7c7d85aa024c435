"""Which replicas are in sync with the master, and how far each is: the SyncStateSet during one master's term.

Owns the rules for the confirm offset, for dropping members (shrink) and for adding replicas (expand). It does
no I/O: the broker's `set_proposals.py` carries proposals to the controller and brings back the answers.
Source: RIP-44, "SyncStateSet change"; apache/rocketmq #5663 and #6662 for what must not happen.

Why the union: from the moment the controller is asked for a new set until its answer is here, it may already
have agreed, and may elect any member of either set. Only what the members of both sets hold is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SyncStateSet:
    """Broker ids the controller may elect from, and how often that set has changed."""

    members: frozenset[int]
    epoch: int


@dataclass(slots=True)
class Replica:
    """What the master knows of one slave in this term."""

    broker_id: int
    ack_offset: int = -1
    """The slave has the log up to here; -1 before its first ack in this term."""
    caught_up_ms: int = 0
    """Newest time of which it is known that the slave had everything the master had then."""
    connected: bool = False
    async_learner: bool = False
    silent: bool = False
    """It has sent nothing for unusually long: hung, or cut off."""


@dataclass(slots=True)
class SyncStateTracker:
    """One term of one master. Offsets are physical, in bytes; times are monotonic, in ms."""

    local_id: int
    agreed: SyncStateSet
    """The controller's set, as far as it is known here."""
    epoch_start: int
    """Start offset of this term: a replica whose log ends before it may have another history."""
    confirm_offset: int
    """Everything below is held by all members; it never moves back in a term."""
    max_lag_ms: int
    started_ms: int
    proposal: frozenset[int] | None = None
    """A set that the controller was asked for, and may have agreed to."""
    in_flight: bool = False
    replicas: dict[int, Replica] = field(default_factory=dict)
    registered: frozenset[int] = frozenset()
    """Ids the controller has given to this group, as far as it was asked."""
    down: frozenset[int] = frozenset()
    """Ids that the controller counts as down. It refuses every set with one of them, even if the master is
    linked to that replica."""

    def knows(self, broker_id: int) -> bool:
        """Whether the controller has given out this id. Others are not replicas of the group (#3015)."""
        return broker_id in self.registered or broker_id in self.agreed.members

    @property
    def counted(self) -> frozenset[int]:
        """Members whose acks count now: those of the agreed and of the proposed set."""
        return self.agreed.members if self.proposal is None else self.agreed.members | self.proposal

    def connected(self, broker_id: int, *, async_learner: bool) -> Replica:
        """A slave's link is in transfer. Acks of an earlier link are forgotten: the log may have been cut."""
        known = self.replicas.get(broker_id)
        caught_up = known.caught_up_ms if known is not None else self.started_ms
        replica = Replica(broker_id, -1, caught_up, True, async_learner)
        self.replicas[broker_id] = replica
        return replica

    def disconnected(self, broker_id: int) -> None:
        """The slave's link is gone. Nothing is kept of an id that is not registered: there may be any
        number."""
        replica = self.replicas.get(broker_id)
        if replica is not None and not self.knows(broker_id):
            del self.replicas[broker_id]
        elif replica is not None:
            replica.connected = False
            replica.ack_offset = -1

    def confirm(self, own_max_offset: int) -> int:
        """The confirm offset, raised if every counted member allows it.

        A member without a link, or without an ack yet, holds it where it is (#6662).
        """
        self.confirm_offset = max(self.confirm_offset, self.held_by_all(own_max_offset))
        return self.confirm_offset

    def held_by_all(self, own_max_offset: int) -> int:
        """How far every counted member has the log; -1 while one of them has no link or has sent no ack, and
        if the set is not this master's any more: an operator removed it, or another one was elected."""
        if self.local_id not in self.agreed.members:
            return -1
        offset = own_max_offset
        for broker_id in self.counted:
            if broker_id == self.local_id:
                continue
            replica = self.replicas.get(broker_id)
            if replica is None or not replica.connected or replica.ack_offset < 0:
                return -1
            offset = min(offset, replica.ack_offset)
        return offset

    def acked_by(self, copies: int, own_max_offset: int) -> int:
        """Highest offset that `copies` replicas hold, the master counted; -1 if there are not so many.

        Unregistered ids do not count: any peer that reaches the port can claim an id and an offset that was
        sent.
        """
        held = [own_max_offset] + [
            replica.ack_offset
            for broker_id, replica in self.replicas.items()
            if replica.connected and not replica.async_learner and self.knows(broker_id)
        ]
        held.sort(reverse=True)
        return held[copies - 1] if 1 <= copies <= len(held) else -1

    def wanted(self, now_ms: int) -> frozenset[int]:
        """The set as it should be: without members that lag, fell silent or left, with replicas that caught
        up."""
        members = {broker_id for broker_id in self.agreed.members if not self._lags(broker_id, now_ms)}
        members.add(self.local_id)
        for broker_id, replica in self.replicas.items():
            if (
                broker_id not in self.agreed.members
                and broker_id in self.registered
                and replica.connected
                and not replica.silent
                and not replica.async_learner
                and broker_id not in self.down
                and replica.ack_offset >= max(self.confirm_offset, self.epoch_start)
            ):
                members.add(broker_id)
        if members != self.agreed.members:
            # Otherwise a lost member could not be removed while the controller does not see another one.
            members -= self.down - {self.local_id}
        return frozenset(members)

    def _lags(self, broker_id: int, now_ms: int) -> bool:
        replica = self.replicas.get(broker_id)
        if replica is None:
            # Not connected in this term yet: it has as long to find its new master as a lagging member has.
            return broker_id != self.local_id and now_ms - self.started_ms > self.max_lag_ms
        if not replica.connected or replica.silent:
            return True
        if replica.async_learner:
            # It was a member, and its new link came before the end of the former one was seen.
            return True
        return now_ms - replica.caught_up_ms > self.max_lag_ms

    def propose(self, now_ms: int) -> frozenset[int] | None:
        """The set to ask the controller for, None if there is nothing to ask; its outcome goes to `answered`.

        From this moment the proposed members count. A proposal whose outcome is unknown is asked again until
        the controller gives a definite answer: it may have taken effect.
        """
        if self.in_flight:
            return None
        members = self.proposal if self.proposal is not None else self.wanted(now_ms)
        if members == self.agreed.members and self.proposal is None:
            return None
        self.proposal = members
        self.in_flight = True
        return members

    def answered(self, outcome: SyncStateSet | None, *, refused: bool = False) -> None:
        """The outcome of a proposal: the new set; None if unknown, or with `refused` certainly not taken."""
        self.in_flight = False
        if outcome is not None:
            self.agree(outcome)
            self.proposal = None
        elif refused:
            self.proposal = None

    def agree(self, current: SyncStateSet) -> None:
        """The controller's set, wherever it was learned; one older than the known one changes nothing.

        A newer one also settles an open proposal: the controller takes one only on top of the set it was made
        for.
        """
        if current.epoch > self.agreed.epoch:
            self.agreed = current
            if not self.in_flight:
                self.proposal = None
