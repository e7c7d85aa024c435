"""One client of a group holds a queue; a lock that is not renewed expires."""

from __future__ import annotations

import pytest

from batonmq.broker.tables import locks as tables_locks
from batonmq.broker.tables.locks import LOCK_LIFETIME_MS, LockTable


@pytest.fixture
def locks() -> LockTable[int]:
    return LockTable()


def test_first_client_gets_free_queues_and_keeps_them(locks: LockTable[int]) -> None:
    assert locks.try_lock("g", [0, 1], "c1", now_ms=0) == {0, 1}
    assert locks.try_lock("g", [0, 1, 2], "c2", now_ms=1) == {2}
    assert locks.try_lock("g", [0, 2], "c1", now_ms=2) == {0}


def test_groups_are_independent(locks: LockTable[int]) -> None:
    assert locks.try_lock("g1", [0], "c1", now_ms=0) == {0}
    assert locks.try_lock("g2", [0], "c2", now_ms=0) == {0}


def test_lock_expires_after_its_lifetime_and_not_before(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0)
    assert locks.try_lock("g", [0], "c2", now_ms=LOCK_LIFETIME_MS) == set()
    assert locks.try_lock("g", [0], "c2", now_ms=LOCK_LIFETIME_MS + 1) == {0}
    assert locks.owner("g", 0, LOCK_LIFETIME_MS + 1) == "c2"


def test_renewing_prolongs(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0)
    locks.try_lock("g", [0], "c1", now_ms=50_000)
    assert locks.try_lock("g", [0], "c2", now_ms=100_000) == set()


def test_only_the_owner_unlocks(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0)
    locks.unlock("g", [0], "c2")
    assert locks.owner("g", 0, 1) == "c1"
    locks.unlock("g", [0, 7], "c1")
    assert locks.owner("g", 0, 1) is None
    locks.unlock("unknown", [0], "c1")


def test_expired_locks_are_dropped(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0)
    locks.try_lock("g", [1], "c1", now_ms=50_000)
    locks.drop_expired(now_ms=70_000)
    assert locks.owner("g", 0, 70_000) is None
    assert locks.owner("g", 1, 70_000) == "c1"
    assert not locks.all_expired("g", 70_000)
    locks.drop_expired(now_ms=200_000)
    assert locks.all_expired("g", 200_000)


def test_an_undone_attempt_leaves_what_was_there_before(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0, attempt="a")
    locks.try_lock("g", [0, 1], "c1", now_ms=50_000, attempt="b")
    locks.undo("g", [0, 1], "c1", "b")
    assert locks.owner("g", 0, 60_000) == "c1"
    assert locks.owner("g", 0, 60_001) is None
    assert locks.owner("g", 1, 50_000) is None
    assert locks.attempts("g", [0, 1], "c1") == {"a": [0]}


def test_an_undo_that_arrives_late_changes_nothing(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0, attempt="a")
    locks.try_lock("g", [0], "c1", now_ms=10, attempt="b")
    locks.undo("g", [0], "c1", "a")
    locks.undo("g", [0], "c2", "b")
    locks.undo("g", [7], "c1", "b")
    locks.undo("unknown", [0], "c1", "b")
    assert locks.owner("g", 0, 10 + LOCK_LIFETIME_MS) == "c1"


def test_a_repeated_attempt_is_undone_as_a_whole(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0, attempt="a")
    locks.try_lock("g", [0], "c1", now_ms=10, attempt="a")
    locks.undo("g", [0], "c1", "a")
    assert locks.owner("g", 0, 10) is None


def test_an_expired_lock_of_another_client_does_not_come_back_by_an_undo(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0], "c1", now_ms=0)
    locks.try_lock("g", [0], "c2", now_ms=70_000, attempt="a")
    locks.undo("g", [0], "c2", "a")
    assert list(locks) == []


def test_an_unlock_for_an_attempt_releases_nothing_that_was_locked_since(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0, 1], "c1", now_ms=0, attempt="a")
    locks.try_lock("g", [0], "c1", now_ms=10, attempt="b")
    locks.unlock("g", [0, 1], "c1", "a")
    assert locks.owner("g", 0, 20) == "c1" and locks.owner("g", 1, 20) is None


def test_only_a_new_owner_counts_as_one(locks: LockTable[int]) -> None:
    locks.try_lock("g", [0, 1], "c1", now_ms=0)
    locks.try_lock("g", [0, 1], "c1", now_ms=10)
    locks.try_lock("g", [0, 1], "c2", now_ms=10)
    assert locks.new_owners == 2
    locks.try_lock("g", [0], "c2", now_ms=100_000)
    assert locks.new_owners == 3
    assert sorted(locks) == [("g", "c1", [1]), ("g", "c2", [0])]


def test_long_names_count_as_more_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_locks, "MOST_LOCKS", 20)
    locks: LockTable[str] = LockTable(names=len)
    long = [f"{number}" + "t" * 1_023 for number in range(10)]
    held = locks.try_lock("g" * 1_024, long, "c" * 1_024, now_ms=0)
    assert len(held) == 2 and locks.full, "each counts as 13"
    locks.unlock("g" * 1_024, held, "c" * 1_024)
    assert len(locks.try_lock("g", [f"{number}" for number in range(30)], "c", now_ms=0)) == 20
    assert locks.try_lock("g", ["0"], "d" * 1_024, now_ms=LOCK_LIFETIME_MS + 1) == {"0"}
    locks.drop_expired(2 * LOCK_LIFETIME_MS + 2)
    assert len(locks.try_lock("g", [f"{number}" for number in range(30)], "c", now_ms=0)) == 20


def test_the_number_of_locks_is_bounded(locks: LockTable[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_locks, "MOST_LOCKS", 3)
    assert locks.try_lock("g", range(5), "c1", now_ms=0) == {0, 1, 2}
    assert locks.full and locks.try_lock("g2", [0], "c2", now_ms=0) == set()
    assert locks.try_lock("g", [0], "c1", now_ms=1) == {0}, "a lock that is held is renewed"
    locks.unlock("g", [1], "c1")
    assert locks.try_lock("g2", [0], "c2", now_ms=1) == {0}
    locks.drop_expired(LOCK_LIFETIME_MS + 2)
    assert not locks.full and locks.try_lock("g", range(5), "c1", now_ms=LOCK_LIFETIME_MS + 2) == {0, 1, 2}
