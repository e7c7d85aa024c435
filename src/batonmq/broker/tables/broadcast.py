"""The offsets of each client of a broadcasting group.

Such clients keep their offsets themselves. When one moves between a proxy and this broker, or a proxy pulls
for it without an offset, the broker says where it continues. The least offset of a group's clients is
committed under ``group@broadcast``, for clients that come later. Source: `BroadcastOffsetManager`. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

MAX_CLIENT_ID: Final = 1_024
"""Characters of a client id, also of those that proxies name for their clients."""
MAX_CLIENTS: Final = 10_000
"""Clients of all groups and topics. Further ones are not tracked until others are forgotten; RocketMQ has no
limit."""


@dataclass(slots=True)
class _Client:
    from_proxy: bool
    seen_ms: int
    """When it last pulled, monotonic."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Queue -> offset of its last pull; never goes back."""


def broadcast_group(group: str) -> str:
    """The group under which the least offsets are committed."""
    return f"{group}@broadcast"


class BroadcastOffsets:
    """All clients of broadcasting groups of one broker. In memory only, as in RocketMQ."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], dict[str, _Client]] = {}
        """(topic, group) -> client id -> client."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def update(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        client_id: str,
        from_proxy: bool,
        now_ms: int,
    ) -> None:
        """A client has pulled at `offset`."""
        clients = self._clients.get((topic, group), {})
        client = clients.get(client_id)
        if client is None:
            if self._count >= MAX_CLIENTS or len(client_id) > MAX_CLIENT_ID:
                return
            client = clients[client_id] = _Client(from_proxy, now_ms)
            self._clients[topic, group] = clients
            self._count += 1
        client.from_proxy, client.seen_ms = from_proxy, now_ms
        client.offsets[queue_id] = max(offset, client.offsets.get(queue_id, offset))

    def first_offset(
        self, topic: str, group: str, queue_id: int, offset: int, client_id: str, from_proxy: bool
    ) -> int | None:
        """Where a pull at `offset` continues instead: at the client's offset here, -1 if it has none. None:
        it continues at `offset`."""
        client = self._clients.get((topic, group), {}).get(client_id)
        moved = client is not None and client.from_proxy != from_proxy
        if not moved and not (from_proxy and offset < 0):
            return None
        return -1 if client is None else client.offsets.get(queue_id, -1)

    def sweep(
        self, online: Callable[[str, str], bool], now_ms: int, expire_ms: int, expire_max_ms: int
    ) -> dict[tuple[str, str], dict[int, int]]:
        """Forget clients without pulls for `expire_ms`, connected ones for `expire_max_ms`. Returns the least
        offsets: (topic, group) -> queue -> offset. `online`: whether a group has a client of that id."""
        least: dict[tuple[str, str], dict[int, int]] = {}
        for key in list(self._clients):
            clients = self._clients[key]
            for client_id, client in list(clients.items()):
                silent_ms, connected = now_ms - client.seen_ms, online(key[1], client_id)
                if connected or silent_ms < expire_ms:
                    queues = least.setdefault(key, {})
                    for queue_id, offset in client.offsets.items():
                        queues[queue_id] = min(offset, queues.get(queue_id, offset))
                if silent_ms >= (expire_max_ms if connected else expire_ms):
                    del clients[client_id]
                    self._count -= 1
            if not clients:
                del self._clients[key]
        return least
