"""Snapshots that come from others: what is not taken, that nothing changes then, and what the sender does."""

from __future__ import annotations

import random
import zlib

import msgspec
import pytest

from batonmq.raft.config import RaftConfig
from batonmq.raft.core import RaftCore
from batonmq.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Envelope,
    InstallReply,
    InstallSnapshot,
    Kind,
    Members,
    Message,
    PreVoteReply,
    Snapshot,
    SnapshotMeta,
    VoteReply,
    decode_envelope,
    encode,
)
from batonmq.raft.snapshot_receiver import MAX_INDEX_STEP
from batonmq.raft.state import Offer, Role

MEMBERS = Members({"n0": "", "n1": "", "n2": ""})


def core(**options: int) -> RaftCore:
    return RaftCore("n0", RaftConfig(**options), members=MEMBERS, rng=random.Random(1), now_ms=0)


def save_all(node: RaftCore, now_ms: int) -> list[tuple[str, Message]]:
    messages = []
    while (save := node.take_save()) is not None:
        messages += node.saved(save, now_ms)
    return messages


def follower(**options: int) -> RaftCore:
    """Of n1 in term 3, with two committed entries of term 2 and one more, all on its disk."""
    node = core(**options)
    node.step("n1", Append(3, 0, 0, 2, [Entry(2, Kind.DATA, b"x")] * 2 + [Entry(3, Kind.DATA, b"y")]), 10)
    save_all(node, 10)
    node.ready(10)
    return node


def snapshot(
    index: int = 10, term: int = 3, *, members: Members = MEMBERS, data: bytes = b"state", sent_in: int = 3
) -> InstallSnapshot:
    return InstallSnapshot(sent_in, SnapshotMeta(index, term, members), len(data), zlib.crc32(data), 0, data)


def seen(node: RaftCore) -> object:
    log = node.log
    return (
        [log.term(index) for index in range(log.base_index, log.last_index + 1)],
        (node.commit_index, node.members, node.snapshot, node.term, node.leader_id),
        node.outbox.has_save(),
    )


def offered(node: RaftCore, message: InstallSnapshot, now_ms: int = 20) -> Offer:
    node.step("n1", message, now_ms)
    offer = node.ready(now_ms).offer
    assert offer is not None
    return offer


def test_nothing_changes_until_it_is_installed() -> None:
    node = follower()
    before = seen(node)
    offer = offered(node, snapshot())
    assert (offer.sender, offer.snapshot.data) == ("n1", b"state")
    assert seen(node) == before
    node.install(offer, 20)
    save = node.take_save()
    assert save is not None and save.snapshot is offer.snapshot
    assert node.commit_index == node.log.base_index == 10
    assert node.saved(save, 20) == [("n1", AppendReply(3, 10))]


def test_a_refused_one_changes_nothing_and_its_sender_gets_an_answer() -> None:
    node = follower()
    before = seen(node)
    node.refuse(offered(node, snapshot()), "no state of ours")
    assert seen(node) == before
    ready = node.ready(21)
    assert ready.refused == [("n1", "no state of ours")]
    assert ready.messages == [("n1", InstallReply(3, 10, 0, refused=True))]
    assert ready.offer is None and node.ready(22).refused == []
    node.step("n1", Append(3, 3, 3, 3, [Entry(3, Kind.DATA, b"z")]), 23)
    assert node.commit_index == 3 and node.log.last_index == 4


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (snapshot(data=bytes(200)), "it has 200 bytes, at most 100 are taken"),
        (snapshot(term=1), "it ends at index 10 in term 1, but index 2, which is committed, is of term 2"),
        (
            snapshot(2**60),
            "it ends at index 1152921504606846976, which no group that is at 3 here has reached",
        ),
    ],
    ids=["large", "old term", "far"],
)
def test_one_that_cannot_be_true_is_refused_before_it_is_gathered(message: InstallSnapshot, why: str) -> None:
    node = follower(max_snapshot_bytes=100)
    before = seen(node)
    message.total += 1  # a chunk is still to come
    why = why.replace("200", "201")
    node.step("n1", message, 20)
    ready = node.ready(20)
    assert ready.refused == [("n1", why)]
    assert ready.messages == [("n1", InstallReply(3, message.meta.index, 0, refused=True))]
    assert ready.offer is None and node.receiver.partial is None
    assert seen(node) == before


def test_one_as_far_ahead_as_a_log_may_be_is_taken() -> None:
    node = follower()
    node.install(offered(node, snapshot(3 + MAX_INDEX_STEP)), 20)
    assert node.commit_index == 3 + MAX_INDEX_STEP


@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_old_one_is_answered_with_what_is_committed(index: int) -> None:
    node = follower()
    before = seen(node)
    node.step("n1", snapshot(index, 1), 20)
    ready = node.ready(20)
    assert ready.offer is None and ready.refused == []
    assert ready.messages == [("n1", AppendReply(3, 2))]
    assert seen(node) == before


def test_one_that_the_log_already_reaches_commits_and_takes_nothing_back() -> None:
    """Also if the entries came after it and before it was looked at: they are acknowledged."""
    for entries_first in (True, False):
        node = follower()
        entries = Append(3, 3, 3, 0, [Entry(3, Kind.DATA, b"z")] * 9)
        messages: list[Message] = [entries, snapshot()] if entries_first else [snapshot(), entries]
        for message in messages:
            node.step("n1", message, 20)
        ready = node.ready(20)
        assert ready.offer is None
        assert (node.commit_index, node.log.last_index) == (10, 12)
        assert [ready.first_index, len(ready.entries)] == [3, 8]


def test_one_that_is_committed_by_the_time_it_is_looked_at_is_not_offered() -> None:
    node = follower()
    node.step("n1", snapshot(10, 2), 20)
    node.step("n1", Append(3, 3, 3, 11, [Entry(3, Kind.DATA, b"z")] * 9), 20)
    assert node.ready(20).offer is None
    assert node.commit_index == 11


def test_who_stands_for_election_meanwhile_is_offered_nothing() -> None:
    """It might be a voter no more by that snapshot."""
    node = follower()
    node.step("n1", snapshot(members=Members({"n1": ""})), 20)
    node.tick(node.next_deadline_ms())
    assert node.role is Role.PRE_CANDIDATE
    assert node.ready(10_000).offer is None
    assert node.commit_index == 2


@pytest.mark.parametrize(
    "message",
    [
        snapshot(term=4),
        snapshot(term=0),
        snapshot(members=Members({}, {"n0": ""})),
        snapshot(members=Members({"n0": "", "n1": ""}, {"n0": ""})),
        Append(3, 0, 0, 0, [Entry(3, Kind.MEMBERS, encode(Members({})))]),
        Append(3, 0, 0, 0, [Entry(3, Kind.MEMBERS, encode(Members({"n": ""})).replace(b"n", b"\xff"))]),
    ],
    ids=["later term", "no term", "no voters", "voter and learner", "entry without voters", "entry no text"],
)
def test_what_no_leader_says_is_malformed(message: Message) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_envelope(encode(Envelope("g", "n1", "n0", [message])))


def test_what_is_nested_without_end_is_malformed() -> None:
    payload = b"\x95\xa1g\xa2n1\xa2n0\x90" + b"\x91" * 100_000  # an envelope with a field of a later version
    with pytest.raises(msgspec.ValidationError):
        decode_envelope(payload)


def test_text_that_is_none_is_malformed() -> None:
    payload = encode(Envelope("group", "n1", "n0", [])).replace(b"group", b"\xff\xfe\xfd\xfc\xfb")
    with pytest.raises(msgspec.ValidationError):
        decode_envelope(payload)


# -- the sender


def leader_with_a_snapshot() -> RaftCore:
    """In term 1; n1 follows, and n2 needs the snapshot at 1, two chunks of it."""
    leader = core(snapshot_chunk_bytes=3, trailing_entries=0)
    leader.tick(10_000)
    leader.step("n1", PreVoteReply(1, True), 10_000)
    save_all(leader, 10_000)
    leader.step("n1", VoteReply(1, True), 10_000)
    assert leader.role is Role.LEADER
    leader.ready(10_000)
    save_all(leader, 10_000)
    leader.step("n1", AppendReply(1, 1), 10_000)
    assert leader.commit_index == 1
    meta = SnapshotMeta(1, 1, MEMBERS)
    leader.compacted(meta)
    leader.step("n2", AppendReply(1, 0, rejected=True), 10_000)
    assert leader.ready(10_000).needs_snapshot
    leader.snapshot_loaded(Snapshot(meta, b"state"))
    return leader


def chunks(leader: RaftCore, now_ms: int) -> list[int]:
    """Offsets of what n2 is sent now."""
    leader.step("n1", AppendReply(1, 1), now_ms)  # else it gives up the lead
    if now_ms >= leader.next_deadline_ms():
        leader.tick(now_ms)
    return [
        message.offset
        for peer, message in leader.ready(now_ms).messages
        if peer == "n2" and isinstance(message, InstallSnapshot)
    ]


def test_who_refuses_a_snapshot_gets_it_again_after_a_pause_and_from_its_beginning() -> None:
    leader = leader_with_a_snapshot()
    assert chunks(leader, 10_000) == [0]
    leader.step("n2", InstallReply(1, 1, 3), 10_010)
    assert chunks(leader, 10_010) == [3]
    refused_ms = 10_020
    leader.step("n2", InstallReply(1, 1, 0, refused=True), refused_ms)
    sent = {
        now_ms: offsets for now_ms in range(refused_ms, 45_000, 50) if (offsets := chunks(leader, now_ms))
    }
    assert min(sent) - refused_ms >= leader.config.refused_snapshot_ms == 10_000
    assert all(offsets == [0] for offsets in sent.values())


def test_one_that_keeps_refusing_gets_little() -> None:
    leader = leader_with_a_snapshot()
    sent = 0
    for now_ms in range(10_000, 70_000, 50):
        for _ in chunks(leader, now_ms):
            sent += 1
            leader.step("n2", InstallReply(1, 1, 0, refused=True), now_ms)
    assert 4 <= sent <= 7


def test_a_chunk_that_was_lost_is_still_sent_again_at_once() -> None:
    leader = leader_with_a_snapshot()
    sent = [now_ms for now_ms in range(10_000, 12_000, 50) if chunks(leader, now_ms)]
    assert len(sent) >= 5
