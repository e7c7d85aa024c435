"""Epoch lists, their file, and the point two logs share (tables in tests/data/ha)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.common.config import ConfigError
from batonmq.ha.autoswitch import epoch_file
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.ha.autoswitch.epochs import UNBOUNDED, EpochCache, EpochEntry, consistent_point
from batonmq.protocol.ha_frames import EpochStart

DATA = Path(__file__).parents[2] / "data" / "ha"


def parse(text: str) -> tuple[list[EpochStart], int]:
    """``1-0 3-100 /250`` -> entries and the end of the log."""
    *entries, end = text.split()
    return [EpochStart(*map(int, entry.split("-"))) for entry in entries], int(end.removeprefix("/"))


def cases():
    for line in (DATA / "truncation.txt").read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line:
            slave, master, point = (part.strip() for part in line.split("|"))
            yield pytest.param(slave, master, None if point == "none" else int(point), id=line)


@pytest.mark.parametrize(("slave", "master", "point"), list(cases()))
def test_truncation_table(slave, master, point):
    assert consistent_point(*parse(slave), *parse(master)) == point


def test_append_replaces_epochs_without_data():
    cache = EpochCache([EpochStart(1, 0), EpochStart(2, 100)])
    assert cache.append(3, 100)
    assert cache.entries == ((1, 0), (3, 100))
    assert not cache.append(3, 100)
    with pytest.raises(ValueError, match="3-200 does not follow"):
        cache.append(3, 200)
    with pytest.raises(ValueError, match="2-100 does not follow"):
        cache.append(2, 100)
    assert cache.append(7, 150)
    assert cache.last_epoch == 7
    assert cache.last_start == 150


def test_segments_end_where_the_next_epoch_starts():
    cache = EpochCache([EpochStart(1, 50), EpochStart(3, 100)])
    assert cache.segment(10) == EpochEntry(1, 50, 50)
    assert cache.segment(50) == EpochEntry(1, 50, 100)
    assert cache.segment(99) == EpochEntry(1, 50, 100)
    assert cache.segment(100) == EpochEntry(3, 100, UNBOUNDED)
    assert EpochCache().segment(0) is None


def test_truncate_both_ends():
    cache = EpochCache([EpochStart(1, 0), EpochStart(2, 100), EpochStart(3, 200)])
    assert not cache.truncate_suffix(201)
    assert cache.truncate_suffix(200)
    assert cache.entries == ((1, 0), (2, 100))
    assert not cache.truncate_prefix(99)
    assert cache.truncate_prefix(100)
    assert cache.entries == ((2, 100),)
    assert not cache.truncate_prefix(1000)


def test_unordered_entries_are_refused():
    for bad in ([(1, 0), (1, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 5)]):
        with pytest.raises(ValueError):
            EpochCache([EpochStart(*entry) for entry in bad])


def test_file_is_rocketmqs_checkpoint_format():
    entries = (EpochStart(7, 7000), EpochStart(8, 8000))
    assert epoch_file.encode(entries) == b"2\n773307083\n7-7000\n8-8000\n"
    assert epoch_file.decode(b"2\n773307083\n7-7000\n8-8000\n") == entries
    assert epoch_file.decode(b"1\n0\n7-7000\n") == (EpochStart(7, 7000),)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"2", "lines are missing"),
        (b"2\n773307083\n7-7000\n", "checksum"),
        (b"3\n773307083\n7-7000\n8-8000\n", "3 entries announced"),
        (b"x\n0\n", "invalid literal"),
        (b"1\n0\n7 7000\n", "invalid literal"),
        (b"1\n0\n2147483648-0\n", "no epoch is '2147483648-0'"),
        (b"1\n0\n1--10\n", "no epoch is"),
        (b"1\n0\n1-9223372036854775808\n", "no epoch is"),
    ],
)
def test_a_broken_file_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        epoch_file.decode(data)


def test_file_survives_reopening_and_falls_back_to_rocketmqs_backup(tmp_path):
    path = tmp_path / "store" / "epochFileCheckpoint"
    file = EpochFile.load(path)
    assert len(file.cache) == 0
    file.append(1, 0)
    file.extend([EpochStart(2, 100), EpochStart(4, 300)])
    assert EpochFile.load(path).cache.entries == ((1, 0), (2, 100), (4, 300))
    file.truncate_suffix(300)
    file.truncate_prefix(100)
    assert EpochFile.load(path).cache.entries == ((2, 100),)
    path.rename(path.with_name(path.name + ".bak"))
    path.write_bytes(b"1\n5\n3-3\n")
    assert EpochFile.load(path).cache.entries == ((2, 100),)
    path.with_name(path.name + ".bak").unlink()
    with pytest.raises(ConfigError, match="epochFileCheckpoint: the checksum"):
        EpochFile.load(path)


def test_whose_epochs_may_be_missing_is_known(tmp_path):
    path = tmp_path / "epochFileCheckpoint"
    assert EpochFile.load(path).doubtful
    path.write_bytes(b"")
    assert EpochFile.load(path).doubtful
    path.write_bytes(epoch_file.encode([EpochStart(2, 100)]))
    assert not EpochFile.load(path).doubtful
    path.rename(path.with_name(path.name + ".bak"))
    assert EpochFile.load(path).doubtful


def test_a_file_that_cannot_be_written_leaves_the_cache_as_it_was(tmp_path):
    file = EpochFile(tmp_path / "file" / "epochs", [EpochStart(1, 0)])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        file.append(2, 10)
    assert file.cache.entries == ((1, 0),)


@st.composite
def histories(draw):
    """Two logs as lists of bytes' epochs: a common history, then each its own epochs."""
    epoch, logs = 0, [[], []]
    for _ in range(draw(st.integers(0, 4))):
        epoch += draw(st.integers(1, 3))
        for log in logs:
            log += [epoch] * 3
    for log in draw(st.permutations(logs)):
        if log and draw(st.booleans()):
            del log[draw(st.integers(0, len(log))) :]
        for _ in range(draw(st.integers(0, 3))):
            epoch += 1
            log += [epoch] * draw(st.integers(0, 4))
    return logs


def epochs_of(log: list[int]) -> tuple[list[EpochStart], int]:
    cache = EpochCache()
    for offset, epoch in enumerate(log):
        if epoch != cache.last_epoch:
            cache.append(epoch, offset)
    return list(cache.entries), len(log)


@given(histories())
def test_the_point_is_the_end_of_the_common_prefix(logs):
    """A byte is named by its epoch and offset; the slow obvious answer is the longest common prefix."""
    ours, theirs = logs
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    assert (consistent_point(*epochs_of(ours), *epochs_of(theirs)) or 0) == common
