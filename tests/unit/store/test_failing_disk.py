"""A disk that is full or fails: what the sender gets, and what the log has afterwards."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.unit.store.helpers import numbered

from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.store import consumequeue, mapped
from batonmq.store.append import WRITE_BYTES
from batonmq.store.commitlog import CommitLog
from batonmq.store.mapped import file_name
from batonmq.store.results import PutStatus


def test_a_full_disk_refuses_the_whole_turn_and_nothing_is_lost(opener, monkeypatch):
    store = opener()
    opener.put(store, *numbered(opener, 70))
    real = os.pwrite
    calls = []

    def full(fd, data, position):
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, data[: len(data) // 2], position)
        if any(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, position)

    monkeypatch.setattr(mapped.os, "pwrite", full)
    results = store.put(numbered(opener, 30))
    assert {result.status for result in results} == {PutStatus.CREATE_MAPPED_FILE_FAILED}
    monkeypatch.undo()
    assert (opener.bodies(store), len(calls) > 1) == ([b"%d" % n for n in range(70)], True)
    (result,) = opener.put(store, opener.message(b"after"))
    assert result.queue_offset == 70
    store.abandon()
    assert opener.bodies(opener()) == [b"%d" % n for n in range(70)] + [b"after"]


def test_what_a_failing_disk_took_of_a_turn_is_not_a_message_after_a_restart(opener, monkeypatch):
    """Its producers got the answer that it was not stored."""
    store = opener()
    opener.put(store, opener.message(b"kept"))
    pwrite, calls = os.pwrite, []

    def failing(fd, data, position):
        calls.append(position)
        if len(calls) == 1:
            return pwrite(fd, data[: len(data) - 10], position)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return pwrite(fd, data, position)

    monkeypatch.setattr(mapped.os, "pwrite", failing)
    results = store.put(numbered(opener, 3))
    assert {result.status for result in results} == {PutStatus.CREATE_MAPPED_FILE_FAILED}
    monkeypatch.undo()
    assert store.failure is not None and len(calls) > 2
    store.abandon()
    assert opener.bodies(opener()) == [b"kept"]


def large_batch(opener, name, count=200):
    items = (BatchItem(body=b"%s-%d" % (name, at), properties=b"TAGS\1t\2") for at in range(count))
    return replace(opener.message(b""), body=encode_batch(items), batch=True)


def large_message(opener, name):
    return opener.message(name + bytes(WRITE_BYTES) + name + b"-199")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()])
@pytest.mark.parametrize("large", [large_batch, large_message])
def test_a_failure_at_the_second_large_piece_takes_the_first_one_back(opener, monkeypatch, error, large):
    """Each is written before the next one is encoded."""
    opener.file_size = 2 << 20
    store = opener()
    opener.put(store, opener.message(b"kept"))
    real = os.pwrite
    written = []

    def failing(fd, data, position):
        if b"second-199" in data:
            raise error
        written.append(data)
        return real(fd, data, position)

    turn = [large(opener, b"first"), opener.message(b"between"), large(opener, b"second")]
    monkeypatch.setattr(mapped.os, "pwrite", failing)
    if isinstance(error, OSError):
        assert {result.status for result in store.put(turn)} == {PutStatus.CREATE_MAPPED_FILE_FAILED}
    else:
        with pytest.raises(MemoryError):
            store.put(turn)
    monkeypatch.undo()
    assert any(b"first-199" in data for data in written)
    assert opener.bodies(store) == [b"kept"]
    store.abandon()
    again = opener()
    assert opener.bodies(again) == [b"kept"], "a restart takes what was left behind for no messages either"
    (result,) = opener.put(again, opener.message(b"after"))
    assert result.queue_offset == 1


def test_a_failure_at_the_end_of_a_turn_leaves_no_hole_in_a_queue(opener, monkeypatch):
    opener.file_size = 1 << 20
    store = opener()
    opener.put(store, opener.message(b"kept"))
    write, calls = mapped.MappedFile.write, []

    def failing(file, position, data):
        calls.append(position)
        if len(calls) == 2:
            raise MemoryError
        write(file, position, data)

    with monkeypatch.context() as patch:
        patch.setattr(mapped.MappedFile, "write", failing)
        with pytest.raises(MemoryError):
            store.put([large_batch(opener, b"first"), opener.message(b"last")])
    (result,) = opener.put(store, opener.message(b"after"))
    assert result.queue_offset == 1
    assert opener.bodies(store) == [b"kept", b"after"]


def test_full_consume_queues_catch_up_later(opener, monkeypatch, caplog):
    store = opener()
    opener.put(store, *numbered(opener, 3))

    def full(fd, data, position):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(consumequeue, "write_all", full)
    for message in numbered(opener, 3):
        opener.put(store, message)
    assert store.queue_bounds("T", 0).max_offset == 3
    assert caplog.text.count("consume queues cannot be written") == 1, "not with each message"
    monkeypatch.undo()
    (result,) = opener.put(store, opener.message(b"last"))
    assert "consume queues are written again" in caplog.text
    assert result.queue_offset == 6
    assert opener.bodies(store) == [b"0", b"1", b"2", b"0", b"1", b"2", b"last"]


def test_a_queue_file_that_cannot_get_its_size_leaves_no_descriptor(opener, monkeypatch):
    store = opener()

    def full(fd, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    opener.put(store, opener.message(b"0"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", full)
        opener.put(store, opener.message(b"0", queue_id=1))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            store.dispatch()
        assert len(os.listdir("/proc/self/fd")) == before
    store.dispatch()
    assert opener.bodies(store, 1) == [b"0"]


def _at(records, offset, size):
    """Records of `size` bytes moved to another commit log offset."""
    moved = bytearray(records)
    for number in range(len(records) // size):
        moved[number * size + 28 : number * size + 36] = (offset + number * size).to_bytes(8, "big")
    return bytes(moved)


def test_a_queue_that_is_full_while_the_log_is_read_stays_behind(opener, monkeypatch):
    source = opener()
    opener.put(source, *numbered(opener, 6))
    data = bytes(source.read(0, 1 << 20))
    source.truncate(0)
    size = len(data) // 6
    # Queue offset 2 is missing: 0 and 1 are written when 3 is met.
    with_gap = data[: 2 * size] + _at(data[3 * size :], 2 * size, size)

    def full(fd, data, position):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(consumequeue, "write_all", full)
    source.append_raw(0, with_gap)
    source.dispatch()
    assert source.queue_bounds("T", 0).max_offset == 0
    monkeypatch.undo()
    source.dispatch()
    assert source.queue_bounds("T", 0).max_offset == 6


def test_a_failed_fsync_ends_the_service(opener, monkeypatch):
    store = opener()
    opener.put(store, opener.message())

    def broken(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("batonmq.store.commitlog.sync_path", broken)
    with pytest.raises(OSError):
        store.flush()
    monkeypatch.undo()
    with pytest.raises(OSError):
        store.flush()
    assert store.put([opener.message()])[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(OSError):
        store.close()
    assert (opener.root / "store/abort").exists()


def test_the_name_of_a_file_that_was_created_again_is_durable(tmp_path, monkeypatch):
    """A replica that cut its log acknowledges what it then receives: a file that is missing after a power cut
    would be lost."""
    log = CommitLog(tmp_path / "commitlog", 4096, wait_for_confirm=True)
    log.append_raw(b"x" * 6000)
    log.flush()
    log.cut(3000)
    synced = []
    monkeypatch.setattr("batonmq.store.commitlog.sync_path", synced.append)
    log.append_raw(b"y" * 3000)
    log.flush()
    assert [path.name for path in synced] == [file_name(0), file_name(4096), "commitlog"]
    log.append_raw(b"y" * 100)
    log.flush()
    assert [path.name for path in synced[3:]] == [file_name(4096)]


def test_too_many_open_files_at_a_flush_are_no_failed_disk(opener, monkeypatch):
    """Nothing was synced, so the next flush can do it; a failed fsync could not be repeated."""
    store = opener()
    opener.put(store, opener.message(b"first"))

    def none_left(path, *args):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(mapped.os, "open", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            store.flush()
    assert store.failure is None and store.flushed_offset == 0
    (result,) = opener.put(store, opener.message(b"second"))
    assert result.status is PutStatus.PUT_OK
    assert store.flush() == store.max_offset


def test_a_file_size_limit_is_a_status_not_a_signal(tmp_path):
    """The limit stands for a full disk. In a separate process: a store through a map would be killed."""
    program = """
import sys, resource, signal
from batonmq.common.clock import SystemClock
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.consumequeue import UNIT
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore
store = MessageStore.open(StoreConfig(store_path_root_dir=sys.argv[1], mapped_file_size_commit_log=1 << 20,
    message_index_enable=False), SystemClock(), wait_for_confirm=False)
store.put([StoredMessage(topic="T", queue_id=0, body=b"")])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
message = StoredMessage(topic="T", queue_id=0, body=bytes(1000))
statuses = [store.put([message])[0].status.name for _ in range(400)]
print(statuses.count("PUT_OK") > 200, statuses[-1])
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "True CREATE_MAPPED_FILE_FAILED\n", done.stderr


FULL_DISK_PROGRAM = """
import sys
from pathlib import Path
from batonmq.common.clock import SystemClock
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.config import StoreConfig
from batonmq.store.store import MessageStore
from batonmq.store.verify import verify
root = Path(sys.argv[1]) / "store"
config = StoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20000, max_hash_slot_num=1000, max_index_num=5000)
store = MessageStore.open(config, SystemClock(), wait_for_confirm=False)
ballast = root.parent / "ballast"
ballast.write_bytes(bytes(1 << 20))
counts = {}
for number in range(2000):
    keys = encode_properties({"KEYS": "k"})
    message = StoredMessage(topic="T", queue_id=0, body=bytes(1000), properties=keys)
    for result in store.put([message] * 3):
        counts[result.status.name] = counts.get(result.status.name, 0) + 1
    store.build_index()
assert set(counts) == {"PUT_OK", "CREATE_MAPPED_FILE_FAILED"}, counts
store.abandon()
store = MessageStore.open(config, SystemClock(), wait_for_confirm=False)
stored = counts["PUT_OK"]
while store.put([message])[0].status.name == "PUT_OK":  # opening gave back what was allocated ahead
    stored += 1
ballast.unlink()
assert store.put([message])[0].status.name == "PUT_OK"
stored += 1
assert store.queue_bounds("T", 0).max_offset == stored
store.close()
report = verify(root)
assert report.ok and report.records == stored, report
print("survived")
"""


@pytest.fixture
def small_disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_really_full_disk_kills_nothing_and_loses_nothing(small_disk):
    """In a separate process: SIGBUS, the danger of maps on a full disk, would end the test run."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_PROGRAM, str(small_disk)], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr[-1000:]
