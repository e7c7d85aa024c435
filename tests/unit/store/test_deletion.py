"""Old files and deleted topics: when they go, and what stays."""

from __future__ import annotations

import os
from datetime import datetime

import pytest
from tests.unit.store.helpers import numbered

from batonmq.protocol.message.record import decode_records
from batonmq.store.expiry import HOUR_MS
from batonmq.store.results import GetStatus, PutStatus


@pytest.mark.parametrize(
    ("usage", "hour_fits", "old", "deleted", "writable"),
    [
        (0.5, False, True, False, True),
        (0.5, True, True, True, True),
        (0.5, True, False, False, True),
        (0.8, False, True, True, True),
        (0.8, False, False, False, True),
        (0.87, False, False, True, True),
        (0.95, False, False, True, False),
    ],
)
def test_when_files_are_deleted(opener, usage, hour_fits, old, deleted, writable):
    hour = datetime.fromtimestamp(opener.clock.now_ms() / 1000).hour
    store = opener(delete_when=str(hour if hour_fits else (hour + 2) % 24))
    opener.put(store, *numbered(opener, 200))
    for file in store._log.files.files:
        seconds = opener.clock.now_ms() / 1000 - (100 * 3600 if old else 0)
        os.utime(file.path, (seconds, seconds))
    opener.usage = usage
    assert bool(store.delete_expired()) == deleted
    status = store.put([opener.message()])[0].status
    assert (status is PutStatus.PUT_OK) == writable
    if not writable:
        assert status is PutStatus.SERVICE_NOT_AVAILABLE
        opener.usage = 0.2
        store.check_disk()
        opener.put(store, opener.message())


def test_old_files_go_and_offsets_stay(opener):
    store = opener(
        file_reserved_time=1,
        delete_when="00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
    )
    results = opener.put(store, *numbered(opener, 400))
    opener.clock.advance(10**12)  # well past the files' times
    paths = store.delete_expired()
    assert store.min_offset == store.max_offset - store.max_offset % opener.file_size
    for path in paths:
        os.unlink(path)
    bounds = store.queue_bounds("T", 0)
    first = next(n for n, result in enumerate(results) if result.physical_offset >= store.min_offset)
    assert (bounds.min_offset, bounds.max_offset) == (first, 400)
    assert opener.bodies(store) == [b"%d" % n for n in range(first, 400)]
    assert store.get("T", 0, first - 1, 1).status is GetStatus.OFFSET_TOO_SMALL
    assert store.delete_expired() == []  # the file in use stays
    store.abandon()
    again = opener()
    assert again.queue_bounds("T", 0) == bounds
    assert opener.put(again, opener.message())[0].queue_offset == 400


def test_a_clock_that_is_set_ahead_deletes_nothing_for_a_day(opener, caplog):
    """Nothing brings the files back when the mistake is noticed."""
    store = opener(file_reserved_time=72, delete_when=";".join(map(str, range(24))))
    opener.put(store, *numbered(opener, 400))
    for file in store._log.files.files:
        os.utime(file.path, (opener.clock.now_ms() / 1000,) * 2)
    opener.clock.set_wall(opener.clock.now_ms() + 1000 * HOUR_MS)
    for _ in range(23):
        assert store.delete_expired() == []
        assert store.doubted_ms == 1000 * HOUR_MS
        opener.clock.advance(HOUR_MS)
    assert caplog.text.count("the clock was set ahead by 1000.0 hours") == 1
    assert opener.bodies(store) == [b"%d" % n for n in range(400)]
    opener.clock.advance(2 * HOUR_MS)  # it seems to be right
    assert store.doubted_ms == 0
    assert store.delete_expired()


def test_after_a_step_back_files_go_by_the_clock(opener):
    store = opener(file_reserved_time=72, delete_when=";".join(map(str, range(24))))
    opener.put(store, *numbered(opener, 400))
    now_ms = opener.clock.now_ms()
    for file in store._log.files.files:
        os.utime(file.path, (now_ms / 1000,) * 2)
    opener.clock.set_wall(now_ms + 1000 * HOUR_MS)
    assert store.delete_expired() == []
    opener.clock.set_wall(now_ms - HOUR_MS)
    assert store.delete_expired() == []
    for _ in range(72):
        opener.clock.advance(HOUR_MS)
        assert store.delete_expired() == []
    opener.clock.advance(HOUR_MS + 1_000)
    assert store.delete_expired()


def test_a_crash_while_expired_files_are_deleted_leaves_none_behind(opener):
    store = opener(file_reserved_time=1)
    opener.put(store, *numbered(opener, 400))
    opener.usage = 0.8
    opener.clock.advance(10**12)
    queue_files = [path for path in store.delete_expired() if "consumequeue" in path.parts or path.unlink()]
    assert queue_files
    store.abandon()
    again = opener()
    assert not any(path.exists() for path in queue_files)
    assert (
        len(opener.bodies(again))
        == again.queue_bounds("T", 0).max_offset - again.queue_bounds("T", 0).min_offset
    )


def test_views_outlive_the_files_they_show(opener):
    store = opener()
    opener.put(store, *numbered(opener, 200))
    (view,) = store.get("T", 0, 0, 5).buffers
    opener.clock.advance(80 * 3_600_000)
    opener.usage = 0.8
    for path in store.delete_expired():
        os.unlink(path)
    store.close()
    assert [message.body for message in decode_records(view)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_is_deleted_with_its_queues(opener):
    store = opener()
    opener.put(store, opener.message(), opener.message(topic="U"))
    store.delete_topic("T")
    assert store.queues() == [("U", 0)]
    assert not (opener.root / "store/consumequeue/T").exists()
    assert opener.put(store, opener.message())[0].queue_offset == 0
