"""The connected consumers, and the subscriptions of each group.

Heartbeats, unregistrations and closed connections change the table. It sends nothing itself: it calls
`on_members_changed` for a group whose members changed. Source: RocketMQ's consumer registration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from batonmq.common.log import some
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)

if TYPE_CHECKING:
    from batonmq.net.connection import Connection

log = logging.getLogger(__name__)

MOST_BYTES: Final = 64 << 20
"""Of all subscriptions together. A client may name thousands of topics for each of thousands of groups;
RocketMQ sets no limit."""
_EACH: Final = 600
_EACH_TAG: Final = 100
"""Bytes that a subscription and a tag take besides their text."""


def size_of(subscription: SubscriptionData) -> int:
    """About how many bytes a subscription takes in memory."""
    tags = subscription.tags_set
    return (
        _EACH
        + len(subscription.topic)
        + len(subscription.sub_string or "")
        + _EACH_TAG * (len(tags) + len(subscription.code_set))
        + sum(map(len, tags))
    )


class NoRoom(ValueError):
    """All subscriptions together would take more than `MOST_BYTES`."""


@dataclass(slots=True)
class Member:
    """One connected client of a group."""

    client_id: str
    connection: Connection
    language: int
    version: int
    seen_ms: int
    """Time of its last heartbeat, monotonic: if the wall clock is set, no client is silent."""
    user: str | None = None
    """Who signed it, with access control."""


@dataclass(slots=True)
class ConsumerGroup:
    """The connected consumers of one group; the last heartbeat sets type, model and start for all."""

    name: str
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    members: dict[Connection, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    size: int = 0
    """Of the subscriptions, in bytes."""

    @property
    def client_ids(self) -> list[str]:
        return [member.client_id for member in self.members.values()]

    def member(self, client_id: str) -> Member | None:
        return next((m for m in self.members.values() if m.client_id == client_id), None)

    def subscribe(self, subscriptions: Iterable[SubscriptionData], room: int) -> bool:
        """Replace the group's subscriptions; True if a topic was added or removed.

        A newer version of a known subscription replaces it, but is not a change. `room`: bytes by which they
        may grow. Raises `NoRoom`; those up to there are then replaced.
        """
        most = self.size + room
        changed = False
        topics: set[str] = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                if not self.put(subscription, most):
                    raise NoRoom(
                        f"the subscriptions of group {self.name} take too much memory: this broker keeps "
                        f"{MOST_BYTES} bytes of subscriptions for all groups"
                    )
                changed |= known is None
        for topic in self.subscriptions.keys() - topics:
            self.size -= size_of(self.subscriptions.pop(topic))
            changed = True
        return changed

    def put(self, subscription: SubscriptionData, most: int) -> bool:
        """Add or replace one. False if the group's would take more than `most` bytes then."""
        known = self.subscriptions.get(subscription.topic)
        size = self.size + size_of(subscription) - (0 if known is None else size_of(known))
        if size > most and size > self.size:
            return False
        self.size = size
        self.subscriptions[subscription.topic] = subscription
        return True


def _no_listener(group: str) -> None:
    """Default of `on_members_changed`."""


class ConsumerTable:
    """Connected consumers by group."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._by_connection: dict[Connection, dict[str, None]] = {}
        self._remembered: dict[str, ConsumerGroup] = {}
        """Groups without heartbeats, such as those of a proxy, by their pulls and pops."""
        self._fingerprints: dict[str, int] = {}
        self.size = 0
        """Of all subscriptions, in bytes."""
        self.on_members_changed: Callable[[str], None] = _no_listener
        """Called with each group whose members must rebalance."""

    # -- reading

    def group(self, group: str) -> ConsumerGroup | None:
        """The group; None if none of its consumers is connected."""
        return self._groups.get(group)

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def member(self, group: str, client_id: str) -> Member | None:
        found = self._groups.get(group)
        return None if found is None else found.member(client_id)

    def member_on(self, group: str, connection: Connection) -> Member | None:
        """The group's member on this connection."""
        found = self._groups.get(group)
        return None if found is None else found.members.get(connection)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """The group's subscription to a topic, from its heartbeats or else from its last pull."""
        found = self._groups.get(group)
        subscription = None if found is None else found.subscriptions.get(topic)
        if subscription is None and group in self._remembered:
            subscription = self._remembered[group].subscriptions.get(topic)
        return subscription

    def consuming(self) -> list[ConsumerGroup]:
        """The connected groups, and those that only pull or pop; the latter have no members."""
        silent = [group for name, group in self._remembered.items() if name not in self._groups]
        return [*self._groups.values(), *silent]

    def subscriptions(self, group: str) -> Mapping[str, SubscriptionData]:
        """The group's subscriptions from its heartbeats, by topic; empty if no consumer is connected."""
        found = self._groups.get(group)
        return {} if found is None else found.subscriptions

    def groups_of(self, topic: str) -> set[str]:
        return {name for name, group in self._groups.items() if topic in group.subscriptions}

    def connections(self, group: str) -> list[Connection]:
        found = self._groups.get(group)
        return [] if found is None else list(found.members)

    # -- changing

    def fingerprint_changed(self, group: str, fingerprint: int) -> bool:
        """Store the fingerprint of the group's subscriptions; True if the previous one differed."""
        known = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return known is not None and known != fingerprint

    def register(
        self,
        data: ConsumerData,
        connection: Connection,
        client_id: str,
        *,
        language: int,
        version: int,
        now_ms: int,
        notify: bool = True,
        with_subscriptions: bool = True,
    ) -> bool:
        """A heartbeat. True if the group has a new member or its topics changed.

        `notify` is the group's `notifyConsumerIdsChangedEnable`; broadcast groups do not rebalance. Raises
        `NoRoom`; the member is registered all the same.
        """
        if connection.closed:  # its close was handled already; a new member would stay until it expires
            return False
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        changed = connection not in group.members
        group.members[connection] = Member(client_id, connection, language, version, now_ms)
        self._by_connection.setdefault(connection, {})[data.group_name] = None
        if with_subscriptions:
            before = group.size
            try:
                changed |= group.subscribe(data.subscription_data_set, MOST_BYTES - self.size)
            finally:
                self.size += group.size - before
        if changed:
            self._notify(group, notify)
        return changed

    def unregister(self, group: str, connection: Connection, *, notify: bool = True) -> bool:
        """A consumer unregisters. False if it was not a member."""
        groups = self._by_connection.get(connection)
        if groups is not None:
            groups.pop(group, None)
            if not groups:
                del self._by_connection[connection]
        member = self._leave(group, connection, notify)
        if member is not None:
            log.info("consumer left group=%s id=%s client=%s", group, member.client_id, connection.peer)
        return member is not None

    def connection_closed(self, connection: Connection) -> None:
        """Remove the connection's consumers from all their groups."""
        left = self._by_connection.pop(connection, {})
        for group in left:
            self._leave(group, connection, notify=True)
        if left:
            log.info("consumer left groups=%s client=%s", some(left), connection.peer)

    def drop_silent(self, now_ms: int, timeout_ms: int) -> list[Connection]:
        """Remove members whose last heartbeat is older than `timeout_ms`; the caller closes the returned
        connections."""
        silent = {
            member.connection
            for group in self._groups.values()
            for member in group.members.values()
            if now_ms - member.seen_ms > timeout_ms
        }
        for connection in silent:
            log.warning("consumer silent for more than %d ms client=%s", timeout_ms, connection.peer)
            self.connection_closed(connection)
        return list(silent)

    def remember(self, group: str, subscription: SubscriptionData, consume_type: ConsumeType) -> None:
        """Store the subscription of a pull or pop, for a group that sends no heartbeats. Without room for it
        (`MOST_BYTES`) the statistics of the group miss it."""
        found = self._remembered.get(group)
        if found is None:
            if self.size >= MOST_BYTES:
                return
            found = self._remembered[group] = ConsumerGroup(group)
        found.consume_type = consume_type
        known = found.subscriptions.get(subscription.topic)
        if known is not None and known.sub_string == subscription.sub_string:  # nearly always
            found.subscriptions[subscription.topic] = subscription
            return
        before = found.size
        found.put(subscription, before + MOST_BYTES - self.size)
        self.size += found.size - before

    def forget_old_subscriptions(self, now_ms: int, timeout_ms: int) -> None:
        """Drop subscriptions from `remember` that nothing has repeated within `timeout_ms`."""
        for name, group in list(self._remembered.items()):
            old = [t for t, s in group.subscriptions.items() if now_ms - s.sub_version > timeout_ms]
            for topic in old:
                size = size_of(group.subscriptions.pop(topic))
                group.size -= size
                self.size -= size
            if not group.subscriptions:
                del self._remembered[name]

    def _leave(self, name: str, connection: Connection, notify: bool) -> Member | None:
        group = self._groups.get(name)
        member = None if group is None else group.members.pop(connection, None)
        if group is None or member is None:
            return None
        if not group.members:
            del self._groups[name]
            self.size -= group.size
            self._fingerprints.pop(name, None)
        else:
            self._notify(group, notify)
        return member

    def _notify(self, group: ConsumerGroup, notify: bool) -> None:
        if notify and group.message_model is not MessageModel.BROADCASTING:
            self.on_members_changed(group.name)
