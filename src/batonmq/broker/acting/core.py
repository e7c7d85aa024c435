"""Decides which members of a broker set are alive, and when a slave acts as its master (RIP-32). No I/O.

Name servers may disagree for a while: one was restarted, or detected a dead broker later. A member counts as
alive while any name server lists it, so a slave acts only when no name server lists a master.

Source: RocketMQ's `BrokerController.syncBrokerMemberGroup`, `updateMinBroker` and `onMinBrokerChange`. In
RocketMQ one name server decides alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from batonmq.protocol.codes import MASTER_ID

LINKED_GRACE_MS: Final = 2_000
"""If the slave is still linked to the master, a master that no name server lists has this long to register
again. A restarted name server may list a slave before the master."""
ALONE_GRACE_MS: Final = 1_000
"""A slave that has known no master since its start, and is alone, gives a master that starts at the same time
this long to register."""


class MemberViews:
    """The members of the broker set, as each name server lists them."""

    def __init__(self) -> None:
        self._views: dict[str, Mapping[int, str]] = {}

    def answered(self, server: str, addresses: Mapping[int, str]) -> None:
        """A name server lists these members: broker ids and client addresses. An empty list does not count:
        the name server does not know the broker set yet."""
        if addresses:
            self._views[server] = dict(addresses)
        else:
            self._views.pop(server, None)

    def failed(self, server: str) -> None:
        """A name server does not answer: its former list no longer counts."""
        self._views.pop(server, None)

    def keep(self, servers: frozenset[str]) -> None:
        """The configuration has changed: drop all name servers but these."""
        for server in self._views.keys() - servers:
            del self._views[server]

    def members(self) -> dict[int, str] | None:
        """All members that any name server lists; None if none answers."""
        if not self._views:
            return None
        found: dict[int, str] = {}
        for view in self._views.values():
            for broker_id, address in view.items():
                found.setdefault(broker_id, address)
        return found


class ActingRule:
    """Decides when one slave acts as master."""

    def __init__(self) -> None:
        self._master: str | None = None
        """Address of the last master that was alive."""
        self._missing_since_ms: int | None = None
        self._reported: str | None = None

    def reported_offline(self, address: str | None) -> None:
        """A name server reported that the broker at `address` left (NOTIFY_MIN_BROKER_ID_CHANGE). If it is
        the master, the slave does not wait."""
        if address:
            self._reported = address

    def seen(self, members: Mapping[int, str]) -> None:
        """The live members, also while this broker has no role."""
        master = members.get(MASTER_ID)
        if master is not None:
            self._master, self._missing_since_ms = master, None
            if self._reported == master:
                self._reported = None

    def wait_ms(
        self, members: Mapping[int, str], broker_id: int, address: str, *, linked: bool, now_ms: int
    ) -> int | None:
        """Milliseconds until this slave acts as master: 0 for at once, None for not at all.

        `broker_id` and `address`: this slave's. `linked`: whether it is linked to the master.
        """
        self.seen(members)
        if MASTER_ID in members:
            return None
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        if not members or min(members) != broker_id or members[broker_id] != address:
            return None
        if not linked and self._master is None and len(members) == 1:
            return max(0, self._missing_since_ms + ALONE_GRACE_MS - now_ms)
        if not linked or (self._reported is not None and self._reported == self._master):
            return 0
        return max(0, self._missing_since_ms + LINKED_GRACE_MS - now_ms)
