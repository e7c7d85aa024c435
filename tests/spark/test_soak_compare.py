"""The comparison of the soak notices each kind of wrong row, also from the files of a table."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos import check
from tests.chaos.check import Send, Verdict
from tests.chaos.load import body_of
from tests.spark.soak import table
from tests.spark.soak.compare import Kind, Row, compare

BEGAN_MS = 1_795_625_000_000


def message(queue: int, offset: int, key: str, **more: int | str) -> Row:
    return Row(queue, offset, key, body_of(key), f"id-{key}", BEGAN_MS + offset, **more)


TABLE = [
    message(0, 0, "t-0-1", batch=0, file="a"),
    message(1, 0, "t-1-1", batch=0, file="b"),
    message(0, 1, "t-0-2", batch=1, file="c"),
    message(0, 2, "t-0-3", batch=1, file="c"),
    message(1, 1, "t-1-2", batch=2, file="d"),
]
"""Two queues; the last message was never acknowledged."""
SENDS = [
    *(Send(row.key, at, 1, at + 1, row.queue, row.offset) for at, row in enumerate(TABLE[:-1])),
    Send("t-1-2", 50, 1, error="timeout"),
]
FOREIGN = message(1, 2, "t-9-9", batch=2, file="d")


def look(rows: list[Row], topic: list[Row] = TABLE) -> Verdict:
    return compare(rows, topic, SENDS)


def test_a_table_that_is_the_topic_is_right() -> None:
    verdict = look(TABLE)
    assert verdict.ok, verdict
    assert (verdict.sent, verdict.acked, verdict.stored) == (5, 4, 5)


def test_a_lost_row_is_noticed_by_the_topic_and_by_the_history() -> None:
    assert dict(look(TABLE[1:]).counts) == {Kind.LOST: 1, check.Kind.LOST: 1, check.Kind.HOLE: 1}
    # A producer does not know of this one, but the topic has it.
    assert dict(look(TABLE[:-1]).counts) == {Kind.LOST: 1}


def test_a_message_that_is_neither_in_the_topic_nor_in_the_table_is_lost() -> None:
    rows = [row for row in TABLE if row.key != "t-0-3"]
    assert dict(look(rows, rows).counts) == {check.Kind.LOST: 1}


@pytest.mark.parametrize("number", range(len(TABLE)))
def test_a_doubled_row_is_noticed(number: int) -> None:
    again = [*TABLE[: number + 1], *TABLE[number:]]
    assert look(again).counts[Kind.DOUBLED] == 1
    later = [*TABLE, replace(TABLE[number], batch=7, file="z")]
    assert look(later).counts[Kind.DOUBLED] == 1


def test_a_foreign_row_is_noticed() -> None:
    assert dict(look([*TABLE, FOREIGN]).counts) == {Kind.FOREIGN: 1, check.Kind.INVENTED: 1}


@pytest.mark.parametrize(
    ("field", "value"), [("value", b"x"), ("key", "t-0-7"), ("msg_id", "other"), ("stored_ms", 7)]
)
def test_a_changed_row_is_noticed(field: str, value: object) -> None:
    changed = [replace(TABLE[0], **{field: value}), *TABLE[1:]]
    verdict = look(changed)
    assert verdict.counts[Kind.CHANGED] == 1
    assert verdict.examples[Kind.CHANGED][0].endswith(f"({field})")


def test_a_value_that_is_changed_in_table_and_topic_is_noticed_by_the_history() -> None:
    changed = [replace(TABLE[0], value=b"x"), *TABLE[1:]]
    assert dict(look(changed, changed).counts) == {check.Kind.CORRUPT: 1}


def test_rows_out_of_order_are_noticed_within_a_file_and_across_batches() -> None:
    within = [*TABLE[:2], TABLE[3], TABLE[2], TABLE[4]]
    assert dict(look(within).counts) == {Kind.DISORDERED: 1}
    across = [replace(TABLE[2], batch=0), *TABLE[1:2], replace(TABLE[0], batch=1, file="c"), *TABLE[3:]]
    assert dict(look(across).counts) == {Kind.DISORDERED: 1}
    # Two tasks of a batch may have parts of one queue, in files of any order.
    parts = [*TABLE[:2], replace(TABLE[3], file="b2"), TABLE[2], TABLE[4]]
    assert look(parts).ok


def written(path: Path, rows: list[Row], topic: str = "t") -> Path:
    """A file as Spark writes it."""
    stored = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row.stored_ms) for row in rows]
    columns = {
        "topic": pa.array([topic] * len(rows), pa.string()),
        "queueId": pa.array([row.queue for row in rows], pa.int32()),
        "queueOffset": pa.array([row.offset for row in rows], pa.int64()),
        "timestamp": pa.array(stored, pa.timestamp("us", tz="UTC")),
        "keys": pa.array([row.key for row in rows], pa.string()),
        "msgId": pa.array([row.msg_id for row in rows], pa.string()),
        "value": pa.array([row.value for row in rows], pa.binary()),
    }
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True)
    return path


def logged(target: Path, name: str, files: list[Path], visible_ms: int) -> None:
    path = target / table.METADATA / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "\n".join(["v1", *(json.dumps({"path": each.as_uri(), "action": "add"}) for each in files)])
    )
    os.utime(path, ns=(visible_ms * 1_000_000,) * 2)


def test_only_committed_files_count_each_in_its_batch(tmp_path: Path) -> None:
    files = [
        written(tmp_path / f"{name}.parquet", [row for row in TABLE if row.file == name]) for name in "abcd"
    ]
    written(tmp_path / "failed.parquet", TABLE)
    logged(tmp_path, "0", files[:2], BEGAN_MS + 100)
    logged(tmp_path, "1", files[2:3], BEGAN_MS + 1_000)
    logged(tmp_path, "2.compact", files, BEGAN_MS + 2_000)
    found = table.read(tmp_path)
    rows = list(found.of_topic("t"))
    assert rows == TABLE and [row.batch for row in rows] == [0, 0, 1, 1, 2]
    assert look(rows).ok and list(found.of_topic("other")) == []
    assert (found.rows, found.batches, found.files) == (5, 3, 4)
    assert found.delays_ms.tolist() == [100, 100, 998, 999, 1_999]
    assert found.delay_ms(1.0) == 1_999


def test_a_file_that_two_batches_name_is_an_error(tmp_path: Path) -> None:
    file = written(tmp_path / "a.parquet", TABLE[:1])
    logged(tmp_path, "0", [file], BEGAN_MS)
    logged(tmp_path, "1", [file], BEGAN_MS)
    with pytest.raises(ValueError, match="has named"):
        table.read(tmp_path)
