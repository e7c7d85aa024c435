"""The tables of a store: consume queue units, index entries, epochs, timers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.spark.store.small import SmallStore

from batonmq.broker.timer import layout
from batonmq.broker.timer.timer_store import Entry, TimerStore
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.spark.store.columns import TABLE_COLUMNS
from batonmq.spark.store.directory import queue_files
from batonmq.spark.store.tables import (
    entries_of,
    epochs_of,
    index_files,
    timer_files,
    timers_of,
    units_of,
)
from batonmq.store.errors import StoreError


def test_tables_show_units_index_and_epochs(made: SmallStore) -> None:
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
