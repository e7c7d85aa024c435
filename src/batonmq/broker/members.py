"""The live replicas of one broker set, as the name servers know them.

Shared state, like `role.py`: whoever asks the name servers changes it through `update`. Its readers are
locks that need a quorum, the count of live replicas for sends, and the choice of an acting master (RIP-32).
It stays empty in controller mode and without `enableSlaveActingMaster`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from batonmq.protocol.codes import MASTER_ID


class MemberGroup:
    """Broker ids and client addresses (``ip:port``) of the live replicas of this broker's set.

    Source: RocketMQ's `BrokerMemberGroup` (GET_BROKER_MEMBER_GROUP, 901).
    """

    __slots__ = ("addresses", "listeners", "refresh")

    def __init__(self) -> None:
        self.addresses: Mapping[int, str] = {}
        """By broker id. Empty until a name server has answered."""
        self.listeners: list[Callable[[MemberGroup], None]] = []
        """Called after each change, in order."""
        self.refresh: Callable[[], None] = lambda: None
        """Asks the name servers at once, because the members may have changed; set by whoever asks them."""

    @property
    def known(self) -> bool:
        """Whether a name server has answered since the start."""
        return bool(self.addresses)

    @property
    def min_id(self) -> int | None:
        """The lowest live broker id; None while unknown."""
        return min(self.addresses, default=None)

    @property
    def master_alive(self) -> bool:
        """Whether a master is registered."""
        return MASTER_ID in self.addresses

    def others(self, broker_id: int) -> dict[int, str]:
        """The members except `broker_id`."""
        return {member: address for member, address in self.addresses.items() if member != broker_id}

    def update(self, addresses: Mapping[int, str]) -> bool:
        """Replace the members; returns whether they differ from the former ones, and calls the listeners if
        so."""
        if addresses == self.addresses:
            return False
        self.addresses = dict(addresses)
        for listener in self.listeners:
            listener(self)
        return True
