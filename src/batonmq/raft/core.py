"""The Raft protocol as a state machine: messages and the time go in, messages and work for the disk come out.

It never awaits, reads a clock, draws from a global source of chance or opens anything. The shell

1. calls ``step`` for each message and ``tick`` when ``next_deadline_ms`` has come, both with the time;
2. takes ``ready`` once a turn: messages to send, entries to apply, answered reads, and perhaps a leader's
   snapshot, which it restores and has ``install``ed, or has ``refuse``d: what it holds is none of the core's
   business;
3. whenever its disk is idle, takes ``take_save``, makes that durable as one unit, calls ``saved``, then sends
   what ``saved`` returns.

So a message that promises durability (a vote, an acknowledged append) waits in a ``Save`` for the disk, while
replication runs beside the leader's own fsync (dissertation, 10.2.1). Saves are made durable in order.

Sections in comments are those of the dissertation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from batonmq.raft.config import RaftConfig
from batonmq.raft.errors import MembershipBusy, MembershipRefused, NotLeader, Overloaded, TransferInProgress
from batonmq.raft.incoming import Incoming, implausible
from batonmq.raft.log import RaftLog
from batonmq.raft.memberships import Memberships
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
from batonmq.raft.outbox import Outbox
from batonmq.raft.outgoing import Outgoing
from batonmq.raft.patience import Chance, Patience
from batonmq.raft.progress import Flow, Progress
from batonmq.raft.quorum import Vote, reached_by_majority, tally
from batonmq.raft.reads import Reads
from batonmq.raft.state import HardState, Offer, ReadContext, Ready, Role, Save

MAX_TERM_STEP = 1 << 32
"""No node misses more elections than this. A term is kept for good, so one that is further ahead, which only
a forged message can have, is not followed: a few of them would use up all numbers."""


class RaftCore:
    def __init__(
        self,
        node_id: str,
        config: RaftConfig,
        *,
        members: Members,
        rng: Chance,
        now_ms: int,
        hard_state: HardState | None = None,
        log: RaftLog | None = None,
        snapshot: SnapshotMeta | None = None,
    ) -> None:
        """``members`` is the membership before any entry or snapshot says otherwise."""
        self.id = node_id
        self.config = config
        self.now_ms = now_ms
        self.log = log or RaftLog()
        hard = hard_state or HardState()
        self.term = hard.term
        self.voted_for = hard.voted_for
        self.snapshot = snapshot
        self.commit_index = max(min(hard.commit, self.log.last_index), self.log.base_index)
        self._handed_out = snapshot.index if snapshot else 0
        self.commit_index = max(self.commit_index, self._handed_out)
        self._memberships = (
            Memberships(snapshot.index, snapshot.members) if snapshot else Memberships(0, members)
        )
        first = self.log.first_index
        self._memberships.note(first, self.log.slice(first, self.log.last_index))

        self.role = Role.FOLLOWER
        self.leader_id: str | None = None
        self.removed_at: int | None = None
        """The index by which this node was removed, as far as it knows: it asks for no votes any more."""
        self.peers: dict[str, Progress] = {}
        self._votes: dict[str, bool] = {}
        self._outbox = Outbox(self.log, self.term)
        self._patience = Patience(node_id, config, rng, now_ms)
        self._heartbeat_deadline_ms = now_ms
        self._notice_due_ms: int | None = None

        self._round = 0
        self._reads = Reads()
        self._term_start_index = 0
        self._lease_forbidden = False

        self.transfer_target: str | None = None
        self._transfer_deadline_ms = 0

        self._incoming: Incoming | None = None
        self._offer: Offer | None = None
        self._refused: list[tuple[str, str]] = []
        self._outgoing = Outgoing()

        if not self._start_alone():
            self._patience.arm_first(now_ms)

    # ------------------------------------------------------------------ what the shell may ask

    @property
    def members(self) -> Members:
        return self._memberships.newest

    @property
    def membership_index(self) -> int:
        """Where the membership in force stands in the log; not yet committed if beyond ``commit_index``."""
        return self._memberships.index

    def members_at(self, index: int) -> Members:
        """The membership as of ``index``, which must not lie before the snapshot."""
        return self._memberships.at(index)[1]

    def committed_membership(self) -> tuple[int, Members]:
        """The newest membership that is committed, and the index of which that is known."""
        return self._memberships.at(self.commit_index)

    def lag(self, peer: str) -> int | None:
        """How many entries the leader's ``peer`` is behind; None if it does not answer now."""
        progress = self.peers.get(peer)
        if progress is None or progress.match == 0 or peer not in self.heard([peer]):
            return None
        return self.log.last_index - progress.match

    def heard(self, peers: Iterable[str]) -> list[str]:
        """Those of ``peers`` that the leader (itself counted) heard within an election timeout."""
        since = self.now_ms - self.config.election_timeout_ms
        return [
            peer
            for peer in peers
            if peer == self.id or (peer in self.peers and self.peers[peer].contact_ms > since)
        ]

    def next_deadline_ms(self) -> int:
        """When ``tick`` must be called at the latest."""
        if self.role is not Role.LEADER:
            return self._patience.deadline_ms
        if self._notice_due_ms is not None:
            return min(self._notice_due_ms, self._heartbeat_deadline_ms)
        return self._heartbeat_deadline_ms

    def has_save(self) -> bool:
        return self._outbox.has_save()

    @property
    def has_lease(self) -> bool:
        """Whether no other leader can exist now, given the bound on clock drift (6.4.1)."""
        if self.role is not Role.LEADER or self._lease_forbidden:
            return False
        if self._is_alone():
            return True
        if self.id not in self.members.voters:
            # It leads until the group without it is committed. If that is one node, that one needs no votes.
            return False
        return self.now_ms < reached_by_majority(
            self.now_ms + 1 if voter == self.id else self.peers[voter].lease_until_ms
            for voter in self.members.voters
        )

    # ------------------------------------------------------------------ inputs

    def step(self, sender: str, message: Message, now_ms: int) -> None:
        """Take one message from ``sender``. Messages of any age, order and number are safe."""
        self.now_ms = max(self.now_ms, now_ms)
        if not self._admit(sender, message):
            return
        handler = STEP[self.role].get(type(message))
        if handler is not None:
            handler(self, sender, message)
        self._check()

    def tick(self, now_ms: int) -> None:
        """Let time pass."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is Role.LEADER:
            self._tick_leader()
        elif self.now_ms >= self._patience.deadline_ms:
            self._campaign()
        self._check()

    def peer_lost(self, peer: str, now_ms: int) -> None:
        """The shell says that the process of ``peer`` is gone: that saves the wait for its silence.

        An error of the shell deposes nobody: the others stick to a leader that they hear, so a majority must
        have lost it. Until it is heard again this node does not stick to it, beyond what it promised: an
        address that refuses connections is no proof that nobody there answers reads from a lease.
        """
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is not Role.FOLLOWER or peer != self.leader_id:
            return
        if self._patience.lose(peer):
            self._arm_election()
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
        self._append_own([Entry(term, Kind.DATA, payload) for payload in payloads])
        return first

    def change_members(self, members: Members) -> int:
        """Append a membership that differs by at most one voter; returns its index.

        Raises NotLeader, TransferInProgress, MembershipBusy or MembershipRefused.
        """
        self._require_leader()
        if self.commit_index < self._term_start_index:
            # Two leaders could otherwise commit with majorities that do not overlap (4.1, the 2015 erratum).
            raise MembershipBusy("this leader has not yet committed an entry of its term")
        if self.membership_index > self.commit_index:
            raise MembershipBusy("the membership change before this one is not yet committed")
        if len(self.members.voters.keys() ^ members.voters.keys()) > 1:
            raise MembershipRefused("only one voter may be added or removed at a time")
        if not members.voters:
            raise MembershipRefused("the last voter cannot be removed")
        if members.voters.keys() & members.learners.keys():
            raise MembershipRefused("a node is either a voter or a learner")
        self._append_own([Entry(self.term, Kind.MEMBERS, encode(members))])
        return self.log.last_index

    def transfer_leadership(self, target: str, now_ms: int) -> None:
        """Begin to hand over to ``target`` (3.10); given up after one election timeout."""
        self.now_ms = max(self.now_ms, now_ms)
        self._require_leader()
        if target not in self.members.voters or target == self.id:
            raise MembershipRefused(f"{target} is not another voter of this group")
        self.transfer_target = target
        self._transfer_deadline_ms = self.now_ms + self.config.election_timeout_ms
        self._try_transfer()

    def read(self, number: int, now_ms: int) -> None:
        """Ask for a read index; the answer comes in ``Ready.reads`` under ``number``."""
        # A process that was stopped for a while must not judge its lease by the time before.
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is Role.LEADER:
            self._read(number)
        elif self.leader_id is not None:
            self._reads.forward(number)
            self._outbox.send(self.leader_id, ReadRequest(self.term, number))
        else:
            self._reads.done(number, None)

    def forget_read(self, number: int) -> None:
        """The asker gave up."""
        self._reads.forget(number)

    def snapshot_loaded(self, snapshot: Snapshot) -> None:
        """The answer to ``Ready.needs_snapshot``."""
        if self.role is Role.LEADER:
            self._outgoing.loaded(snapshot)

    def install(self, offer: Offer, now_ms: int) -> None:
        """The state machine is what ``offer``, of the ``Ready`` just taken, made it: log and disk follow."""
        self.now_ms = max(self.now_ms, now_ms)
        meta = offer.snapshot.meta
        assert meta.index > self.commit_index, f"installed at {meta.index}, committed is {self.commit_index}"
        self.log.reset(meta.index, meta.term)
        self._memberships = Memberships(meta.index, meta.members)
        self.commit_index = self._handed_out = meta.index
        self.snapshot = meta
        self._outbox.installed(offer.snapshot)
        self._outbox.send_durable(offer.sender, AppendReply(self.term, self.commit_index))
        self._check()

    def refuse(self, offer: Offer, why: str) -> None:
        """The state machine cannot take what ``offer`` holds, for the reason ``why``: all stays as it is."""
        self._refuse(offer.sender, offer.snapshot.meta, why)

    def compacted(self, meta: SnapshotMeta) -> None:
        """A snapshot of this node's own state is durable: entries before it may be forgotten."""
        if self.snapshot is not None and meta.index <= self.snapshot.index:
            return
        self.snapshot = meta
        # An entry that is not yet on this disk must stay until it is.
        self.log.compact(min(meta.index - self.config.trailing_entries, self._outbox.durable_index))
        self._memberships.forget_before(meta.index)
        self._check()

    # ------------------------------------------------------------------ outputs

    def ready(self, now_ms: int) -> Ready:
        """What came out since the last call."""
        self.now_ms = max(self.now_ms, now_ms)
        if self.role is Role.LEADER:
            self._confirm_new_reads()
            for peer, progress in self.peers.items():
                if peer != self.id:
                    self._feed(peer, progress)
            self._tell_commits()
        offer = self._take_offer()
        messages = self._outbox.take_messages()
        reads = self._reads.take_done()
        refused, self._refused = self._refused, []
        first = self._handed_out + 1
        entries = self.log.slice(first, self.commit_index) if self.commit_index >= first else []
        self._handed_out = self.commit_index
        return Ready(messages, first, entries, offer, refused, reads, self._outgoing.asked)

    def take_save(self) -> Save | None:
        """The next unit for the disk, if there is any and none is under way."""
        if not self._outbox.has_save():
            return None
        return self._outbox.take_save(HardState(self.term, self.voted_for, self.commit_index))

    def saved(self, save: Save, now_ms: int) -> list[tuple[str, Message]]:
        """``save`` is durable; returns the messages that waited for it."""
        self.now_ms = max(self.now_ms, now_ms)
        self._outbox.saved(save)
        if self.role is Role.LEADER:
            self.peers[self.id].match = self._outbox.durable_index
            self._advance_commit()
        elif (
            self.role is Role.CANDIDATE
            and save.hard_state.term == self.term
            and save.hard_state.voted_for == self.id
        ):
            # Its own vote counts once it cannot be forgotten.
            self._note_vote(self.id, True)
        self._check()
        return save.messages

    # ------------------------------------------------------------------ role changes: only here

    def become_follower(self, term: int, leader_id: str | None) -> None:
        assert term >= self.term, "terms never go back"
        if term > self.term:
            self.term = term
            self.voted_for = None
            self._outbox.hard_state_changed()
        if leader_id != self.leader_id or self.role is Role.LEADER:
            self._refuse_reads()
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self.peers = {}
        self.transfer_target = None
        self._outgoing.forget()
        self._arm_election()

    def become_pre_candidate(self) -> None:
        assert self.role is not Role.LEADER
        self.role = Role.PRE_CANDIDATE
        if self.leader_id is not None:
            self.leader_id = None
            self._refuse_reads()
        self._votes = {self.id: True}
        self._arm_election()
        self._ask_for_votes(self._pre_vote(), durable=False)

    def become_candidate(self, *, transfer: bool) -> None:
        assert self.role is not Role.LEADER
        self.role = Role.CANDIDATE
        if self.leader_id is not None:
            self.leader_id = None
            self._refuse_reads()
        self.term += 1
        self.voted_for = self.id
        self._outbox.hard_state_changed()
        self._votes = {}
        self._arm_election()
        self._ask_for_votes(
            RequestVote(self.term, self.log.last_index, self.log.last_term, transfer), durable=True
        )

    def become_leader(self) -> None:
        assert self.role is Role.CANDIDATE and self.voted_for == self.id
        self.role = Role.LEADER
        self.leader_id = self.id
        self._lease_forbidden = False
        self._patience.forget_loss()
        self._incoming = None
        self.peers = {}
        self._fit_peers()
        self.peers[self.id].match = self._outbox.durable_index
        self._term_start_index = self.log.last_index + 1
        self._heartbeat_deadline_ms = self.now_ms
        self._notice_due_ms = None
        self._append_own([Entry(self.term, Kind.NOOP, b"")])
        self._tick_leader()

    # ------------------------------------------------------------------ elections

    def _admit(self, sender: str, message: Message) -> bool:
        """The rules for terms (3.3), pre-vote (9.6) and leader stickiness (4.2.3), before any handler."""
        if isinstance(message, NotMember):
            return True  # true in any term: what is committed stays
        pre_vote = isinstance(message, PreVote)
        vote = isinstance(message, RequestVote)
        if pre_vote or vote:
            self._tell_stranger(sender)
            # No leader hands over to one that is no voter.
            handed_over = (
                isinstance(message, RequestVote) and message.transfer and sender in self.members.voters
            )
            if not handed_over and self._is_sticky():
                if pre_vote:
                    # A node that fell behind learns the term even while this one follows a leader.
                    self._outbox.send(sender, PreVoteReply(self.term, False))
                return False
        from_leader = isinstance(message, Append | Heartbeat | InstallSnapshot)
        if message.term > self.term:
            if message.term > self.term + MAX_TERM_STEP:
                return False
            if not (pre_vote or vote or from_leader or sender in self.members.all()):
                return False  # an answer of one who was asked nothing
            if pre_vote or (isinstance(message, PreVoteReply) and message.granted):
                return True
            self.become_follower(message.term, sender if from_leader else None)
        elif message.term < self.term:
            if from_leader:
                # Frees a leader of an old term that this node would otherwise keep ignoring.
                self._outbox.send_durable(sender, AppendReply(self.term, 0, rejected=True))
            elif pre_vote:
                self._outbox.send(sender, PreVoteReply(self.term, False))
            elif vote:
                self._outbox.send_durable(sender, VoteReply(self.term, False))
            return False
        return True

    def _is_sticky(self) -> bool:
        if self.role is Role.LEADER:
            return True
        return self._patience.is_sticky(self.now_ms)

    def _arm_election(self) -> None:
        self._patience.arm(self.now_ms, self.members.voters)

    def _is_alone(self) -> bool:
        return self.members.voters.keys() == {self.id}

    def _start_alone(self) -> bool:
        if not self._is_alone():
            return False
        if self.role is Role.CANDIDATE:
            self._arm_election()  # a slow disk still writes its vote
        else:
            self.become_candidate(transfer=False)
        return True

    def _tell_stranger(self, sender: str) -> None:
        """A removed node is not sent the entry that removes it: else it would ask for votes for ever.

        It gets its answer all the same: perhaps it is this node that does not know the newest membership.
        """
        index, members = self.committed_membership()
        if sender not in members.voters and sender not in self.members.all():
            self._outbox.send(sender, NotMember(self.term, index))

    def _on_not_member(self, sender: str, message: NotMember) -> None:
        # Without the entry that removed it, it cannot be elected anyway: this only ends useless questions.
        if message.index > self.membership_index:
            self.removed_at = message.index
            if self.role is not Role.FOLLOWER:
                self.become_follower(self.term, None)

    def _campaign(self) -> None:
        if self.id not in self.members.voters or self.removed_at is not None:
            if self.leader_id is not None:
                self.become_follower(self.term, None)
            else:
                self._arm_election()
            if self.removed_at is None and self.id in self.members.learners and self.membership_index:
                # A learner wants no votes, but only by this question does it hear that it was removed. One
                # that is not yet in the log (index 0) is no member and would be told so.
                self._ask_for_votes(self._pre_vote(), durable=False)
        elif not self._start_alone():
            self.become_pre_candidate()

    def _pre_vote(self) -> PreVote:
        return PreVote(self.term + 1, self.log.last_index, self.log.last_term)

    def _ask_for_votes(self, request: PreVote | RequestVote, *, durable: bool) -> None:
        for voter in self.members.voters:
            if voter != self.id:
                (self._outbox.send_durable if durable else self._outbox.send)(voter, request)

    def _on_pre_vote(self, sender: str, message: PreVote) -> None:
        free = message.term > self.term or self.voted_for in (None, sender)
        granted = free and self.log.is_up_to_date(message.last_index, message.last_term)
        self._outbox.send(sender, PreVoteReply(message.term if granted else self.term, granted))

    def _on_vote(self, sender: str, message: RequestVote) -> None:
        granted = self.voted_for in (None, sender) and self.log.is_up_to_date(
            message.last_index, message.last_term
        )
        if granted:
            if self.voted_for is None:
                self.voted_for = sender
                self._outbox.hard_state_changed()
            # Also ends a pre-vote of its own.
            self._patience.yield_to_candidate()
            self.become_follower(self.term, self.leader_id)
        self._outbox.send_durable(sender, VoteReply(self.term, granted))

    def _on_pre_vote_reply(self, sender: str, message: PreVoteReply) -> None:
        if message.granted and message.term != self.term + 1:
            return
        self._votes.setdefault(sender, message.granted)
        outcome = tally(self._votes, self.members.voters)
        if outcome is Vote.WON:
            self.become_candidate(transfer=False)
        elif outcome is Vote.LOST:
            self.become_follower(self.term, None)

    def _on_vote_reply(self, sender: str, message: VoteReply) -> None:
        self._note_vote(sender, message.granted)

    def _note_vote(self, voter: str, granted: bool) -> None:
        self._votes.setdefault(voter, granted)
        outcome = tally(self._votes, self.members.voters)
        if outcome is Vote.WON:
            self.become_leader()
        elif outcome is Vote.LOST:
            self.become_follower(self.term, None)

    def _on_timeout_now(self, sender: str, message: TimeoutNow) -> None:
        if self.id in self.members.voters:
            self.become_candidate(transfer=True)

    # ------------------------------------------------------------------ follower

    def _hear_leader(self, sender: str) -> None:
        self._patience.forget_loss()
        if self.role is not Role.FOLLOWER or self.leader_id != sender:
            self.become_follower(self.term, sender)
        else:
            self._arm_election()
        self._patience.contact_ms = self.now_ms
        self.removed_at = None

    def _on_append(self, sender: str, message: Append) -> None:
        self._hear_leader(sender)
        log, prev = self.log, message.prev_index
        if prev < self.commit_index:
            # All up to the commit index is known to match: skip what is already here.
            skip = self.commit_index - prev
            if skip > len(message.entries):
                self._outbox.send_durable(sender, AppendReply(self.term, self.commit_index))
                return
            prev, entries = self.commit_index, message.entries[skip:]
        else:
            entries = message.entries
            if log.term(prev) != message.prev_term:
                hint_index, hint_term = log.last_with_term_at_most(
                    min(prev, log.last_index), message.prev_term
                )
                self._outbox.send_durable(sender, AppendReply(self.term, prev, True, hint_index, hint_term))
                return
        last = prev + len(entries)
        if prev < log.last_index and entries:
            entries, prev = self._drop_known(prev, entries)
        if entries:
            log.extend(entries)
            self._memberships.note(prev + 1, entries)
        self._commit(min(message.commit, last))
        self._outbox.send_durable(sender, AppendReply(self.term, last))

    def _drop_known(self, prev: int, entries: list[Entry]) -> tuple[list[Entry], int]:
        """Skip entries that the log holds; cut the log where it disagrees (3.5)."""
        log = self.log
        for place, entry in enumerate(entries):
            held = log.term(prev + 1)
            if held is None:
                return entries[place:], prev
            if held != entry.term:
                assert prev + 1 > self.commit_index, f"a committed entry would be cut at {prev + 1}"
                self._truncate(prev + 1)
                return entries[place:], prev
            prev += 1
        return [], prev

    def _truncate(self, index: int) -> None:
        self.log.truncate(index)
        self._outbox.truncated(index)
        self._memberships.cut(index)

    def _on_heartbeat(self, sender: str, message: Heartbeat) -> None:
        self._hear_leader(sender)
        # The leader caps it at what this log is known to match.
        self._commit(min(message.commit, self.log.last_index))
        if message.round:
            promise_ms = self.config.lease_promise_ms
            self._outbox.send_term(
                sender, HeartbeatReply(self.term, message.round, message.sent_ms, promise_ms)
            )

    def _commit(self, index: int) -> None:
        if index > self.commit_index:
            assert index <= self.log.last_index, f"commit {index} beyond the log's end {self.log.last_index}"
            self.commit_index = index

    def _on_install(self, sender: str, message: InstallSnapshot) -> None:
        self._hear_leader(sender)
        meta = message.meta
        if meta.index <= self.commit_index:
            self._incoming = None
            self._outbox.send_durable(sender, AppendReply(self.term, self.commit_index))
            return
        why = implausible(message, self.log, self.commit_index, self.config)
        if why is not None:
            self._refuse(sender, meta, why)
            return
        incoming = self._incoming
        if incoming is None or not incoming.continues(message):
            incoming = self._incoming = Incoming.of(message)
        if incoming.take(message):
            self._incoming = None
            snapshot = incoming.finish()
            if snapshot is not None:
                self._offer = Offer(sender, snapshot)
                return
            self._outbox.send(sender, InstallReply(self.term, meta.index, 0))
            return
        self._outbox.send(sender, InstallReply(self.term, meta.index, len(incoming.data)))

    def _take_offer(self) -> Offer | None:
        """What came since may have made it needless: it is looked at only now, before it is judged."""
        offer, self._offer = self._offer, None
        if offer is None or self.role is not Role.FOLLOWER:
            return None
        meta = offer.snapshot.meta
        if self.log.term(meta.index) == meta.term:
            # The log already reaches so far and agrees (5.4): only the commit index was behind.
            self._commit(meta.index)
        if meta.index > self.commit_index:
            return offer
        self._outbox.send_durable(offer.sender, AppendReply(self.term, self.commit_index))
        return None

    def _refuse(self, sender: str, meta: SnapshotMeta, why: str) -> None:
        self._incoming = None
        self._refused.append((sender, why))
        self._outbox.send(sender, InstallReply(self.term, meta.index, 0, refused=True))

    def _on_read_reply(self, sender: str, message: ReadReply) -> None:
        self._reads.answered(message.id, message.index or None)

    # ------------------------------------------------------------------ leader: log

    def _require_leader(self) -> None:
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader_id)
        if self.transfer_target is not None:
            raise TransferInProgress(self.transfer_target)

    def _append_own(self, entries: list[Entry]) -> None:
        first = self.log.last_index + 1
        self.log.extend(entries)
        if entries[0].kind == Kind.MEMBERS:
            self._memberships.note(first, entries)
            self._fit_peers()

    def _fit_peers(self) -> None:
        """Make the leader's peers those of the membership in force."""
        wanted = {*self.members.all(), self.id}
        for gone in self.peers.keys() - wanted:
            del self.peers[gone]
        # In the members' order: a set's order would differ from run to run.
        for new in (*self.members.all(), self.id):
            if new not in self.peers:
                self.peers[new] = Progress(next=self.log.last_index + 1, contact_ms=self.now_ms)

    def _feed(self, peer: str, progress: Progress) -> None:
        """Send what flow control allows now."""
        log, config = self.log, self.config
        if progress.flow is Flow.SNAPSHOT:
            self._feed_snapshot(peer, progress)
            return
        if progress.flow is Flow.PROBE:
            if progress.waiting_since_ms is None and self._send_append(peer, progress, progress.next):
                progress.waiting_since_ms = self.now_ms
            return
        while (
            progress.next <= log.last_index
            and progress.inflight_bytes < config.max_inflight_bytes
            and len(progress.inflight) < config.max_inflight_messages
        ):
            first = progress.next
            if not self._send_append(peer, progress, first):
                return
            last = log.fit(first, config.max_append_bytes)
            size = log.bytes_between(first - 1, last)
            progress.next = last + 1
            progress.inflight.append((last, size))
            progress.inflight_bytes += size
            if progress.waiting_since_ms is None:
                progress.waiting_since_ms = self.now_ms

    def _tell_commits(self) -> None:
        """Appends say what is committed; followers that none goes to are told after a while.

        Under load there is always a next one, and a follower then wakes up once an entry and not twice.
        """
        untold = [
            peer
            for peer, progress in self.peers.items()
            if peer != self.id and progress.sent_commit < self._known_commit(progress)
        ]
        if not untold:
            self._notice_due_ms = None
            return
        if self._notice_due_ms is None:
            self._notice_due_ms = self.now_ms + self.config.commit_notice_ms
        if self.now_ms >= self._notice_due_ms:
            self._notice_due_ms = None
            for peer in untold:
                self._tell_commit(peer, self.peers[peer])

    def _tell_commit(self, peer: str, progress: Progress) -> None:
        progress.sent_commit = self._known_commit(progress)
        self._outbox.send(peer, Heartbeat(self.term, progress.sent_commit, 0, self.now_ms))

    def _known_commit(self, progress: Progress) -> int:
        """What a peer may take as committed: no further than its log is known to match."""
        return min(progress.match, self.commit_index)

    def _send_append(self, peer: str, progress: Progress, first: int) -> bool:
        prev_term = self.log.term(first - 1)
        if prev_term is None:
            progress.flow = Flow.SNAPSHOT
            progress.clear_inflight()
            progress.snapshot_offset = 0
            self._feed_snapshot(peer, progress)
            return False
        last = self.log.last_index
        entries = (
            self.log.slice(first, self.log.fit(first, self.config.max_append_bytes)) if first <= last else []
        )
        progress.sent_commit = min(self.commit_index, first - 1 + len(entries))
        self._outbox.send(peer, Append(self.term, first - 1, prev_term, self.commit_index, entries))
        return True

    def _feed_snapshot(self, peer: str, progress: Progress) -> None:
        if not self._outgoing.reaches(self.log.base_index):
            progress.waiting_since_ms = None
            progress.snapshot_offset = 0
        elif progress.waiting_since_ms is None:
            progress.waiting_since_ms = self.now_ms
            size = self.config.snapshot_chunk_bytes
            self._outbox.send(peer, self._outgoing.chunk(self.term, progress.snapshot_offset, size))

    def _on_install_reply(self, sender: str, message: InstallReply) -> None:
        progress = self._heard(sender)
        if progress is None or progress.flow is not Flow.SNAPSHOT:
            return
        if message.index != self._outgoing.index:
            return
        if message.refused:
            progress.refuse_snapshot(self.now_ms, self.config)
        else:
            progress.snapshot_offset = message.next_offset
            progress.waiting_since_ms = None

    def _heard(self, sender: str) -> Progress | None:
        progress = self.peers.get(sender)
        if progress is not None:
            progress.contact_ms = self.now_ms
        return progress

    def _on_append_reply(self, sender: str, message: AppendReply) -> None:
        progress = self._heard(sender)
        if progress is None:
            return
        if message.rejected:
            progress.back_up(message, self.log)
            return
        index = message.index
        if index > progress.match:
            if index > self.log.last_index:
                return  # a lie: nobody has what its leader never had
            progress.match = index
            if progress.flow is Flow.REPLICATE:
                progress.waiting_since_ms = self.now_ms
            self._advance_commit()
            if self.role is not Role.LEADER:
                return
        if progress.acknowledged(self.log):
            self._release_outgoing()
        if sender == self.transfer_target:
            self._try_transfer()

    def _release_outgoing(self) -> None:
        if self._outgoing.index is not None and all(p.flow is not Flow.SNAPSHOT for p in self.peers.values()):
            self._outgoing.forget()

    def _advance_commit(self) -> None:
        index = reached_by_majority(self.peers[voter].match for voter in self.members.voters)
        # Only entries of its own term are committed by counting (3.6.2).
        if index > self.commit_index and self.log.term(index) == self.term:
            before = self.commit_index
            self.commit_index = index
            if before < self._term_start_index <= index and self._reads.early:
                for context in self._reads.take_early():
                    self._read(context)
            if before < self.membership_index <= index and self.id not in self.members.voters:
                # It led until the group without it was committed (4.2.2).
                if self.id not in self.members.learners:
                    self.removed_at = self.membership_index
                self._broadcast_heartbeat(0)
                self.become_follower(self.term, None)

    # ------------------------------------------------------------------ leader: time

    def _tick_leader(self) -> None:
        if self.now_ms < self._heartbeat_deadline_ms:
            return
        config = self.config
        if self.transfer_target is not None and self.now_ms >= self._transfer_deadline_ms:
            self.transfer_target = None
        if not self._is_alone():
            contact = reached_by_majority(
                self.now_ms if voter == self.id else self.peers[voter].contact_ms
                for voter in self.members.voters
            )
            if self.now_ms - contact >= config.election_timeout_ms:
                # Check-quorum (6.2): a leader that cannot commit must not keep clients waiting.
                self.become_follower(self.term, None)
                return
        self._heartbeat_deadline_ms = self.now_ms + config.heartbeat_interval_ms
        self._round += 1
        self._broadcast_heartbeat(self._round)
        for progress in self.peers.values():
            progress.retransmit(self.now_ms, self.config)

    def _broadcast_heartbeat(self, round_number: int) -> None:
        for peer, progress in self.peers.items():
            if peer != self.id:
                commit = self._known_commit(progress)
                progress.sent_commit = max(progress.sent_commit, commit)
                self._outbox.send(peer, Heartbeat(self.term, commit, round_number, self.now_ms))

    def _on_heartbeat_reply(self, sender: str, message: HeartbeatReply) -> None:
        progress = self._heard(sender)
        if progress is None:
            return
        progress.acked_round = max(progress.acked_round, message.round)
        if message.promise_ms:
            length = int(message.promise_ms * (1 - self.config.max_clock_drift))
            progress.lease_until_ms = max(progress.lease_until_ms, message.sent_ms + length)
        if self._reads.in_rounds:
            self._answer_confirmed_reads()

    # ------------------------------------------------------------------ leader: transfer

    def _try_transfer(self) -> None:
        target = self.transfer_target
        if target is not None and self.peers[target].match == self.log.last_index:
            # The target may be elected while other followers still hear this leader: its lease is void,
            # even if the transfer is given up later and the message arrives late.
            self._lease_forbidden = True
            self._outbox.send(target, TimeoutNow(self.term))

    # ------------------------------------------------------------------ reads (6.4)

    def _on_read_request(self, sender: str, message: ReadRequest) -> None:
        self._read((sender, message.id))

    def _refuse_read_request(self, sender: str, message: ReadRequest) -> None:
        self._outbox.send(sender, ReadReply(self.term, message.id, 0))

    def _read(self, context: ReadContext) -> None:
        if self.commit_index < self._term_start_index:
            # It may not know yet what earlier leaders committed.
            self._reads.early.append(context)
        elif self._is_alone() or (self.config.lease_read and self.has_lease):
            self._answer_read(context, self.commit_index)
        else:
            self._reads.new.append(context)

    def _confirm_new_reads(self) -> None:
        """One heartbeat round confirms all reads of a turn."""
        if self._reads.new:
            self._round += 1
            self._reads.begin_round(self._round, self.commit_index)
            self._broadcast_heartbeat(self._round)

    def _answer_confirmed_reads(self) -> None:
        confirmed = reached_by_majority(
            self._round if voter == self.id else self.peers[voter].acked_round
            for voter in self.members.voters
        )
        for context, index in self._reads.confirmed(confirmed):
            self._answer_read(context, index)

    def _answer_read(self, context: ReadContext, index: int | None) -> None:
        if isinstance(context, int):
            self._reads.done(context, index)
        else:
            peer, number = context
            progress = self.peers.get(peer)
            if progress is not None and progress.sent_commit < self._known_commit(progress):
                self._tell_commit(peer, progress)  # it waits until it has applied that much
            self._outbox.send(peer, ReadReply(self.term, number, index or 0))

    def _refuse_reads(self) -> None:
        """Leadership changed: nothing that waits can be confirmed any more."""
        for context in self._reads.give_up():
            self._answer_read(context, None)
        self._reads.refuse_forwarded()

    def _check(self) -> None:
        """Invariants that hold after every input."""
        assert self.log.base_index <= self.commit_index <= self.log.last_index
        assert self._handed_out <= self.commit_index
        assert self._outbox.durable_index <= self.log.last_index
        assert (self.role is Role.LEADER) == (self.leader_id == self.id)
        assert self.role is Role.FOLLOWER or self.id in self.members.voters or self.role is Role.LEADER


_Handler: TypeAlias = Callable[[RaftCore, str, Any], None]

_COMMON: dict[type, _Handler] = {
    PreVote: RaftCore._on_pre_vote,
    RequestVote: RaftCore._on_vote,
}
_FOLLOWING: dict[type, _Handler] = {
    **_COMMON,
    NotMember: RaftCore._on_not_member,
    Append: RaftCore._on_append,
    Heartbeat: RaftCore._on_heartbeat,
    InstallSnapshot: RaftCore._on_install,
    ReadRequest: RaftCore._refuse_read_request,
    TimeoutNow: RaftCore._on_timeout_now,
}

STEP: dict[Role, dict[type, _Handler]] = {
    Role.FOLLOWER: {**_FOLLOWING, ReadReply: RaftCore._on_read_reply},
    Role.PRE_CANDIDATE: {**_FOLLOWING, PreVoteReply: RaftCore._on_pre_vote_reply},
    Role.CANDIDATE: {**_FOLLOWING, VoteReply: RaftCore._on_vote_reply},
    Role.LEADER: {
        **_COMMON,
        AppendReply: RaftCore._on_append_reply,
        HeartbeatReply: RaftCore._on_heartbeat_reply,
        InstallReply: RaftCore._on_install_reply,
        ReadRequest: RaftCore._on_read_request,
    },
}
"""Who handles what, once the term of the message equals the node's (pre-votes excepted).

What is not here is in `ignored.py`.
"""
