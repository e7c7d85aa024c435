"""What Raft promises, checked after every step of a simulated group.

Names as in the dissertation, figure 3.2: election safety, leader append-only, log matching, leader
completeness, state machine safety. Further: nobody votes twice in a term; a committed entry is on the disks
of a majority; a disk gives back what it was asked to keep; acknowledged proposals are neither lost nor
applied twice nor out of order; read barriers are linearizable.

The checks see every node's core, log and disk, and remember what was true before; they share no logic with
the core.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from batonmq.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Kind,
    Message,
    RequestVote,
    SnapshotMeta,
    VoteReply,
    decode_members,
)
from batonmq.raft.state import Role, Save
from batonmq.raft.storage import Recovered
from tests.simulation.raft_violation import Violation

if TYPE_CHECKING:
    from tests.simulation.raft_node import Node


class _OnDisk:
    """What one node's disk has promised to keep: the saves that were completed."""

    def __init__(self) -> None:
        self.terms: dict[int, int] = {}
        """Index -> term of each entry."""
        self.snapshot_index = 0
        self.term = 0
        self.voted_for: str | None = None

    def take(self, save: Save) -> None:
        if save.snapshot is not None:
            self.terms.clear()
            self.snapshot_index = max(self.snapshot_index, save.snapshot.meta.index)
        self._cut(save)
        for place, entry in enumerate(save.entries):
            self.terms[save.first_index + place] = entry.term
        self.term, self.voted_for = save.hard_state.term, save.hard_state.voted_for

    def take_snapshot(self, meta: SnapshotMeta) -> None:
        """Of what the node has applied. Its disk may still hold what another leader wrote there: entries that
        follow an entry that the snapshot contradicts are not in the log any more."""
        self.snapshot_index = max(self.snapshot_index, meta.index)
        if self.terms.get(meta.index, meta.term) != meta.term:
            for index in [index for index in self.terms if index >= meta.index]:
                del self.terms[index]

    def forget(self, save: Save) -> None:
        """A save that broke off: what it would have replaced may be there or not."""
        if save.snapshot is not None:
            self.terms.clear()
        self._cut(save)

    def _cut(self, save: Save) -> None:
        # Indexes rise, since what replaces entries comes after them.
        if save.entries and self.terms and save.first_index <= next(reversed(self.terms)):
            for index in [index for index in self.terms if index >= save.first_index]:
                del self.terms[index]

    def holds(self, index: int, term: int) -> bool:
        return index <= self.snapshot_index or self.terms.get(index) == term


class _Seen:
    """What the checks remember of one node from its last step."""

    def __init__(self) -> None:
        self.life = 0
        self.commit = 0
        self.reign = 0
        """The term that it led; 0: it did not lead."""
        self.reign_end = 0
        """How far its log had come then."""
        self.compared_life = -1
        self.compared: dict[int, int] = {}
        """Index -> term of what was compared in this life."""
        self.last_index = 0
        self.last_term = 0
        """Where the log ended then."""


class Invariants:
    """One group's; every method that may find a promise broken raises `Violation`."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, Entry] = {}
        """What was ever committed, by index."""
        self.committed_in: dict[int, int] = {}
        self.max_committed = 0
        self.acknowledged: dict[int, bytes] = {}
        self.visible = 0
        """The newest state that any client has seen: what begins now must see at least this."""
        self.reads_answered = 0
        self.installs = 0
        self.refused = 0
        """Snapshots."""
        self._votes: dict[tuple[str, int], str] = {}
        self._entries: dict[tuple[int, int], tuple[int, Entry]] = {}
        self._seen: dict[str, _Seen] = {}
        self._disks: dict[str, _OnDisk] = {}

    @property
    def elections(self) -> int:
        return len(self.leaders)

    # ------------------------------------------------------------------ after each step

    def after_step(self, node: Node) -> None:
        core, name = node.core, node.name
        commit, last_index = core.commit_index, core.log.last_index
        seen = self._seen.get(name)
        if seen is None:
            seen = self._seen[name] = _Seen()
        if core.role is Role.LEADER:
            known = self.leaders.setdefault(core.term, name)
            if known != name:
                raise Violation(f"election safety: {known} and {name} lead in term {core.term}")
            if seen.reign != core.term:
                self._leads(node)
            elif last_index < seen.reign_end:
                raise Violation(
                    f"leader append-only: {name} cut its log from {seen.reign_end} to {last_index}"
                )
            elif commit > seen.commit and core.log.term(commit) != core.term:
                raise Violation(f"{name} commits entry {commit} of an older term by counting (3.6.2)")
            seen.reign, seen.reign_end = core.term, last_index
        else:
            seen.reign = 0
        self._match(node, seen)
        if seen.life == node.life and commit < seen.commit:
            raise Violation(f"{name} takes its commit index back from {seen.commit} to {commit}")
        seen.life, seen.commit = node.life, commit

    def _leads(self, node: Node) -> None:
        """Leader completeness, when a leader is elected."""
        core = node.core
        for index in range(core.log.first_index, self.max_committed + 1):
            if self.committed_in[index] < core.term:  # else an old candidate won late: it can commit nothing
                self._must_hold(node, index)

    def _must_hold(self, leader: Node, index: int) -> None:
        log = leader.core.log
        if index > log.base_index and log.term(index) != self.committed[index].term:
            raise Violation(
                f"leader completeness: {leader.name} of term {leader.core.term} holds {log.term(index)} at "
                f"{index}, in term {self.committed_in[index]} {self.committed[index].term} was committed"
            )

    def _match(self, node: Node, seen: _Seen) -> None:
        """Log matching: an index and a term name one entry, and one that precedes it; by induction the same
        log up to there. Only what changed since the last look is compared."""
        log = node.core.log
        last_index, last_term = log.last_index, log.last_term
        if seen.compared_life != node.life:
            seen.compared_life, seen.compared = node.life, {}
        elif last_index == seen.last_index and last_term == seen.last_term:
            return
        compared = seen.compared
        cut = last_index < seen.last_index
        for index in range(last_index, log.base_index, -1):
            entry = log.entry(index)
            known_term = compared.get(index)
            if known_term == entry.term:
                break
            cut = cut or known_term is not None
            compared[index] = entry.term
            prev_term = log.term(index - 1)
            assert prev_term is not None
            known = self._entries.setdefault((index, entry.term), (prev_term, entry))
            if known[0] != prev_term or known[1] != entry:
                raise Violation(
                    f"log matching: {node.name} has {entry} after term {prev_term} at {index}, "
                    f"elsewhere it is {known}"
                )
        seen.last_index, seen.last_term = last_index, last_term
        if cut:
            self._membership(node)

    def _membership(self, node: Node) -> None:
        """The membership in force is the newest in the log, also after entries were taken back (4.1)."""
        core, log = node.core, node.core.log
        for index in range(log.last_index, log.base_index, -1):
            entry = log.entry(index)
            if entry.kind == Kind.MEMBERS:
                if core.membership_index != index or core.members != decode_members(entry.data):
                    raise Violation(
                        f"{node.name} goes by the membership of {core.membership_index}, the newest in its "
                        f"log is at {index}"
                    )
                return
        if core.membership_index > log.base_index:
            raise Violation(
                f"{node.name} goes by a membership at {core.membership_index} that is not in its log"
            )

    # ------------------------------------------------------------------ commit and apply

    def committing(self, node: Node) -> None:
        """A leader's commit index, before anything is done with it."""
        core = node.core
        if core.role is not Role.LEADER:
            return
        if core.commit_index <= self.max_committed:
            return
        for index in range(max(self.max_committed, core.log.base_index) + 1, core.commit_index + 1):
            self._committed(node, index, core.log.entry(index))

    def _committed(self, node: Node, index: int, entry: Entry) -> None:
        known = self.committed.get(index)
        if known is not None:
            if known != entry:
                raise Violation(f"state machine safety: {node.name} has {entry} at {index}, others {known}")
            return
        core = node.core
        self.committed[index] = entry
        self.committed_in[index] = core.term
        self.max_committed = max(self.max_committed, index)
        if core.role is Role.LEADER:
            voters = core.members.voters
            held = [v for v in voters if self._disk(v).holds(index, entry.term)]
            if 2 * len(held) <= len(voters):
                raise Violation(
                    f"{node.name} commits {index} that only {held} of {list(voters)} have on disk"
                )
        for other in self.nodes.values():
            if other.alive and other.core.role is Role.LEADER and other.core.term > core.term:
                self._must_hold(other, index)

    def applying(self, node: Node, index: int, entry: Entry) -> None:
        if index != node.applied_index + 1:
            raise Violation(f"{node.name} applies {index} after {node.applied_index}")
        self._committed(node, index, entry)

    # ------------------------------------------------------------------ disks and votes

    def _disk(self, name: str) -> _OnDisk:
        disk = self._disks.get(name)
        if disk is None:
            disk = self._disks[name] = _OnDisk()
        return disk

    def saved(self, name: str, save: Save) -> None:
        self._disk(name).take(save)

    def snapshot_written(self, name: str, meta: SnapshotMeta) -> None:
        self._disk(name).take_snapshot(meta)

    def crashed(self, name: str, torn: Save | None) -> None:
        if torn is not None:
            self._disk(name).forget(torn)

    def recovered(self, name: str, found: Recovered) -> None:
        """What comes back after a crash is at least what was durable before."""
        disk, log, hard = self._disk(name), found.log, found.hard_state
        if hard.term < disk.term or (
            hard.term == disk.term and disk.voted_for is not None and hard.voted_for != disk.voted_for
        ):
            raise Violation(
                f"{name} forgot that it voted for {disk.voted_for} in term {disk.term}: {hard.term}, "
                f"{hard.voted_for}"
            )
        if log.base_index < disk.snapshot_index and (
            found.snapshot is None or found.snapshot.meta.index < disk.snapshot_index
        ):
            raise Violation(f"{name} lost its snapshot at {disk.snapshot_index}")
        if found.snapshot is not None:
            # Perhaps it became durable in the moment of the crash.
            self._of_committed(name, found.snapshot.meta)
            disk.take_snapshot(found.snapshot.meta)
        for index, term in disk.terms.items():
            if index > log.base_index and log.term(index) != term:
                raise Violation(f"{name} lost entry {index} of term {term}, which was on its disk")
        # From here on the log as found counts.
        disk.terms = {i: log.entry(i).term for i in range(log.first_index, log.last_index + 1)}
        disk.snapshot_index = max(disk.snapshot_index, log.base_index)
        disk.term, disk.voted_for = hard.term, hard.voted_for

    def _of_committed(self, name: str, meta: SnapshotMeta) -> None:
        """A snapshot ends with a committed entry."""
        entry = self.committed.get(meta.index)
        if entry is None or entry.term != meta.term:
            raise Violation(f"{name} has a snapshot up to {meta.index} of term {meta.term}, not committed")

    def sent(self, sender: str, target: str, message: Message) -> None:
        """Promises that leave a node must be on its disk."""
        # A comparison of types takes less time than isinstance; messages have no subclasses.
        if type(message) is AppendReply:
            if not message.rejected:
                self._acknowledged(sender, message)
        elif type(message) is Append:
            leader = self.leaders.get(message.term)
            if leader is not None and leader != sender:
                raise Violation(f"{sender} sends entries in term {message.term}, which it does not lead")
        elif type(message) is VoteReply:
            if message.granted:
                self._voted(sender, message.term, target)
        elif type(message) is RequestVote:
            self._voted(sender, message.term, sender)

    def _acknowledged(self, sender: str, message: AppendReply) -> None:
        core, disk = self.nodes[sender].core, self._disk(sender)
        term = core.log.term(message.index)
        if message.term == core.term and term is not None and not disk.holds(message.index, term):
            raise Violation(f"{sender} acknowledges {message.index}, which is not on its disk")

    def _voted(self, voter: str, term: int, candidate: str) -> None:
        known = self._votes.setdefault((voter, term), candidate)
        if known != candidate:
            raise Violation(f"{voter} votes in term {term} for {known} and for {candidate}")
        if self._disk(voter).term < term:
            raise Violation(f"{voter} speaks for term {term}, of which its disk does not know")

    # ------------------------------------------------------------------ clients

    def acknowledged_at(self, index: int, payload: bytes, visible: int) -> None:
        if index <= visible:
            raise Violation(f"{payload[:20]!r} took place {index}, before {visible} that was seen earlier")
        self.acknowledged[index] = payload
        self.visible = max(self.visible, index)

    def read_answered(self, node: Node, visible: int) -> None:
        self.reads_answered += 1
        if node.applied_index < visible:
            raise Violation(
                f"a read at {node.name} saw the state at {node.applied_index}, though {visible} was visible "
                "before it began"
            )
        self.visible = max(self.visible, node.applied_index)

    def at_the_end(self, members: Iterable[Node], leader: Node) -> None:
        """The healed group at rest: equal state machines with everything that was acknowledged."""
        final = leader.applied
        for node in members:
            if node.applied != final:
                raise Violation(f"{node.name} ends with another state than {leader.name}")
        if len(set(final)) != len(final):
            raise Violation("a proposal was applied twice")
        lost = set(self.acknowledged.values()) - set(final)
        if lost:
            raise Violation(f"acknowledged proposals were lost: {sorted(lost)[:5]}")
