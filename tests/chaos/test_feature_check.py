"""The checks of transactions, pop and timers find each kind of mistake, and nothing else."""

from __future__ import annotations

import pytest

from tests.chaos.check import Found, Kind, Send
from tests.chaos.feature_check import (
    Handle,
    Prepared,
    Receipt,
    Span,
    check_pops,
    check_timers,
    check_transactions,
)

S = 1_000_000


def log(*keys: str) -> list[Found]:
    return [Found(0, offset, key, True) for offset, key in enumerate(keys)]


def prepared(key: str, *, commits: bool = True, acked: bool = True, attempts: int = 1) -> Prepared:
    return Prepared(key, 0, attempts, 10 if acked else None, commits)


def sent(key: str, *, acked: bool = True, attempts: int = 1) -> Send:
    return Send(key, 0, attempts, 10 if acked else None)


# -- transactions

GOOD = [prepared("a"), prepared("b", commits=False), prepared("c", acked=False), prepared("d", attempts=2)]


def test_transactions_that_ended_as_decided_are_right() -> None:
    verdict = check_transactions(GOOD, log("a", "d", "d"), ["a", "d", "d", "a"])
    assert verdict.ok
    assert (verdict.sent, verdict.acked, verdict.stored) == (4, 2, 3)
    assert (verdict.duplicated, verdict.redelivered) == (1, 1)


@pytest.mark.parametrize(
    ("stored", "delivered", "kind"),
    [
        (("d",), ("a", "d"), Kind.LOST),
        (("a", "a", "d"), ("a", "d"), Kind.MULTIPLIED),
        (("a", "d", "b"), ("a", "d"), Kind.RESURRECTED),
        (("a", "d", "c"), ("a", "d"), Kind.RESURRECTED),
        (("a", "d"), ("a", "d", "b"), Kind.RESURRECTED),
        (("a", "d"), ("d",), Kind.UNDELIVERED),
        (("a", "d", "x"), ("a", "d"), Kind.INVENTED),
    ],
)
def test_wrong_ends_of_transactions_are_found(
    stored: tuple[str, ...], delivered: tuple[str, ...], kind: Kind
) -> None:
    assert dict(check_transactions(GOOD, log(*stored), delivered).counts) == {kind: 1}


def test_what_was_undecided_while_a_slave_acted_may_be_committed_by_two_brokers() -> None:
    """By the acting slave, and by the master that returns."""
    ended = Prepared("a", 0, 1, 1 * S, True, ended_us=2 * S)
    open_ = Prepared("b", 0, 1, 1 * S, True)
    rolled_back = Prepared("c", 0, 1, 1 * S, False)

    def found(acting: Span, *stored: str) -> dict[object, int]:
        verdict = check_transactions([ended, open_, rolled_back], log(*stored), stored, acting=[acting])
        return dict(verdict.counts)

    during, later = Span(1 * S, 3 * S), Span(3 * S, 4 * S)
    assert found(during, "a", "a", "b", "b") == {}
    assert found(during, "a", "a", "a", "b") == {Kind.MULTIPLIED: 1}
    assert found(later, "a", "b", "b") == {}
    assert found(later, "a", "a", "b") == {Kind.MULTIPLIED: 1}
    assert found(during, "a", "b", "c") == {Kind.RESURRECTED: 1}
    assert found(during, "a") == {Kind.LOST: 1}


def test_the_files_of_a_replica_need_no_deliveries() -> None:
    assert check_transactions(GOOD, log("a", "d")).ok
    damaged = [*log("a"), Found(0, 1, "d", False)]
    assert dict(check_transactions(GOOD, damaged).counts) == {Kind.CORRUPT: 1}


# -- pop

SENDS = [sent("a"), sent("b", acked=False)]


FIRST, SECOND = Handle("a", 0, 0, 100), Handle("%RETRY%g_a", 0, 0, 200)


def pops(
    *receipts: Receipt, stored: tuple[str, ...] = ("a",), acks: frozenset[Handle] = frozenset()
) -> dict[object, int]:
    verdict = check_pops(SENDS, log(*stored), receipts, invisible_us=5 * S, stored_acks=acks)
    return dict(verdict.counts)


def test_a_message_that_comes_back_until_it_is_acknowledged_is_right() -> None:
    assert pops(Receipt("a", 0, 1 * S), Receipt("a", 2 * S, 6 * S, 7 * S)) == {}
    assert pops(Receipt("a", 0, 1 * S, 2 * S)) == {}
    # The second request was on its way when the ack was answered; the time of the first one was over.
    assert pops(Receipt("a", 0, 1 * S, 6 * S), Receipt("a", 5 * S, 6 * S)) == {}


def test_an_ack_that_failed_settles_its_message_only_if_the_log_has_it() -> None:
    failed = Receipt("a", 0, 1 * S, failed=True, handle=FIRST)
    assert pops(failed, acks=frozenset({FIRST})) == {}
    assert pops(failed, acks=frozenset({SECOND})) == {Kind.UNDELIVERED: 1}
    assert pops(failed) == {Kind.UNDELIVERED: 1}
    assert pops(failed, Receipt("a", 6 * S, 7 * S, 8 * S, handle=SECOND)) == {}
    # Nobody has sent an ack, whatever the log says.
    assert pops(Receipt("a", 0, 1 * S, handle=FIRST), acks=frozenset({FIRST})) == {Kind.UNDELIVERED: 1}


def test_wrong_receipts_are_found() -> None:
    assert pops(Receipt("a", 0, 1 * S, 2 * S), Receipt("a", 8 * S, 9 * S)) == {Kind.AGAIN: 1}
    assert pops(Receipt("a", 0, 1 * S), Receipt("a", 2 * S, 3 * S, 4 * S)) == {Kind.EARLY: 1}
    assert pops(Receipt("a", 0, 1 * S)) == {Kind.UNDELIVERED: 1}
    assert pops() == {Kind.UNDELIVERED: 1}
    assert pops(Receipt("a", 0, 1 * S, 2 * S), stored=()) == {Kind.LOST: 1}
    assert pops(Receipt("a", 0, 1 * S, 2 * S), stored=("a", "b", "b")) == {Kind.MULTIPLIED: 1}


def test_what_an_acting_slave_handed_out_may_come_again() -> None:
    def found(acting: Span, *receipts: Receipt) -> dict[object, int]:
        return dict(check_pops(SENDS, log("a"), receipts, invisible_us=5 * S, acting=[acting]).counts)

    during, later = Span(1 * S, 3 * S), Span(3 * S, 9 * S)
    acked, again = Receipt("a", 0, 1 * S, 2 * S), Receipt("a", 3 * S, 4 * S, 6 * S)
    assert found(during, acked, again) == {}
    assert found(later, acked, again) == {Kind.AGAIN: 1}
    unacked = Receipt("a", 0, 1 * S)
    assert found(during, unacked, again) == {}
    assert found(later, unacked, again) == {Kind.EARLY: 1}
    # The answer to an ack that only the slave's memory had is lost.
    failed = Receipt("a", 0, 1 * S, failed=True, handle=FIRST)
    assert found(during, failed) == {}
    assert found(Span(20 * S, 21 * S), failed) == {Kind.UNDELIVERED: 1}
    assert found(during, unacked) == {Kind.UNDELIVERED: 1}


def test_of_a_message_that_is_stored_twice_each_copy_has_its_own_ack() -> None:
    sends = [sent("a", attempts=2)]
    receipts = [Receipt("a", 0, 1 * S, 2 * S), Receipt("a", 3 * S, 4 * S, 5 * S)]
    verdict = check_pops(sends, log("a", "a"), receipts, invisible_us=5 * S)
    assert verdict.ok and verdict.duplicated == 1 and verdict.redelivered == 0


# -- timers


def timers(*deliveries: tuple[str, int], stored: tuple[str, ...] = ("a",)) -> dict[object, int]:
    return dict(check_timers(SENDS, {"a": 1_000, "b": 2_000}, log(*stored), deliveries).counts)


def test_timers_on_time_are_right() -> None:
    assert timers(("a", 1_000)) == {}
    assert timers(("a", 1_900), ("a", 2_000), ("b", 2_000), stored=("a", "a", "b")) == {}


def test_wrong_timers_are_found() -> None:
    assert timers(("a", 999)) == {Kind.EARLY: 1}
    assert timers() == {Kind.UNDELIVERED: 1}
    assert timers(("a", 1_000), stored=()) == {Kind.LOST: 1}
    assert timers(("a", 1_000), ("b", 1_500)) == {Kind.EARLY: 1}
