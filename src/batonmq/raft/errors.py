"""Errors of a Raft group, as its users see them.

RaftError
 ├─ NotLeader            ask ``leader_id`` instead; nothing was appended
 ├─ TransferInProgress   the leader hands over; nothing was appended, ask again shortly
 ├─ Overloaded           too much is not yet committed; nothing was appended
 ├─ ProposalTooLarge     more than ``max_proposal_bytes``; nothing was appended
 ├─ ProposalLost         certain: the proposal will never be applied
 ├─ ProposalUncertain    unknown: the proposal may or may not be applied
 ├─ ReadUnavailable      a read barrier could not be confirmed in time
 ├─ ReplicaLagging       this follower is too far behind to read from
 ├─ MembershipRefused    the change breaks a rule of chapter 4
 │   └─ MembershipBusy   it does so only now: ask again shortly
 ├─ NodeStopped          the node was stopped or has failed
 ├─ UnreadableState      the state machine cannot restore a snapshot, which is refused
 ├─ ForeignEntry         bytes in the log that no version of the state machine writes; they change nothing
 ├─ NewerEntry           an entry of a newer version of the state machine; this node must be upgraded
 └─ StorageCorrupt       the log or snapshot on disk cannot be trusted; the node must not start
"""

from __future__ import annotations


class RaftError(Exception):
    """Base of all errors of this room."""


class NotLeader(RaftError):
    """This node is not the leader; ``leader_id`` is the one it knows of, or None during an election."""

    def __init__(self, leader_id: str | None) -> None:
        super().__init__(f"not the leader; the leader is {leader_id or 'unknown'}")
        self.leader_id = leader_id


class TransferInProgress(RaftError):
    """The leader is handing over to ``target`` and takes no proposals meanwhile."""

    def __init__(self, target: str) -> None:
        super().__init__(f"leadership is being transferred to {target}")
        self.target = target


class Overloaded(RaftError):
    """More bytes than ``max_uncommitted_bytes`` wait for a quorum."""


class ProposalTooLarge(RaftError):
    """The proposal would not fit into one message to the followers."""


class ProposalLost(RaftError):
    """Another leader's entry took the proposal's place: it was not and never will be applied."""


class ProposalUncertain(RaftError):
    """Leadership was lost, or the node stopped, before the outcome was known."""


class ReadUnavailable(RaftError):
    """No quorum confirmed the leader, or no leader answered, within the read timeout."""


class ReplicaLagging(RaftError):
    """The follower's applied index trails the commit index by more than ``max_read_lag`` entries."""


class MembershipRefused(RaftError):
    """A membership change that is not a safe single step now (dissertation, 4.1 to 4.2)."""


class MembershipBusy(MembershipRefused):
    """The change before it is not committed yet, or this leader has not committed anything yet."""


class NodeStopped(RaftError):
    """The node no longer runs; ``__cause__`` holds the failure that stopped it, if one did."""


class UnreadableState(RaftError):
    """A snapshot that the state machine cannot restore: of another version, damaged or forged. The state
    machine keeps the state it has."""


class ForeignEntry(RaftError):
    """An entry that no version of the state machine has written: forged, or of another program. Every node
    judges it by its bytes alone, so all of them ignore it and their states stay equal."""


class NewerEntry(RaftError):
    """An entry that a newer version of the state machine has written. A node that ignored it would differ
    from those that apply it."""


class StorageCorrupt(RaftError):
    """A file is damaged where a crash cannot have damaged it. The message names file and offset."""
