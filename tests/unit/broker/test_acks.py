"""Acknowledgements leave in log order, when the acknowledged offset or the deadline says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.broker.acks import PendingAcks, acks_needed


def filled(*sends: tuple[int, int, str]) -> PendingAcks[str]:
    acks: PendingAcks[str] = PendingAcks()
    for send in sends:
        acks.add(*send)
    return acks


def test_only_sends_at_or_below_the_acknowledged_offset_complete() -> None:
    acks = filled((100, 10, "a"), (200, 10, "b"), (300, 10, "c"))
    assert acks.complete(99) == []
    assert acks.complete(200) == ["a", "b"]
    assert acks.complete(200) == []
    assert len(acks) == 1
    assert acks.complete(1000) == ["c"]


def test_deadlines_expire_in_order_and_an_expired_send_is_not_answered_again() -> None:
    acks = filled((100, 10, "a"), (200, 20, "b"))
    assert acks.next_deadline_ms() == 10
    assert acks.expire(9) == []
    assert acks.expire(10) == ["a"]
    assert acks.complete(500) == ["b"]
    assert acks.next_deadline_ms() is None
    assert acks.expire(1000) == []


def test_a_role_change_abandons_everything_and_offsets_may_start_lower_again() -> None:
    acks = filled((100, 10, "a"), (200, 20, "b"))
    acks.complete(100)
    assert acks.abandon() == ["b"]
    assert acks.acked_offset == -1
    acks.add(150, 30, "c")
    assert acks.complete(149) == []
    assert acks.complete(150) == ["c"]


def test_offsets_out_of_log_order_are_our_bug() -> None:
    acks = filled((100, 10, "a"))
    with pytest.raises(AssertionError):
        acks.add(99, 10, "b")


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), max_size=40), st.data())
def test_each_send_is_answered_exactly_once(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    acks: PendingAcks[int] = PendingAcks()
    offset = deadline = acked = now = 0
    answered: list[int] = []
    for number, (size, pause) in enumerate(steps):
        offset, deadline = offset + size, deadline + pause
        acks.add(offset, deadline, number)
        if data.draw(st.booleans()):
            acked = data.draw(st.integers(acked, offset))
            answered += acks.complete(acked)
        if data.draw(st.booleans()):
            now = data.draw(st.integers(now, deadline))
            answered += acks.expire(now)
    answered += acks.abandon()
    assert answered == list(range(len(steps)))


@pytest.mark.parametrize(
    ("all_in_set", "wanted", "minimum", "auto", "in_sync", "expected"),
    [
        (False, 1, 1, False, 1, 1),  # a lone master
        (False, 2, 1, False, 1, 2),  # waits, then FLUSH_SLAVE_TIMEOUT
        (False, 2, 2, False, 1, None),  # too few: refused at once
        (False, 3, 1, True, 2, 2),  # sinks to what keeps up
        (False, 3, 2, True, 1, None),
        (False, 3, 2, True, 2, 2),
        (False, 2, 1, True, 5, 2),  # never rises above inSyncReplicas
        (True, 1, 1, False, 3, -1),
        (True, 1, 2, False, 2, -1),
        (True, 1, 2, False, 1, None),
    ],
)
def test_copies_a_message_needs(
    all_in_set: bool, wanted: int, minimum: int, auto: bool, in_sync: int, expected: int | None
) -> None:
    assert (
        acks_needed(
            all_in_sync_state_set=all_in_set,
            in_sync_replicas=wanted,
            min_in_sync_replicas=minimum,
            auto_in_sync_replicas=auto,
            replicas_in_sync=in_sync,
        )
        == expected
    )
