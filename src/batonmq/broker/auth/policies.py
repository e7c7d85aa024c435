"""Policies: which actions on which resources are allowed or denied, and which entry counts of several.

Source: RIP-ACL 2.0; `Resource`, `PolicyEntry` and `AclAuthorizationHandler` of Apache RocketMQ 5.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, Self, TypeVar

from batonmq.protocol.names import RETRY_PREFIX, holds_all_topics

ANYTHING: Final = "*"
USER: Final = "User"
"""The kind of subject; there is no other."""


class Action(Enum):
    """What is done to a resource; names as on the wire."""

    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(Enum):
    ALLOW = "Allow"
    DENY = "Deny"


class Kind(Enum):
    """Kind of a resource."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(Enum):
    """How the name of a resource is meant; the order is that of precedence."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


class PolicyType(Enum):
    CUSTOM = "Custom"
    DEFAULT = "Default"
    """Its entries count where no custom one matches."""


E = TypeVar("E", bound=Enum)


def by_name(kind: type[E], name: str | None) -> E | None:
    """The member of this name, in any case of letters; None if there is none."""
    lowered = (name or "").lower()
    return next((member for member in kind if str(member.value).lower() == lowered), None)


@dataclass(frozen=True, slots=True)
class Resource:
    """A topic, a group or a cluster, or with a pattern several of them."""

    kind: Kind
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, key: str | None) -> Self | None:
        """``Topic:name``, ``Topic:prefix*``, ``Topic:*`` or ``*``; None for anything else."""
        if not key or key.isspace():
            return None
        if key == ANYTHING:
            return cls(Kind.ANY, "", Pattern.ANY)
        type_name, _, name = key.partition(":")
        kind = by_name(Kind, type_name)
        if kind is None:
            return None
        prefix = name.partition(ANYTHING)[0]
        if kind is Kind.ANY or (name.endswith(ANYTHING) and not prefix):
            return cls(kind, "", Pattern.ANY)
        if name.endswith(ANYTHING):
            return cls(kind, prefix, Pattern.PREFIXED)
        return cls(kind, name)

    @property
    def key(self) -> str:
        """What `parse` reads."""
        if self.kind is Kind.ANY:
            return ANYTHING
        star = "" if self.pattern is Pattern.LITERAL else ANYTHING
        return f"{self.kind.value}:{self.name}{star}"

    def covers(self, other: Resource) -> bool:
        """Whether this, perhaps a pattern, means the other, which is none.

        A pattern does not mean a topic in which brokers keep messages of all topics."""
        if self.pattern is not Pattern.LITERAL and other.kind is Kind.TOPIC and holds_all_topics(other.name):
            return False
        if self.kind is Kind.ANY:
            return True
        if self.kind is not other.kind:
            return False
        if self.pattern is Pattern.PREFIXED:
            return other.name.startswith(self.name)
        return self.pattern is Pattern.ANY or self.name == other.name

    @property
    def precedence(self) -> tuple[bool, int, int]:
        """Of two that cover a resource, the one with the lower value is the more exact one."""
        return self.kind is Kind.ANY, self.pattern.value, -len(self.name)


def topic(name: str) -> Resource:
    return Resource(Kind.TOPIC, name)


def group(name: str) -> Resource:
    """A consumer group, also by the name of its retry topic."""
    return Resource(Kind.GROUP, name.removeprefix(RETRY_PREFIX))


def network_of(text: str) -> IPv4Network | IPv6Network:
    """An address or a network. Raises ValueError."""
    return ip_network(text.strip(), strict=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule of a policy."""

    resource: Resource
    actions: tuple[Action, ...]
    source_ips: tuple[str, ...]
    """Addresses and networks from which the rule holds; empty: all."""
    decision: Decision

    def matches(self, resource: Resource, actions: Sequence[Action], source_ip: str) -> bool:
        """Whether the rule is about one of the actions on the resource from this address."""
        return (
            self.resource.covers(resource)
            and (Action.ALL in self.actions or any(action in self.actions for action in actions))
            and self._holds_from(source_ip)
        )

    def _holds_from(self, source_ip: str) -> bool:
        if not self.source_ips:
            return True
        try:
            address = ip_address(source_ip)
        except ValueError:
            return False
        return any(address in network_of(each) for each in self.source_ips)


@dataclass(frozen=True, slots=True)
class Acl:
    """The entries of one subject, by policy; the order is that in which they were added."""

    policies: tuple[tuple[PolicyType, tuple[Entry, ...]], ...]

    def entries(self, kind: PolicyType) -> tuple[Entry, ...]:
        return next((entries for each, entries in self.policies if each is kind), ())

    def updated(self, policies: Iterable[tuple[PolicyType, Iterable[Entry]]]) -> Acl:
        """With these entries; one for a resource that has one replaces it."""
        merged: dict[PolicyType, dict[Resource, Entry]] = {
            kind: {entry.resource: entry for entry in entries} for kind, entries in self.policies
        }
        for kind, entries in policies:
            merged.setdefault(kind, {}).update({entry.resource: entry for entry in entries})
        return Acl(tuple((kind, tuple(entries.values())) for kind, entries in merged.items()))

    def without(self, kind: PolicyType, resource: Resource) -> Acl:
        """Without the entry for exactly this resource."""
        left = (
            (each, tuple(e for e in entries if each is not kind or e.resource != resource))
            for each, entries in self.policies
        )
        return Acl(tuple((each, entries) for each, entries in left if entries))

    def decide(self, resource: Resource, actions: Sequence[Action], source_ip: str) -> Decision | None:
        """What the most exact matching entry says; None if no entry matches."""
        for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
            matching = [e for e in self.entries(kind) if e.matches(resource, actions, source_ip)]
            if matching:
                return min(matching, key=lambda entry: entry.resource.precedence).decision
        return None


NO_ACL: Final = Acl(())
