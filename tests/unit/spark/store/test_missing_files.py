"""Files that a broker deletes before or during a query are an error, or left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.spark.store.small import ALL, FILE, SmallStore

from batonmq.spark.store import directory
from batonmq.spark.store.columns import TABLE_COLUMNS
from batonmq.spark.store.directory import inspect
from batonmq.spark.store.options import parse_store_options
from batonmq.spark.store.source import StoreReader, TableReader
from batonmq.store.errors import StoreError


def test_a_file_that_a_broker_deletes_meanwhile_is_an_error_or_left_out(made: SmallStore) -> None:
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
    made: SmallStore, monkeypatch: pytest.MonkeyPatch, moment: str
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


def test_files_of_tables_that_a_broker_deletes_meanwhile_are_left_out(made: SmallStore) -> None:
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


def test_a_missing_file_is_an_error_or_left_out(made: SmallStore) -> None:
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
