"""Index files after a crash: what was lost is built again, with everything behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batonmq.store import index as index_module
from batonmq.store.index import Index, Keys

SLOTS, ENTRIES = 16, 11
"""Ten keys a file."""


def filled(directory: Path, times: list[int]) -> Index:
    """One file for each time; a record for each key, 100 bytes each."""
    index = Index(directory, SLOTS, ENTRIES, safe_until=None)
    for number, time_ms in enumerate(times):
        rows = [(f"T#k{n}", 100 * n, time_ms) for n in range(10 * number, 10 * number + 10)]
        index.add(Keys.of(rows), time_ms)
    assert len(index.files) == len(times)
    return index


def found(index: Index) -> list[int]:
    return [n for n in range(40) if index.find("T", f"k{n}", 8, 0, 1 << 62)]


def test_files_behind_one_that_did_not_reach_the_disk_are_built_again(tmp_path: Path) -> None:
    """Otherwise nobody would notice that the records of the lost file are missing."""
    index = filled(tmp_path, [1_000, 2_000, 3_000, 4_000])
    lost = index.files[1].path
    index.close()
    lost.write_bytes(bytes(lost.stat().st_size))
    index = Index(tmp_path, SLOTS, ENTRIES, safe_until=10_000)
    assert (len(index.files), index.end_offset) == (1, 900)
    assert found(index) == list(range(10))
    index.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_files_behind_one_that_may_be_torn_are_built_again_although_the_clock_was_set_back(
    tmp_path: Path,
) -> None:
    filled(tmp_path, [1_000, 9_000, 2_000]).close()
    index = Index(tmp_path, SLOTS, ENTRIES, safe_until=5_000)
    assert (len(index.files), index.end_offset) == (1, 900)
    index.close()


def test_files_behind_one_of_another_size_are_built_again(tmp_path: Path) -> None:
    index = filled(tmp_path, [1_000, 2_000, 3_000])
    os.truncate(index.files[1].path, 100)
    index.close()
    index = Index(tmp_path, SLOTS, ENTRIES, safe_until=None)
    assert (len(index.files), index.end_offset) == (1, 900)
    index.close()


def test_a_clean_stop_keeps_all_files(tmp_path: Path) -> None:
    filled(tmp_path, [1_000, 9_000, 2_000, 4_000]).close()
    index = Index(tmp_path, SLOTS, ENTRIES, safe_until=None)
    assert found(index) == list(range(40))
    index.close()


def test_a_flush_reaches_every_file_that_was_written_since_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(index_module, "sync_path", synced.append)
    index = filled(tmp_path, [1_000, 2_000, 3_000, 4_000])
    assert index.flush() == 4_000
    assert synced == [file.path for file in index.files]
    synced.clear()
    index.add(Keys.of([("T#k40", 4_000, 5_000)]), 5_000)
    assert index.flush() == 5_000
    assert synced == [index.files[-1].path]
    index.close()


def test_a_file_that_is_only_read_since_the_start_is_not_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on disk, and may expire while another thread flushes."""
    filled(tmp_path, [1_000, 2_000, 3_000]).close()
    synced: list[Path] = []
    monkeypatch.setattr(index_module, "sync_path", synced.append)
    index = Index(tmp_path, SLOTS, ENTRIES, safe_until=None)
    assert index.flush() == 3_000
    assert synced == []
    index.add(Keys.of([("T#k30", 3_000, 4_000)]), 4_000)
    assert index.flush() == 4_000
    assert synced == [index.files[-1].path]
    index.close()


def test_a_file_whose_flush_failed_is_flushed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = filled(tmp_path, [1_000])

    def fails(path: Path) -> None:
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "sync_path", fails)
        with pytest.raises(OSError, match="disk"):
            index.flush()
    synced: list[Path] = []
    monkeypatch.setattr(index_module, "sync_path", synced.append)
    index.flush()
    assert synced == [index.files[0].path]
    index.close()
