"""The demonstration's closing table explains its figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batonmq.demo.findings import Findings, rows_in_topic
from batonmq.demo.round_trip import Outcome, Trip
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


def findings(**changes: Any) -> Findings:
    audited = AuditReport(
        sent=10,
        acked=10,
        in_log=10,
        lost=0,
        moved=0,
        duplicated=0,
        reordered=0,
        unacknowledged=0,
        unknown_keys=0,
    )
    found = Findings(
        audited=audited,
        counts=Outcome(flights=10, counted=10),
        replicas_equal=True,
        archived_rows=10,
        live_rows=10,
        live_rate=1_000.0,
        delays=[],
        hours=1,
        gap_ms=None,
    )
    return replace(found, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas_equal": False},
        {"archived_rows": 9},
        {"live_rows": 9},
        {"counts": Outcome(flights=10, counted=9)},
    ],
)
def test_the_demonstration_passes_only_if_all_comparisons_agree(changes: dict[str, Any]) -> None:
    assert findings().passed
    assert not findings(**changes).passed


def test_the_table_names_what_is_wrong_in_the_second_topic() -> None:
    trip = Trip(bodies=[], batches_before=1, seconds=1.0)
    wrong = findings(counts=Outcome(flights=10, counted=10, wrong=["AA: 1 counted, 2 in the topic"]))
    rows = dict(wrong.rows(acks_per_second=1_000.0, outage_s=0.106, trip=trip))
    assert rows["WRONG in the second topic"] == "AA: 1 counted, 2 in the topic"
    assert rows["kill -9 to the next acknowledged send"] == "106 ms"
    assert rows["longest gap in the log (Spark)"] == "under 100 ms"
