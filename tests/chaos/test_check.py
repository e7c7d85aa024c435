"""The checker notices what it is there for: each kind of harm is planted in a history that is in order."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import pytest

from tests.chaos.check import Found, Kind, Send, check, longest_gap_s

QUEUES, COUNT = 2, 40


def history() -> tuple[list[Send], list[Found]]:
    """40 messages, one after the other, to two queues in turn; all acknowledged, stored and delivered."""
    sends = [
        Send(
            f"k{i}", sent_us=100 * i, attempts=1, acked_us=100 * i + 50, queue=i % QUEUES, offset=i // QUEUES
        )
        for i in range(COUNT)
    ]
    return sends, [Found(send.queue, send.offset, send.key, intact=True) for send in sends]


def kinds(sends: list[Send], log: list[Found], deliveries: list[Found] | None = None) -> dict[StrEnum, int]:
    return dict(check(sends, log, log if deliveries is None else deliveries).counts)


def test_a_history_in_order_has_no_violation() -> None:
    sends, log = history()
    verdict = check(sends, log, log)
    assert verdict.ok
    assert (verdict.sent, verdict.acked, verdict.stored) == (COUNT, COUNT, COUNT)
    assert (verdict.duplicated, verdict.redelivered) == (0, 0)


def test_a_lost_message_at_the_end_of_a_queue() -> None:
    sends, log = history()
    assert kinds(sends, log[:-1]) == {Kind.LOST: 1, Kind.UNDELIVERED: 1}


def test_a_lost_message_in_the_middle_leaves_a_hole() -> None:
    sends, log = history()
    assert kinds(sends, log[:10] + log[11:], log) == {Kind.LOST: 1, Kind.HOLE: 1, Kind.TAKEN_BACK: 1}


def test_a_lost_message_whose_place_the_next_ones_took() -> None:
    sends, log = history()
    log = [
        replace(found, offset=found.offset - 1) if found.queue == 0 and found.offset > 3 else found
        for found in log
        if (found.queue, found.offset) != (0, 3)
    ]
    counts = kinds(sends, log)
    # Offsets 3 to 18 hold their successors; the last one's place is empty, and it lies elsewhere.
    assert counts[Kind.OVERWRITTEN] == 16
    assert counts[Kind.MOVED] == 1


def test_an_overwritten_message() -> None:
    sends, log = history()
    sends.append(Send("other", sent_us=1, attempts=1))
    log[10] = replace(log[10], key="other")
    assert kinds(sends, log) == {Kind.OVERWRITTEN: 1, Kind.UNDELIVERED: 1}


def test_two_messages_that_changed_places() -> None:
    sends, log = history()
    log[10], log[12] = replace(log[10], key=log[12].key), replace(log[12], key=log[10].key)
    assert kinds(sends, log) == {Kind.OVERWRITTEN: 2, Kind.UNDELIVERED: 2}


def test_places_against_the_order_of_sending() -> None:
    """Log and acknowledgements agree with each other, but not with the time of sending."""
    sends, log = history()
    sends[10], sends[12] = (
        replace(sends[10], offset=sends[12].offset),
        replace(sends[12], offset=sends[10].offset),
    )
    log[10], log[12] = replace(log[10], key="k12"), replace(log[12], key="k10")
    assert kinds(sends, log) == {Kind.REORDERED: 1}


def test_sends_that_overlap_may_lie_in_any_order() -> None:
    sends, log = history()
    sends[12] = replace(sends[12], sent_us=sends[10].sent_us)
    sends[10], sends[12] = (
        replace(sends[10], offset=sends[12].offset),
        replace(sends[12], offset=sends[10].offset),
    )
    log[10], log[12] = replace(log[10], key="k12"), replace(log[12], key="k10")
    assert kinds(sends, log) == {}


@pytest.mark.parametrize(("attempts", "expected"), [(1, {Kind.MULTIPLIED: 1}), (2, {})])
def test_a_second_copy_needs_a_second_attempt(attempts: int, expected: dict[Kind, int]) -> None:
    sends, log = history()
    sends[5] = replace(sends[5], attempts=attempts)
    log.append(Found(0, COUNT // QUEUES, "k5", intact=True))
    assert kinds(sends, log) == expected
    assert check(sends, log, log).duplicated == 1


def test_a_message_nobody_sent() -> None:
    sends, log = history()
    log.append(Found(0, COUNT // QUEUES, "stranger", intact=True))
    assert kinds(sends, log) == {Kind.INVENTED: 1}


def test_other_bytes_than_were_sent() -> None:
    sends, log = history()
    torn = [replace(log[0], intact=False), *log[1:]]
    assert kinds(sends, torn, log) == {Kind.CORRUPT: 1}
    assert kinds(sends, log, torn) == {Kind.CORRUPT: 1}


def test_a_send_of_unknown_outcome_may_be_stored_or_not() -> None:
    sends, log = history()
    sends += [Send("stored", 5000, attempts=1), Send("gone", 5001, attempts=3)]
    log.append(Found(0, COUNT // QUEUES, "stored", intact=True))
    assert kinds(sends, log) == {}


def test_what_a_consumer_got_and_the_log_does_not_have() -> None:
    """A consumer read beyond the confirm offset: the bytes were cut off later."""
    sends, log = history()
    sends.append(Send("cut", 5000, attempts=1))
    assert kinds(sends, log, [*log, Found(0, COUNT // QUEUES, "cut", intact=True)]) == {Kind.TAKEN_BACK: 1}


def test_an_acknowledged_message_no_consumer_got() -> None:
    sends, log = history()
    assert kinds(sends, log, log[1:]) == {Kind.UNDELIVERED: 1}


def test_deliveries_may_be_repeated_and_are_counted() -> None:
    sends, log = history()
    verdict = check(sends, log, [*log, log[3], log[3]])
    assert verdict.ok
    assert verdict.redelivered == 2


def test_merged_verdicts_keep_all_counts() -> None:
    sends, log = history()
    verdict = check(sends, log, log)
    verdict.merge(check(sends, log[:-1]))
    assert dict(verdict.counts) == {Kind.LOST: 1}
    assert "k39" in verdict.examples[Kind.LOST][0]


@pytest.mark.parametrize(
    ("acks", "expected_s"),
    [
        ([], 0.5),
        ([900_000, 1_000_000, 1_100_000, 1_500_000], 0.4),
        ([900_000, 1_450_000], 0.55),  # counted from the last one before the fault
        ([1_000_000, 1_200_000, 2_000_000], 0.3),  # to the end of the window, not beyond
        ([100_000, 200_000], 1.3),
    ],
)
def test_longest_gap(acks: list[int], expected_s: float) -> None:
    assert longest_gap_s(acks, 1_000_000, 1_500_000) == pytest.approx(expected_s)
