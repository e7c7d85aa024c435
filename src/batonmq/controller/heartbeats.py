"""Tells which brokers are alive, from replicated heartbeats and the time of the current event alone.

A heartbeat names its own timeout (`controllerHeartBeatTimeoutMills` of the broker). It also remembers the
connection it came over, so that the closing of an old connection cannot kill a broker that has a newer one.
"""

from __future__ import annotations

from typing import Final

import msgspec

DEFAULT_TIMEOUT_MS: Final = 10_000
"""Used when a heartbeat names no timeout (Java: DEFAULT_BROKER_CHANNEL_EXPIRED_TIME)."""
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
LOWEST_PRIORITY: Final = 2**31 - 1
"""Lower numbers are preferred; a heartbeat without priority comes last (Java: Integer.MAX_VALUE)."""
UNKNOWN_SESSION: Final = 0
FORWARDED: Final = -1
"""Session of a heartbeat that another controller passed on."""
FORWARDED_SINCE: Final = 2
"""First `events.ENTRY_VERSION` whose controllers know FORWARDED."""


class LiveBroker(msgspec.Struct, array_like=True):
    """The last heartbeat of one replica; times in ms of the leader's clock, offsets in commit log bytes."""

    updated_ms: int
    timeout_ms: int
    session: int
    """Negative: connection -session exists, but heartbeats come through another controller, so its end does
    not count the broker as down."""
    epoch: int
    max_offset: int
    confirm_offset: int
    election_priority: int

    def is_alive(self, now_ms: int) -> bool:
        return now_ms - self.updated_ms <= self.timeout_ms


def without_heartbeat(now_ms: int, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> LiveBroker:
    """A replica that counts as alive for ``timeout_ms`` without a heartbeat."""
    return LiveBroker(now_ms, timeout_ms, UNKNOWN_SESSION, NO_EPOCH, NO_OFFSET, NO_OFFSET, LOWEST_PRIORITY)
