"""The Raft protocol as a state machine: messages and the time go in, messages and work for the disk come out.

It never awaits, reads a clock or a global source of randomness, and opens nothing. The shell

1. calls ``step`` for each message and ``tick`` when ``next_deadline_ms`` has come, both with the time;
2. takes ``ready`` once a turn: messages to send, entries to apply, answered reads, and perhaps a leader's
   snapshot, which it restores and then calls ``install``, or ``refuse``: the core does not read its contents;
3. whenever its disk is idle, takes ``take_save``, makes that durable as one unit, calls ``saved``, then sends
   what ``saved`` returns.

So a message that promises durability (a vote, an acknowledged append) waits in a ``Save`` for the disk, while
replication runs beside the leader's own fsync (dissertation, 10.2.1). Saves are made durable in order.

`RaftCore` holds the inputs and outputs, the rules for terms, the role changes and the commit rule. Its parts
are `election`, `follower`, `snapshot_receiver`, `replication`, `heartbeats` (check-quorum, leases),
`transfer`, `reach` and `read_index`. They share the state in `server.Server` and know nothing of the core.

Sections in comments are those of the dissertation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from batonmq.raft.config import RaftConfig
from batonmq.raft.election import Election
from batonmq.raft.election_timer import RandomSource
from batonmq.raft.errors import MembershipBusy, NotLeader, Overloaded, TransferInProgress
from batonmq.raft.follower import Follower
from batonmq.raft.heartbeats import Heartbeats
from batonmq.raft.log import RaftLog
from batonmq.raft.memberships import Memberships, check_change
from batonmq.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallReply,
    InstallSnapshot,
    Kind,
    Members,
    Message,
    NotMember,
    PreVote,
    PreVoteReply,
    ReadReply,
    ReadRequest,
    RequestVote,
    Snapshot,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
    encode,
)
from batonmq.raft.quorum import reached_by_majority
from batonmq.raft.reach import Reach
from batonmq.raft.read_index import ReadIndex
from batonmq.raft.replication import Replication
from batonmq.raft.server import Server
from batonmq.raft.snapshot_receiver import SnapshotReceiver
from batonmq.raft.state import HardState, Offer, Ready, Role, Save
from batonmq.raft.transfer import Transfer

MAX_TERM_STEP: Final = 1 << 32
"""No node misses more elections than this. A term is kept for good, so one that is further ahead, which only
a forged message can have, is not followed: a few of them would use up all numbers."""

Handler: TypeAlias = Callable[[str, Any], object]


class RaftCore(Server):
    def __init__(
        self,
        node_id: str,
        config: RaftConfig,
        *,
        members: Members,
        rng: RandomSource,
        now_ms: int,
        hard_state: HardState | None = None,
        log: RaftLog | None = None,
        snapshot: SnapshotMeta | None = None,
    ) -> None:
        """``members`` is the membership before any entry or snapshot says otherwise."""
        super().__init__(
            node_id,
            config,
            members=members,
            now_ms=now_ms,
            hard_state=hard_state or HardState(),
            log=log or RaftLog(),
            snapshot=snapshot,
        )
        self._handed_out = snapshot.index if snapshot else 0
        """Up to here the shell has the entries."""
        self.election = Election(self, rng)
        self.transfer = Transfer(self)
        self.reach = Reach(self, self.transfer)
        self.follower = Follower(self, self.election, self.reach)
        self.receiver = SnapshotReceiver(self, self.election)
        self.replication = Replication(self)
        self.heartbeats = Heartbeats(self, self.replication, self.transfer, self.reach)
        self.reads = ReadIndex(self, self.replication, self.heartbeats)
        self.handlers = self._handlers()
        """Role -> type of message -> who handles it, once its term equals the node's (pre-votes excepted).
        What is not here is in `ignored.py`."""
        if not self.election.start_alone():
            self.election.timer.arm_first(now_ms)

    def _handlers(self) -> dict[Role, dict[type, Handler]]:
        election, reads = self.election, self.reads
        votes: dict[type, Handler] = {PreVote: election.on_pre_vote, RequestVote: election.on_vote}
        following: dict[type, Handler] = {
            **votes,
            NotMember: election.on_not_member,
            Append: self.follower.on_append,
            Heartbeat: self.follower.on_heartbeat,
            InstallSnapshot: self.receiver.on_install,
            ReadRequest: reads.refuse_read_request,
            TimeoutNow: election.on_timeout_now,
        }
        return {
            Role.FOLLOWER: {**following, ReadReply: reads.on_read_reply},
            Role.PRE_CANDIDATE: {**following, PreVoteReply: election.on_pre_vote_reply},
            Role.CANDIDATE: {**following, VoteReply: election.on_vote_reply},
            Role.LEADER: {
                **votes,
                AppendReply: self._on_append_reply,
                HeartbeatReply: self._on_heartbeat_reply,
                InstallReply: self.replication.on_install_reply,
                ReadRequest: reads.on_read_request,
            },
        }

    def next_deadline_ms(self) -> int:
        """When ``tick`` must be called at the latest."""
        if self.role is not Role.LEADER:
            return self.election.timer.deadline_ms
        notice_due_ms = self.replication.notice_due_ms
        if notice_due_ms is not None:
            return min(notice_due_ms, self.heartbeats.deadline_ms)
        return self.heartbeats.deadline_ms

    # ------------------------------------------------------------------ inputs

    def step(self, sender: str, message: Message, now_ms: int) -> None:
        """Take one message from ``sender``. Messages of any age, order and number are safe."""
        self.now_ms = max(self.now_ms, now_ms)
        if not self._check_term(sender, message):
            return
        handler = self.handlers[self.role].get(type(message))
        if handler is not None:
            handler(sender, message)
        self._check()

    def tick(self, now_ms: int) -> None:
        """Let time pass."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is Role.LEADER:
            self.heartbeats.tick()
        elif self.now_ms >= self.election.timer.deadline_ms:
            self.election.campaign()
        self._check()

    def peer_lost(self, peer: str, now_ms: int) -> None:
        """The shell says that the process of ``peer`` is gone: that saves waiting for the election timeout.

        An error of the shell deposes nobody: the others keep to a leader that contacts them, so a majority
        must have lost it. Until its next message this node does not keep to it, beyond what it promised: an
        address that refuses connections does not prove that nobody there answers reads from a lease.
        """
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is not Role.FOLLOWER or peer != self.leader_id:
            return
        self.election.leader_lost(peer)
        self._check()

    def propose(self, payloads: Sequence[bytes]) -> int:
        """Append ``payloads`` as entries; returns the index of the first.

        Raises NotLeader, TransferInProgress or Overloaded, and then nothing was appended.
        """
        self._require_leader()
        if self.log.bytes_between(self.commit_index, self.log.last_index) > self.config.max_uncommitted_bytes:
            raise Overloaded(f"{self.log.last_index - self.commit_index} entries wait for a quorum")
        first = self.log.last_index + 1
        term = self.term
        self.replication.append([Entry(term, Kind.DATA, payload) for payload in payloads])
        return first

    def change_members(self, members: Members) -> int:
        """Append a membership that differs by at most one voter; returns its index.

        Raises NotLeader, TransferInProgress, MembershipBusy or MembershipRefused.
        """
        self._require_leader()
        if self.commit_index < self.term_start_index:
            # Two leaders could otherwise commit with majorities that do not overlap (4.1, the 2015 erratum).
            raise MembershipBusy("this leader has not yet committed an entry of its term")
        if self.membership_index > self.commit_index:
            raise MembershipBusy("the membership change before this one is not yet committed")
        check_change(self.members, members)
        self.replication.append([Entry(self.term, Kind.MEMBERS, encode(members))])
        return self.log.last_index

    def transfer_leadership(self, target: str, now_ms: int) -> None:
        """Begin to hand over to ``target`` (3.10); given up after one election timeout.

        Raises NotLeader, TransferInProgress or MembershipRefused.
        """
        self.now_ms = max(self.now_ms, now_ms)
        self._require_leader()
        self.transfer.begin(target)

    def read(self, number: int, now_ms: int) -> None:
        """Ask for a read index; the answer comes in ``Ready.reads`` under ``number``."""
        # A process that was stopped for a while must not judge its lease by the time before.
        self.now_ms = max(self.now_ms, now_ms)
        self.reads.ask(number)

    def snapshot_loaded(self, snapshot: Snapshot) -> None:
        """The answer to ``Ready.needs_snapshot``."""
        if self.role is Role.LEADER:
            self.replication.snapshot.loaded(snapshot)

    def install(self, offer: Offer, now_ms: int) -> None:
        """The state machine has restored ``offer``, of the ``Ready`` just taken: log and disk follow."""
        self.now_ms = max(self.now_ms, now_ms)
        meta = offer.snapshot.meta
        assert meta.index > self.commit_index, f"installed at {meta.index}, committed is {self.commit_index}"
        self.log.reset(meta.index, meta.term)
        self.memberships = Memberships(meta.index, meta.members)
        self.commit_index = self._handed_out = meta.index
        self.snapshot = meta
        self.outbox.installed(offer.snapshot)
        self.outbox.send_durable(offer.sender, AppendReply(self.term, self.commit_index))
        self._check()

    def refuse(self, offer: Offer, why: str) -> None:
        """The state machine cannot restore ``offer``, for the reason ``why``: nothing changes."""
        self.receiver.refuse(offer.sender, offer.snapshot.meta, why)

    def compacted(self, meta: SnapshotMeta) -> None:
        """A snapshot of this node's own state is durable: entries before it may be forgotten."""
        if self.snapshot is not None and meta.index <= self.snapshot.index:
            return
        self.snapshot = meta
        # An entry that is not yet on this disk must stay until it is.
        self.log.compact(min(meta.index - self.config.trailing_entries, self.outbox.durable_index))
        self.memberships.forget_before(meta.index)
        self._check()

    # ------------------------------------------------------------------ outputs

    def ready(self, now_ms: int) -> Ready:
        """What came out since the last call."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is Role.LEADER:
            self.reads.confirm_new()
            self.replication.send()
        receiver = self.receiver
        offer = receiver.take_offer() if receiver.offer is not None else None
        messages = self.outbox.take_messages()
        forgetful = self.replication.take_forgetful() if self.replication.forgetful else []
        reads = self.reads.pending.take_done()
        refused = receiver.take_refused() if receiver.refused else []
        first = self._handed_out + 1
        entries = self.log.slice(first, self.commit_index) if self.commit_index >= first else []
        self._handed_out = self.commit_index
        wanted = self.replication.snapshot.wanted
        return Ready(messages, first, entries, offer, refused, forgetful, reads, wanted)

    def take_save(self) -> Save | None:
        """The next unit for the disk, if there is any and none is under way."""
        if not self.outbox.has_save():
            return None
        return self.outbox.take_save(HardState(self.term, self.voted_for, self.commit_index))

    def saved(self, save: Save, now_ms: int) -> list[tuple[str, Message]]:
        """``save`` is durable; returns the messages that waited for it."""
        self.now_ms = max(self.now_ms, now_ms)
        self.outbox.saved(save)
        if self.role is Role.LEADER:
            self.peers[self.id].match = self.outbox.durable_index
            self.advance_commit()
        elif (
            self.role is Role.CANDIDATE
            and save.hard_state.term == self.term
            and save.hard_state.voted_for == self.id
        ):
            # Its own vote counts once it cannot be forgotten.
            self.election.count(self.id, True)
        self._check()
        return save.messages

    # ------------------------------------------------------------------ role changes: only here

    def become_follower(self, term: int, leader_id: str | None) -> None:
        assert term >= self.term, "terms never go back"
        if term > self.term:
            self.term = term
            self.voted_for = None
            self.outbox.hard_state_changed()
        if leader_id != self.leader_id or self.role is Role.LEADER:
            self.reads.refuse_all()
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self.transfer.give_up()
        self.replication.end()
        self.election.arm()

    def become_pre_candidate(self) -> None:
        assert self.role is not Role.LEADER
        self.role = Role.PRE_CANDIDATE
        self._leave_leader()
        self.election.request_pre_votes()

    def become_candidate(self, *, transfer: bool) -> None:
        assert self.role is not Role.LEADER
        self.role = Role.CANDIDATE
        self._leave_leader()
        self.term += 1
        self.voted_for = self.id
        self.outbox.hard_state_changed()
        self.election.request_votes(transfer=transfer)

    def _leave_leader(self) -> None:
        if self.leader_id is not None:
            self.leader_id = None
            self.reads.refuse_all()

    def become_leader(self) -> None:
        assert self.role is Role.CANDIDATE and self.voted_for == self.id
        self.role = Role.LEADER
        self.leader_id = self.id
        self.election.timer.forget_loss()
        self.receiver.discard()
        self.transfer.reset()
        self.replication.begin()
        self.heartbeats.begin()
        self.term_start_index = self.log.last_index + 1
        self.replication.append([Entry(self.term, Kind.NOOP, b"")])
        self.heartbeats.tick()

    # ------------------------------------------------------------------ terms and commits

    def _check_term(self, sender: str, message: Message) -> bool:
        """The rules for terms (3.3), pre-vote (9.6) and leader stickiness (4.2.3), before any handler.

        Returns whether the message goes to its handler.
        """
        # Types are compared, which takes less time than isinstance: messages have no subclasses.
        kind = type(message)
        if kind is NotMember:
            return True  # true in any term: what is committed stays
        pre_vote = kind is PreVote
        vote = kind is RequestVote
        if pre_vote:
            self.reach.asked(sender)
        if pre_vote or vote:
            self.election.answer_removed(sender)
            # No leader hands over to one that is no voter.
            handed_over = (
                isinstance(message, RequestVote) and message.transfer and sender in self.members.voters
            )
            if not handed_over and self.election.is_sticky():
                if pre_vote:
                    # A node that fell behind learns the term even while this one follows a leader.
                    self.outbox.send(sender, PreVoteReply(self.term, False))
                return False
        from_leader = kind is Append or kind is Heartbeat or kind is InstallSnapshot
        if message.term > self.term:
            if message.term > self.term + MAX_TERM_STEP:
                return False
            if not (pre_vote or vote or from_leader or sender in self.members.all()):
                return False  # an answer from a node that was asked nothing
            if pre_vote or (isinstance(message, PreVoteReply) and message.granted):
                return True
            self.become_follower(message.term, sender if from_leader else None)
        elif message.term < self.term:
            if from_leader:
                # Frees a leader of an old term that this node would otherwise keep ignoring.
                self.outbox.send_durable(sender, AppendReply(self.term, 0, rejected=True))
            elif pre_vote:
                self.outbox.send(sender, PreVoteReply(self.term, False))
            elif vote:
                self.outbox.send_durable(sender, VoteReply(self.term, False))
            return False
        return True

    def advance_commit(self) -> None:
        index = reached_by_majority(self.peers[voter].match for voter in self.members.voters)
        # Only entries of its own term are committed by counting (3.6.2).
        if index > self.commit_index and self.log.term(index) == self.term:
            before = self.commit_index
            self.commit_index = index
            if before < self.term_start_index <= index:
                self.reads.term_committed()
            if before < self.membership_index <= index and self.id not in self.members.voters:
                # It led until the group without it was committed (4.2.2).
                if self.id not in self.members.learners:
                    self.removed_at = self.membership_index
                self.heartbeats.broadcast(0)
                self.become_follower(self.term, None)

    def _on_append_reply(self, sender: str, message: AppendReply) -> None:
        if self.replication.on_append_reply(sender, message) and sender == self.transfer.target:
            self.transfer.proceed()

    def _on_heartbeat_reply(self, sender: str, message: HeartbeatReply) -> None:
        if self.heartbeats.on_reply(sender, message):
            self.reads.answer_confirmed()

    def _require_leader(self) -> None:
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader_id)
        if self.transfer.target is not None:
            raise TransferInProgress(self.transfer.target)

    def _check(self) -> None:
        """Invariants that hold after every input."""
        assert self.log.base_index <= self.commit_index <= self.log.last_index
        assert self._handed_out <= self.commit_index
        assert self.outbox.durable_index <= self.log.last_index
        assert (self.role is Role.LEADER) == (self.leader_id == self.id)
        assert self.role is Role.FOLLOWER or self.id in self.members.voters or self.role is Role.LEADER
