"""Options narrow what the offline reader reads; wrong ones are named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.spark.store.small import SmallStore, rows

from batonmq.spark.options import OptionError
from batonmq.spark.store.directory import beginnings, inspect
from batonmq.spark.store.options import parse_store_options
from batonmq.spark.store.pieces import Selection, cut, cut_points, in_time, selection_of
from batonmq.spark.store.source import StoreReader


def test_options_narrow_what_is_read(made: SmallStore) -> None:
    for n in range(100):
        made.clock.advance(1000)
        made.put(b"%d" % n, topic="TU"[n % 2], queue_id=n % 3, TAGS="abc"[n % 3])
    every = rows(made.root)
    middle = int(every[50]["timestamp"].timestamp() * 1000)
    cases: list[tuple[dict[str, str], Any]] = [
        ({"subscribe": "T"}, lambda r: r["topic"] == "T"),
        ({"subscribe": "T,V"}, lambda r: r["topic"] == "T"),
        ({"tags": "a", "queueIds": "0, 1"}, lambda r: r["tags"] == "a" and r["queueId"] in (0, 1)),
        ({"tags": " a || b "}, lambda r: r["tags"] in ("a", "b")),
        ({"tags": "*"}, lambda _: True),
        ({"startingTimestamp": str(middle)}, lambda r: r["timestamp"] >= every[50]["timestamp"]),
        ({"endingTimestamp": str(middle)}, lambda r: r["timestamp"] < every[50]["timestamp"]),
        (
            {"minQueueOffset": "5", "maxPhysicalOffset": "9000"},
            lambda r: r["queueOffset"] >= 5 and r["physicalOffset"] <= 9000,
        ),
        (
            {"maxQueueOffset": "5", "minPhysicalOffset": "900"},
            lambda r: r["queueOffset"] <= 5 and r["physicalOffset"] >= 900,
        ),
    ]
    for given_options, wanted in cases:
        got = rows(made.root, selection=selection_of(parse_store_options({"path": "x", **given_options})))
        assert [r["value"] for r in got] == [r["value"] for r in every if wanted(r)], given_options


def test_a_topic_that_no_store_has_is_named(
    made: SmallStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the rows of a misspelt topic are missing without a word."""
    made.put(b"x", topic="T")
    only_log = tmp_path / "only-log"
    shutil.copytree(made.root / "commitlog", only_log / "commitlog")

    def named(path: str, topics: str) -> list[str]:
        caplog.clear()
        StoreReader(parse_store_options({"path": path, "subscribe": topics}), ("value",)).partitions()
        return [record.getMessage() for record in caplog.records]

    assert named(str(made.root), "T") == []
    assert named(str(made.root), "T,V") == [
        f"topic 'V' has no consume queue in {made.root}: no message of it is read"
    ]
    assert named(f"{only_log}", "V") == []  # only the log says what there is


def test_a_tag_that_is_not_text_is_found_by_what_its_column_shows(made: SmallStore) -> None:
    made.put(b"a", TAGS="x")
    path = made.root / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"TAGS\x01x", b"TAGS\x01\xff"))
    (shown,) = {row["tags"] for row in rows(made.root)}
    assert len(rows(made.root, selection=Selection(tags=frozenset({shown})))) == 1


def test_pieces_far_outside_the_wanted_times_are_not_read(made: SmallStore) -> None:
    for n in range(200):
        made.clock.advance(3_600_000)
        made.put(b"%d" % n * 50)
    found = inspect(made.root)
    pieces = cut(found, found.end, beginnings(made.root, cut_points(found, found.end, 1000)))
    every = rows(made.root)
    begin = int(every[100]["timestamp"].timestamp() * 1000)
    wanted = Selection(min_time_ms=begin, max_time_ms=begin)
    times = [
        next(int(r["timestamp"].timestamp() * 1000) for r in every if r["physicalOffset"] == p.begin)
        for p in pieces
    ]
    kept = in_time(pieces, times, wanted)
    assert 1 <= len(kept) <= 3 < len(pieces)
    assert any(p.begin <= every[100]["physicalOffset"] < p.end for p in kept)


@pytest.mark.parametrize(
    ("given_options", "problem"),
    [
        ({"path": "x", "queueIds": "1,b"}, "queueIds"),
        ({"path": "x", "queueIds": ""}, "queueIds"),
        ({"path": "x", "tags": " || "}, "names no tag"),
        ({"path": "x", "tags": "t" * 70_000}, "70000 characters"),
        (
            {"path": "x", "table": "epochs", "subscribe": "T"},
            "'subscribe' has no effect on the table 'epochs'",
        ),
        ({}, "'path' is missing"),
        ({"path": "/x", "table": "queue"}, "'table' must be one of"),
        ({"path": "/x", "tabel": "files"}, "unknown option 'tabel'"),
        ({"path": "/x", "subscribe": "a", "subscribePattern": "b"}, "give one of"),
        ({"path": "/x", "subscribePattern": "("}, "not a regular expression"),
        ({"path": "/x", "maxPartitionBytes": "16383"}, "at least 16384"),
    ],
)
def test_wrong_options_are_named(given_options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_store_options(given_options)
