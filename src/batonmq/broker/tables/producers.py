"""The connected producers by group: for `producerConnection`, and to check open transactions.

Heartbeats, unregistrations and closed connections change the table. Source: RocketMQ's producer registration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from batonmq.broker.tables.consumers import Member

if TYPE_CHECKING:
    from batonmq.net.connection import Connection

log = logging.getLogger(__name__)


class ProducerTable:
    """Connected producers by group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Connection, Member]] = {}
        self._by_connection: dict[Connection, dict[str, None]] = {}
        self._next: dict[str, int] = {}
        self._by_client: dict[str, Connection] = {}
        """Client id -> its latest connection."""
        self._client_ids: dict[Connection, str] = {}
        self._users: dict[str, str | None] = {}
        """Client id -> the user of its connection."""

    @property
    def groups(self) -> Mapping[str, Mapping[Connection, Member]]:
        return self._groups

    def members(self, group: str) -> list[Member] | None:
        """The group's producers; None if none is connected."""
        found = self._groups.get(group)
        return None if found is None else list(found.values())

    def register(
        self,
        group: str,
        connection: Connection,
        client_id: str,
        *,
        language: int,
        version: int,
        now_ms: int,
        user: str | None = None,
    ) -> bool:
        """A heartbeat that `user` has signed. True if the group has a new member."""
        if connection.closed:  # its close was handled already; a new member would stay until it expires
            return False
        members = self._groups.setdefault(group, {})
        new = connection not in members
        members[connection] = Member(client_id, connection, language, version, now_ms, user)
        self._by_connection.setdefault(connection, {})[group] = None
        if new:
            if self._client_ids.get(connection, client_id) != client_id:
                self._forget_client(connection)  # or its former id would stay for ever
            if self._may_take(client_id, user):
                self._by_client[client_id] = connection
                self._users[client_id] = user
            self._client_ids[connection] = client_id
        return new

    def _may_take(self, client_id: str, user: str | None) -> bool:
        """Whether replies for a client may go to a user: not while another one is connected under that id."""
        held_by = self._by_client.get(client_id)
        return held_by is None or held_by.closed or self._users.get(client_id) == user

    def connection_of(self, client_id: str) -> Connection | None:
        """The connection of a producer, for replies to its requests; None if it is not connected."""
        return self._by_client.get(client_id)

    def unregister(self, group: str, connection: Connection) -> bool:
        """A producer unregisters. False if it was not a member."""
        groups = self._by_connection.get(connection)
        if groups is not None:
            groups.pop(group, None)
            if not groups:
                del self._by_connection[connection]
                self._forget_client(connection)
        return self._leave(group, connection)

    def _forget_client(self, connection: Connection) -> None:
        client_id = self._client_ids.pop(connection, None)
        if client_id is not None and self._by_client.get(client_id) is connection:
            del self._by_client[client_id]
            self._users.pop(client_id, None)

    def _leave(self, group: str, connection: Connection) -> bool:
        members = self._groups.get(group)
        if members is None or members.pop(connection, None) is None:
            return False
        if not members:
            del self._groups[group]
            self._next.pop(group, None)
        return True

    def connection_closed(self, connection: Connection) -> None:
        """Remove the connection's producers from all their groups."""
        for group in self._by_connection.pop(connection, ()):
            self._leave(group, connection)
        self._forget_client(connection)

    def drop_silent(self, now_ms: int, timeout_ms: int) -> list[Connection]:
        """Remove members whose last heartbeat is older than `timeout_ms`; the caller closes the returned
        connections."""
        silent = {
            member.connection
            for members in self._groups.values()
            for member in members.values()
            if now_ms - member.seen_ms > timeout_ms
        }
        for connection in silent:
            log.warning("producer silent for more than %d ms client=%s", timeout_ms, connection.peer)
            self.connection_closed(connection)
        return list(silent)

    def any_member(self, group: str, suits: Callable[[Member], bool] = lambda _: True) -> Member | None:
        """One producer of the group that suits, in turn, to check an open transaction; None if none of those
        is connected."""
        members = [m for m in self._groups.get(group, {}).values() if not m.connection.closed and suits(m)]
        if not members:
            return None
        turn = self._next[group] = self._next.get(group, -1) + 1
        return members[turn % len(members)]
