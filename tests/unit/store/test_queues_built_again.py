"""Consume queues that are missing, short or torn are built again from the commit log."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil

import pytest

from batonmq.store import queues
from batonmq.store.checkpoint import Checkpoint
from batonmq.store.store import MessageStore
from batonmq.store.verify import verify


def test_deleted_consume_queues_are_built_again(opener):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(100)])
    store.close()
    shutil.rmtree(opener.root / "store/consumequeue")
    assert opener.bodies(opener()) == [b"%d" % n for n in range(100)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("missing", [0, 1, 3, 5])
def test_a_consume_queue_of_which_a_file_is_missing_is_built_again(opener, caplog, clean, missing):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(200)])
    store.flush()
    store.flush_queues()
    store.close() if clean else store.abandon()
    files = sorted((opener.root / "store/consumequeue/T/0").iterdir())
    assert len(files) == 7
    files[missing].unlink()
    again = opener()
    first = 16 if missing == 0 else 0  # as after the expiry of what the first file held
    assert opener.bodies(again, 0) == [b"%d" % n for n in range(0, 200, 2)][first:]
    assert opener.bodies(again, 1) == [b"%d" % n for n in range(1, 200, 2)]
    assert ("a file is missing" in caplog.text) == (missing > 0)
    opener.put(again, opener.message(b"more", queue_id=0))
    assert opener.bodies(again, 0)[-1] == b"more"
    assert verify(opener.root / "store").ok


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("size", [0, 7, 100])
@pytest.mark.parametrize(("count", "short"), [(200, 0), (200, 3), (200, 6), (20, 0), (192, 6)])
def test_a_consume_queue_of_which_a_file_is_too_short_is_built_again(opener, clean, size, count, short):
    """Killed between the file's creation, or its cut, and the call that gives it its size; or damaged."""
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(count)])
    store.flush_queues()
    store.close() if clean else store.abandon()
    os.truncate(sorted((opener.root / "store/consumequeue/T/0").iterdir())[short], size)
    for _ in range(2):
        again = opener()
        assert opener.bodies(again, 0) == [b"%d" % n for n in range(0, count, 2)]
        assert opener.bodies(again, 1) == [b"%d" % n for n in range(1, count, 2)]
        (result,) = opener.put(again, opener.message(b"%d" % count, queue_id=0))
        opener.put(again, opener.message(b"%d" % (count + 1), queue_id=1))
        assert result.queue_offset == count // 2
        count += 2
        again.close()
    assert verify(opener.root / "store").ok


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("count", "goes"), [(200, 1), (200, 3), (200, 7), (20, 1), (192, 1), (192, 2)])
def test_a_consume_queue_whose_last_files_are_missing_is_built_again(opener, caplog, clean, count, goes):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(count)])
    store.flush()
    store.flush_queues()
    store.close() if clean else store.abandon()
    files = sorted((opener.root / "store/consumequeue/T/0").iterdir())
    assert len(files) == count // 2 // 16 + 1, "the last one has room for a unit at least"
    for path in files[-goes:]:
        path.unlink()
    for _ in range(2):
        again = opener()
        assert opener.bodies(again, 0) == [b"%d" % n for n in range(0, count, 2)]
        assert opener.bodies(again, 1) == [b"%d" % n for n in range(1, count, 2)]
        assert again.lost_bytes == 0
        again.close()
    assert caplog.text.count("the last file may be missing") == 1
    again = opener()
    opener.put(again, opener.message(b"more", queue_id=0))
    assert opener.bodies(again, 0)[-1] == b"more"
    assert verify(opener.root / "store").ok


def test_a_cut_behind_a_full_file_is_no_loss(opener, caplog):
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n) for n in range(40)])
    store.truncate(results[32].physical_offset)
    store.close()
    again = opener()
    assert again.queue_bounds("T", 0).max_offset == 32
    assert "may be missing" not in caplog.text, caplog.text


def test_an_empty_directory_of_a_queue_without_messages_is_looked_at_once(opener, caplog):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(20)])
    store.close()
    (opener.root / "store/consumequeue/T/7").mkdir()
    for _ in range(3):
        again = opener()
        assert opener.bodies(again) == [b"%d" % n for n in range(20)]
        again.close()
    assert caplog.text.count("the last file may be missing") == 1


def test_a_full_last_file_as_rocketmq_leaves_it_is_looked_at_once(opener, caplog):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(32)])
    store.close()
    sorted((opener.root / "store/consumequeue/T/0").iterdir())[-1].unlink()
    for _ in range(3):
        again = opener()
        assert opener.bodies(again) == [b"%d" % n for n in range(32)]
        again.close()
    assert caplog.text.count("the last file may be missing") == 1


def test_a_crash_while_a_consume_queue_is_built_again_loses_nothing(opener, monkeypatch):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2) for n in range(200)])
    store.close()
    sorted((opener.root / "store/consumequeue/T/0").iterdir())[3].unlink()

    def power_cut(self):
        raise OSError("power")

    with monkeypatch.context() as now, pytest.raises(OSError, match="power"):
        now.setattr(MessageStore, "dispatch", power_cut)
        opener()
    assert opener.bodies(opener(), 0) == [b"%d" % n for n in range(0, 200, 2)]


def test_before_a_gap_goes_what_the_log_no_longer_holds(opener):
    store = opener()
    opener.put(store, *[opener.message(bytes(400)) for _ in range(120)])
    store.flush()
    store.flush_queues()
    store.close()
    logs = sorted((opener.root / "store/commitlog").iterdir())
    for path in logs[:-2]:
        path.unlink()
    files = sorted((opener.root / "store/consumequeue/T/0").iterdir())
    files[1].unlink()
    again = opener()
    bounds = again.queue_bounds("T", 0)
    assert bounds.max_offset == 120 and bounds.min_offset > 32
    assert len(opener.messages(again)) == 120 - bounds.min_offset
    assert not files[0].exists()


@pytest.mark.parametrize("left", [7, 8, 12, 19])
def test_a_unit_of_which_a_power_cut_left_a_part_is_written_again(opener, left):
    """Its first bytes were in a sector that never reached the disk: it looks like one of an old record."""
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(40)])
    store.flush()
    store.flush_queues()
    opener.put(store, *[opener.message(b"%d" % n) for n in range(40, 60)])
    store.flush()
    store.abandon()
    torn = 40 * 20  # the first one behind the safe offset
    paths = sorted((opener.root / "store").glob("consumequeue/*/*/*"))
    (path,) = [p for p in paths if int(p.name) <= torn < int(p.name) + p.stat().st_size]
    units = bytearray(path.read_bytes())
    at = torn - int(path.name)
    assert units[at : at + left] != bytes(left)
    units[at : at + left] = bytes(left)
    path.write_bytes(units)
    again = opener()
    assert opener.bodies(again) == [b"%d" % n for n in range(60)]
    again.close()


@pytest.mark.pure
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_no_start_trusts_consume_queues_whose_flush_has_failed(opener, monkeypatch, error):
    store = opener()
    for number in range(6):
        opener.put(store, opener.message(b"%d" % number, queue_id=number % 2))
    failing = opener.root / "store/consumequeue/T/0" / ("0" * 20)
    assert failing.is_file()
    failures, synced = [OSError(error, os.strerror(error))], []

    def sync_path(path):
        if path == failing and failures:
            raise failures.pop()
        synced.append(path)

    monkeypatch.setattr(queues, "sync_path", sync_path)
    for _ in range(3):
        with contextlib.suppress(OSError):
            store.flush_queues()
    monkeypatch.undo()
    store.abandon()
    if error == errno.EMFILE:  # it was not synced at all, and then it was
        assert failing in synced
        assert Checkpoint.load(opener.root / "store/checkpoint").safe_offset > 0
        return
    failing.write_bytes(bytes(failing.stat().st_size))
    again = opener()
    assert [opener.bodies(again, queue_id=queue) for queue in (0, 1)] == [
        [b"0", b"2", b"4"],
        [b"1", b"3", b"5"],
    ]
