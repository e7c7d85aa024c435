"""Does the Raft simulation notice? ``python -m tests.simulation.raft_mutations`` takes rules out of the core,
one at a time, and counts the seeds that then fail (`mutation.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

from batonmq.raft import core as raft_core
from batonmq.raft.core import RaftCore
from batonmq.raft.election import Election
from batonmq.raft.election_timer import ElectionTimer
from batonmq.raft.follower import Follower
from batonmq.raft.heartbeats import Heartbeats
from batonmq.raft.log import RaftLog
from batonmq.raft.memberships import Memberships
from batonmq.raft.messages import AppendReply, VoteReply
from batonmq.raft.outbox import Outbox
from batonmq.raft.progress import Progress
from batonmq.raft.read_index import ReadIndex
from batonmq.raft.replication import Replication
from batonmq.raft.transfer import Transfer
from tests.simulation import memory_disk
from tests.simulation.mutation import Mutation, Patch, counting
from tests.simulation.raft_sim import Shape, run_seed

DUELS = Shape(nodes=3, lease_read=True, duels=True)


def _no_fsync() -> list[Patch]:
    return [(memory_disk._Handle, "sync", lambda self: None)]


def _commit_alone() -> list[Patch]:
    original = RaftCore.advance_commit

    def advance(self: RaftCore) -> None:
        with mock.patch.object(raft_core, "reached_by_majority", max):
            original(self)

    return [(RaftCore, "advance_commit", advance)]


def _commit_minority() -> list[Patch]:
    original = RaftCore.advance_commit

    def nearly(values: Any) -> int:
        ordered = sorted(values)
        return ordered[len(ordered) // 2] if len(ordered) % 2 == 0 else ordered[(len(ordered) + 1) // 2]

    def advance(self: RaftCore) -> None:
        if len(self.members.voters) < 3:
            original(self)
            return
        with mock.patch.object(raft_core, "reached_by_majority", nearly):
            original(self)

    return [(RaftCore, "advance_commit", advance)]


def _unsaved(kind: type) -> Callable[[], list[Patch]]:
    def patches() -> list[Patch]:
        original = Outbox.send_durable

        def send(self: Outbox, peer: str, message: Any) -> None:
            if isinstance(message, kind):
                self.send(peer, message)
            else:
                original(self, peer, message)

        return [(Outbox, "send_durable", send)]

    return patches


def _vote_twice() -> list[Patch]:
    original = Election.on_vote

    def on_vote(self: Election, sender: str, message: Any) -> None:
        self._server.voted_for = None
        original(self, sender, message)

    return [(Election, "on_vote", on_vote)]


def _any_log_wins() -> list[Patch]:
    return [(RaftLog, "is_up_to_date", lambda self, index, term: True)]


def _count_old_terms() -> list[Patch]:
    original = RaftCore.advance_commit

    def advance(self: RaftCore) -> None:
        with mock.patch.object(self.log.__class__, "term", lambda log, index: self.term):
            original(self)

    return [(RaftCore, "advance_commit", advance)]


def _no_truncation() -> list[Patch]:
    def drop_known(self: Follower, prev: int, entries: list[Any]) -> tuple[list[Any], int]:
        last = self._server.log.last_index
        have = last - prev
        return (entries[have:], last) if have < len(entries) else ([], prev + len(entries))

    return [(Follower, "_drop_known", drop_known)]


def _read_at_once() -> list[Patch]:
    return [(ReadIndex, "read", lambda self, context: self._answer(context, self._server.commit_index))]


def _read_before_first_commit() -> list[Patch]:
    original = ReadIndex.read

    def read(self: ReadIndex, context: Any) -> None:
        with mock.patch.object(self._server, "term_start_index", 0):
            original(self, context)

    return [(ReadIndex, "read", read)]


def _not_sticky() -> list[Patch]:
    return [(Election, "is_sticky", lambda self: False)]


def _lost_despite_lease() -> list[Patch]:
    """Who has promised to honour a lease votes, and asks for votes, when it takes the leader for gone."""
    is_sticky, arm = ElectionTimer.is_sticky, ElectionTimer.arm

    def sticky(self: ElectionTimer, now_ms: int) -> bool:
        return is_sticky(self, now_ms) and self.lost_leader is None

    def arm_at_once(self: ElectionTimer, now_ms: int, voters: Any) -> None:
        config, self.config = self.config, replace(self.config, lease_read=False)
        try:
            arm(self, now_ms, voters)
        finally:
            self.config = config

    return [(ElectionTimer, "is_sticky", sticky), (ElectionTimer, "arm", arm_at_once)]


def _not_sticky_after_restart() -> list[Patch]:
    original = RaftCore.__init__

    def init(self: RaftCore, *args: Any, **kw: Any) -> None:
        original(self, *args, **kw)
        self.election.timer.contact_ms = None

    return [(RaftCore, "__init__", init)]


def _lease_survives_transfer() -> list[Patch]:
    class Never:
        def __get__(self, transfer: Any, owner: Any) -> bool:
            return False

        def __set__(self, transfer: Any, value: Any) -> None: ...

    return [(Transfer, "offered", Never())]


def _lease_from_answer() -> list[Patch]:
    """The lease begins when the answer arrives, not when the question was sent."""
    original = Heartbeats.on_reply

    def on_reply(self: Heartbeats, sender: str, message: Any) -> bool:
        message.sent_ms = self._server.now_ms
        return original(self, sender, message)

    return [(Heartbeats, "on_reply", on_reply)]


def _lease_by_the_past() -> list[Patch]:
    original = RaftCore.read

    def read(self: RaftCore, number: int, now_ms: int) -> None:
        original(self, number, self.now_ms)

    return [(RaftCore, "read", read)]


def _nothing() -> list[Patch]:
    return []


def _changes_overlap() -> list[Patch]:
    original = RaftCore.change_members

    def change(self: RaftCore, members: Any) -> int:
        with mock.patch.object(RaftCore, "membership_index", property(lambda core: 0)):
            return original(self, members)

    return [(RaftCore, "change_members", change)]


def _change_before_first_commit() -> list[Patch]:
    original = RaftCore.change_members

    def change(self: RaftCore, members: Any) -> int:
        with mock.patch.object(self, "term_start_index", 0):
            return original(self, members)

    return [(RaftCore, "change_members", change)]


def _membership_kept_on_truncation() -> list[Patch]:
    original = Follower._truncate

    def truncate(self: Follower, index: int) -> None:
        server = self._server
        members = server.members
        original(self, index)
        server.memberships = Memberships(min(server.membership_index, server.log.last_index), members)

    return [(Follower, "_truncate", truncate)]


def _trust_progress() -> list[Patch]:
    """A leader takes for acknowledged what it has sent."""
    original = Replication._send_append

    def send(self: Replication, peer: str, progress: Progress, first: int) -> bool:
        sent = original(self, peer, progress, first)
        if sent:
            progress.match = max(progress.match, first)
            progress.match = min(progress.match, self._server.log.last_index)
        return sent

    return [(Replication, "_send_append", send)]


MUTATIONS: dict[str, Mutation[Shape]] = {
    "no-fsync": Mutation("the disk forgets what was synced", _no_fsync),
    "commit-alone": Mutation("one copy is enough to commit", _commit_alone),
    "commit-minority": Mutation("half of the voters are enough to commit", _commit_minority),
    "trust-progress": Mutation("entries count as acknowledged when they are sent", _trust_progress),
    "vote-unsaved": Mutation("votes leave before they are durable", _unsaved(VoteReply)),
    "ack-unsaved": Mutation("appends are acknowledged before they are durable", _unsaved(AppendReply)),
    "vote-twice": Mutation("a node votes for everybody who asks", _vote_twice),
    "any-log-wins": Mutation("votes for logs that lack committed entries", _any_log_wins),
    "count-old-terms": Mutation("entries of old terms are committed by counting", _count_old_terms),
    "no-truncation": Mutation("a follower keeps what its leader does not have", _no_truncation),
    "read-at-once": Mutation("a leader answers reads without a round", _read_at_once),
    "read-early": Mutation("a new leader answers reads before it has committed", _read_before_first_commit),
    "clocks-too-far": Mutation(
        "clocks drift further than the bound that leases are configured for",
        _nothing,
        replace(DUELS, clock_rates=(0.4, 2.0)),
    ),
    "not-sticky": Mutation("votes are given while a leader is active", _not_sticky, DUELS),
    "lost-despite-lease": Mutation(
        "a promise to a lease ends with a connection",
        _lost_despite_lease,
        DUELS,
    ),
    "not-sticky-restart": Mutation("a restarted node votes at once", _not_sticky_after_restart, DUELS),
    "lease-in-transfer": Mutation("a lease survives a transfer", _lease_survives_transfer, DUELS),
    "lease-from-answer": Mutation("a lease begins with the answer", _lease_from_answer, DUELS),
    "lease-by-the-past": Mutation(
        "a paused leader judges its lease by the past",
        _lease_by_the_past,
        DUELS,
    ),
    "changes-overlap": Mutation("a membership change begins before the last is committed", _changes_overlap),
    "change-early": Mutation(
        "a new leader changes the membership before it has committed", _change_before_first_commit
    ),
    "membership-stays": Mutation(
        "a membership that was cut from the log stays in force", _membership_kept_on_truncation
    ),
}


def violation(name: str, seed: int) -> str | None:
    """What the schedule of ``seed`` says with this rule taken out; None if it does not notice."""
    mutation = MUTATIONS[name]
    return mutation.violation(lambda: run_seed(seed, mutation.shape or Shape()))


main = counting(MUTATIONS, violation, seeds=50)

if __name__ == "__main__":
    main()
