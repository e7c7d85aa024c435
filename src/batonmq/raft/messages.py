"""The messages between Raft peers, and the entries of the log.

Every type is a msgspec struct, written to the wire and to disk as a msgpack array (no field names). All
messages to one peer at the end of a loop turn travel in one ``Envelope``.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, TypeAlias

import msgspec

WIRE_VERSION: Final = 1
"""Of the messages below. A new field goes to the end of its message, with a default: older nodes skip it. Any
other change needs the next number, in the envelopes that only new nodes can read."""
MOST = 1 << 62
"""No term, index, time or size is larger. Further numbers could be decoded but not be counted up and written
again, and a term is kept for good: one message with such a one would end every node at each start."""
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class NewerWireVersion(msgspec.ValidationError):
    """A message of a newer version, which this one cannot read."""


class Kind(enum.IntEnum):
    """What a log entry is for."""

    NOOP = 0
    """A new leader's first entry: commits what earlier terms left behind (dissertation, 6.4)."""
    DATA = 1
    """A proposal; goes to the state machine."""
    MEMBERS = 2
    """A new membership; in force from the moment it is appended (4.1)."""


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One log entry. Its index is its place in the log."""

    term: Number
    kind: Number
    data: bytes


class Members(msgspec.Struct, array_like=True, frozen=True):
    """Who belongs to the group: id -> address. Learners receive the log but neither vote nor count."""

    voters: dict[str, str]
    learners: dict[str, str] = {}
    services: dict[str, str] = {}
    """Where members serve others than their peers, if that address is known and differs."""

    def all(self) -> dict[str, str]:
        return {**self.voters, **self.learners}

    def with_learner(self, node_id: str, address: str, service: str = "") -> Members:
        services = {**self.services, node_id: service} if service else self.services
        return Members(self.voters, {**self.learners, node_id: address}, services)

    def promoted(self, node_id: str) -> Members:
        """With the learner ``node_id`` as a voter."""
        learners = dict(self.learners)
        return Members({**self.voters, node_id: learners.pop(node_id)}, learners, self.services)

    def without(self, node_id: str) -> Members:
        rest = ({k: v for k, v in part.items() if k != node_id} for part in self._parts())
        return Members(*rest)

    def _parts(self) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        return self.voters, self.learners, self.services


class SnapshotMeta(msgspec.Struct, array_like=True, frozen=True):
    """Where a snapshot stands in the log: it holds the effect of every entry up to ``index``."""

    index: Number
    term: Number
    members: Members


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    meta: SnapshotMeta
    data: bytes


class PreVote(msgspec.Struct, array_like=True, tag=1):
    """ "Would you vote for me in ``term``?" Changes nothing at the receiver (9.6)."""

    term: Number
    last_index: Number
    last_term: Number


class PreVoteReply(msgspec.Struct, array_like=True, tag=2):
    """``term`` echoes the request when granted, else it is the receiver's own."""

    term: Number
    granted: bool


class RequestVote(msgspec.Struct, array_like=True, tag=3):
    term: Number
    last_index: Number
    last_term: Number
    transfer: bool
    """The old leader asked for this election (3.10): leader stickiness does not apply."""


class VoteReply(msgspec.Struct, array_like=True, tag=4):
    term: Number
    granted: bool


class Append(msgspec.Struct, array_like=True, tag=5):
    """Entries that follow ``prev_index``; many a message."""

    term: Number
    prev_index: Number
    prev_term: Number
    commit: Number
    entries: list[Entry]


class AppendReply(msgspec.Struct, array_like=True, tag=6):
    """``index`` is the last one known to match, or the ``prev_index`` that was rejected.

    A rejection carries the last place where the logs can still agree, so that the leader backs up by terms
    and not by entries.
    """

    term: Number
    index: Number
    rejected: bool = False
    hint_index: Number = 0
    hint_term: Number = 0


class Heartbeat(msgspec.Struct, array_like=True, tag=7):
    """``round`` and ``sent_ms`` come back in the reply; round 0 asks for none (it only moves ``commit``)."""

    term: Number
    commit: Number
    round: Number
    sent_ms: Number
    """The leader's monotonic clock: a lease counts from the moment of sending."""


class HeartbeatReply(msgspec.Struct, array_like=True, tag=8):
    term: Number
    round: Number
    sent_ms: Number
    promise_ms: Number = 0
    """For so long from now on the sender gives no vote, whatever it receives, even if it restarts."""
    asked_by: list[str] = []
    """Voters that lately asked the sender for pre-votes (`reach.py`)."""


class InstallSnapshot(msgspec.Struct, array_like=True, tag=9):
    """One chunk of a snapshot of ``total`` bytes whose CRC-32 is ``checksum``."""

    term: Number
    meta: SnapshotMeta
    total: Annotated[int, msgspec.Meta(ge=1, le=MOST)]
    checksum: Number
    offset: Number
    data: bytes


class InstallReply(msgspec.Struct, array_like=True, tag=10):
    """The receiver holds bytes up to ``next_offset`` of the snapshot at ``index``, or will not take it."""

    term: Number
    index: Number
    next_offset: Number
    refused: bool = False


class TimeoutNow(msgspec.Struct, array_like=True, tag=11):
    """ "Become the leader": start an election at once."""

    term: Number


class ReadRequest(msgspec.Struct, array_like=True, tag=12):
    """A follower asks for a read index (6.4). ``id`` is the follower's own number for the question."""

    term: Number
    id: Number


class ReadReply(msgspec.Struct, array_like=True, tag=13):
    """``index`` is 0 when the leader cannot answer."""

    term: Number
    id: Number
    index: Number


class NotMember(msgspec.Struct, array_like=True, tag=14):
    """ "You ask for votes, but by the membership at ``index``, which is committed, you are not a member." """

    term: Number
    index: Number


Message: TypeAlias = (
    PreVote
    | PreVoteReply
    | RequestVote
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | InstallSnapshot
    | InstallReply
    | TimeoutNow
    | ReadRequest
    | ReadReply
    | NotMember
)


class Envelope(msgspec.Struct, array_like=True):
    """All messages of one loop turn from ``sender`` to ``target``, both of the group ``group``."""

    group: str
    sender: str
    target: str
    messages: list[Message]
    version: Number = 1
    """The oldest `WIRE_VERSION` that can read these messages."""
    entry_version: Number = 1
    """The newest version of entries that the sender's state machine can read."""


class _EnvelopeHead(msgspec.Struct, array_like=True):
    """What an envelope begins with and ends with in every version."""

    group: str
    sender: str
    target: str
    messages: msgspec.Raw
    version: Number = 1


_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_head_decoder = msgspec.msgpack.Decoder(_EnvelopeHead)
_members_decoder = msgspec.msgpack.Decoder(Members)


def encode(value: Envelope | Members) -> bytes:
    return _encoder.encode(value)


def decode_envelope(payload: bytes | memoryview) -> Envelope:
    """Raises NewerWireVersion for an envelope of a newer version, and
    msgspec.DecodeError or msgspec.ValidationError for anything that is not an envelope, and for one
    with what no node sends: an entry whose kind is MEMBERS but that is not a membership, a membership that no
    change leads to, a snapshot of a later term than its sender's."""
    try:
        try:
            envelope = _envelope_decoder.decode(payload)
        except msgspec.ValidationError:
            _check_version(_head_decoder.decode(payload).version)
            raise
        _check_version(envelope.version)
        for message in envelope.messages:
            _check_message(message)
    except RecursionError:
        raise msgspec.ValidationError("arrays within arrays without end") from None
    except UnicodeDecodeError as error:  # which msgspec lets through
        raise msgspec.ValidationError(f"text that is none: {error}") from None
    return envelope


def _check_version(version: int) -> None:
    if version > WIRE_VERSION:
        raise NewerWireVersion(
            f"it speaks version {version} of the Raft messages, this controller version {WIRE_VERSION}"
        )


def _check_message(message: Message) -> None:
    if type(message) is Append:
        for entry in message.entries:
            if entry.kind == Kind.MEMBERS:
                _check_members(_members_decoder.decode(entry.data))
    elif type(message) is InstallSnapshot:
        meta = message.meta
        _check_members(meta.members)
        if not 0 < meta.term <= message.term:
            raise msgspec.ValidationError(
                f"a leader of term {message.term} has no snapshot that ends in term {meta.term}"
            )


def _check_members(members: Members) -> None:
    if not members.voters:
        raise msgspec.ValidationError("a membership without voters")
    if members.voters.keys() & members.learners.keys():
        raise msgspec.ValidationError("a membership in which voters are learners")


def decode_members(data: bytes) -> Members:
    return _members_decoder.decode(data)
