"""failover: each election of a cluster, from controllers' events, brokers' logs and epoch files.

`elections_of` joins what the three sources know of the same master epoch. The events (docs/controller.md,
events.jsonl) have cause and sets. A broker's log has the moment at which it served as master; it also shows
elections whose event was lost, or that a Java controller decided, which writes no events. An epoch file has
the offset at which the epoch began; all replicas must agree on it. `outages.py` adds what producers saw.
No I/O.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Final

EVENT_SCHEMA: Final = (
    "time_ms bigint, node string, event string, cluster_name string, broker_name string, cause string, "
    "result string, old_master int, new_master int, master_epoch int, sync_state_set_epoch int, "
    "candidates array<int>, alive array<int>, unclean boolean, before array<int>, after array<int>, "
    "broker_id int, damaged string"
)
"""The fields of events.jsonl that are used; `damaged` is a line that is not JSON."""
NEW_MASTER, NO_MASTER = "new-master", "no-master"
NOT_RECORDED = "not recorded"
"""The cause of an election of which no event is left."""

_TIME = r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,](\d{3}))?"
OURS: Final = re.compile(rf"^{_TIME} INFO (?:\S+ )?batonmq\.broker\.replica\.role_switch master epoch=(\d+)")
NAME: Final = re.compile(r"batonmq\.broker\.replica\.registration broker id \d+ of (\S+) is granted")
JAVA: Final = re.compile(
    rf"^{_TIME} INFO .*Begin to change to master, brokerName:([^,]*), replicas:[^,]*, new Epoch:(\d+)"
)
"""RocketMQ's `ReplicasManager.changeToMaster`."""
JAVA_ZONE: Final = timezone(timedelta(hours=8))
"""RocketMQ's rmq.broker.logback.xml writes all times in GMT+8."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of events.jsonl, as far as it concerns elections."""

    time_ms: int
    event: str
    broker_set: str
    cause: str = ""
    result: str = ""
    old_master: int | None = None
    new_master: int | None = None
    master_epoch: int = 0
    set_epoch: int = 0
    before: tuple[int, ...] = ()
    """SyncStateSet before."""
    after: tuple[int, ...] = ()
    alive: tuple[int, ...] = ()
    unclean: bool = False
    broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A broker became master, as its log says."""

    time_ms: int
    broker_set: str
    """Empty if the log does not name it."""
    epoch: int


@dataclass(frozen=True, slots=True)
class Epoch:
    """One entry of the epoch file of one replica."""

    broker_set: str
    epoch: int
    start_offset: int
    store: str


@dataclass(frozen=True, slots=True)
class Election:
    """One change of the master of a broker set."""

    broker_set: str
    master_epoch: int
    time_ms: int | None
    """When it was decided; without event when a broker served; None if only an epoch file knows it."""
    cause: str
    old_master: int | None = None
    new_master: int | None = None
    before: tuple[int, ...] = ()
    """SyncStateSet before."""
    after: tuple[int, ...] = ()
    alive: tuple[int, ...] = ()
    unclean: bool = False
    served_ms: int | None = None
    """When the new master served, by its log."""
    whole_ms: int | None = None
    """When the SyncStateSet was as large as before again."""
    start_offset: int | None = None
    """Where the log of the epoch begins."""

    @property
    def recorded(self) -> bool:
        return self.cause != NOT_RECORDED

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def event_of(row: dict[str, object]) -> Event | None:
    """An event from a row of `EVENT_SCHEMA`; None if it does not concern elections, or lacks a field."""
    kind, name, time_ms = row["event"], row["broker_name"], row["time_ms"]
    if not isinstance(name, str) or not isinstance(time_ms, int):
        return None
    if kind == "election":
        if not isinstance(row["master_epoch"], int) or row["result"] not in (NEW_MASTER, NO_MASTER):
            return None
        elected = row["new_master"]
        before = _ids(row["candidates"])
        return Event(
            time_ms,
            "election",
            name,
            str(row["cause"]),
            str(row["result"]),
            _id(row["old_master"]),
            _id(elected),
            row["master_epoch"],
            _id(row["sync_state_set_epoch"]) or 0,
            before,
            # A new master begins with a set of itself; without a master the set remains.
            (elected,) if isinstance(elected, int) else before,
            _ids(row["alive"]),
            bool(row["unclean"]),
        )
    if kind == "sync-state-set":
        return Event(
            time_ms,
            kind,
            name,
            master_epoch=_id(row["master_epoch"]) or 0,
            set_epoch=_id(row["sync_state_set_epoch"]) or 0,
            before=_ids(row["before"]),
            after=_ids(row["after"]),
        )
    if kind in ("replica-up", "replica-down"):
        return Event(time_ms, str(kind), name, str(row["cause"] or ""), broker_id=_id(row["broker_id"]))
    return None


def _id(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _ids(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else ()


def served_of(lines: Iterable[str], zone: tzinfo | None) -> list[Served]:
    """What the log of one broker says; damaged lines are left out. `zone`: of times in our logs; None: this
    machine's."""
    found: list[Served] = []
    name = ""
    for line in lines:
        if match := NAME.search(line):
            name = match[1]
        elif match := OURS.match(line):
            time_ms = _ms(match[1], match[2], zone)
            found += [] if time_ms is None else [Served(time_ms, name, int(match[3]))]
        elif match := JAVA.match(line):
            time_ms = _ms(match[1], match[2], JAVA_ZONE)
            found += [] if time_ms is None else [Served(time_ms, match[3], int(match[4]))]
    # The name may come later than the first elections, for the log is cut into files.
    return [replace(served, broker_set=served.broker_set or name) for served in found]


def _ms(text: str, millis: str | None, zone: tzinfo | None) -> int | None:
    """ms since 1970; None if it is no time."""
    try:
        moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
        moment = moment.replace(tzinfo=zone) if zone is not None else moment.astimezone()
    except (ValueError, OverflowError):
        return None
    return round(moment.timestamp()) * 1000 + int(millis or 0)


def elections_of(
    events: Sequence[Event], served: Sequence[Served] = (), epochs: Sequence[Epoch] = ()
) -> list[Election]:
    """All elections that any source knows, by time; those without a time last.

    Two controllers may have written the same decision, when the leader changed meanwhile: the first counts.
    """
    names = {event.broker_set for event in events} | {epoch.broker_set for epoch in epochs}
    only = next(iter(names)) if len(names) == 1 else None
    moments: dict[tuple[str, int], int] = {}
    for each in sorted(served, key=lambda each: each.time_ms):
        name = each.broker_set or only
        if name is not None:
            moments.setdefault((name, each.epoch), each.time_ms)
    starts: dict[tuple[str, int], int] = {}
    for epoch in epochs:
        starts.setdefault((epoch.broker_set, epoch.epoch), epoch.start_offset)
    found: dict[tuple[str, int], Election] = {}
    for event in sorted(events, key=lambda event: event.time_ms):
        key = event.broker_set, event.master_epoch
        if event.event != "election" or key in found:
            continue
        found[key] = Election(
            *key,
            event.time_ms,
            event.cause,
            event.old_master,
            event.new_master,
            event.before,
            event.after,
            event.alive,
            event.unclean,
        )
    for key in moments.keys() | starts.keys():
        found.setdefault(key, Election(*key, moments.get(key), NOT_RECORDED))
    changes: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.time_ms):
        if event.event == "sync-state-set":
            changes[event.broker_set].append(event)
    ready = [
        replace(
            election,
            served_ms=moments.get(key),
            start_offset=starts.get(key),
            whole_ms=_whole_ms(election, changes[election.broker_set]),
        )
        for key, election in found.items()
    ]
    return sorted(ready, key=lambda e: (e.time_ms is None, e.time_ms or 0, e.broker_set, e.master_epoch))


def _whole_ms(election: Election, changes: Sequence[Event]) -> int | None:
    """When the set was as large as before the election again, in the same or a later epoch. `changes`: of the
    broker set's SyncStateSet, by time."""
    if not election.recorded or election.time_ms is None:
        return None
    first = bisect_left(changes, election.time_ms, key=lambda event: event.time_ms)
    for event in islice(changes, first, None):
        if event.master_epoch >= election.master_epoch and len(event.after) >= len(election.before):
            return event.time_ms
    return None


def disagreements(epochs: Iterable[Epoch]) -> list[str]:
    """Epochs that begin at different offsets in two replicas, each in a sentence. A replica that has none of
    an epoch's records, or has deleted them, does not know the epoch."""
    places: dict[tuple[str, int], dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for each in epochs:
        places[each.broker_set, each.epoch][each.start_offset].append(each.store)
    return [
        f"epoch {epoch} of {name} begins at "
        + " and at ".join(f"{offset:,} in {', '.join(stores)}" for offset, stores in sorted(offsets.items()))
        for (name, epoch), offsets in sorted(places.items())
        if len(offsets) > 1
    ]


@dataclass(frozen=True, slots=True)
class State:
    """A broker set from one moment on."""

    time_ms: int
    master: int | None
    members: tuple[int, ...]
    """SyncStateSet."""


def states_of(broker_set: str, events: Iterable[Event]) -> list[State]:
    """How master and SyncStateSet changed, by time. Two writers of an event are one change."""
    found: list[State] = []
    master: int | None = None
    newest = -1
    for event in sorted(events, key=lambda event: (event.time_ms, event.set_epoch)):
        if event.broker_set != broker_set or event.event not in ("election", "sync-state-set"):
            continue
        if event.set_epoch < newest:
            continue
        newest = event.set_epoch
        if event.event == "election":
            master = event.new_master
        found.append(State(event.time_ms, master, event.after))
    return found
