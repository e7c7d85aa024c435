"""Acknowledgements leave in log order, at the acknowledged offset or the deadline."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.broker.messages.acks import PendingAcks


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
    assert acks.expire(9) == ([], [])
    assert acks.expire(10) == ([], ["a"])
    assert acks.complete(500) == ["b"]
    assert acks.next_deadline_ms() is None
    assert acks.expire(1000) == ([], [])


def test_a_send_may_get_a_second_deadline_and_stays_before_younger_ones() -> None:
    acks = filled((100, 10, "a"), (200, 20, "b"), (300, 30, "c"))
    assert acks.expire(20) == ([], ["a", "b"])
    acks.postpone(100, 50, "a")
    acks.postpone(200, 60, "b")
    assert len(acks) == 3 and acks.next_deadline_ms() == 30
    assert acks.complete(100) == ["a"]
    assert acks.expire(30) == ([], ["c"])
    assert acks.next_deadline_ms() == 60
    acks.add(400, 70, "d")
    assert acks.next_deadline_ms() == 60
    assert acks.expire(60) == (["b"], [])
    assert acks.complete(1000) == ["d"]
    acks.postpone(1100, 80, "e")
    assert acks.abandon() == ["e"] and len(acks) == 0


def test_a_role_change_abandons_everything_and_offsets_may_start_lower_again() -> None:
    acks = filled((100, 10, "a"), (200, 20, "b"))
    acks.complete(100)
    assert acks.abandon() == ["b"]
    assert acks.acked_offset == -1
    acks.add(150, 30, "c")
    assert acks.complete(149) == []
    assert acks.complete(150) == ["c"]


def test_offsets_out_of_log_order_fail_an_assertion() -> None:
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
            expired = acks.expire(now)
            answered += [*expired[0], *expired[1]]
    answered += acks.abandon()
    assert answered == list(range(len(steps)))
