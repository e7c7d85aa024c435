"""What `lag`, `skew` and `failover-report` compute, on tables made by hand and on a live topic."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batonmq.demo.history import SCHEMA
from batonmq.spark.jobs import outages, skew
from batonmq.spark.jobs.outages import ALL, Window

SECOND = 1_000_000


def history(path: Path, rows: list[tuple[int, int | None]], *, queue: str = "b:0", **columns: str) -> Path:
    """A producer's file: (sent_us, acked_us) of each send."""
    table = pa.table(
        {
            "key": [f"{path.name}-{number}" for number in range(len(rows))],
            "status": ["unknown" if acked is None else "acked" for _, acked in rows],
            "queue": [None if acked is None else queue for _, acked in rows],
            "offset": [None if acked is None else 0 for _, acked in rows],
            "sent_us": [sent for sent, _ in rows],
            "acked_us": [acked for _, acked in rows],
        },
        schema=SCHEMA,
    )
    for name, value in columns.items():
        table = table.append_column(name, pa.array([value] * len(rows)))
    pq.write_table(table, path)
    return path


def steady(start_us: int, end_us: int, step_us: int = 100_000) -> list[tuple[int, int | None]]:
    """Sends that take 1 ms each."""
    return [(at - 1_000, at) for at in range(start_us, end_us, step_us)]


def measured(session, paths: list[Path], windows: list[Window]) -> dict[tuple[int, str], outages.Outage]:
    rows = outages.read_histories(session, paths)
    found = outages.measure(session, rows, windows)
    return {(outage.master_epoch, outage.producer): outage for outage in found}


def test_the_gap_of_an_election_began_before_it(session, tmp_path):
    # The master is killed after 10.0 s, the election is at 12 s, and sends succeed again from 13 s on.
    first = [*steady(5 * SECOND, 10 * SECOND + 1), (10_100_000, None), *steady(13 * SECOND, 20 * SECOND)]
    second = [
        *steady(5 * SECOND, 10 * SECOND + 1),
        (10_099_000, 12_500_000),
        *steady(13 * SECOND, 20 * SECOND),
    ]
    paths = [
        history(tmp_path / "one.parquet", first),
        history(tmp_path / "x.parquet", second, producer="two"),
    ]
    found = measured(session, paths, [Window("b", 7, 12 * SECOND, 42 * SECOND)])
    assert set(found) == {(7, ALL), (7, "one"), (7, "two")}
    assert (found[7, "one"].began_us, found[7, "one"].ended_us) == (10 * SECOND, 13 * SECOND)
    assert (found[7, "one"].gap_ms, found[7, "one"].failed) == (3_000, 1)
    assert (found[7, "two"].gap_ms, found[7, "two"].failed) == (2_500, 0)
    assert found[7, "two"].slowest_ms == 2_401
    assert found[7, ALL].gap_ms == 2_500 and found[7, ALL].failed == 1


def test_a_gap_that_leads_to_the_next_election_is_not_that_of_the_one_before(session, tmp_path):
    # Elections at 12 s and 16 s. A gap of 0.5 s surrounds the first, one of 2 s the second.
    rows = [
        *steady(5 * SECOND, 12 * SECOND),
        (11_950_000, None),
        *steady(12_400_000, 15 * SECOND + 1),
        (15_050_000, None),
        *steady(17 * SECOND, 20 * SECOND),
    ]
    path = history(tmp_path / "p.parquet", rows)
    windows = [
        Window("b", 7, 12 * SECOND, 16 * SECOND, 16 * SECOND),
        Window("b", 8, 16 * SECOND, 46 * SECOND),
    ]
    found = measured(session, [path], windows)
    assert (found[7, ALL].gap_ms, found[8, ALL].gap_ms) == (500, 2_000)
    # The next election is after the end of the window here.
    short = [Window("b", 7, 12 * SECOND, 15_500_000, 16 * SECOND)]
    assert measured(session, [path], short)[7, ALL].gap_ms == 500


def test_a_gap_around_two_elections_is_that_of_both(session, tmp_path):
    rows = [*steady(5 * SECOND, 10 * SECOND + 1), (10_050_000, None), *steady(17 * SECOND, 20 * SECOND)]
    windows = [
        Window("b", 7, 12 * SECOND, 16 * SECOND, 16 * SECOND),
        Window("b", 8, 16 * SECOND, 46 * SECOND),
    ]
    found = measured(session, [history(tmp_path / "p.parquet", rows)], windows)
    assert (found[7, ALL].gap_ms, found[8, ALL].gap_ms) == (7_000, 7_000)


def test_a_gap_without_end_lasts_to_the_last_send(session, tmp_path):
    rows = [*steady(5 * SECOND, 10 * SECOND + 1), (10_050_000, None), (15 * SECOND, None)]
    found = measured(
        session, [history(tmp_path / "p.parquet", rows)], [Window("b", 7, 12 * SECOND, 42 * SECOND)]
    )
    gap = found[7, "p"]
    assert (gap.began_us, gap.ended_us, gap.acked_again, gap.failed) == (10 * SECOND, 15 * SECOND, False, 2)


def test_other_broker_sets_and_earlier_gaps_do_not_count(session, tmp_path):
    here = [
        *steady(1 * SECOND, 2 * SECOND),
        *steady(8 * SECOND, 20 * SECOND),
    ]  # 6 s, long before the election
    there = [*steady(1 * SECOND, 11 * SECOND), *steady(17 * SECOND, 20 * SECOND)]
    paths = [history(tmp_path / "p.parquet", here), history(tmp_path / "q.parquet", there, queue="c:3")]
    found = measured(session, paths, [Window("b", 7, 12 * SECOND, 19 * SECOND)])
    assert set(found) == {(7, ALL), (7, "p")}
    assert found[7, "p"].gap_ms == 100


def test_idle_time_is_not_a_gap(session, tmp_path):
    rows = [*steady(1 * SECOND, 2 * SECOND), *steady(14 * SECOND, 20 * SECOND)]
    rows.append((20 * SECOND, 20_500_000))
    found = measured(
        session, [history(tmp_path / "p.parquet", rows)], [Window("b", 7, 12 * SECOND, 42 * SECOND)]
    )
    assert (found[7, "p"].gap_ms, found[7, "p"].slowest_ms) == (600, 500)


def test_a_producer_that_had_ended_saw_nothing(session, tmp_path):
    paths = [history(tmp_path / "p.parquet", steady(1 * SECOND, 2 * SECOND))]
    assert measured(session, paths, [Window("b", 7, 12 * SECOND, 42 * SECOND)]) == {}
    assert measured(session, paths, []) == {}


def test_acknowledgements_over_time(session, tmp_path):
    path = history(tmp_path / "p.parquet", steady(0, 10 * SECOND))
    rows = outages.read_histories(session, [path])
    bucket_s, counts = outages.acks_over_time(rows, 2 * SECOND, 4 * SECOND)
    assert bucket_s == 0.1
    assert counts == [("p", bucket, 1) for bucket in range(21)]


LOG = "value binary, broker string, queueId int, keys string, tags string, properties map<string,string>"


def log_row(
    queue: int, keys: str | None, size: int = 10, tags: str | None = None, sharding: str | None = None
):
    properties = {} if sharding is None else {"__SHARDINGKEY": sharding}
    return bytearray(size), "b", queue, keys, tags, properties


def test_skew_counts_each_key_of_a_message(session):
    rows = [log_row(0, "a")] * 6 + [log_row(1, "a b", 20)] * 2 + [log_row(1, "c")] + [log_row(1, None)]
    found = skew.measure(session.createDataFrame(rows, LOG), top=2)
    assert (found.messages, found.bytes, found.without_key, found.keys) == (10, 120, 1, 3)
    assert [(hot.key, hot.messages, hot.bytes, hot.queues, hot.hottest_queue) for hot in found.top] == [
        ("a", 8, 100, 2, "b:0"),
        ("b", 2, 40, 1, "b:1"),
    ]
    assert found.hottest_share == pytest.approx(8 / 11)
    assert found.frequencies == ((8, 1), (2, 1), (1, 1))
    assert [(queue.queue, queue.messages, queue.of_mean) for queue in found.queues] == [
        ("b:0", 6, 1.2),
        ("b:1", 4, 0.8),
    ]


def test_skew_by_tag_and_by_sharding_key(session):
    rows = [log_row(0, "a", tags="t", sharding="s")] * 3 + [log_row(0, "a b", sharding="r")]
    frame = session.createDataFrame(rows, LOG)
    assert [hot.key for hot in skew.measure(frame, by="shardingKey").top] == ["s", "r"]
    by_tag = skew.measure(frame, by="tags")
    assert [(hot.key, hot.messages) for hot in by_tag.top] == [("t", 3)]
    assert by_tag.without_key == 1
    empty = skew.measure(session.createDataFrame([], LOG))
    assert (empty.messages, empty.top, empty.queues, empty.hottest_share) == (0, (), (), 0.0)
