"""Wheel, timer log and checkpoint: bytes beside RocketMQ's, order, recovery, truncation."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from batonmq.broker.timer import counts as timer_counts
from batonmq.broker.timer import timing
from batonmq.broker.timer.layout import (
    NO_UNIT,
    UNIT,
    Checkpoint,
    Unit,
    decode_checkpoint,
    decode_unit,
)
from batonmq.broker.timer.timer_store import Entry, TimerStore
from batonmq.broker.timer.timing import TimingCounts
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.java_hash import java_hash
from batonmq.store import mapped
from batonmq.store.errors import StoreError

T0 = 1_700_000_000_000
FILE = 10 * UNIT.size + 20
"""Room for ten units and the blank."""
FOREVER = 1 << 60
ROUND = 2 * 7 * 86_400
"""Slots of the wheel: times so far apart have one place in its file."""

# From the timer log of a RocketMQ 5.5.0 broker: a message, its recall in the same slot, one that is rolled.
JAVA_UNITS = (
    "00000034ffffffffffffffff00000001000001a20c69345800004e2000000000000003cf00000103000000540000000000000000",
    "00000034000000000000006800000005000001a20c69345800004e2000000000000005d400000120000000540000000000000000",
    "00000034ffffffffffffffff00000003000001a20c6934580a4cb800000000000000088d00000106000000540000000000000000",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    opened = TimerStore(tmp_path, 1_000, FILE)
    yield opened
    opened.close()


@pytest.fixture
def reopen(tmp_path: Path) -> Iterator[Callable[..., TimerStore]]:
    opened: list[TimerStore] = []

    def again(checkpoint: Checkpoint | None = None, max_physical: int = FOREVER) -> TimerStore:
        opened.append(TimerStore(tmp_path, 1_000, FILE))
        opened[-1].recover(checkpoint or Checkpoint(T0), max_physical)
        return opened[-1]

    yield again
    for one in opened:
        one.close()


def entry(number: int, slot: int, magic: int = 1) -> Entry:
    """Message `number` of 100 bytes for the slot `slot` seconds after `T0`."""
    written_ms = T0 + slot // ROUND * ROUND * 1_000
    return Entry(T0 + slot * 1_000, magic, written_ms, number * 100, 100, 84)


def numbers(store: TimerStore, slot: int, until: int = NO_UNIT) -> list[int]:
    """The messages of a slot, oldest first."""
    found: list[int] = []
    begin: int | None = None
    while begin != NO_UNIT:
        positions, begin = store.chain(T0 + slot * 1_000, until, 3, begin)
        for position in positions:
            unit = store.log.read(position)
            assert unit is not None
            found.append(unit.physical_offset // 100)
    return found[::-1]


def slots_of(store: TimerStore, count: int = 10) -> list[object]:
    return [store.wheel.get(T0 + slot * 1_000) for slot in range(count)]


def test_units_are_rocketmqs() -> None:
    units = [decode_unit(bytes.fromhex(line)) for line in JAVA_UNITS]
    written = 1_795_504_551_000
    assert units == [
        Unit(-1, 1, written, written + 20_000, 975, 259, java_hash("T")),
        Unit(104, 5, written, written + 20_000, 1_492, 288, java_hash("T")),
        Unit(-1, 3, written, written + 172_800_000, 2_189, 262, java_hash("T")),
    ]
    assert [unit.encode().hex() for unit in units if unit] == list(JAVA_UNITS)
    assert [(u.roll, u.recalls) for u in units if u] == [(False, False), (False, True), (True, False)]


@pytest.mark.parametrize("data", [bytes(52), b"\xff" * 52, bytes.fromhex(JAVA_UNITS[0])[:-1] + b"\0"])
def test_other_bytes_are_no_unit(data: bytes) -> None:
    assert (decode_unit(data) is None) == (data[:4] != b"\0\0\0\x34")


def test_checkpoints_are_rocketmqs() -> None:
    java = bytes.fromhex(
        "000001a20c6943f8000000000000013800000000000000060000000000000006"
        "0000000000000000000001a20c6947150000000000000004"
    )
    checkpoint = Checkpoint(
        1_795_504_555_000, 312, 6, 6, DataVersion(timestamp=1_795_504_555_797, counter=4, state_version=0)
    )
    assert decode_checkpoint(java) == checkpoint
    assert checkpoint.encode() == java
    assert decode_checkpoint(java + bytes(4_040)) == checkpoint  # RocketMQ's file
    assert decode_checkpoint(java[:32])[:4] == checkpoint[:4]  # without a version, as old brokers answer


@pytest.mark.parametrize("data", [b"", b"x" * 31, b"\xff" * 56])
def test_other_bytes_are_no_checkpoint(data: bytes) -> None:
    with pytest.raises(ValueError, match="timer checkpoint"):
        decode_checkpoint(data)


def test_the_wheel_has_rocketmqs_size_and_its_places(store: TimerStore, tmp_path: Path) -> None:
    assert (tmp_path / "timerwheel").stat().st_size == 38_707_200
    store.put([entry(0, 0), entry(1, 0), entry(2, 0, magic=5)])
    index = T0 // 1_000 % (2 * 7 * 86_400)
    data = (tmp_path / "timerwheel").read_bytes()[index * 32 : index * 32 + 32]
    assert data.hex() == f"{T0 // 1_000:016x}{0:016x}{104:016x}{1:08x}{0:08x}"


def test_messages_of_a_slot_come_in_their_order_across_files(store: TimerStore) -> None:
    store.put([entry(number, number % 3) for number in range(50)])
    for slot in range(3):
        assert numbers(store, slot) == list(range(slot, 50, 3))
    assert len(list(store.log.paths_since(0))) == 6
    assert (store.waiting, store.used, store.next_ms) == (50, 3, T0)
    newest = store.newest(T0)
    store.put([entry(51, 0), entry(54, 0)])
    assert numbers(store, 0, until=newest) == [51, 54]


def test_a_blank_ends_each_file(store: TimerStore, tmp_path: Path) -> None:
    store.put([entry(number, 0) for number in range(11)])
    first = (tmp_path / "timerlog" / f"{0:020d}").read_bytes()
    assert first[520:536].hex() == "00000014" + "0" * 16 + "cbd43194"
    assert store.log.end == FILE + UNIT.size


def test_slots_that_are_done_are_empty_and_the_next_one_is_known(store: TimerStore) -> None:
    store.put([entry(0, 5), entry(1, 9_000), entry(2, 100_000)])
    assert store.next_ms == T0 + 5_000
    for slot in (5, 9_000, 100_000):
        assert store.next_ms == T0 + slot * 1_000
        store.done(store.next_ms)
    assert (store.next_ms, store.waiting, store.used) == (None, 0, 0)


def test_a_slot_before_the_one_in_delivery_comes_next(store: TimerStore) -> None:
    store.put([entry(0, 5), entry(1, 7)])
    store.put([entry(2, 3)])
    store.done(T0 + 5_000)
    assert store.next_ms == T0 + 3_000


def test_slots_of_another_round_do_not_count(store: TimerStore) -> None:
    store.put([entry(0, 0)])
    assert store.wheel.get(T0 + ROUND * 1_000) is None
    store.put([entry(1, ROUND)])
    assert numbers(store, ROUND) == [1]


def test_times_with_one_place_in_the_file_keep_all_their_messages(
    store: TimerStore, reopen: Callable[..., TimerStore]
) -> None:
    """A broker was away for long: what was due then is not delivered yet when new messages come."""
    store.put([entry(0, 5), entry(1, 6)])
    store.put([entry(2, 5 + ROUND), entry(3, 5 + 2 * ROUND), entry(4, 5)])
    store.put([entry(5, 5 + ROUND), entry(6, 7 + 2 * ROUND)])
    expected = {5: [0, 4], 5 + ROUND: [2, 5], 5 + 2 * ROUND: [3], 6: [1], 7 + 2 * ROUND: [6]}
    for each in (store, again := reopen()):
        assert {slot: numbers(each, slot) for slot in expected} == expected
        assert (each.waiting, each.used, each.next_ms) == (7, 5, T0 + 5_000)
        assert each.wheel.count(T0, T0 + 10_000) == 3
        assert each.wheel.count(T0 + ROUND * 1_000, T0 + ROUND * 1_000 + 10_000) == 2
    order = []
    while again.next_ms is not None:
        order.append((again.next_ms - T0) // 1_000)
        again.done(again.next_ms)
    assert order == sorted(expected)
    assert (again.waiting, again.used) == (0, 0)


def test_the_next_slot_is_found_beyond_the_reach_of_the_wheel(store: TimerStore) -> None:
    """The clock was 20 days ahead for a while, and messages were sent meanwhile."""
    store.put([entry(0, 0), entry(1, ROUND + 500_000), entry(2, ROUND + 400_000)])
    store.done(T0)
    assert store.next_ms == T0 + (ROUND + 400_000) * 1_000


def test_what_another_broker_delivered_is_forgotten_wherever_it_is(store: TimerStore) -> None:
    store.put([entry(0, 1 + ROUND), entry(1, 1), entry(2, 2 + 2 * ROUND), entry(3, 2 + ROUND)])
    store.wheel.forget_before(T0 + (ROUND + 2) * 1_000)
    store.count_again()
    assert (store.waiting, store.used, store.next_ms) == (2, 2, T0 + (ROUND + 2) * 1_000)


def test_messages_by_period(store: TimerStore) -> None:
    store.put([entry(n, slot) for n, slot in enumerate((0, 1, 1, 4, 5, 59, 60, 80_000))])
    assert store.wheel.count(T0, T0 + 5_000) == 4
    assert store.wheel.count(T0 + 5_000, T0 + 60_000) == 2
    assert store.wheel.count(T0, T0 + 86_400_000) == 8


# -- recovery


def test_a_restart_finds_the_same_wheel(store: TimerStore, reopen: Callable[..., TimerStore]) -> None:
    store.put([entry(n, n % 7, magic=5 if n % 10 == 9 else 1) for n in range(45)])
    before, figures = slots_of(store), (store.waiting, store.used, store.next_ms)
    again = reopen()
    assert slots_of(again) == before
    assert (again.waiting, again.used, again.next_ms) == figures
    again.put([entry(45, 3)])
    assert numbers(again, 3)[-2:] == [38, 45]


def test_delivered_slots_stay_away_but_not_what_came_after_the_checkpoint(
    store: TimerStore, reopen: Callable[..., TimerStore]
) -> None:
    store.put([entry(0, 0), entry(1, 5)])
    at = store.log.end
    store.done(T0)
    store.put([entry(2, 1)])  # late: its slot is before the checkpoint's read time
    again = reopen(Checkpoint(T0 + 4_000, at))
    assert [numbers(again, slot) for slot in (0, 1, 5)] == [[], [2], [1]]


def test_a_torn_tail_is_cut(store: TimerStore, tmp_path: Path, reopen: Callable[..., TimerStore]) -> None:
    store.put([entry(n, 0) for n in range(15)])
    path = tmp_path / "timerlog" / f"{FILE:020d}"
    data = bytearray(path.read_bytes())
    data[2 * UNIT.size : 2 * UNIT.size + 30] = bytes(30)
    path.write_bytes(data)
    again = reopen()
    assert numbers(again, 0) == list(range(12))
    assert again.log.end == FILE + 2 * UNIT.size
    again.put([entry(20, 0)])
    assert numbers(reopen(), 0) == [*range(12), 20]


def test_a_wheel_that_points_behind_the_log_is_rebuilt(
    store: TimerStore, tmp_path: Path, reopen: Callable[..., TimerStore]
) -> None:
    store.put([entry(n, n % 2) for n in range(15)])
    (tmp_path / "timerlog" / f"{FILE:020d}").unlink()  # a power cut: the wheel's pages were written first
    again = reopen()
    assert [numbers(again, slot) for slot in (0, 1)] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    (tmp_path / "timerwheel").unlink()
    assert numbers(reopen(), 1) == [1, 3, 5, 7, 9]


def test_units_behind_the_commit_log_are_cut_at_the_start(
    store: TimerStore, reopen: Callable[..., TimerStore]
) -> None:
    store.put([entry(n, 0) for n in range(25)])
    assert numbers(reopen(max_physical=1_250), 0) == list(range(12))


def test_a_cut_of_the_commit_log_takes_its_messages_back(store: TimerStore) -> None:
    store.put([entry(n, n % 4, magic=5 if n == 18 else 1) for n in range(25)])
    store.cut(1_000)
    assert [numbers(store, slot) for slot in range(4)] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert (store.waiting, store.used, store.next_ms) == (10, 4, T0)
    store.cut(250)
    assert [numbers(store, slot) for slot in range(4)] == [[0], [1], [], []]
    store.put([entry(30, 2), entry(31, 0)])
    assert [numbers(store, slot) for slot in range(4)] == [[0, 31], [1], [30], []]
    store.cut(0)
    assert (store.waiting, store.used, store.next_ms) == (0, 0, None)


@pytest.mark.parametrize(
    "slots", [range(8), (0, ROUND, 2 * ROUND, 1, 1 + ROUND, 2, 3 + ROUND, 3 + 5 * ROUND)]
)
def test_random_puts_cuts_and_restarts_agree_with_a_simple_model(
    tmp_path: Path, slots: Sequence[int]
) -> None:
    rng = random.Random(7)
    model: list[tuple[int, int]] = []
    number = 0
    store = TimerStore(tmp_path, 1_000, FILE)
    store.recover(Checkpoint(T0), FOREVER)
    try:
        for _ in range(200):
            what = rng.random()
            if what < 0.7:
                fresh = [(number + n, rng.choice(slots)) for n in range(rng.randint(1, 12))]
                number += len(fresh)
                store.put([entry(n, slot) for n, slot in fresh])
                model += fresh
            elif what < 0.85:
                limit = rng.randint(max(0, number - 30), number)
                store.cut(limit * 100)
                model = [(n, slot) for n, slot in model if n < limit]
                number = limit
            else:
                store.close()
                store = TimerStore(tmp_path, 1_000, FILE)
                store.recover(Checkpoint(T0), FOREVER)
            for slot in slots:
                assert numbers(store, slot) == [n for n, at in model if at == slot]
            assert store.waiting == len(model)
            assert store.next_ms == min((T0 + at * 1_000 for _, at in model), default=None)
    finally:
        store.close()


def test_files_go_once_their_messages_have_left_the_commit_log(
    store: TimerStore, reopen: Callable[..., TimerStore]
) -> None:
    store.put([entry(n, 0) for n in range(35)])
    assert store.log.drop_before(900) == []
    for path in (dropped := store.log.drop_before(2_000)):
        path.unlink()
    assert [path.name for path in dropped] == [f"{0:020d}", f"{FILE:020d}"]
    assert numbers(store, 0) == list(range(20, 35))
    assert store.log.drop_before(FOREVER) != []  # all but the last one
    assert numbers(store, 0) == list(range(30, 35))


def test_a_restart_takes_no_room_for_what_is_not_written_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a hole that is read through a map takes room on a tmpfs. With a full one that is a SIGBUS."""
    monkeypatch.setattr(mapped, "ALLOCATE_STEP", 1 << 16)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        for number in range(3):
            store = TimerStore(Path(directory), 1_000, 1 << 20)
            store.recover(Checkpoint(T0), FOREVER)
            assert store.waiting == 10 * number
            store.put([entry(10 * number + each, 5) for each in range(10)])
            (path,) = (Path(directory) / "timerlog").iterdir()
            before = path.stat().st_blocks
            store.log.find_end(FOREVER)
            store.log.build(1_000, T0, 0)
            store.log.drop_before(0)
            assert path.stat().st_blocks == before < (1 << 20) // 512
            store.close()


def test_files_of_another_size_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(b"x" * 100)
    with pytest.raises(StoreError, match="timerwheel has 100 bytes"):
        TimerStore(tmp_path, 1_000, FILE)


def test_a_refused_write_leaves_wheel_and_log_as_they_were(
    store: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([entry(0, 0)])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("batonmq.store.mapped.write_all", refuse)
        with pytest.raises(OSError, match="No space"):
            store.put([entry(1, 0), entry(2, 4)])
    assert (numbers(store, 0), numbers(store, 4), store.waiting) == ([0], [], 1)
    store.put([entry(1, 0), entry(2, 4)])
    assert (numbers(store, 0), numbers(store, 4), store.waiting) == ([0, 1], [2], 3)


# -- counts


def test_counts_are_rocketmqs_file() -> None:
    java = (
        b'{"dataVersion":{"counter":8,"stateVersion":0,"timestamp":1795504554248},'
        b'"timingCount":{"T":{"count":2,"timeStamp":1795504554248}}}'
    )
    counts = TimingCounts()
    counts.restore(java)
    assert counts.counts() == {"T": 2}
    counts.add("U", 3, T0)
    again = TimingCounts()
    again.restore(counts.encode())
    assert again.counts() == {"T": 2, "U": 3}
    with pytest.raises(ValueError):
        counts.restore(b"{")


def test_counts_are_taken_from_the_log_by_the_hashes_of_topics() -> None:
    counts = TimingCounts()
    counts.add("gone", 5, T0)
    counts.add("T", 9, T0)
    counts.recount({java_hash("T"): 4, 12345: 7}, ["T", "U"], T0)
    assert counts.counts() == {"gone": 0, "T": 4}
    counts.forget_unless(["T"])
    assert counts.counts() == {"T": 4}


def test_topics_that_a_client_makes_up_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MOST_TOPICS", 3)
    monkeypatch.setattr(timer_counts, "MOST_TOPICS", 3)
    waiting = TimingCounts()
    counts = timer_counts.TimerCounts(waiting, lambda: T0)
    for number in range(5):
        counts.enqueued(f"T{number}", recalls=False)
    assert waiting.counts() == {"T0": 1, "T1": 1, "T2": 1}
    counts.left("T1")
    counts.left("T4")
    assert waiting.counts() == {"T0": 1, "T1": 0, "T2": 1}
    counts.enqueued("T3", recalls=False)  # in the place of one that no longer waits
    assert waiting.counts() == {"T0": 1, "T2": 1, "T3": 1}
    assert counts.enqueued_by_topic == {"T0": 1, "T1": 1, "T2": 1}
    assert counts.delivered_by_topic == {"T1": 1, "T4": 1}


def test_a_rate_forgets_what_was_counted_before_the_clock_was_set_back() -> None:
    rate = timer_counts.Rate()
    for second in range(5):
        rate.add(T0 + second * 1_000)
    early = T0 - 3_600_000
    for second in range(100):
        rate.add(early + second * 1_000)
    assert rate.per_second(early + 99_000) == 1.0 and len(rate._seconds) <= 11
