"""Rows from consume queues are those that the log would give, or the log is read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.spark.store.small import FILE, SmallStore, rows

from batonmq.protocol.codes import MessageSysFlag
from batonmq.spark.store import queues
from batonmq.spark.store.directory import beginnings, inspect
from batonmq.spark.store.options import parse_store_options
from batonmq.spark.store.pieces import Piece, Selection, cut, cut_points, selection_of
from batonmq.spark.store.queues import QUEUE_COLUMNS, batches_of, covers, queues_suffice, units_of_piece
from batonmq.spark.store.source import StoreReader

COLUMNS = tuple(sorted(QUEUE_COLUMNS))


@pytest.fixture(autouse=True)
def queues_of_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "_PIECE_BYTES_A_QUEUE", 0)


@pytest.fixture
def filled(made: SmallStore) -> SmallStore:
    """Two topics with three queues each, in several files of log and queues."""
    for n in range(300):
        made.put(b"%d" % n * (n % 40), topic="TU"[n % 2], queue_id=n % 3, TAGS="abc"[n % 3])
    return made


def pieces_of(root: Path, size: int = 2000) -> list[Piece]:
    found = inspect(root)
    return cut(found, found.end, beginnings(root, cut_points(found, found.end, size)))


def by_place(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: row["physicalOffset"])


def from_queues(root: Path, selection: Selection = Selection(), size: int = 2000) -> list[dict[str, Any]]:  # noqa: B008
    """What consume queues have; each piece must be covered."""
    found = []
    for piece in pieces_of(root, size):
        units = units_of_piece(piece)
        assert units is not None
        found += [row for batch in batches_of(piece, units, selection, COLUMNS) for row in batch.to_pylist()]
    return by_place(found)


def read(root: Path, **given_options: str) -> list[dict[str, Any]]:
    """What a query gets, by whichever way."""
    reader = StoreReader(parse_store_options({"path": str(root), **given_options}), COLUMNS)
    return by_place([r for part in reader.partitions() for b in reader.read(part) for r in b.to_pylist()])


@pytest.mark.parametrize("size", [500, 2000, 1 << 20])
def test_consume_queues_give_the_rows_of_the_log(filled: SmallStore, size: int) -> None:
    expected = rows(filled.root, COLUMNS)
    assert len(expected) == 300
    assert from_queues(filled.root, size=size) == expected


@pytest.mark.parametrize(
    "given_options",
    [
        {"subscribe": "T"},
        {"subscribe": "T,V"},
        {"subscribePattern": "U|V"},
        {"queueIds": "0,2"},
        {"minQueueOffset": "5", "maxPhysicalOffset": "9000"},
        {"maxQueueOffset": "5", "minPhysicalOffset": "900"},
    ],
)
def test_options_narrow_what_consume_queues_give(filled: SmallStore, given_options: dict[str, str]) -> None:
    wanted = selection_of(parse_store_options({"path": "x", **given_options}))
    assert queues_suffice(COLUMNS, wanted)
    expected = rows(filled.root, COLUMNS, selection=wanted)
    assert 0 < len(expected) < 300
    assert from_queues(filled.root, wanted) == expected
    assert read(filled.root, **given_options) == expected


@pytest.mark.parametrize(
    "given_options", [{"tags": "a"}, {"startingTimestamp": "5"}, {"endingTimestamp": "5"}]
)
def test_what_only_the_log_knows_is_read_from_the_log(given_options: dict[str, str]) -> None:
    wanted = selection_of(parse_store_options({"path": "x", **given_options}))
    assert not queues_suffice(COLUMNS, wanted)


@pytest.mark.parametrize("column", ["value", "timestamp", "tags", "sysFlag"])
def test_columns_that_only_the_log_has_are_read_from_the_log(column: str) -> None:
    assert not queues_suffice((*COLUMNS, column), Selection())


def test_a_query_reads_no_log_if_consume_queues_suffice(filled: SmallStore) -> None:
    """A body that is damaged shows it: the log's reader would stop there."""
    expected = rows(filled.root, COLUMNS)
    path = filled.root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at = expected[20]["physicalOffset"]
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)
    assert read(filled.root) == expected


def test_system_topics_are_hidden_unless_asked_for(filled: SmallStore) -> None:
    filled.put(b"half", topic="RMQ_SYS_TRANS_HALF_TOPIC")
    filled.put(b"late", topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
    assert len(from_queues(filled.root)) == 300
    assert from_queues(filled.root, Selection(system_topics=True)) == rows(
        filled.root, COLUMNS, selection=Selection(system_topics=True)
    )


def test_light_queues_show_no_message_twice(filled: SmallStore) -> None:
    """Their units are of messages that have a unit in their own topic's queue too."""
    queue = filled.root / "consumequeue" / "%LMQ%a" / "0"
    shutil.copytree(filled.root / "consumequeue" / "T" / "0", queue)
    assert from_queues(filled.root) == rows(filled.root, COLUMNS)


# -- pieces that units do not cover


@pytest.mark.parametrize("change", ["left out", "twice", "longer", "empty", "negative"])
def test_a_piece_is_covered_by_each_of_its_units_once(filled: SmallStore, change: str) -> None:
    for piece in pieces_of(filled.root):
        found = units_of_piece(piece)
        assert found is not None and covers(piece, found)
        for number, queue in enumerate(found):
            for at in range(len(queue.units)):
                units = queue.units.copy()
                if change == "left out":
                    units = np.delete(units, at)
                elif change == "longer":
                    units["size"][at] += 1
                else:
                    extra = units[at : at + 1].copy()
                    if change != "twice":
                        extra["offset"] += extra["size"]
                        extra["size"] = 0 if change == "empty" else -extra["size"]
                    units = np.concatenate([units, extra])
                others = [*found[:number], replace(queue, units=units), *found[number + 1 :]]
                assert not covers(piece, [each for each in others if len(each.units)])


def test_records_without_a_unit_are_read_from_the_log(filled: SmallStore) -> None:
    filled.put(b"prepared", sys_flag=MessageSysFlag.TRANSACTION_PREPARED)
    filled.put(b"last")
    assert units_of_piece(pieces_of(filled.root)[-1]) is None
    everything = read(filled.root, includeSystemTopics="true")
    assert len(everything) == 302 and len(read(filled.root)) == 301


@pytest.mark.parametrize("lost", ["T", "T/0", "T/0/first", "T/0/last", "all"])
def test_queues_that_are_gone_hide_no_message(filled: SmallStore, lost: str) -> None:
    expected = rows(filled.root, COLUMNS)
    directory = filled.root / "consumequeue"
    path = {"first": 0, "last": -1}.get(lost.rpartition("/")[2])
    if path is not None:
        sorted((directory / "T" / "0").iterdir())[path].unlink()
    else:
        shutil.rmtree(directory if lost == "all" else directory / lost)
    assert read(filled.root) == expected
    assert read(filled.root, maxPartitionBytes="16384", includeUnconfirmed="true") == expected


@pytest.mark.parametrize("number", [0, 7, 15])
@pytest.mark.parametrize("damage", ["zero", "twice", "size", "place", "negative"])
def test_damaged_units_neither_hide_nor_double_a_message(
    filled: SmallStore, damage: str, number: int
) -> None:
    expected = rows(filled.root, COLUMNS)
    path = filled.root / "consumequeue" / "U" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at = number * 20
    if damage == "zero":
        data[at : at + 20] = bytes(20)
    elif damage == "twice":
        other = (number + 1) % 16 * 20
        data[at : at + 20] = data[other : other + 20]
    elif damage == "size":
        data[at + 11] ^= 1
    elif damage == "place":
        data[at + 7] ^= 1
    else:
        data[at + 8] |= 0x80
    path.write_bytes(data)
    assert read(filled.root) == expected


def test_a_queue_that_lags_behind_the_log_hides_no_message(filled: SmallStore) -> None:
    expected = rows(filled.root, COLUMNS)
    path = max((filled.root / "consumequeue" / "T" / "2").iterdir())
    data = path.read_bytes()
    count = next(n for n in range(17) if not any(data[n * 20 : n * 20 + 20]))
    path.write_bytes(data[: (count - 1) * 20].ljust(len(data), b"\0"))
    assert read(filled.root, includeUnconfirmed="true") == expected


def test_units_of_files_that_expired_are_left_out(filled: SmallStore) -> None:
    (filled.root / "commitlog" / f"{0:020d}").unlink()
    expected = rows(filled.root, COLUMNS)
    assert expected[0]["physicalOffset"] == FILE
    assert from_queues(filled.root) == expected


def test_many_queues_for_little_log_are_not_searched(
    filled: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = max(pieces_of(filled.root), key=lambda one: one.end - one.begin)
    monkeypatch.setattr(queues, "_PIECE_BYTES_A_QUEUE", (piece.end - piece.begin) // 6)
    assert units_of_piece(piece) is not None
    filled.put(b"x", queue_id=3)
    assert units_of_piece(piece) is None


def test_more_units_than_memory_is_meant_for_are_read_from_the_log(
    filled: SmallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = pieces_of(filled.root)[0]
    found = units_of_piece(piece)
    assert found is not None
    count = sum(len(each.units) for each in found)
    monkeypatch.setattr(queues, "_MOST_UNITS", count)
    assert units_of_piece(piece) is not None
    monkeypatch.setattr(queues, "_MOST_UNITS", count - 1)
    assert units_of_piece(piece) is None
    assert read(filled.root) == rows(filled.root, COLUMNS)
