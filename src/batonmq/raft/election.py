"""Elections: when a node asks for votes, for whom it votes, how it counts (3.4, 4.2.3, 9.6)."""

from __future__ import annotations

from batonmq.raft.election_timer import ElectionTimer, RandomSource
from batonmq.raft.messages import (
    NotMember,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from batonmq.raft.quorum import Vote, tally
from batonmq.raft.server import Server
from batonmq.raft.state import Role


class Election:
    """One node's election timer, its votes for others, and the votes it got in the election under way."""

    def __init__(self, server: Server, rng: RandomSource) -> None:
        self._server = server
        self.timer = ElectionTimer(server.id, server.config, rng, server.now_ms)
        self._votes: dict[str, bool] = {}

    # -- time

    def arm(self) -> None:
        """Start a new election timeout."""
        server = self._server
        self.timer.arm(server.now_ms, server.members.voters)

    def is_sticky(self) -> bool:
        """Whether this node refuses to help elect another leader (4.2.3)."""
        server = self._server
        return server.role is Role.LEADER or self.timer.is_sticky(server.now_ms)

    def leader_contact(self, leader: str) -> None:
        """A message of the current term's leader arrived."""
        server = self._server
        self.timer.forget_loss()
        if server.role is not Role.FOLLOWER or server.leader_id != leader:
            server.become_follower(server.term, leader)
        else:
            self.arm()
        self.timer.contact_ms = server.now_ms
        server.removed_at = None

    def leader_lost(self, leader: str) -> None:
        """The process of the leader is gone."""
        if self.timer.lose(leader):
            self.arm()

    # -- standing for election

    def start_alone(self) -> bool:
        """The only voter needs nobody's vote; returns whether this node is it."""
        server = self._server
        if not server.is_alone():
            return False
        if server.role is Role.CANDIDATE:
            self.arm()  # a slow disk still writes its vote
        else:
            server.become_candidate(transfer=False)
        return True

    def campaign(self) -> None:
        """The election timeout has passed."""
        server = self._server
        if server.id not in server.members.voters or server.removed_at is not None:
            if server.leader_id is not None:
                server.become_follower(server.term, None)
            else:
                self.arm()
            if server.removed_at is None and server.id in server.members.learners and server.membership_index:
                # A learner wants no votes, but only the answer to this request can say that it was removed.
                # One that is not yet in the log (index 0) is no member and would be answered so.
                self._request(self._pre_vote(), durable=False)
        elif not self.start_alone():
            server.become_pre_candidate()

    def request_pre_votes(self) -> None:
        self._votes = {self._server.id: True}
        self.arm()
        self._request(self._pre_vote(), durable=False)

    def request_votes(self, *, transfer: bool) -> None:
        """Its own vote counts only once it is durable (`count`)."""
        server = self._server
        self._votes = {}
        self.arm()
        request = RequestVote(server.term, server.log.last_index, server.log.last_term, transfer)
        self._request(request, durable=True)

    def _pre_vote(self) -> PreVote:
        server = self._server
        return PreVote(server.term + 1, server.log.last_index, server.log.last_term)

    def _request(self, request: PreVote | RequestVote, *, durable: bool) -> None:
        server = self._server
        send = server.outbox.send_durable if durable else server.outbox.send
        for voter in server.members.voters:
            if voter != server.id:
                send(voter, request)

    def on_pre_vote_reply(self, sender: str, message: PreVoteReply) -> None:
        server = self._server
        if message.granted and message.term != server.term + 1:
            return
        self._votes.setdefault(sender, message.granted)
        outcome = tally(self._votes, server.members.voters)
        if outcome is Vote.WON:
            server.become_candidate(transfer=False)
        elif outcome is Vote.LOST:
            server.become_follower(server.term, None)

    def on_vote_reply(self, sender: str, message: VoteReply) -> None:
        self.count(sender, message.granted)

    def count(self, voter: str, granted: bool) -> None:
        """One vote of the election under way."""
        server = self._server
        self._votes.setdefault(voter, granted)
        outcome = tally(self._votes, server.members.voters)
        if outcome is Vote.WON:
            server.become_leader()
        elif outcome is Vote.LOST:
            server.become_follower(server.term, None)

    def on_timeout_now(self, sender: str, message: TimeoutNow) -> None:
        server = self._server
        if server.id in server.members.voters:
            server.become_candidate(transfer=True)

    # -- votes for others

    def on_pre_vote(self, sender: str, message: PreVote) -> None:
        server = self._server
        free = message.term > server.term or server.voted_for in (None, sender)
        granted = free and server.log.is_up_to_date(message.last_index, message.last_term)
        server.outbox.send(sender, PreVoteReply(message.term if granted else server.term, granted))

    def on_vote(self, sender: str, message: RequestVote) -> None:
        server = self._server
        granted = server.voted_for in (None, sender) and server.log.is_up_to_date(
            message.last_index, message.last_term
        )
        if granted:
            if server.voted_for is None:
                server.voted_for = sender
                server.outbox.hard_state_changed()
            # Also ends a pre-vote of its own.
            self.timer.yield_to_candidate()
            server.become_follower(server.term, server.leader_id)
        server.outbox.send_durable(sender, VoteReply(server.term, granted))

    # -- nodes that were removed

    def answer_removed(self, sender: str) -> None:
        """Tell a node that asks for votes that it is no member, if that is committed.

        A removed node does not receive the entry that removes it, and would ask for votes forever. Its
        request is answered as well: perhaps it is this node that lacks the newest membership.
        """
        server = self._server
        index, members = server.memberships.at(server.commit_index)
        if sender not in members.voters and sender not in server.members.all():
            server.outbox.send(sender, NotMember(server.term, index))

    def on_not_member(self, sender: str, message: NotMember) -> None:
        # Without the entry that removed it, it cannot be elected anyway: this only ends useless requests.
        server = self._server
        if message.index > server.membership_index:
            server.removed_at = message.index
            if server.role is not Role.FOLLOWER:
                server.become_follower(server.term, None)
