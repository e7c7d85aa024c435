"""The demonstration's closing table explains its figures."""

from __future__ import annotations

import pytest

from batonmq.demo.main import rows_in_topic
from batonmq.spark.jobs.audit import AuditReport


@pytest.mark.parametrize(
    ("lost", "unacknowledged", "in_log", "copies"),
    [(0, 0, 990, 0), (0, 0, 995, 5), (0, 10, 1_005, 5), (2, 4, 992, 0), (2, 4, 993, 1)],
)
def test_copies_are_what_is_stored_beyond_the_first_time(
    lost: int, unacknowledged: int, in_log: int, copies: int
) -> None:
    report = AuditReport(
        sent=1_000,
        acked=990,
        in_log=in_log,
        lost=lost,
        moved=0,
        duplicated=copies,
        reordered=0,
        unacknowledged=unacknowledged,
        unknown_keys=0,
    )
    assert report.copies == copies


def test_messages_without_a_key_are_not_copies() -> None:
    report = AuditReport(
        sent=10,
        acked=10,
        in_log=14,
        lost=0,
        moved=0,
        duplicated=1,
        reordered=0,
        unacknowledged=0,
        unknown_keys=0,
        without_key=3,
    )
    assert report.copies == 1


def test_the_rows_in_the_topic_say_why_they_are_more_than_the_flights() -> None:
    assert rows_in_topic(337_032, 256) == "337,032 = 336,776 flights + 256 stored again"
    assert rows_in_topic(336_776, 0) == "336,776"
