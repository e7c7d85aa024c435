"""The brokers of one container: which may join, in which process each runs, and its state. No I/O.

Source: RocketMQ's `BrokerContainer` (one table for masters, one for slaves, by cluster, name and id). It
accepts brokers whose ports or directories are in use, and they fail when they start. Here they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True, order=True)
class BrokerIdentity:
    """Identifies a broker of a container. In controller mode the id is the one in the file."""

    cluster: str
    name: str
    broker_id: int

    @property
    def canonical_name(self) -> str:
        """``cluster_name_id``: how RocketMQ names the broker in errors and logs."""
        return f"{self.cluster}_{self.name}_{self.broker_id}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that a program listens on, and the key that sets it."""

    key: str
    host: str
    port: int

    def clashes(self, other: Listener) -> bool:
        """Whether the two cannot listen at the same time. Port 0 is any free port."""
        if not self.port or self.port != other.port:
            return False
        return self.host == other.host or not _WILDCARDS.isdisjoint((self.host, other.host))


@dataclass(frozen=True, slots=True)
class BrokerClaims:
    """Ports and directories that a broker cannot share."""

    identity: BrokerIdentity
    slave: bool
    listeners: tuple[Listener, ...]
    directories: frozenset[str]
    """Absolute paths."""


class BrokerState(Enum):
    """The state of a broker in the table; a stopped broker is not in it."""

    STARTING = "is starting"
    RUNNING = "is running"
    STOPPING = "is being removed"


@dataclass(slots=True)
class Entry:
    """One broker of the container."""

    claims: BrokerClaims
    place: int
    """Number of its process, from 0."""
    state: BrokerState = BrokerState.STARTING


class BrokerTable:
    """All brokers of a container. Those that are starting or stopping count too: they use ports and files."""

    def __init__(self, places: int = 1, taken: Iterable[Listener] = ()) -> None:
        """`places`: number of processes to spread brokers over. `taken`: ports of the container itself."""
        self._entries: dict[BrokerIdentity, Entry] = {}
        self._places = places
        self._taken = tuple(taken)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def join(self, claims: BrokerClaims) -> Entry:
        """Add a broker that is about to start, in the process with the fewest brokers of its role. Raises
        `MQError` SYSTEM_ERROR if a broker has the same identity or port, or a directory that is, holds or
        lies in one of this broker's."""
        identity = claims.identity
        known = self._entries.get(identity)
        if known is not None and known.state is BrokerState.STOPPING:
            raise _refused(f"{identity.canonical_name} {known.state.value}")
        if known is not None:
            raise _refused(f"{identity.canonical_name} has already been added to current broker container")
        self._check_ports(claims, "the container", self._taken)
        for entry in self._entries.values():
            other = entry.claims
            name = other.identity.canonical_name
            self._check_ports(claims, name, other.listeners)
            if overlap := _overlap(claims.directories, other.directories, name):
                raise _refused(f"{identity.canonical_name}: {overlap}")
        entry = self._entries[identity] = Entry(claims, self._choose_place(claims))
        return entry

    def get(self, identity: BrokerIdentity) -> Entry | None:
        """A broker that is starting or running; None if there is none, or if it is being removed."""
        entry = self._entries.get(identity)
        return None if entry is None or entry.state is BrokerState.STOPPING else entry

    def leave(self, entry: Entry) -> None:
        """Remove a broker that has stopped, or did not start."""
        if self._entries.get(entry.claims.identity) is entry:
            del self._entries[entry.claims.identity]

    def _check_ports(self, claims: BrokerClaims, owner: str, taken: Sequence[Listener]) -> None:
        for mine in claims.listeners:
            for other in taken:
                if mine.clashes(other):
                    raise _refused(
                        f"{claims.identity.canonical_name}: port {mine.port} ({mine.key}) is used by {owner} "
                        f"({other.key})"
                    )

    def _choose_place(self, claims: BrokerClaims) -> int:
        """Masters and slaves are counted separately, because slaves that only copy need little CPU time."""

        def load(place: int) -> tuple[int, int, int]:
            there = [entry.claims.slave for entry in self._entries.values() if entry.place == place]
            return there.count(claims.slave), len(there), place

        return min(range(self._places), key=load)


def split_paths(text: str) -> list[str]:
    """The paths of `brokerConfigPaths`, separated by ``:``, in order."""
    return [part.strip() for part in text.split(":") if part.strip()]


def _overlap(mine: frozenset[str], theirs: frozenset[str], owner: str) -> str:
    """What is wrong with having these directories beside those of `owner`; empty: nothing."""
    if shared := mine & theirs:
        return f"{min(shared)} is a store of {owner} already"
    # The deepest ones first: they say most.
    others = sorted(map(PurePath, theirs), key=lambda each: -len(each.parts))
    for path in sorted(map(PurePath, mine)):
        for other in others:
            if path.is_relative_to(other):
                return f"its store {path} lies in {other}, a store of {owner}"
            if other.is_relative_to(path):
                return f"its store {path} holds {other}, a store of {owner}"
    return ""


def _refused(remark: str) -> MQError:
    return MQError(ResponseCode.SYSTEM_ERROR, remark)
