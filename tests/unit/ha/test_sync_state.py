"""The SyncStateSet: what the confirm offset may be while members come, go and are asked for."""

import pytest

from batonmq.ha.autoswitch.sync_state import SyncStateSet, SyncStateTracker


def tracker(members=(1, 2), *, confirm=100, epoch_start=100, epoch=1) -> SyncStateTracker:
    return SyncStateTracker(
        local_id=1,
        agreed=SyncStateSet(frozenset(members), epoch),
        epoch_start=epoch_start,
        confirm_offset=confirm,
        max_lag_ms=3000,
        started_ms=0,
        registered=frozenset({1, 2, 3, 4}),
    )


def ack(state: SyncStateTracker, broker_id: int, offset: int, now: int = 0, *, learner=False) -> None:
    replica = state.replicas.get(broker_id)
    if replica is None or not replica.connected:
        replica = state.connected(broker_id, async_learner=learner)
    replica.ack_offset = offset
    replica.caught_up_ms = now


def test_confirm_is_the_minimum_over_all_members():
    state = tracker((1, 2, 3))
    ack(state, 2, 150)
    ack(state, 3, 130)
    assert state.confirm(200) == 130
    ack(state, 3, 180)
    assert state.confirm(140) == 140, "the master's own end counts too"


def test_alone_everything_is_confirmed():
    assert tracker((1,)).confirm(500) == 500


def test_a_member_without_a_link_holds_the_confirm_offset_6662():
    state = tracker((1, 2, 3))
    ack(state, 2, 150)
    assert state.confirm(200) == 100
    ack(state, 3, 150)
    assert state.confirm(200) == 150
    state.disconnected(3)
    ack(state, 2, 200)
    assert state.confirm(200) == 150


def test_a_member_that_has_not_spoken_in_this_term_holds_it():
    state = tracker((1, 2))
    state.connected(2, async_learner=False)
    assert state.confirm(200) == 100


def test_confirm_never_sinks_when_a_replica_joins_or_returns_with_less():
    state = tracker((1,))
    assert state.confirm(200) == 200
    ack(state, 2, 200)
    assert state.propose(0) == {1, 2}
    assert state.confirm(300) == 200
    state.disconnected(2)
    ack(state, 2, 150)
    assert state.confirm(300) == 200


def test_expanding_counts_the_new_member_before_the_controller_answers_5663():
    """The answer may be lost and the new member elected: it must have all that was confirmed."""
    state = tracker((1,))
    ack(state, 2, 100)
    assert state.confirm(100) == 100
    assert state.propose(0) == {1, 2}
    assert state.confirm(500) == 100, "without the union this would be 500"
    ack(state, 2, 400)
    assert state.confirm(500) == 400


def test_shrinking_counts_the_old_member_until_the_controller_answers():
    state = tracker((1, 2))
    ack(state, 2, 100, now=0)
    assert state.propose(3001) == {1}
    assert state.confirm(500) == 100
    state.answered(SyncStateSet(frozenset({1}), 2))
    assert state.confirm(500) == 500


def test_an_unknown_outcome_keeps_both_and_is_asked_again():
    state = tracker((1,))
    ack(state, 2, 100)
    assert state.propose(0) == {1, 2}
    assert state.propose(0) is None, "one at a time"
    state.answered(None)
    state.disconnected(2)
    assert state.counted == {1, 2}
    assert state.confirm(500) == 100
    assert state.propose(10) == {1, 2}, "only a definite answer tells what became of the first"
    state.answered(None, refused=True)
    assert state.counted == {1}
    assert state.confirm(500) == 500
    assert state.propose(20) is None


def test_a_newer_set_from_elsewhere_settles_a_proposal():
    state = tracker((1,))
    ack(state, 2, 100)
    state.propose(0)
    state.answered(None)
    state.agree(SyncStateSet(frozenset({1, 2}), 2))
    assert state.agreed.members == {1, 2}
    assert state.proposal is None
    state.agree(SyncStateSet(frozenset({1}), 2))
    assert state.agreed.members == {1, 2}, "the same version again changes nothing"


def test_news_during_a_proposal_do_not_uncount_it():
    state = tracker((1,))
    ack(state, 2, 100)
    state.propose(0)
    state.agree(SyncStateSet(frozenset({1, 3}), 2))
    assert state.counted == {1, 2, 3}
    state.answered(None, refused=True)
    assert state.counted == {1, 3}


@pytest.mark.parametrize(
    ("offset", "learner", "broker_id", "expected"),
    [
        (150, False, 2, {1, 2}),
        (149, False, 2, {1}),  # below the confirm offset
        (150, True, 2, {1}),  # an async learner never joins
        (150, False, -1, {1}),  # a slave without an id
        (150, False, 9, {1}),  # an id that the controller has not given out
    ],
)
def test_who_may_join(offset, learner, broker_id, expected):
    state = tracker((1,), confirm=150, epoch_start=120)
    ack(state, broker_id, offset, learner=learner)
    assert state.wanted(0) == expected


def test_a_replica_below_this_term_may_not_join():
    state = tracker((1,), confirm=100, epoch_start=160)
    ack(state, 2, 159)
    assert state.wanted(0) == {1}
    ack(state, 2, 160)
    assert state.wanted(0) == {1, 2}


def test_who_must_leave():
    state = tracker((1, 2, 3, 4))
    ack(state, 2, 100, now=0)
    ack(state, 3, 100, now=0)
    assert state.wanted(3000) == {1, 2, 3, 4}, "4 was not seen yet and has time to come"
    assert state.wanted(3001) == {1}
    ack(state, 2, 150, now=3000)
    assert state.wanted(3001) == {1, 2}
    state.disconnected(2)
    assert state.wanted(3001) == {1}


def test_a_member_that_comes_back_as_a_learner_must_leave():
    """Its new link may come before the end of the former one is seen, so it was never without a link."""
    state = tracker((1, 2))
    ack(state, 2, 100)
    state.connected(2, async_learner=True).ack_offset = 100
    assert state.propose(0) == {1}
    assert state.confirm(500) == 100, "until the controller has agreed, it may elect the learner"
    state.answered(SyncStateSet(frozenset({1}), 2))
    assert state.confirm(500) == 500
    assert state.propose(0) is None


def test_acked_by_counts_copies():
    state = tracker((1, 2, 3))
    assert state.acked_by(1, 500) == 500
    assert state.acked_by(2, 500) == -1
    ack(state, 2, 300)
    ack(state, 3, 400)
    ack(state, 4, 450, learner=True)
    assert [state.acked_by(copies, 500) for copies in (0, 1, 2, 3, 4)] == [-1, 500, 400, 300, -1]


def test_acks_of_unregistered_ids_move_nothing_3015():
    """An unregistered slave counts neither as a copy nor as a member, and asking about it delays no other."""
    state = tracker((1, 2))
    ack(state, 9, 500)
    assert state.confirm(500) == 100
    assert state.acked_by(2, 500) == -1
    ack(state, 2, 300)
    assert (state.confirm(500), state.acked_by(2, 500), state.acked_by(3, 500)) == (300, 300, -1)
    assert state.propose(0) is None
    assert state.counted == {1, 2}
    state.registered |= {9}
    assert state.acked_by(3, 500) == 300
    assert state.propose(0) == {1, 2, 9}


def test_unregistered_ids_leave_nothing_behind():
    state = tracker((1, 2))
    for unknown in range(100, 1100):
        ack(state, unknown, 100)
        state.disconnected(unknown)
    ack(state, 2, 150)
    state.disconnected(2)
    assert set(state.replicas) == {2}, "of a replica that left it is known when it was last level"


def test_a_silent_member_is_dropped_and_returns_when_it_speaks():
    state = tracker((1, 2))
    ack(state, 2, 150, now=1_000)
    state.replicas[2].silent = True
    assert state.wanted(1_000) == {1}
    state.propose(1_000)
    state.answered(SyncStateSet(frozenset({1}), 2))
    assert state.wanted(1_000) == {1}, "it holds everything, but says nothing"
    state.replicas[2].silent = False
    assert state.wanted(1_000) == {1, 2}


def test_a_member_that_is_down_for_the_controller_does_not_keep_a_lost_one_in_the_set():
    state = tracker((1, 2, 3))
    ack(state, 2, 150)
    ack(state, 3, 150)
    state.down = frozenset({3})
    assert state.propose(0) is None, "nothing needs to change"
    state.disconnected(2)
    assert state.propose(0) == {1}
    state.answered(SyncStateSet(frozenset({1}), 2))
    assert state.propose(0) is None, "it would be refused"
    state.down = frozenset()
    assert state.propose(0) == {1, 3}


def test_a_master_never_leaves_itself_out():
    state = tracker((1, 2))
    state.down = frozenset({1})
    state.disconnected(2)
    assert state.wanted(10_000) == {1}


@pytest.mark.parametrize("members", [(), (2,), (2, 3)])
def test_a_master_that_is_not_in_the_set_any_more_confirms_nothing(members):
    """`cleanBrokerMetadata` of living replicas can leave an empty set: the master would confirm alone."""
    state = tracker((1, 2))
    ack(state, 2, 150)
    assert state.confirm(200) == 150
    state.agree(SyncStateSet(frozenset(members), 2))
    ack(state, 2, 200)
    ack(state, 3, 200)
    assert state.confirm(200) == 150
    state.disconnected(2)
    assert state.confirm(200) == 150
