"""Comparing the commit logs of replicas."""

from __future__ import annotations

import pytest

from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.layout import MAGIC_BLANK
from batonmq.protocol.message.record import StoredMessage, encode_record
from batonmq.spark.jobs.replicas import ReplicasError, compare

HOST = pack_host("127.0.0.1", 1)
FILE_SIZE = 1 << 12


def record(offset: int) -> bytes:
    stored = StoredMessage(
        topic="t", queue_id=0, body=b"x" * 100, properties=b"", flag=0, sys_flag=0, born_timestamp=1,
        born_host=HOST, reconsume_times=0, store_host=HOST,
    )  # fmt: skip
    return bytes(encode_record(stored, queue_offset=offset, physical_offset=offset, store_timestamp=2))


def files(count: int) -> dict[str, bytes]:
    """Commit log files with `count` records; each but the last ends in a filler record."""
    made: dict[str, bytes] = {}
    data, base = b"", 0
    for i in range(count):
        one = record(i)
        if len(data) + len(one) + 8 > FILE_SIZE:
            left = FILE_SIZE - len(data)
            filler = left.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
            made[f"{base:020d}"] = (data + filler).ljust(FILE_SIZE, b"\0")
            data, base = b"", base + FILE_SIZE
        data += one
    made[f"{base:020d}"] = data.ljust(FILE_SIZE, b"\0")
    return made


def store(root, name, content):
    directory = root / name / "commitlog"
    directory.mkdir(parents=True)
    for file, data in content.items():
        (directory / file).write_bytes(data)
    return root / name


def test_equal_logs_over_several_files(tmp_path):
    content = files(60)
    assert len(content) > 2
    result = compare([store(tmp_path, "a", content), store(tmp_path, "b", content)])
    assert result.equal and result.begin == 0 and result.end > 2 * FILE_SIZE
    assert result.text.startswith("replicas are byte-equal from 0 to ")
    assert "behind" not in result.text


@pytest.mark.parametrize("place", [50, FILE_SIZE - 3, FILE_SIZE + 77])
def test_one_different_byte_is_found(tmp_path, place):
    content = files(60)
    file, within = f"{place // FILE_SIZE * FILE_SIZE:020d}", place % FILE_SIZE
    changed = bytearray(content[file])
    changed[within] ^= 1
    stores = [store(tmp_path, "a", content), store(tmp_path, "b", content | {file: bytes(changed)})]
    result = compare(stores)
    assert (result.equal, result.first_difference) == (False, place)
    assert f"DIFFER from physical offset {place:,}" in result.text


def test_one_replica_behind(tmp_path):
    result = compare([store(tmp_path, "a", files(60)), store(tmp_path, "b", files(59))])
    assert result.equal
    assert f"one replica is {len(record(59)):,} bytes behind" in result.text
    assert max(result.lengths.values()) - result.end == len(record(59))


def test_one_replica_whose_oldest_files_have_expired(tmp_path):
    content = files(60)
    later = {name: data for name, data in content.items() if int(name)}
    result = compare([store(tmp_path, "a", content), store(tmp_path, "b", later)])
    assert result.equal and result.begin == FILE_SIZE


def test_no_log_is_an_error_that_names_the_directory(tmp_path):
    (tmp_path / "a" / "commitlog").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no commit log files"):
        compare([tmp_path / "a", tmp_path / "a"])


def test_a_missing_file_is_an_error_not_an_endless_loop(tmp_path):
    content = files(90)
    stores = [store(tmp_path, "a", content), store(tmp_path, "b", content)]
    (stores[1] / "commitlog" / f"{FILE_SIZE:020d}").unlink()
    with pytest.raises(ReplicasError, match=f"b/commitlog: the file with offset {FILE_SIZE} is missing"):
        compare(stores)


@pytest.mark.parametrize("other", [2 * FILE_SIZE, 5 * FILE_SIZE])
def test_logs_without_a_common_offset_are_not_called_equal(tmp_path, other):
    full = {name: data for name, data in files(60).items() if int(name) < 2 * FILE_SIZE}
    later = {f"{other:020d}": record(1).ljust(FILE_SIZE, b"\0")}
    with pytest.raises(ReplicasError, match=f"no offset in common: .*/a ends at {2 * FILE_SIZE:,}"):
        compare([store(tmp_path, "a", full), store(tmp_path, "b", later)])


def test_of_logs_without_a_common_offset_the_one_that_ends_first_is_named(tmp_path):
    full = {name: data for name, data in files(60).items() if int(name) < 2 * FILE_SIZE}
    a = store(tmp_path, "a", full)
    empty = store(tmp_path, "b", {f"{2 * FILE_SIZE:020d}": bytes(FILE_SIZE)})
    for stores in ([a, empty], [empty, a]):
        with pytest.raises(ReplicasError, match=f"/a ends at {2 * FILE_SIZE:,}, and another one begins at"):
            compare(stores)


def test_empty_logs_are_equal(tmp_path):
    empty = {f"{0:020d}": bytes(FILE_SIZE)}
    assert compare([store(tmp_path, "a", empty), store(tmp_path, "b", empty)]).equal


def test_an_empty_log_is_not_equal_to_a_full_one(tmp_path):
    empty = {f"{0:020d}": bytes(FILE_SIZE)}
    with pytest.raises(ReplicasError, match=r"no offset in common: .*/b ends at 0"):
        compare([store(tmp_path, "a", files(60)), store(tmp_path, "b", empty)])
