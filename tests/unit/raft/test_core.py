"""What holds for every role and message, and what tables cannot show."""

import random
import typing

import msgspec
import pytest

from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.errors import MembershipRefused, NotLeader, Overloaded
from batonmq.raft.ignored import IGNORED
from batonmq.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Envelope,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Kind,
    Members,
    Message,
    PreVote,
    PreVoteReply,
    ReadReply,
    RequestVote,
    SnapshotMeta,
    VoteReply,
    decode_envelope,
    encode,
)
from batonmq.raft.state import Role

MESSAGES: tuple[type, ...] = typing.get_args(Message)


def core(name: str = "n0", size: int = 3, seed: int = 1, **options: object) -> RaftCore:
    return RaftCore(
        name,
        RaftConfig(**options),  # type: ignore[arg-type]
        members=Members({f"n{i}": "" for i in range(size)}),
        rng=random.Random(seed),
        now_ms=0,
    )


def leading(**options: object) -> RaftCore:
    alone = core(size=1, **options)
    save = alone.take_save()
    assert save is not None
    alone.saved(save, 0)
    assert alone.role is Role.LEADER
    return alone


def save_all(node: RaftCore) -> None:
    while (save := node.take_save()) is not None:
        node.saved(save, node.now_ms)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
def test_each_message_is_handled_or_ignored_for_a_reason(role: Role, message: type) -> None:
    assert (message in core().handlers[role]) != ((role, message) in IGNORED)


@pytest.mark.parametrize(
    "message",
    [
        RequestVote(2**60, 0, 0, True),
        VoteReply(2**60, False),
        Heartbeat(2**60, 0, 1, 0),
        PreVote(2**60, 0, 0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_term_that_no_election_can_have_reached_is_not_followed(message: Message) -> None:
    node = core()
    node.step("n1", message, 10)
    assert (node.term, node.leader_id) == (0, None)


@pytest.mark.parametrize("sender", ["n1", "stranger"])
def test_only_a_voter_was_handed_the_leadership(sender: str) -> None:
    node = core()
    node.step("n2", Heartbeat(1, 0, 1, 0), 10)
    node.step(sender, RequestVote(2, 0, 0, True), 11)
    assert (node.term, node.leader_id) == ((2, None) if sender == "n1" else (1, "n2"))


@pytest.mark.parametrize("answer", [VoteReply(9, False), AppendReply(9, 0), ReadReply(9, 1, 0)])
def test_answers_of_nodes_that_are_not_members_depose_nobody(answer: Message) -> None:
    leader = leading()
    leader.step("stranger", answer, 10)
    assert (leader.role, leader.term) == (Role.LEADER, 1)
    node = core()
    node.step("n1", answer, 10)
    assert node.term == 9


def test_an_acknowledgement_of_what_the_leader_never_had_is_a_lie() -> None:
    leader = core()
    leader.tick(10_000)
    leader.step("n1", PreVoteReply(1, True), 10_001)
    save = leader.take_save()
    assert save is not None
    leader.saved(save, 10_002)
    leader.step("n1", VoteReply(1, True), 10_003)
    assert leader.role is Role.LEADER
    leader.step("n1", AppendReply(1, 10**9), 10_004)
    assert (leader.role, leader.commit_index, leader.peers["n1"].match) == (Role.LEADER, 0, 0)


@pytest.mark.parametrize(
    "message",
    [
        VoteReply(2**64 - 1, False),
        RequestVote(2**63, 0, 0, True),
        AppendReply(1, -1),
        Append(1, 0, 0, 0, [Entry(1, Kind.MEMBERS, b"no membership")]),
        InstallSnapshot(1, SnapshotMeta(1, 1, Members({})), 0, 0, 0, b""),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_no_node_says_is_malformed(message: Message) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_envelope(encode(Envelope("g", "n1", "n0", [message])))


def test_a_follower_refuses_proposals_naming_the_leader() -> None:
    follower = core()
    follower.step("n1", Append(1, 0, 0, 0, []), 10)
    with pytest.raises(NotLeader) as refused:
        follower.propose([b"x"])
    assert refused.value.leader_id == "n1"


def test_too_much_uncommitted_is_refused_and_taken_again_later() -> None:
    leader = leading(max_uncommitted_bytes=100)
    leader.propose([bytes(200)])
    with pytest.raises(Overloaded):
        leader.propose([b"x"])
    save_all(leader)
    leader.propose([b"x"])


def test_flow_control_bounds_what_is_under_way() -> None:
    leader = core(max_append_bytes=100, max_inflight_bytes=300, max_inflight_messages=50)
    leader.become_candidate(transfer=False)
    leader.election.count("n1", True)
    leader.election.count("n0", True)
    leader.ready(0)
    leader.step("n1", AppendReply(1, 1), 0)
    leader.propose([bytes(34) for _ in range(100)])
    sent = [m for to, m in leader.ready(0).messages if to == "n1" and isinstance(m, Append)]
    assert [len(m.entries) for m in sent] == [2, 2, 2]
    assert leader.ready(0).messages == []
    leader.step("n1", AppendReply(1, 3), 0)
    assert [len(m.entries) for to, m in leader.ready(0).messages if to == "n1" and isinstance(m, Append)] == [
        2
    ]


def test_cutting_a_committed_entry_stops_the_node() -> None:
    follower = core()
    follower.step("n1", Append(1, 0, 0, 1, [Entry(1, Kind.NOOP, b"")]), 10)
    assert follower.commit_index == 1
    with pytest.raises(AssertionError, match="a committed entry would be cut at 1"):
        follower.follower._drop_known(0, [Entry(2, Kind.NOOP, b"")])


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """Figure 3.7: a majority holds an entry of an old term, and yet another leader may replace it."""
    leader = core()
    leader.step("n1", Append(1, 0, 0, 0, [Entry(1, Kind.DATA, b"old")]), 10)
    leader.become_candidate(transfer=False)
    save_all(leader)
    leader.election.count("n1", True)
    assert leader.role is Role.LEADER
    leader.step("n1", AppendReply(leader.term, 1), 20)
    leader.step("n2", AppendReply(leader.term, 1), 20)
    assert leader.commit_index == 0
    leader.step("n1", AppendReply(leader.term, 2), 20)
    leader.step("n2", AppendReply(leader.term, 2), 20)
    assert leader.commit_index == 2


@pytest.mark.parametrize("honoured", [False, True])
def test_a_lease_counts_only_followers_that_honour_it(honoured: bool) -> None:
    """One without `lease_read` votes at once when it has restarted: it must not hold a lease up."""
    leader = core(lease_read=True)
    leader.become_candidate(transfer=False)
    leader.election.count("n1", True)
    leader.election.count("n0", True)
    follower = core("n1", lease_read=honoured)
    follower.step("n0", Heartbeat(1, 0, 1, 10), 10)
    save = follower.take_save()
    assert save is not None
    (reply,) = [
        m for _, m in [*follower.saved(save, 10), *follower.ready(10).messages] if type(m) is HeartbeatReply
    ]
    leader.step("n1", reply, 20)
    assert leader.heartbeats.has_lease is honoured


def test_who_has_just_restarted_stands_for_no_election_while_its_promise_runs() -> None:
    """The leader counts on its last word, and cannot know that it restarted and has forgotten it."""
    for seed in range(50):
        leader = core(lease_read=True, max_clock_drift=0.0)
        leader.become_candidate(transfer=False)
        leader.election.count("n1", True)
        leader.election.count("n0", True)
        leader.step("n1", HeartbeatReply(leader.term, 1, 0, leader.config.lease_promise_ms), 0)
        assert leader.heartbeats.has_lease
        restarted = core("n1", seed=seed, lease_read=True)
        due_ms = restarted.next_deadline_ms()
        restarted.tick(due_ms)
        assert restarted.role is Role.PRE_CANDIDATE
        # n2, if n0 has been silent for long, votes for it at once.
        leader.tick(due_ms)
        assert not leader.heartbeats.has_lease, f"both could answer at {due_ms} ms"


@pytest.mark.parametrize("always", [True, False])
def test_a_read_can_be_confirmed_in_spite_of_a_lease(always: bool) -> None:
    leader = core(lease_read=True)
    leader.become_candidate(transfer=False)
    leader.election.count("n1", True)
    leader.election.count("n0", True)
    save_all(leader)
    leader.step("n1", HeartbeatReply(leader.term, 1, 0, leader.config.lease_promise_ms), 0)
    leader.step("n1", AppendReply(leader.term, leader.log.last_index), 0)
    assert leader.heartbeats.has_lease
    leader.reads.always_confirm = always
    leader.read(1, 0)
    assert bool(leader.ready(0).reads) is not always


def test_a_leader_that_removed_itself_has_no_lease() -> None:
    """The one voter that remains elects itself without asking anybody, as soon as it starts again."""
    leader = core(size=2, lease_read=True)
    leader.become_candidate(transfer=False)
    leader.election.count("n1", True)
    leader.election.count("n0", True)
    save_all(leader)
    leader.step("n1", AppendReply(leader.term, 1), 0)
    leader.step("n1", HeartbeatReply(leader.term, 1, 0, leader.config.lease_promise_ms), 1)
    assert leader.heartbeats.has_lease
    leader.change_members(Members({"n1": ""}))
    assert leader.role is Role.LEADER and not leader.heartbeats.has_lease


def test_reads_before_any_answer_do_not_hide_who_answers_first() -> None:
    """Each asks all; the next one still asks whoever answered the first of these rounds."""
    leader = core()
    leader.become_candidate(transfer=False)
    leader.election.count("n1", True)
    leader.election.count("n0", True)
    save_all(leader)
    leader.step("n1", AppendReply(leader.term, 1), 0)
    asked: list[list[str]] = []
    for number in range(3):
        leader.read(number, 0)
        beats = [(to, m) for to, m in leader.ready(0).messages if type(m) is Heartbeat and m.round]
        newest = max(m.round for _, m in beats)
        asked.append([to for to, m in beats if m.round == newest])
        if number == 1:
            leader.step("n2", HeartbeatReply(leader.term, 1, 0, 0), 0)
    assert asked == [["n1", "n2"], ["n1", "n2"], ["n2"]]


def test_a_new_leader_changes_no_membership_before_its_first_commit() -> None:
    """Two leaders could else commit with majorities that do not overlap (the 2015 erratum)."""
    leader = core()
    leader.become_candidate(transfer=False)
    leader.election.count("n1", True)
    leader.election.count("n0", True)
    smaller = Members({"n0": "", "n1": ""})
    with pytest.raises(MembershipRefused, match="has not yet committed an entry of its term"):
        leader.change_members(smaller)
    save_all(leader)
    leader.step("n1", AppendReply(leader.term, leader.log.last_index), 0)
    leader.change_members(smaller)
    assert leader.members == smaller


def test_a_snapshot_over_the_limit_is_not_collected() -> None:
    follower = core(max_snapshot_bytes=10)
    meta = SnapshotMeta(5, 1, Members({"n1": ""}))
    follower.step("n1", InstallSnapshot(1, meta, 11, 0, 0, bytes(5)), 10)
    assert follower.receiver.partial is None


def test_a_damaged_snapshot_transfer_starts_again() -> None:
    follower = core()
    meta = SnapshotMeta(5, 1, Members({"n1": ""}))
    follower.step("n1", InstallSnapshot(1, meta, 4, 12345, 0, b"abcd"), 10)
    assert follower.commit_index == 0
    (_, reply) = follower.ready(10).messages[-1]
    assert (reply.index, reply.next_offset) == (5, 0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "options", [{"election_timeout_ms": 100, "heartbeat_interval_ms": 50}, {"max_clock_drift": 1}]
)
def test_settings_that_cannot_work_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"heartbeat|drift"):
        RaftConfig(**options)  # type: ignore[arg-type]


def test_a_peer_that_lost_its_log_is_sent_all_of_it_and_no_longer_counts_for_it() -> None:
    leader = core()
    leader.become_candidate(transfer=False)
    save_all(leader)
    leader.election.count("n1", True)
    save_all(leader)
    leader.ready(10)
    leader.step("n1", AppendReply(leader.term, 1), 20)
    assert leader.commit_index == 1
    leader.propose([b"more"])
    save_all(leader)
    leader.ready(20)
    now_ms = 20 + leader.config.retransmit_ms
    leader.tick(now_ms)
    leader.ready(now_ms)  # probes at 1, from where it sends again
    leader.step("n1", AppendReply(leader.term, 1, rejected=True), now_ms)
    ready = leader.ready(now_ms)
    assert ready.forgetful == [("n1", 1)]
    assert leader.peers["n1"].match == 0 and leader.commit_index == 1
    probes = [message for peer, message in ready.messages if peer == "n1" and isinstance(message, Append)]
    assert [(probe.prev_index, len(probe.entries)) for probe in probes] == [(0, 2)]
    leader.step("n1", AppendReply(leader.term, 2), now_ms)
    assert leader.peers["n1"].match == leader.commit_index == 2
    assert leader.ready(now_ms).forgetful == []
