"""Which members of a broker set are alive, and when a slave acts as its master (RIP-32). Pure.

Several name servers may answer differently for a while: one was restarted, or noticed a dead broker later.
A member counts as alive while any of them lists it, so a slave acts only when all of them agree.

Source: RocketMQ's `BrokerController.syncBrokerMemberGroup`, `updateMinBroker` and `onMinBrokerChange`. There
one name server decides alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from batonmq.protocol.codes import MASTER_ID

LINKED_GRACE_MS: Final = 2_000
"""While the link to the master stands, a master that a name server no longer lists has this long to register
again. A restarted name server knows a slave before it knows the master."""


class MemberViews:
    """What each name server says of the broker set."""

    def __init__(self) -> None:
        self._views: dict[str, Mapping[int, str]] = {}

    def answered(self, server: str, addresses: Mapping[int, str]) -> None:
        """A name server lists these members: broker ids and client addresses. An empty list is no answer: it
        does not know the broker set yet."""
        if addresses:
            self._views[server] = dict(addresses)
        else:
            self._views.pop(server, None)

    def failed(self, server: str) -> None:
        """A name server does not answer: what it said before counts no longer."""
        self._views.pop(server, None)

    def keep(self, servers: frozenset[str]) -> None:
        """Forget all name servers but these: the configuration has changed."""
        for server in self._views.keys() - servers:
            del self._views[server]

    def members(self) -> dict[int, str] | None:
        """All members that some name server lists; None if no name server answers."""
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
        """A name server saw this broker leave (NOTIFY_MIN_BROKER_ID_CHANGE). No grace is due."""
        if address:
            self._reported = address

    def wait_ms(
        self, members: Mapping[int, str], broker_id: int, address: str, *, linked: bool, now_ms: int
    ) -> int | None:
        """Milliseconds until this slave acts as master: 0 for at once, None for not at all.

        `broker_id` and `address`: this slave's. `linked`: whether its link to the master stands.
        """
        master = members.get(MASTER_ID)
        if master is not None:
            self._master, self._missing_since_ms = master, None
            if self._reported == master:
                self._reported = None
            return None
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        if not members or min(members) != broker_id or members[broker_id] != address:
            return None
        if not linked or (self._reported is not None and self._reported == self._master):
            return 0
        return max(0, self._missing_since_ms + LINKED_GRACE_MS - now_ms)
