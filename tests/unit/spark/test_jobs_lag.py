"""The figures of `batonmq spark lag`, without brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.spark.jobs.lag import LagError, QueueLag, Rates, by_reader, rates, stream_offsets
from batonmq.spark.lag_command import Limits
from batonmq.spark.report import duration


def queue(
    number: int, begin: int, end: int, at: int, oldest: int | None = None, reader: str = "g"
) -> QueueLag:
    return QueueLag(reader, "t", "b", number, begin, end, at, oldest)


def test_expired_messages_do_not_count_as_behind() -> None:
    lag = queue(0, begin=10, end=30, at=4)
    assert (lag.behind, lag.expired) == (20, 6)
    assert queue(0, begin=10, end=30, at=30).behind == 0
    assert queue(0, begin=10, end=30, at=99).behind == 0  # the topic was created again


def test_readers_are_summed_up_worst_first() -> None:
    found = by_reader([queue(0, 0, 9, 4, 700), queue(1, 0, 50, 0, 500), queue(0, 0, 9, 9, reader="h")])
    assert [(lag.reader, lag.behind, lag.worst, lag.worst_behind) for lag in found] == [
        ("g", 55, "b:1", 50),
        ("h", 0, "b:0", 0),
    ]
    assert [(lag.queues, lag.oldest_ms) for lag in found] == [(2, 500), (1, None)]


def test_rates_leave_out_queues_of_one_sample() -> None:
    found = rates([queue(0, 0, 100, 50)], [queue(0, 0, 300, 450), queue(1, 0, 9, 0)], 2.0)
    assert found == {("g", "t"): Rates(stored=100.0, consumed=200.0)}
    assert found["g", "t"].seconds_left(500) == 5.0
    assert found["g", "t"].seconds_left(0) == 0
    assert Rates(stored=5, consumed=5).seconds_left(1) is None


def checkpoint(directory: Path, batches: dict[int, str], commits: list[int]) -> Path:
    for name in ("offsets", "commits"):
        (directory / name).mkdir()
    for number, line in batches.items():
        (directory / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
    for number in commits:
        (directory / "commits" / str(number)).write_text("v1\n{}")
        (directory / "commits" / f".{number}.crc").write_bytes(b"crc")
    return directory


def test_a_stream_is_where_its_last_committed_batch_ended(tmp_path: Path) -> None:
    batches = {9: '{"t":{"b:0":5}}', 10: '{"t":{"b:0":8,"b:1":2}}', 11: '{"t":{"b:0":99,"b:1":99}}'}
    assert stream_offsets(checkpoint(tmp_path, batches, [9, 10])) == {"t": {"b:0": 8, "b:1": 2}}


@pytest.mark.parametrize(
    "line", ["-", "5", "[]", '{"t":5}', '{"t":{"0":5}}', '{"t":{"b:x":5}}', '{"t":{"b:0":"x"}}', "{"]
)
def test_offsets_of_other_sources_are_reported(tmp_path: Path, line: str) -> None:
    with pytest.raises(LagError, match="no offsets of format"):
        stream_offsets(checkpoint(tmp_path, {0: line}, [0]))


def test_a_damaged_checkpoint_is_reported(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, {0: "-"}, [0])
    (made / "offsets" / "0").write_bytes(b"v1\n{}\n\xff\xfe")
    with pytest.raises(LagError, match="no offsets of format"):
        stream_offsets(made)


def test_what_is_not_a_checkpoint_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LagError, match="no directory 'offsets'"):
        stream_offsets(tmp_path)
    with pytest.raises(LagError, match="has not committed"):
        stream_offsets(checkpoint(tmp_path, {0: '{"t":{"b:0":5}}'}, []))


def test_limits_name_reader_and_figure() -> None:
    (late,) = by_reader([queue(0, 5, 3_000, 2, oldest=1_000)])
    assert Limits(10_000, None).broken_by(late, 63_000) == [
        "g in t: 3 messages expired before they were consumed"
    ]
    assert Limits(10, 60.0).broken_by(late, 63_000)[:2] == [
        "g in t: 2,995 messages behind",
        "g in t: 1 min 2 s behind",
    ]
    (by_one,) = by_reader([queue(0, 2, 3, 2)])
    assert Limits(0, None).broken_by(by_one, 63_000) == ["g in t: 1 message behind"]
    (fine,) = by_reader([queue(0, 0, 3_000, 3_000)])
    assert Limits(0, 0.0).broken_by(fine, 63_000) == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 ms"), (0.25, "250 ms"), (59.9, "59.9 s"), (61, "1 min 1 s"), (3_600 * 3 + 300, "3 h 5 min")],
)
def test_durations_are_for_readers(seconds: float, text: str) -> None:
    assert duration(seconds) == text
