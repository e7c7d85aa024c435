"""The parts of the store, one by one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.common.config import ConfigError
from batonmq.common.config_loader import load
from batonmq.protocol.java_hash import java_hash
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.config import FlushDiskType, StoreConfig
from batonmq.store.disk import expired_count, judge, used_ratio
from batonmq.store.errors import StoreLocked
from batonmq.store.index import IndexFile, Keys, key_hash, key_hashes
from batonmq.store.lock import StoreLock


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("hello world", 1794106052),
        ("polygenelubricants", -(2**31)),
        ("TopicTest#7F0000017B3F18B4AAC22F5B00000001", None),
        ("ü€😀", None),
    ],
)
def test_hashes_are_javas(text, expected):
    slow = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        slow = slow * 31 + int.from_bytes(units[at : at + 2], "big")
    slow &= 0xFFFFFFFF
    slow = slow - (1 << 32) if slow >> 31 else slow
    assert java_hash(text) == slow
    if expected is not None:
        assert slow == expected


@given(st.lists(st.text(max_size=30), max_size=30))
def test_many_keys_hash_as_each_alone(keys):
    assert key_hashes([*keys, "polygenelubricants"]).tolist() == [key_hash(key) for key in keys] + [0]


@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=8), max_size=6), st.integers(0, 40))
def test_an_index_file_finds_newest_first_and_takes_back(tmp_path_factory, batches, cut):
    file = IndexFile(tmp_path_factory.mktemp("index") / "20250101000000000", slots=5, entries=60)
    model: list[tuple[int, int]] = []
    for batch in batches:
        keys = [(f"T#{number}", len(model) + at, 5000) for at, number in enumerate(batch)]
        file.add(Keys.of(keys))
        model += [(number, len(model) + at) for at, number in enumerate(batch)]
    file.truncate(cut)
    model = [entry for entry in model if entry[1] < cut]
    for number in range(13):
        expected = [offset for key, offset in reversed(model) if key == number]
        assert file.find(f"T#{number}", 100, 0, 10_000) == expected
    assert (file.count, file.end_offset) == (len(model) + 1, model[-1][1] if model else 0)
    reopened = IndexFile(file.path, slots=5, entries=60)
    assert (reopened.count, reopened.used_slots) == (file.count, file.used_slots)
    file.close()
    reopened.close()


@pytest.mark.parametrize("kept", [1, 5, 20, 30])
def test_a_torn_index_file_is_repaired(tmp_path, kept):
    """Slots have reached the disk, entries from some number on have not."""
    path = tmp_path / "20250101000000000"
    file = IndexFile(path, slots=5, entries=60)
    file.add(Keys.of([(f"T#{n % 7}", n * 10 + 1, 5000) for n in range(30)]))
    file.close()
    data = bytearray(path.read_bytes())
    begin = 40 + 5 * 4 + 20 * (kept + 1)
    data[begin:] = bytes(len(data) - begin)
    path.write_bytes(data)
    torn = IndexFile(path, slots=5, entries=60)
    torn.repair()
    assert torn.count == kept + 1
    for number in range(7):
        expected = [n * 10 + 1 for n in reversed(range(kept)) if n % 7 == number]
        assert torn.find(f"T#{number}", 100, 0, 10_000) == expected
    torn.add(Keys.of([("T#0", 5000, 6000)]))
    assert torn.find("T#0", 1, 0, 10_000) == [5000]
    torn.close()


def test_the_checkpoint_keeps_its_numbers(tmp_path):
    path = tmp_path / "checkpoint"
    assert Checkpoint.load(path).safe_offset == -1
    checkpoint = Checkpoint(path)
    checkpoint.physic_timestamp, checkpoint.logics_timestamp = 10_000, 9_000
    checkpoint.confirm_offset, checkpoint.safe_offset = 77, 66
    checkpoint.save()
    again = Checkpoint.load(path)
    assert (again.min_timestamp, again.confirm_offset, again.safe_offset) == (6_000, 77, 66)
    assert path.stat().st_size == 4096
    assert path.read_bytes()[:16] == (10_000).to_bytes(8, "big") + (9_000).to_bytes(8, "big")


def test_the_lock_excludes_other_processes(tmp_path):
    lock = StoreLock(tmp_path / "lock")
    program = (
        "import sys; from pathlib import Path; from batonmq.store.lock import StoreLock; "
        "StoreLock(Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "StoreLocked" in done.stderr
    lock.release()
    assert subprocess.run(command).returncode == 0
    with pytest.raises(StoreLocked):
        first, _second = StoreLock(tmp_path / "lock"), StoreLock(tmp_path / "lock")
        first.release()


@pytest.mark.parametrize(
    ("ratio", "writable", "clean", "forcibly"),
    [
        (0.5, True, False, False),
        (0.76, True, True, False),
        (0.86, True, True, True),
        (0.91, False, True, True),
    ],
)
def test_disk_levels(ratio, writable, clean, forcibly):
    state = judge(ratio, StoreConfig())
    assert (state.writable, state.clean, state.forcibly) == (writable, clean, forcibly)
    assert not judge(ratio, StoreConfig(clean_file_forcibly_enable=False)).forcibly


def test_the_last_file_never_expires():
    config = StoreConfig(file_reserved_time=1)
    hour = 3_600_000
    assert expired_count([0, 0, 0], config, 2 * hour, forcibly=False, limit=10) == 2
    assert expired_count([0, 2 * hour, 0], config, 2 * hour, forcibly=False, limit=10) == 1
    assert expired_count([2 * hour] * 3, config, 2 * hour, forcibly=True, limit=1) == 1
    assert expired_count([], config, 0, forcibly=True, limit=1) == 0


def test_usage_is_a_ratio(tmp_path):
    assert 0 <= used_ratio(tmp_path) <= 1


def test_keys_are_rocketmqs(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text(
        "storePathRootDir=/data\nmappedFileSizeCommitLog=4096\nflushDiskType=SYNC_FLUSH\ndeleteWhen=04;16\n"
        "checkCRCOnRecover=false\n"
    )
    (config,) = load(path, StoreConfig)
    assert str(config.commit_log_path) == "/data/commitlog"
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert not config.check_crc_on_recover


@pytest.mark.parametrize("bad", ["mappedFileSizeCommitLog=1", "deleteWhen=25", "flushDiskType=NEVER"])
def test_bad_values_are_named(tmp_path, bad):
    path = tmp_path / "broker.conf"
    path.write_text(bad)
    with pytest.raises(ConfigError, match=bad.split("=")[0]):
        load(path, StoreConfig)
