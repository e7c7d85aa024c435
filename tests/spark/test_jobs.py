"""The jobs' verdicts on tiny tables made by hand, and on stores that differ by a byte."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.spark.access import OPEN
from batonmq.spark.jobs import archive, audit, restore, rollup
from batonmq.spark.main import _log

LOG_SCHEMA = "keys string, broker string, queueId int, queueOffset long"
CLEAN = audit.AuditReport(
    sent=3, acked=3, in_log=3, lost=0, moved=0, duplicated=0, reordered=0, unacknowledged=0, unknown_keys=0
)
A, B, C = ("a", "acked", "b:0", 0, 10, 20), ("b", "acked", "b:0", 1, 11, 21), ("c", "acked", "b:1", 0, 12, 22)
LOG_A, LOG_B, LOG_C = ("a", "b", 0, 0), ("b", "b", 0, 1), ("c", "b", 1, 0)
UNKNOWN = ("u", "unknown", None, None, 13, None)


@pytest.mark.parametrize(
    ("history", "log", "expected"),
    [
        pytest.param([A, B, C], [LOG_A, LOG_B, LOG_C], CLEAN, id="clean"),
        pytest.param([A, B, C], [LOG_A, LOG_C], replace(CLEAN, in_log=2, lost=1), id="lost"),
        pytest.param([A, B, C], [], replace(CLEAN, in_log=0, lost=3), id="all lost"),
        pytest.param([A, B, C], [LOG_A, LOG_B, ("c", "b", 1, 7)], replace(CLEAN, moved=1), id="moved"),
        pytest.param(
            [A, B, C],
            [LOG_A, LOG_B, LOG_C, ("a", "b", 1, 9)],
            replace(CLEAN, in_log=4, duplicated=1),
            id="duplicated by a retry",
        ),
        pytest.param(
            # 'b' is before 'a' in the queue though its sending began (at 30) after 'a' was acknowledged (20)
            [("a", "acked", "b:0", 1, 10, 20), ("b", "acked", "b:0", 0, 30, 40), C],
            [("b", "b", 0, 0), ("a", "b", 0, 1), LOG_C],
            replace(CLEAN, reordered=1),
            id="reordered",
        ),
        pytest.param(
            # overlapping sends may be stored in either order
            [("a", "acked", "b:0", 1, 10, 20), ("b", "acked", "b:0", 0, 15, 40), C],
            [("b", "b", 0, 0), ("a", "b", 0, 1), LOG_C],
            CLEAN,
            id="overlapping sends",
        ),
        pytest.param(
            [A, B, C, UNKNOWN],
            [LOG_A, LOG_B, LOG_C, ("u", "b", 0, 2)],
            replace(CLEAN, sent=4, in_log=4, unacknowledged=1),
            id="unacknowledged but stored",
        ),
        pytest.param(
            [A, B, C, UNKNOWN],
            [LOG_A, LOG_B, LOG_C],
            replace(CLEAN, sent=4),
            id="neither acknowledged nor stored",
        ),
        pytest.param(
            [A, B, C],
            [LOG_A, LOG_B, LOG_C, ("stranger", "b", 0, 2)],
            replace(CLEAN, in_log=4, unknown_keys=1),
            id="another producer's",
        ),
        pytest.param(
            [A, B, C],
            [LOG_A, LOG_B, LOG_C, (None, "b", 0, 2), (None, "b", 0, 3), (None, "b", 1, 1)],
            replace(CLEAN, in_log=6, without_key=3),
            id="without a key",
        ),
    ],
)
def test_audit(session, history, log, expected):
    report = audit.audit(
        session.createDataFrame(history, audit.HISTORY_SCHEMA), session.createDataFrame(log, LOG_SCHEMA)
    )
    assert report == expected
    assert report.ok == (not (expected.lost or expected.moved or expected.reordered))


START = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def messages(session, moments_ms, body=b"12345"):
    rows = [(bytearray(body), START + timedelta(milliseconds=at)) for at in moments_ms]
    return session.createDataFrame(rows, "value binary, timestamp timestamp")


def test_gaps_longest_first(session):
    rows = rollup.gaps(messages(session, [0, 0, 99, 199, 900, 2000])).collect()
    assert [r["milliseconds"] for r in rows] == [1100, 701, 100]
    assert rollup.gaps(messages(session, [5])).collect() == []


def test_flights_by_hour_and_carrier(session):
    def flight(hour, carrier, delay):
        body = {"year": 2013, "month": 1, "day": 2, "hour": hour, "carrier": carrier}
        return (bytearray(json.dumps(body | {"dep_delay": delay, "arr_delay": 2.0}).encode()), START)

    data = [flight(5, "UA", 1.0), flight(5, "UA", 3.0), flight(5, "AA", None), flight(6, "UA", 0.0)]
    log = session.createDataFrame(
        [*data, (bytearray(b"no json"), START)], "value binary, timestamp timestamp"
    )
    rows = [
        (r["hour"].hour, r["carrier"], r["flights"], r["mean_dep_delay"])
        for r in rollup.by_hour_and_carrier(log).collect()
    ]
    assert rows == [(5, "AA", 1, None), (5, "UA", 2, 2.0), (6, "UA", 1, 0.0)]
    carriers = {r["carrier"]: r["flights"] for r in rollup.delay_by_carrier(log).collect()}
    assert carriers == {"UA": 3, "AA": 1}


def test_an_archive_of_several_topics_keeps_them_and_their_names_apart(session, tmp_path, monkeypatch):
    rows = [(b"a", "007", "b", 0, 0), (b"b", "12", "b", 0, 0)]
    frame = session.createDataFrame(
        rows, "value binary, topic string, broker string, queueId int, queueOffset long"
    )
    path = str(tmp_path / "archive")
    frame.selectExpr("*", "date'2026-11-24' as date").write.partitionBy("topic", "date").parquet(path)
    (row,) = _log(session, None, "007", OPEN, path).collect()
    assert (row.topic, row.value) == ("007", b"a")
    written = []
    monkeypatch.setattr(restore, "_write", lambda *given: written.append((given[0].count(), given[3])))
    places = {topic: [MessageQueue(topic, "b", 0)] for topic in ("007", "12")}
    done = restore.run(
        session, restore.Restore("a:1", path, tmp_path / "state"), queues=lambda topic: places[topic]
    )
    assert written == [(1, "007"), (1, "12")] and done.rows == 2
    assert archive.read(session, path).count() == 2
