"""Torn ends and damaged records: the offline reader names file and offset, and reads on where it may."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.spark.store.small import ALL, FILE, SmallStore, check_against, rows

from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record, scan_frames
from batonmq.spark.store.columns import TABLE_COLUMNS
from batonmq.spark.store.directory import inspect, store_roots
from batonmq.spark.store.options import parse_store_options
from batonmq.spark.store.pieces import Selection, cut
from batonmq.spark.store.read import read_piece
from batonmq.spark.store.source import StoreReader
from batonmq.spark.store.tables import (
    files_of,
)
from batonmq.store.errors import StoreError


def test_a_torn_end_is_named_and_what_is_before_it_is_read(made: SmallStore) -> None:
    made.put(*(b"%d" % i * 50 for i in range(60)))
    made.store.close()
    found = inspect(made.root)
    assert found.torn is None
    last = Path(found.files[-1].path)
    data = last.read_bytes()
    starts = scan_frames(data)
    begin = starts[-2]
    size = starts[-1] - begin
    with last.open("r+b") as file:  # half of the last record never reached the disk
        file.seek(begin + size // 2)
        file.write(bytes(size - size // 2))
    torn = inspect(made.root)
    assert torn.end == found.files[-1].base + begin
    assert torn.torn is not None and str(last) in torn.torn and str(torn.end) in torn.torn
    assert len(rows(made.root)) == 59
    table = files_of(torn, tuple(TABLE_COLUMNS["files"])).to_pylist()
    assert table[-1]["problem"] == torn.torn and table[0]["problem"] is None


@pytest.mark.parametrize("loss", ["file", "contents", "bytes"])
def test_a_log_that_ends_before_its_consume_queues_is_named(made: SmallStore, loss: str) -> None:
    """A whole record or a file may be missing: then nothing in the log says so."""
    made.put(*(b"%d" % i * 50 for i in range(60)))
    made.store.close()
    found = inspect(made.root)
    last, expected = Path(found.files[-1].path), found.files[-1].base
    if loss == "file":
        last.unlink()
    elif loss == "contents":
        os.truncate(last, 0)
    else:
        begin = scan_frames(last.read_bytes())[-2]
        expected += begin
        os.truncate(last, begin)
    cut = inspect(made.root)
    assert cut.end == expected
    assert cut.torn is not None and f"the log ends at {expected}" in cut.torn and str(found.end) in cut.torn
    assert files_of(cut, tuple(TABLE_COLUMNS["files"])).to_pylist()[-1]["problem"] == cut.torn


def test_a_log_whose_first_sector_was_lost_is_an_error(made: SmallStore) -> None:
    """A file that begins with zeros looks like one not written yet, but consume queues point into it."""
    made.put(*(b"%d" % i * 50 for i in range(10)))
    made.store.close()
    found = inspect(made.root)
    assert len(found.files) == 1
    with Path(found.files[0].path).open("r+b") as file:
        file.write(bytes(512))
    assert inspect(made.root).end == found.end
    with pytest.raises(StoreError, match="no record at 0: zeros, but the log continues"):
        rows(made.root)


def test_a_copy_with_a_short_last_file_is_read_as_far_as_it_goes(made: SmallStore, tmp_path: Path) -> None:
    made.put(*(b"%d" % i * 50 for i in range(30)))
    copy = tmp_path / "copy"
    shutil.copytree(made.root, copy)
    last = Path(inspect(copy).files[-1].path)
    with last.open("r+b") as file:
        file.truncate(scan_frames(last.read_bytes())[2] + 10)
    expected = [
        m for m in made.all_records() if m.physical_offset < int(last.name) + last.stat().st_size - 10
    ]
    check_against(expected, rows(copy))
    assert "no whole record" in str(inspect(copy).torn)


def test_damage_in_the_middle_names_file_and_offset(made: SmallStore) -> None:
    made.put(*(b"%d" % i * 50 for i in range(100)))
    first = made.root / "commitlog" / f"{0:020d}"
    third = scan_frames(first.read_bytes())[3]
    with first.open("r+b") as file:
        file.seek(third + 4)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(StoreError, match=f"{first}: no record at {third}: magic"):
        rows(made.root, piece=1 << 20)
    left = rows(made.root, piece=1 << 20, keep_going=True)
    assert [r["physicalOffset"] for r in left][:4] == [*scan_frames(first.read_bytes())[:3], FILE]


@pytest.mark.parametrize("field", [28, 84])
def test_a_record_that_contradicts_itself_is_an_error_with_the_file_s_name(
    made: SmallStore, field: int
) -> None:
    made.put(*(b"%d" % i * 50 for i in range(100)))
    first = made.root / "commitlog" / f"{0:020d}"
    at = scan_frames(first.read_bytes())[3]
    with first.open("r+b") as file:
        file.seek(at + field)
        file.write(b"\x7f\x00\x00\x01")
    with pytest.raises(StoreError, match=f"{first}: no record at {at}"):
        rows(made.root, piece=1 << 20)
    left = rows(made.root, piece=1 << 20, keep_going=True)
    assert [r["physicalOffset"] for r in left][:4] == [*scan_frames(first.read_bytes())[:3], FILE]


def test_damage_is_named_after_records_with_zeros_inside_a_sector(made: SmallStore) -> None:
    """The piece does not begin with a sector; as if it did, the zeros would look like a lost write."""
    zeros = "\0" * 300

    def put(size: int, **properties: str) -> None:
        encoded = encode_properties(properties)
        empty = StoredMessage(topic="T", queue_id=0, body=b"", properties=encoded, born_timestamp=1)
        least = len(encode_record(empty, queue_offset=0, physical_offset=0, store_timestamp=0))
        made.put(b"b" * (size - least), **properties)

    for size in (300, 212):
        put(size)
    for _ in range(4):
        put(512, p=zeros)
    path = made.root / "commitlog" / f"{0:020d}"
    starts = scan_frames(path.read_bytes())
    assert [start % 512 for start in starts[2:7]] == [0] * 5
    with path.open("r+b") as file:
        file.seek(starts[4] + 28)
        file.write(b"\x7f\x00\x00\x01")
    whole = inspect(made.root)
    piece = cut(whole, starts[6], [starts[1]])[1]
    with pytest.raises(StoreError, match=f"no record at {starts[4]}: says that it lies at"):
        list(read_piece(piece, Selection(), ALL, fail_on_data_loss=True))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 3))
def test_any_bytes_are_an_error_that_names_the_file_or_nothing(
    tmp_path_factory, noise: bytes, keep: int
) -> None:
    root = tmp_path_factory.mktemp("hostile")
    (root / "commitlog").mkdir()
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(noise.ljust(2048, b"\0"))
    try:
        assert rows(root) == []
    except StoreError as error:
        assert str(path) in str(error)


def test_what_is_not_a_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such directory"):
        store_roots([str(tmp_path / "none*")])
    with pytest.raises(StoreError, match=r"a\*\*b: "):
        store_roots([str(tmp_path / "a**b")])
    with pytest.raises(StoreError, match="no commit log file"):
        inspect(tmp_path)


def test_damage_does_not_hide_the_piece_before_it(made: SmallStore) -> None:
    for n in range(100):
        made.clock.advance(10_000)
        made.put(b"%d" % n * 50)
    every = rows(made.root)
    second = made.root / "commitlog" / f"{FILE:020d}"
    with second.open("r+b") as file:
        file.write(bytes(200))
    since = int(every[0]["timestamp"].timestamp() * 1000)
    given_options = {"path": str(made.root), "failOnDataLoss": "false", "startingTimestamp": str(since)}
    reader = StoreReader(parse_store_options(given_options), ALL)
    got = [
        r["physicalOffset"] for part in reader.partitions() for b in reader.read(part) for r in b.to_pylist()
    ]
    wanted = [r["physicalOffset"] for r in every]
    assert got == [at for at in wanted if not FILE <= at < 2 * FILE]
