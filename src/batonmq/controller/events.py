"""The entries of the controller's replicated log.

One log entry carries the events of one turn of the leader's loop and the time they are judged by: the leader
stamps it once, so every replica counts the same brokers as alive and elects the same master (RIP-67).
Whatever else a decision needs beyond the state, such as whether an unclean election is allowed, travels in
the event too.

Events are msgpack arrays headed by a tag. The rules by which controllers of two versions can share a log:

- An entry begins with its version, the time and the list of events, in every version.
- New fields go to the end, with a default. Anything else needs the next `ENTRY_VERSION`: a new event, a value
  with another meaning, another decision for the same event. `VERSIONS` says what each version brought.
- The leader writes the newest version that all members read (`RaftNode.common_entry_version`), and never an
  older one than the log already has.
- A controller that meets an entry of a newer version stops (`NewerEntry`): ignoring it would let replicas
  diverge silently. Bytes that no version writes change nothing on any replica (`ForeignEntry`). Followers
  accept neither from a leader.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from batonmq.raft.errors import ForeignEntry, NewerEntry

VERSIONS = {
    1: "BatonMQ 0.1.0",
    2: "heartbeats with the session FORWARDED",
    3: "refused SyncStateSets that raise the epoch (fence_refused)",
}
ENTRY_VERSION = max(VERSIONS)
FENCE_SINCE = 3
"""First version whose controllers know `AlterSyncStateSet.fence_refused`."""
NO_BROKER = -1
"""Broker id in an election that names no broker: the controller itself asks."""


Number: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""Sums and differences of such numbers can be encoded in a snapshot. The leader itself makes them."""
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Event(msgspec.Struct, array_like=True, frozen=True):
    """Base of all events."""


class AlterSyncStateSet(Event, frozen=True, tag="alter"):
    """The master asks for another SyncStateSet; the epochs are those it believes in."""

    broker_name: str
    master_id: int
    master_epoch: int
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: int
    fence_refused: bool = False
    """A refusal raises the epoch of the SyncStateSet, if the master and its epochs are right."""


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
    session: Number
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

    session: Number
    brokers: tuple[tuple[str, int], ...]
    allow_unclean: bool
    cause: str = "channel-closed"
    """For the event log alone: nothing is decided by it."""


class LeaderStarted(Event, frozen=True, tag="leader"):
    """First event of a leader. Times restart by its clock, which may differ from the former leader's; only
    connections to this leader are known."""

    node_id: str
    sessions: tuple[tuple[str, int, Number], ...]
    """(broker name, broker id, session) of the heartbeat connections this node already has."""
    silent: tuple[tuple[str, int, Positive], ...] = ()
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
    now_ms: Positive
    events: tuple[AnyEvent, ...]


class _Head(msgspec.Struct, array_like=True):
    """An entry of any version."""

    version: int
    now_ms: int
    events: list[list[msgspec.Raw]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entry)
_head_decoder = msgspec.msgpack.Decoder(_Head)
_decode_text = msgspec.msgpack.Decoder(str).decode
_TAGS = frozenset(type_.__struct_config__.tag for type_ in Event.__subclasses__())


def encode(now_ms: int, events: tuple[AnyEvent, ...], version: int = ENTRY_VERSION) -> bytes:
    """The bytes of one log entry."""
    return _encoder.encode(Entry(version, now_ms, events))


def decode(data: bytes) -> Entry:
    """Reads a log entry. Raises `NewerEntry` or `ForeignEntry`."""
    try:
        entry = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(data, error) from error
    if entry.version > ENTRY_VERSION:
        raise _newer(f"version {entry.version}")
    if entry.version < 1:
        raise ForeignEntry(f"an entry of version {entry.version}, which there never was")
    return entry


def _unreadable(data: bytes, error: Exception) -> NewerEntry | ForeignEntry:
    try:
        head = _head_decoder.decode(data)
        tags = [_decode_text(event[0]) for event in head.events if event]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        head, tags = None, []
    if head is not None and head.version > ENTRY_VERSION:
        return _newer(f"version {head.version}")
    unknown = [tag for tag in tags if tag not in _TAGS]
    if head is not None and head.version > 0 and unknown:
        return _newer(f"the event {unknown[0][:32]!r}")
    return ForeignEntry(f"{len(data)} bytes that are not an event of the controllers: {error}")


def _newer(what: str) -> NewerEntry:
    return NewerEntry(
        f"an entry of the controllers' log has {what}; this controller reads up to version {ENTRY_VERSION} "
        "and must be upgraded"
    )
