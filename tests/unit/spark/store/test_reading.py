"""The offline reader reads what the store itself reads, however the log is cut, up to the confirm offset."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.spark.store.small import SmallStore, check_against, end_of, options, rows

from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.compression import CompressionType, compress
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, encode_record, scan_frames
from batonmq.protocol.names import TRANS_HALF_TOPIC
from batonmq.spark.decode import frame_starts
from batonmq.spark.store import directory
from batonmq.spark.store.directory import beginnings, inspect, store_roots
from batonmq.spark.store.pieces import cut, cut_points, selection_of


@pytest.mark.parametrize("piece", [300, 2000, 1 << 20])
def test_every_message_once_however_the_log_is_cut(made: SmallStore, piece: int) -> None:
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


def test_batches_come_out_as_messages(made: SmallStore) -> None:
    items = [BatchItem(body=b"%d" % i, properties=encode_properties({"TAGS": f"t{i}"})) for i in range(5)]
    made.store.put([StoredMessage(topic="T", queue_id=1, body=encode_batch(items), batch=True)])
    got = rows(made.root)
    assert [(r["value"], r["tags"], r["queueOffset"]) for r in got] == [
        (b"%d" % i, f"t{i}", i) for i in range(5)
    ]


def test_half_messages_and_system_topics_are_hidden_unless_asked_for(made: SmallStore) -> None:
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


def test_without_epochs_the_whole_log_is_read(made: SmallStore) -> None:
    made.put(b"a", b"b")
    assert len(rows(made.root)) == 2


def test_with_epochs_reading_stops_where_consume_queues_do(tmp_path: Path) -> None:
    made = SmallStore(tmp_path / "store", confirm=True)
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


def sizes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read of a file gives from now on."""
    read: list[int] = []
    real = directory.read_at

    def read_at(path: str, position: int, size: int) -> bytes:
        data = real(path, position, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(directory, "read_at", read_at)
    return read


def test_the_unwritten_rest_of_the_last_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a gigabyte with the shipped size of files."""
    made = SmallStore(tmp_path / "store")
    made.put(b"x" * 100)
    path = made.root / "commitlog" / f"{0:020d}"
    made.store.abandon()
    with path.open("r+b") as file:
        file.truncate(64 << 20)
    read = sizes_read(monkeypatch)
    assert len(rows(made.root)) == 1
    assert max(read) <= directory.WINDOW


@pytest.mark.parametrize("torn", ["half of it", "its size", "its magic"])
def test_the_file_behind_a_torn_record_is_not_read(
    torn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SmallStore(tmp_path / "store")
    made.put(b"x" * 100, b"y" * 100)
    path = made.root / "commitlog" / f"{0:020d}"
    made.store.close()
    begin, end = scan_frames(path.read_bytes())[-2:]
    with path.open("r+b") as file:
        if torn == "half of it":
            file.seek((begin + end) // 2)
            file.write(bytes(end - (begin + end) // 2))
        else:
            file.seek(begin + (0 if torn == "its size" else 4))
            file.write(b"\x7f\xff\xff\xff")
        file.truncate(16 << 20)
    read = sizes_read(monkeypatch)
    found = inspect(made.root)
    assert found.end == begin
    assert found.torn is not None and f"no whole record at {begin}" in found.torn
    assert max(read) <= directory.WINDOW


def test_a_store_that_links_lead_to_is_read_once(made: SmallStore, tmp_path: Path) -> None:
    (tmp_path / "store-latest").symlink_to(made.root)
    assert store_roots([str(tmp_path / "store*"), f"{made.root}/../store-latest"]) == [made.root]


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
