"""The entries of the controller's replicated log.

One log entry carries the events of one turn of the leader's loop and the time they are judged by: the leader
stamps it once, so every replica counts the same brokers as alive and elects the same master (RIP-67).
Whatever else a decision needs beyond the state, such as whether an unclean election is allowed, travels in
the event too.

Events are msgpack arrays headed by a tag. New fields go to the end, with a default; a tag that is not known
stops the replica (`UnknownEvent`): skipping it would let replicas diverge silently.
"""

from __future__ import annotations

import msgspec

ENTRY_VERSION = 1
NO_BROKER = -1
"""Broker id in an election that names no broker: the controller itself asks."""


class UnknownEvent(Exception):
    """The log holds an entry that this version cannot read; the replica must stop."""


class Event(msgspec.Struct, array_like=True, frozen=True):
    """Base of all events."""


class AlterSyncStateSet(Event, frozen=True, tag="alter"):
    """The master asks for another SyncStateSet; the epochs are those it believes in."""

    broker_name: str
    master_id: int
    master_epoch: int
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: int


class ElectMaster(Event, frozen=True, tag="elect"):
    """Somebody asks for a master: a broker for itself, an operator (designated), or the controller."""

    broker_name: str
    broker_id: int
    designated: bool
    allow_unclean: bool
    cause: str


class ApplyBrokerId(Event, frozen=True, tag="apply-id"):
    """A broker claims an id. The check code (`address;timestamp`) identifies it: a retry has the same."""

    cluster_name: str
    broker_name: str
    broker_id: int
    register_check_code: str


class RegisterBroker(Event, frozen=True, tag="register"):
    """A broker that owns its id reports its address and asks who is master."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str


class CleanBrokerData(Event, frozen=True, tag="clean"):
    """An operator removes replicas, or with no ids the whole broker set."""

    cluster_name: str
    broker_name: str
    broker_ids: str
    clean_living: bool


class Beat(msgspec.Struct, array_like=True, frozen=True):
    """One broker's heartbeat; `session` names its connection, and is unique while one controller leads."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    session: int
    timeout_ms: int
    epoch: int
    max_offset: int
    confirm_offset: int
    election_priority: int


class Heartbeats(Event, frozen=True, tag="beats"):
    """The heartbeats of many brokers that arrived within a few milliseconds."""

    beats: tuple[Beat, ...]


class ChannelClosed(Event, frozen=True, tag="closed"):
    """The connection over which these brokers (name, id) sent heartbeats is gone, or as good as gone: the
    leader found them `suspicion.SILENT`."""

    session: int
    brokers: tuple[tuple[str, int], ...]
    allow_unclean: bool
    cause: str = "channel-closed"
    """For the event log alone: nothing is decided by it."""


class LeaderStarted(Event, frozen=True, tag="leader"):
    """First event of a leader. Times restart by its clock, which may differ from the former leader's; only
    connections to this leader are known."""

    node_id: str
    sessions: tuple[tuple[str, int, int], ...]
    """(broker name, broker id, session) of the heartbeat connections this node already has."""
    silent: tuple[tuple[str, int, int], ...] = ()
    """(broker name, broker id, ms since its last heartbeat came to this node) of the same."""


class Scan(Event, frozen=True, tag="scan"):
    """Timer of the leader: drop brokers whose heartbeats stopped, and re-elect where the master is gone."""

    brokers: bool
    masters: bool
    allow_unclean: bool


AnyEvent = (
    AlterSyncStateSet
    | ElectMaster
    | ApplyBrokerId
    | RegisterBroker
    | CleanBrokerData
    | Heartbeats
    | ChannelClosed
    | LeaderStarted
    | Scan
)


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """One log entry: `now_ms` is the leader's time (ms since 1970) by which all its events are judged."""

    version: int
    now_ms: int
    events: tuple[AnyEvent, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)


def encode(now_ms: int, events: tuple[AnyEvent, ...]) -> bytes:
    """The bytes of one log entry."""
    return _encoder.encode(Entry(ENTRY_VERSION, now_ms, events))


def decode(data: bytes) -> Entry:
    """Reads a log entry; raises `UnknownEvent` for a tag or version that this code does not know."""
    try:
        entry = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise UnknownEvent(f"controller log entry of {len(data)} bytes cannot be read: {error}") from error
    if entry.version != ENTRY_VERSION:
        raise UnknownEvent(f"controller log entry has version {entry.version}, known is {ENTRY_VERSION}")
    return entry
