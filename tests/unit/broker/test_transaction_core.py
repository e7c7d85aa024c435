"""The window of half messages: what it remembers, and when its offsets move."""

from __future__ import annotations

import base64
import random
import sys
import zlib

import pytest

from batonmq.broker.transaction.check_counts import MOST, CheckCounts
from batonmq.broker.transaction.core import MAX_CHECKS, HalfWindow, State
from batonmq.protocol.headers.broker.replication import GetAllTransactionChecks
from batonmq.protocol.registry import Header


def window(end: int = 10, offset: int = 0) -> HalfWindow:
    made = HalfWindow(offset, 0)
    made.grow(end)
    return made


def test_an_empty_window_is_where_its_offsets_are() -> None:
    empty = HalfWindow(5, 7)
    assert not empty.advance()
    assert (empty.offset, empty.op_offset, empty.next_op, empty.end, empty.size) == (5, 7, 7, 5, 0)
    assert empty.next_undecided(0, 10) is None


def test_the_offset_moves_only_behind_confirmed_op_messages() -> None:
    w = window()
    w.set(0, State.COMMITTED)
    w.set(1, State.ROLLED_BACK)
    assert not w.advance() and w.offset == 0
    w.op_read(0, [0])
    assert w.advance() and (w.offset, w.op_offset) == (1, 1)
    w.op_read(1, [1])
    assert w.advance() and (w.offset, w.op_offset) == (2, 2)
    assert not w.advance()


def test_an_undecided_message_keeps_back_both_offsets() -> None:
    w = window()
    w.op_read(0, [1, 2])
    w.op_read(1, [4, 9])
    w.advance()
    assert (w.offset, w.op_offset) == (0, 0)
    w.op_read(2, [0, 3])
    w.advance()
    # Op message 1 is needed as long as 9 is not passed, and so are those after it.
    assert (w.offset, w.op_offset) == (5, 1)
    w.op_read(3, [5, 6, 7, 8])
    w.advance()
    assert (w.offset, w.op_offset) == (10, 4)


@pytest.mark.parametrize(
    ("before", "moved", "after"),
    [
        (0, False, State.DECIDED),
        (3, False, State.DECIDED),
        (MAX_CHECKS, False, State.DECIDED),
        (State.COMMITTING, False, State.DECIDED),
        (State.COMMITTED, False, State.COMMITTED_SAFE),
        (State.ROLLED_BACK, False, State.ROLLED_BACK_SAFE),
        (State.COMMITTED_SAFE, False, State.COMMITTED_SAFE),
        (State.ROLLED_BACK_SAFE, True, State.ROLLED_BACK_SAFE),
        (0, True, State.MOVED_SAFE),
        (State.MOVED, True, State.MOVED_SAFE),
        (State.DECIDED, True, State.DECIDED),
    ],
)
def test_a_confirmed_op_message_makes_a_message_safe(before: int, moved: bool, after: int) -> None:
    w = window()
    w.set(4, before)
    w.op_read(0, [4], moved=moved)
    assert w.state(4) == after


def test_checks_are_counted_until_the_decision() -> None:
    w = window()
    w.set(2, 7)
    assert w.checks(2) == 7 and w.is_undecided(2) and not w.is_decided(2)
    w.set(2, State.COMMITTED)
    assert w.checks(2) == 0 and not w.is_undecided(2) and w.is_decided(2)


def test_undecided_messages_come_in_runs() -> None:
    w = window(10)
    for offset in (0, 3, 4, 8):
        w.set(offset, State.COMMITTED)
    assert w.next_undecided(0, 32) == (1, 2)
    assert w.next_undecided(3, 32) == (5, 3)
    assert w.next_undecided(5, 2) == (5, 2)
    assert w.next_undecided(8, 32) == (9, 1)
    assert w.next_undecided(10, 32) is None


def test_a_late_decision_is_remembered_for_the_copy() -> None:
    w = window(3)
    w.op_read(0, [0, 1, 2], moved=True)
    w.grow(4)  # 3 is a copy of 0
    w.advance()
    assert w.offset == 3 and not w.is_decided(0)
    w.set(0, State.COMMITTED)
    assert w.is_decided(0)
    w.op_read(1, [0])
    w.advance()
    assert w.op_offset == 1, "a new master needs op message 1 as long as the copy is there"
    w.op_read(2, [3])
    w.advance()
    assert (w.offset, w.op_offset) == (4, 3)


def test_a_new_master_learns_a_late_decision_from_the_op_message() -> None:
    w = HalfWindow(3, 1)
    w.grow(4)
    w.op_read(1, [0])
    assert w.is_decided(0)


def test_a_decision_about_a_message_that_was_stored_again_is_remembered() -> None:
    w = window(2)
    w.set(0, State.MOVED)
    w.op_read(0, [0], moved=True)
    w.set(0, State.COMMITTED)
    assert w.is_decided(0)
    w.op_read(1, [0])
    w.grow(3)
    w.advance()
    assert w.offset == 1 and w.is_decided(0)


def test_a_message_whose_commit_failed_after_its_copy_is_undecided() -> None:
    w = window(2)
    w.set(0, State.COMMITTING)
    w.remember(0)
    assert w.is_decided(0)
    w.set(0, 0)
    assert not w.is_decided(0)


def test_offsets_beyond_the_queue_are_ignored() -> None:
    w = window(3)
    w.op_read(0, [3, 1 << 60])
    assert w.end == 3 and w.next_undecided(0, 9) == (0, 3)
    w.advance()
    assert w.op_offset == 1


def test_messages_that_cannot_be_read_are_dropped() -> None:
    w = window(5)
    w.set(3, 2)
    w.drop(0, 3)
    w.advance()
    assert w.offset == 3 and w.checks(3) == 2
    w.drop(4, 5)
    w.advance()
    assert w.offset == 3 and w.next_undecided(0, 9) == (3, 1)
    w.drop(0, 2)
    w.drop(w.offset, 100)
    w.advance()
    assert w.offset == 100


def test_deleted_op_messages_are_skipped() -> None:
    w = window(5)
    w.op_read(0, [4])
    w.skip_ops(50)
    assert (w.next_op, w.op_offset) == (50, 50)
    w.op_read(50, [0])
    w.advance()
    assert (w.offset, w.op_offset) == (1, 51)


def test_a_million_undecided_messages_take_little_memory() -> None:
    """And 10 000 op messages behind an undecided one."""
    w = window(1_000_000)
    for number in range(10_000):
        w.op_read(number, [1 + number * 50, 50 + number * 50])
    assert sys.getsizeof(w._states) < 1_200_000 and len(w._ops) < 4_200
    w.drop(0, 500_001)
    w.op_read(10_000, [])
    w.advance()
    assert w.offset == 500_001 and w.op_offset > 9_000


@pytest.mark.parametrize("seed", range(30))
def test_a_restart_at_the_stored_offsets_forgets_nothing(seed: int) -> None:
    """Whatever is decided when: a window that begins at the stored offsets and reads the op messages from
    there knows the same undecided messages."""
    rng = random.Random(seed)
    w, ops, end, op_count = HalfWindow(0, 0), dict[int, list[int]](), 0, 0
    for _ in range(300):
        step = rng.random()
        if step < 0.5:
            end += rng.randrange(5)
            w.grow(end)
        elif step < 0.8 and end:
            count = rng.randrange(1, 6)
            offsets = [o for o in (rng.randrange(end) for _ in range(count)) if w.is_undecided(o)]
            ops[op_count] = offsets
            w.op_read(op_count, offsets)
            op_count += 1
        else:
            w.advance()
            again = HalfWindow(w.offset, w.op_offset)
            again.grow(end)
            for number in range(w.op_offset, op_count):
                again.op_read(number, ops[number])
            undecided = [o for o in range(end) if w.is_undecided(o)]
            assert [o for o in range(end) if again.is_undecided(o)] == undecided
            again.advance()
            assert again.offset == w.offset


# -- counts of checks


def test_a_new_master_continues_with_the_counts_of_the_one_before() -> None:
    old = window(end=9, offset=2)
    for offset, checks in ((2, 3), (4, 1), (5, MAX_CHECKS), (8, 2)):
        old.set(offset, checks)
    old.set(6, State.COMMITTED)
    counts = CheckCounts()
    assert counts.publish(old.offset, old.all_checks()) and counts.take_changed()
    assert not counts.publish(old.offset, old.all_checks()) and not counts.take_changed()
    copied = CheckCounts()
    copied.restore(counts.encode())
    new = window(end=8, offset=4)  # its log is shorter, and its offset has moved
    new.set(7, State.ROLLED_BACK)
    new.set(4, 2)
    new.learn_checks(copied.offset, copied.counts)
    assert [new.state(offset) for offset in range(4, 8)] == [2, MAX_CHECKS, 0, State.ROLLED_BACK]
    assert new.end == 8 and new.next_undecided(0, 9) == (4, 3)


@pytest.mark.parametrize("offset", [0, 5, 20, 1 << 61])
def test_counts_that_do_not_fit_the_window_change_nothing(offset: int) -> None:
    w = window(end=12, offset=10)
    w.learn_checks(offset, b"" if offset == 0 else bytes([1]) * 3)
    assert w.all_checks() == b"\0\0"


def test_a_byte_that_is_not_a_count_does_not_decide_a_message() -> None:
    w = window(end=2)
    w.learn_checks(0, bytes([255, 1]))
    assert w.is_undecided(0) and w.all_checks() == b"\0\1"


def test_the_counts_of_a_million_messages_are_a_small_file() -> None:
    counts = CheckCounts()
    counts.publish(7, bytes([14]) * 1_000_000)
    data = counts.encode()
    assert len(data) < 4_096
    copied = CheckCounts()
    copied.restore(data)
    assert (copied.offset, len(copied.counts)) == (7, 1_000_000)


def _packed(counts: bytes) -> str:
    return base64.b64encode(zlib.compress(counts)).decode()


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"offset":"x"}',
        b'{"offset":-1}',
        b'{"offset":1,"checks":"%"}',
        b'{"offset":1,"checks":"AAAA"}',
        b'{"offset":1,"checks":"%s"}' % _packed(b"abc")[:-8].encode(),
        b'{"offset":1,"checks":"%s"}' % _packed(bytes(MOST + 1)).encode(),
    ],
)
def test_a_damaged_file_of_counts_is_refused(body: bytes) -> None:
    counts = CheckCounts()
    counts.publish(3, b"\1")
    with pytest.raises(ValueError):
        counts.restore(body)
    assert (counts.offset, counts.counts) == (3, b"\1")


async def test_a_slave_copies_the_counts_of_a_master_that_has_them() -> None:
    masters, own = CheckCounts(), CheckCounts()
    masters.publish(5, b"\1\2")

    class Master:
        announces_changes, address = True, "m"

        async def fetch(self, header: Header) -> bytes:
            assert isinstance(header, GetAllTransactionChecks) and self.announces_changes
            return masters.encode()

    master = Master()
    master.announces_changes = False
    await own.copy(master)
    assert own.counts == b""
    master.announces_changes = True
    await own.copy(master)
    assert (own.offset, own.counts) == (5, b"\1\2") and own.take_changed()
    await own.copy(master)
    assert not own.take_changed()


@pytest.mark.parametrize("state", [State.COMMITTED, State.ROLLED_BACK, State.MOVED])
def test_what_an_acting_master_decides_needs_no_op_message(state: State) -> None:
    w = window()
    w.set_safe(1, state)
    assert not w.advance() and not w.is_undecided(1)
    w.set_safe(0, State.COMMITTED)
    assert w.advance() and (w.offset, w.op_offset) == (2, 0)
    assert w.is_decided(1) is (state is not State.MOVED)
    w.set_safe(1, state)  # late
    assert w.offset == 2
