"""A held pull is returned once: when its queue grows past its offset, or at its deadline."""

import time

from hypothesis import given
from hypothesis import strategies as st

from batonmq.broker.messages.held_pulls import HeldPulls

Q0, Q1 = ("topic", 0), ("topic", 1)


def pulls(held: list) -> list[str]:
    return [entry.pull for entry in held]


def test_growth_releases_only_pulls_below_the_new_max_offset_of_that_queue() -> None:
    table: HeldPulls[str] = HeldPulls()
    table.hold(Q0, 5, 100, "a")
    table.hold(Q0, 7, 100, "b")
    table.hold(Q1, 5, 100, "c")
    assert pulls(table.queues_grown([(Q0, 5)])) == []
    assert pulls(table.queues_grown([(Q0, 6)])) == ["a"]
    assert pulls(table.queues_grown([(Q0, 8), (Q1, 6)])) == ["b", "c"]
    assert len(table) == 0
    assert table.next_deadline_ms() is None


def test_pulls_expire_in_order_of_deadlines() -> None:
    table: HeldPulls[str] = HeldPulls()
    table.hold(Q0, 0, 300, "late")
    table.hold(Q1, 0, 100, "early")
    assert table.next_deadline_ms() == 100
    assert pulls(table.expire(99)) == []
    assert pulls(table.expire(100)) == ["early"]
    assert table.next_deadline_ms() == 300
    assert pulls(table.expire(1000)) == ["late"]


def test_the_pulls_of_one_topic_are_released() -> None:
    table: HeldPulls[str] = HeldPulls()
    table.hold(Q0, 5, 100, "a")
    table.hold(Q1, 5, 90, "b")
    table.hold(("other", 0), 5, 80, "c")
    assert sorted(pulls(table.release("topic"))) == ["a", "b"]
    assert len(table) == 1 and table.next_deadline_ms() == 80
    assert table.release("topic") == []
    assert pulls(table.expire(200)) == ["c"]


def test_a_released_pull_does_not_expire() -> None:
    table: HeldPulls[str] = HeldPulls()
    table.hold(Q0, 0, 100, "a")
    table.hold(Q0, 9, 200, "b")
    assert pulls(table.queues_grown([(Q0, 1)])) == ["a"]
    assert table.next_deadline_ms() == 200
    assert pulls(table.expire(150)) == []


def test_release_all_empties_the_table() -> None:
    table: HeldPulls[str] = HeldPulls()
    table.hold(Q0, 0, 100, "a")
    table.hold(Q1, 0, 50, "b")
    assert sorted(pulls(table.release_all())) == ["a", "b"]
    assert len(table) == 0
    assert table.expire(1000) == []


def test_a_busy_queue_keeps_no_released_pulls() -> None:
    table: HeldPulls[int] = HeldPulls()
    table.hold(Q1, 10**9, 1, -1)  # the earliest deadline, so released ones stay behind it in the heap
    for number in range(5_000):
        table.hold(Q0, number, 1_000_000 + number, number)
        assert pulls(table.queues_grown([(Q0, number + 1)])) == [number]
    assert len(table._deadlines) < 200


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("hold"), st.integers(0, 2), st.integers(0, 20), st.integers(0, 50)),
            st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(0, 25)),
            st.tuples(st.just("expire"), st.integers(0, 60)),
        ),
        max_size=60,
    )
)
def test_agrees_with_a_plain_list(steps: list[tuple]) -> None:
    table: HeldPulls[int] = HeldPulls()
    model: dict[int, tuple[int, int, int]] = {}
    for number, step in enumerate(steps):
        if step[0] == "hold":
            _, queue, offset, deadline = step
            table.hold(("t", queue), offset, deadline, number)
            model[number] = (queue, offset, deadline)
            continue
        if step[0] == "arrive":
            _, queue, top = step
            got = pulls(table.queues_grown([(("t", queue), top)]))
            want = [n for n, (q, offset, _) in model.items() if q == queue and offset < top]
        else:
            got = pulls(table.expire(step[1]))
            want = [n for n, (_, _, deadline) in model.items() if deadline <= step[1]]
        assert sorted(got) == sorted(want)
        for n in want:
            del model[n]
        assert len(table) == len(model)
        assert table.next_deadline_ms() == min((d for _, _, d in model.values()), default=None)


def test_many_pulls_of_one_queue_may_expire_in_any_order() -> None:
    table: HeldPulls[int] = HeldPulls()
    count = 60_000
    for number in range(count):
        table.hold(Q0, 0, count - number, number)
    began = time.monotonic()
    assert pulls(table.expire(count)) == list(reversed(range(count)))
    assert time.monotonic() - began < 3
    assert len(table) == 0 and table.next_deadline_ms() is None
