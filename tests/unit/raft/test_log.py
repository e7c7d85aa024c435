"""RaftLog beside a plain dict that keeps every entry."""

from hypothesis import given
from hypothesis import strategies as st

from batonmq.raft.log import RaftLog
from batonmq.raft.messages import Entry, Kind

_SIZES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=40)


def build(steps: list[tuple[int, int]], compacted: int) -> tuple[RaftLog, dict[int, Entry]]:
    log, plain, term = RaftLog(), {}, 1
    for index, (rise, size) in enumerate(steps, 1):
        term += rise
        plain[index] = Entry(term, Kind.DATA, bytes(size))
    log.extend(list(plain.values()))
    log.compact(min(compacted, len(plain)))
    return log, plain


@given(_SIZES, st.integers(0, 40), st.integers(1, 200))
def test_slices_and_sizes(steps: list[tuple[int, int]], compacted: int, limit: int) -> None:
    log, plain = build(steps, compacted)
    assert log.last_index == len(plain)
    for index in range(log.base_index, len(plain) + 2):
        held = plain.get(index)
        expected = held.term if held else (0 if index == 0 else None)
        assert log.term(index) == expected
    for first in range(log.first_index, log.last_index + 1):
        last = log.fit(first, limit)
        size = sum(len(plain[i].data) + 16 for i in range(first, last + 1))
        assert log.bytes_between(first - 1, last) == size
        assert last == first or size <= limit
        assert last == log.last_index or size + len(plain[last + 1].data) + 16 > limit
        assert log.slice(first, last) == [plain[i] for i in range(first, last + 1)]


@given(_SIZES, st.integers(0, 40), st.integers(0, 45), st.integers(0, 90))
def test_where_two_logs_can_still_agree(
    steps: list[tuple[int, int]], compacted: int, index: int, term: int
) -> None:
    log, plain = build(steps, compacted)
    found, found_term = log.last_with_term_at_most(index, term)
    terms = {0: 0, **{i: e.term for i, e in plain.items()}}
    slow = max(i for i in range(min(index, len(plain)) + 1) if terms[i] <= term)
    if slow >= log.base_index:
        assert (found, found_term) == (slow, terms[slow])
    else:
        assert found < log.base_index  # in the compacted past: only a snapshot helps


@given(_SIZES, st.integers(0, 20), st.integers(0, 20))
def test_truncation_then_growth(steps: list[tuple[int, int]], compacted: int, cut: int) -> None:
    log, plain = build(steps, compacted)
    at = min(log.base_index + 1 + cut, log.last_index + 1)
    log.truncate(at)
    log.extend([Entry(99, Kind.DATA, b"new")])
    assert (log.last_index, log.last_term) == (at, 99)
    assert log.slice(log.first_index, at - 1) == [plain[i] for i in range(log.first_index, at)]
    assert log.is_up_to_date(at, 99) and not log.is_up_to_date(at - 1, 99) and log.is_up_to_date(1, 100)
