"""The offline reader against the store's own answers: borders, torn ends, damage. No Spark."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonmq.broker.timer import layout
from batonmq.broker.timer.timer_store import Entry, TimerStore
from batonmq.common.clock import ManualClock
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.compression import CompressionType, compress
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_record, encode_record, scan_frames
from batonmq.protocol.names import TRANS_HALF_TOPIC
from batonmq.spark.decode import frame_starts
from batonmq.spark.options import OptionError
from batonmq.spark.store import directory
from batonmq.spark.store.columns import STORE_COLUMNS, TABLE_COLUMNS
from batonmq.spark.store.directory import beginnings, inspect, queue_files, store_roots
from batonmq.spark.store.options import StoreOptions, parse_store_options
from batonmq.spark.store.pieces import Selection, cut, cut_points, in_time, selection_of
from batonmq.spark.store.read import read_piece
from batonmq.spark.store.source import StoreReader, TableReader
from batonmq.spark.store.tables import (
    entries_of,
    epochs_of,
    files_of,
    index_files,
    timer_files,
    timers_of,
    units_of,
)
from batonmq.store.config import StoreConfig
from batonmq.store.errors import StoreError
from batonmq.store.store import MessageStore

FILE = 8192
ALL = tuple(STORE_COLUMNS)


class Made:
    """A store with small files."""

    def __init__(self, root: Path, *, confirm: bool = False) -> None:
        self.root = root
        self.clock = ManualClock()
        self.store = MessageStore.open(
            StoreConfig(
                store_path_root_dir=str(root),
                mapped_file_size_commit_log=FILE,
                mapped_file_size_consume_queue=20 * 16,
                max_hash_slot_num=64,
                max_index_num=256,
            ),
            self.clock,
            wait_for_confirm=confirm,
            disk_usage=lambda _: 0.1,
        )

    def put(
        self, *bodies: bytes, topic: str = "T", queue_id: int = 0, sys_flag: int = 0, **properties: str
    ) -> None:
        for body in bodies:
            self.store.put(
                [
                    StoredMessage(
                        topic=topic,
                        queue_id=queue_id,
                        body=body,
                        sys_flag=sys_flag,
                        properties=encode_properties(properties),
                        born_timestamp=1,
                    )
                ]
            )

    def all_records(self) -> list[Any]:
        """What the store itself reads, in log order."""
        found = []
        for topic, queue_id in self.store.queues():
            bounds = self.store.queue_bounds(topic, queue_id)
            at = bounds.min_offset
            while at < bounds.max_offset:
                result = self.store.get(topic, queue_id, at, 32)
                for view in result.buffers:
                    starts = scan_frames(view)
                    found += [decode_record(view, s) for s in starts[:-1]]
                at = result.next_offset
        return sorted(found, key=lambda m: m.physical_offset)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    one = Made(tmp_path / "store")
    yield one
    one.store.abandon()


def rows(
    root: Path,
    columns: tuple[str, ...] = ALL,
    *,
    piece: int = 2000,
    unconfirmed: bool = False,
    keep_going: bool = False,
    selection: Selection = Selection(),  # noqa: B008 - frozen
) -> list[dict[str, Any]]:
    found = inspect(root)
    end = found.end if unconfirmed else found.confirm
    pieces = cut(found, end, beginnings(root, cut_points(found, end, piece)))
    return [
        row
        for one in pieces
        for batch in read_piece(one, selection, columns, fail_on_data_loss=not keep_going)
        for row in batch.to_pylist()
    ]


def check_against(expected: list[Any], got: list[dict[str, Any]]) -> None:
    assert [r["physicalOffset"] for r in got] == [m.physical_offset for m in expected]
    for row, message in zip(got, expected, strict=True):
        assert row["value"] == message.body
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            message.topic,
            message.queue_id,
            message.queue_offset,
        )
        assert row["tags"] == message.properties.get("TAGS")
        assert dict(row["properties"]) == message.properties
        assert row["timestamp"].timestamp() * 1000 == message.store_timestamp


@pytest.mark.parametrize("piece", [300, 2000, 1 << 20])
def test_every_message_once_however_the_log_is_cut(made: Made, piece: int) -> None:
    rng = random.Random(piece)
    for n in range(400):
        made.clock.advance(3)
        kind = rng.randrange(4)
        body = rng.randbytes(rng.randrange(1, 900))
        topic = rng.choice(["T", "U", "x" * 127])
        if kind == 0:
            made.put(
                compress(body, CompressionType.ZSTD, 3),
                topic=topic,
                sys_flag=MessageSysFlag.COMPRESSED | CompressionType.ZSTD.sys_flag,
            )
        else:
            made.put(body, topic=topic, queue_id=kind, KEYS=f"k{n}", TAGS=f"t{n % 3}")
    expected = made.all_records()
    assert len(expected) == 400
    check_against(expected, rows(made.root, piece=piece))
    found = inspect(made.root)
    pieces = cut(found, found.end, beginnings(made.root, cut_points(found, found.end, piece)))
    assert len(found.files) > 10 and len(pieces) >= len(found.files)
    if piece == 300:
        assert len(pieces) > 3 * len(found.files)
    made.store.close()
    check_against(expected, rows(made.root, piece=piece))


def test_batches_come_out_as_messages(made: Made) -> None:
    items = [BatchItem(body=b"%d" % i, properties=encode_properties({"TAGS": f"t{i}"})) for i in range(5)]
    made.store.put([StoredMessage(topic="T", queue_id=1, body=encode_batch(items), batch=True)])
    got = rows(made.root)
    assert [(r["value"], r["tags"], r["queueOffset"]) for r in got] == [
        (b"%d" % i, f"t{i}", i) for i in range(5)
    ]


def test_half_messages_and_system_topics_are_hidden_unless_asked_for(made: Made) -> None:
    made.put(b"plain")
    made.put(b"half", topic=TRANS_HALF_TOPIC, REAL_TOPIC="T")
    made.put(b"timer", topic="rmq_sys_wheel_timer")
    made.put(b"prepared", sys_flag=MessageSysFlag.TRANSACTION_PREPARED)
    made.put(b"committed", sys_flag=MessageSysFlag.TRANSACTION_COMMIT)
    values = lambda **o: [r["value"] for r in rows(made.root, selection=selection_of(options(**o)))]  # noqa: E731
    assert values() == [b"plain", b"committed"]
    assert values(topics=(TRANS_HALF_TOPIC,)) == [b"half"]
    assert values(include_system_topics=True) == [b"plain", b"half", b"timer", b"prepared", b"committed"]
    assert values(pattern="rmq_.*") == [b"timer"]


def options(**given: Any) -> StoreOptions:
    return StoreOptions(paths=("x",), **given)


# -- the confirm offset


def test_without_epochs_the_whole_log_is_read(made: Made) -> None:
    made.put(b"a", b"b")
    assert len(rows(made.root)) == 2


def test_with_epochs_reading_stops_where_consume_queues_do(tmp_path: Path) -> None:
    made = Made(tmp_path / "store", confirm=True)
    EpochFile(made.root / "epochFileCheckpoint").append(1, 0)
    made.put(b"a", b"b", b"c", b"d")
    made.store.confirm_offset = end_of(made, 2)
    made.store.dispatch()
    assert [r["value"] for r in rows(made.root)] == [b"a", b"b"]
    assert [r["value"] for r in rows(made.root, unconfirmed=True)] == [b"a", b"b", b"c", b"d"]
    made.store.confirm_offset = end_of(made, 3)
    made.store.flush()
    made.store.flush_queues()  # the checkpoint knows more than consume queues that were copied earlier
    shutil.rmtree(made.root / "consumequeue")
    assert [r["value"] for r in rows(made.root)] == [b"a", b"b", b"c"]
    epochs = made.root / "epochFileCheckpoint"
    epochs.rename(f"{epochs}.bak")  # RocketMQ died while it wrote the file
    assert [r["value"] for r in rows(made.root)] == [b"a", b"b", b"c"]
    made.store.abandon()


def end_of(made: Made, count: int) -> int:
    data = (made.root / "commitlog" / f"{0:020d}").read_bytes()
    return scan_frames(data)[count]


# -- torn ends and damage


def test_a_torn_end_is_named_and_what_is_before_it_is_read(made: Made) -> None:
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
def test_a_log_that_ends_before_its_consume_queues_is_named(made: Made, loss: str) -> None:
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


def test_the_unwritten_rest_of_the_last_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a gigabyte with the shipped size of files."""
    made = Made(tmp_path / "store")
    made.put(b"x" * 100)
    path = made.root / "commitlog" / f"{0:020d}"
    made.store.abandon()
    with path.open("r+b") as file:
        file.truncate(64 << 20)
    read: list[int] = []

    real = directory.read_at

    def read_at(path: str, position: int, size: int) -> bytes:
        data = real(path, position, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(directory, "read_at", read_at)
    assert len(rows(made.root)) == 1
    assert max(read) <= directory.WINDOW


def test_a_copy_with_a_short_last_file_is_read_as_far_as_it_goes(made: Made, tmp_path: Path) -> None:
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


def test_damage_in_the_middle_names_file_and_offset(made: Made) -> None:
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
def test_a_record_that_contradicts_itself_is_an_error_with_the_file_s_name(made: Made, field: int) -> None:
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


def test_damage_is_named_after_records_with_zeros_inside_a_sector(made: Made) -> None:
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


def test_a_file_that_a_broker_deletes_meanwhile_is_an_error_or_left_out(made: Made) -> None:
    made.put(*(b"%d" % i * 50 for i in range(200)))
    strict, lenient = (
        StoreReader(parse_store_options({"path": str(made.root), "failOnDataLoss": fail}), ALL)
        for fail in ("true", "false")
    )
    parts = strict.partitions()
    first = made.root / "commitlog" / f"{0:020d}"
    first.unlink()
    with pytest.raises(StoreError, match=f"{first} was deleted"):
        list(strict.read(parts[0]))
    got = [r["physicalOffset"] for part in parts for b in lenient.read(part) for r in b.to_pylist()]
    assert got == [m.physical_offset for m in made.all_records() if m.physical_offset >= FILE]


@pytest.mark.parametrize("moment", ["listed", "sized"])
def test_files_that_a_broker_deletes_while_a_query_is_planned_were_never_there(
    made: Made, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Planning failed with "No such file", also where messages that are gone may be left out."""
    for n in range(200):
        made.put(b"%d" % n * 50, KEYS=f"k{n}")
    deleted = []

    def delete(path: Path) -> None:
        path.unlink()
        deleted.append(path.parent.name)

    list_bases, of_queue, log_files = directory.list_bases, directory.queue_files, directory.log_files

    def listed(path: Path) -> list[int]:
        bases = list_bases(path)
        if len(bases) > 2 and path.name not in deleted:
            delete(path / f"{bases[0]:020d}")
        return bases

    def sized(root: Path) -> Any:
        for files in of_queue(root):
            if "0" not in deleted:
                delete(Path(files[0].path))
            yield files

    def sized_log(root: Path) -> Any:
        files = log_files(root)
        if "commitlog" not in deleted:
            delete(Path(files[0].path))
        return files

    if moment == "listed":
        monkeypatch.setattr(directory, "list_bases", listed)
    else:
        monkeypatch.setattr(directory, "queue_files", sized)
        monkeypatch.setattr(directory, "log_files", sized_log)
    reader = StoreReader(parse_store_options({"path": str(made.root), "failOnDataLoss": "false"}), ALL)
    got = [
        row["physicalOffset"]
        for part in reader.partitions()
        for b in reader.read(part)
        for row in b.to_pylist()
    ]
    assert sorted(deleted) == ["0", "commitlog"]
    assert got == [m.physical_offset for m in made.all_records() if m.physical_offset >= FILE]
    timed = {"path": str(made.root), "failOnDataLoss": "false", "startingTimestamp": "0"}
    deleted.clear()
    assert len(StoreReader(parse_store_options(timed), ALL).partitions()) > 1
    assert sorted(deleted) == ["0", "commitlog"]


def test_files_of_tables_that_a_broker_deletes_meanwhile_are_left_out(made: Made) -> None:
    for n in range(200):
        made.put(b"%d" % n * 50, KEYS=f"k{n}")
    made.store.build_index()
    made.store.flush()
    made.store.flush_queues()
    for table, folder in (("consumequeue", "consumequeue/T/0"), ("index", "index")):
        reader = TableReader(
            parse_store_options({"path": str(made.root), "table": table}), tuple(TABLE_COLUMNS[table])
        )

        def count(parts: Any, reader: TableReader = reader) -> int:
            return sum(batch.num_rows for part in parts for batch in reader.read(part))

        parts = reader.partitions()
        whole = count(parts)
        assert whole
        min((made.root / folder).iterdir()).unlink()
        assert count(parts) < whole


def test_a_missing_file_is_an_error_or_left_out(made: Made) -> None:
    made.put(*(b"%d" % i * 50 for i in range(200)))
    gone = made.root / "commitlog" / f"{FILE:020d}"
    gone.unlink()
    assert inspect(made.root).missing == (str(gone),)
    reader = StoreReader(parse_store_options({"path": str(made.root)}), ALL)
    with pytest.raises(StoreError, match=f"{gone} is missing"):
        reader.partitions()
    reader = StoreReader(parse_store_options({"path": str(made.root), "failOnDataLoss": "false"}), ALL)
    got = [
        row["physicalOffset"]
        for part in reader.partitions()
        for b in reader.read(part)
        for row in b.to_pylist()
    ]
    assert got == [m for m in (r.physical_offset for r in made.all_records()) if not FILE <= m < 2 * FILE]


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


def test_what_is_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such directory"):
        store_roots([str(tmp_path / "none*")])
    with pytest.raises(StoreError, match=r"a\*\*b: "):
        store_roots([str(tmp_path / "a**b")])
    with pytest.raises(StoreError, match="no commit log file"):
        inspect(tmp_path)


# -- which records


def test_options_narrow_what_is_read(made: Made) -> None:
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


def test_a_tag_that_is_no_text_is_found_by_what_its_column_shows(made: Made) -> None:
    made.put(b"a", TAGS="x")
    path = made.root / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"TAGS\x01x", b"TAGS\x01\xff"))
    (shown,) = {row["tags"] for row in rows(made.root)}
    assert len(rows(made.root, selection=Selection(tags=frozenset({shown})))) == 1


def test_pieces_far_outside_the_wanted_times_are_not_read(made: Made) -> None:
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


def test_damage_does_not_hide_the_piece_before_it(made: Made) -> None:
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


def test_a_store_that_links_lead_to_is_read_once(made: Made, tmp_path: Path) -> None:
    (tmp_path / "store-latest").symlink_to(made.root)
    assert store_roots([str(tmp_path / "store*"), f"{made.root}/../store-latest"]) == [made.root]


# -- tables


def test_tables_show_units_index_and_epochs(made: Made) -> None:
    for n in range(40):
        made.put(b"%d" % n, queue_id=n % 2, KEYS=f"k{n}", TAGS="a")
    made.store.build_index()
    made.store.flush()
    made.store.flush_queues()
    units = [
        row
        for files in queue_files(made.root)
        for file in files
        for batch in units_of(file, "b", "s", tuple(TABLE_COLUMNS["consumequeue"]))
        for row in batch.to_pylist()
    ]
    expected = made.all_records()
    assert sorted(
        (u["topic"], u["queueId"], u["queueOffset"], u["physicalOffset"], u["size"]) for u in units
    ) == sorted((m.topic, m.queue_id, m.queue_offset, m.physical_offset, m.store_size) for m in expected)
    assert {u["tagsCode"] for u in units} == {ord("a")}
    (path,) = index_files(made.root)
    columns = tuple(TABLE_COLUMNS["index"])
    entries = [row for batch in entries_of(path, 64, "b", "s", columns) for row in batch.to_pylist()]
    assert [e["physicalOffset"] for e in entries] == [m.physical_offset for m in expected]
    assert {e["broker"] for e in entries} == {"b"}
    with pytest.raises(StoreError, match="maxHashSlotNum"):
        list(entries_of(path, 1_000_000, "b", "s", columns))
    epochs = EpochFile(made.root / "epochFileCheckpoint")
    epochs.append(1, 0)
    epochs.append(3, 500)
    shown = epochs_of(made.root, None, ("epoch", "startOffset", "endOffset")).to_pylist()
    assert shown == [
        {"epoch": 1, "startOffset": 0, "endOffset": 500},
        {"epoch": 3, "startOffset": 500, "endOffset": None},
    ]


@pytest.mark.parametrize("read_ms", [None, 3_000])
def test_the_table_of_timers_shows_what_waits(tmp_path: Path, read_ms: int | None) -> None:
    store = TimerStore(tmp_path, 1000, 52 * 5)
    kinds = {"deliver": layout.MAGIC_DEFAULT, "roll": layout.MAGIC_DEFAULT | layout.MAGIC_ROLL}
    kinds["recall"] = layout.MAGIC_DEFAULT | layout.MAGIC_DELETE
    names = [*kinds] * 4
    store.put(
        Entry(1000 * (n % 5 + 1), kinds[name], 1000, 5000 + n * 100, 90 + n, n - 2)
        for n, name in enumerate(names)
    )
    store.close()
    if read_ms is not None:
        (tmp_path / "config").mkdir()
        checkpoint = layout.Checkpoint(read_ms=read_ms).encode()
        (tmp_path / "config" / "timercheck").write_bytes(checkpoint)
    files = timer_files(tmp_path)
    assert len(files) == 3, "four units a file, and filler"
    columns = tuple(TABLE_COLUMNS["timers"])
    found = [
        row for file in files for batch in timers_of(*file, "b", "s", columns) for row in batch.to_pylist()
    ]
    assert [row["kind"] for row in found] == names
    assert [row["slotTime"].timestamp() for row in found] == [n % 5 + 1 for n in range(12)]
    assert {row["written"].timestamp() for row in found} == {1}
    passed = [None if read_ms is None else n % 5 + 1 < 3 for n in range(12)]
    assert [row["passed"] for row in found] == passed
    assert [(row["physicalOffset"], row["size"], row["topicHash"]) for row in found] == [
        (5000 + n * 100, 90 + n, n - 2) for n in range(12)
    ]
    positions = [row["position"] for row in found]
    assert positions == [n // 4 * 260 + n % 4 * 52 for n in range(12)]
    assert [row["previous"] for row in found] == [-1 if n < 5 else positions[n - 5] for n in range(12)]


def test_a_broken_timer_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "timercheck").write_bytes(b"short")
    with pytest.raises(StoreError, match=r"timercheck: a timer checkpoint has at least 32 bytes"):
        timer_files(tmp_path)
    assert timer_files(tmp_path / "config") == []


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
        ({"path": "/x", "subscribePattern": "("}, "no regular expression"),
        ({"path": "/x", "maxPartitionBytes": "16383"}, "at least 16384"),
    ],
)
def test_wrong_options_are_named(given_options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_store_options(given_options)


# -- boundaries


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=12),
    st.binary(max_size=30),
    st.integers(0, 120),
)
def test_boundaries_are_those_of_the_walk_record_by_record(runs, noise: bytes, torn: int) -> None:
    host = pack_host("127.0.0.1", 1)
    parts = []
    for size, count in runs:
        message = StoredMessage(topic="t", queue_id=0, body=b"x" * size, born_host=host, store_host=host)
        parts += [encode_record(message, queue_offset=0, physical_offset=0, store_timestamp=1)] * count
    data = b"".join(parts)
    data = data[: max(0, len(data) - torn)] + noise
    starts, end = frame_starts(data)
    assert [*starts.tolist(), end] == scan_frames(data)
