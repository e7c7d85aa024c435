"""A store is opened, flushed and opened again; one that is only read."""

from __future__ import annotations

import pytest
from tests.unit.store.helpers import numbered

from batonmq.protocol.message.record import decode_record
from batonmq.store import mapped
from batonmq.store.errors import StoreError, StoreLocked
from batonmq.store.verify import read_store, verify


@pytest.mark.parametrize("clean", [True, False])
def test_a_reopened_store_continues_where_it_was(opener, clean):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, queue_id=n % 2, KEYS=f"k{n}") for n in range(101)])
    end = store.max_offset
    if clean:
        store.close()
    else:
        store.abandon()
    again = opener()
    assert (again.max_offset, again.dispatched_offset) == (end, end)
    (result,) = opener.put(again, opener.message(b"new"))
    assert (result.queue_offset, result.physical_offset) == (51, end)
    assert opener.bodies(again) == [b"%d" % n for n in range(0, 101, 2)] + [b"new"]
    assert [decode_record(r).body for r in again.query_by_key("T", "k77", 5).records] == [b"77"]
    assert verify(opener.root / "store").ok


def test_flush_returns_what_is_durable(opener):
    store = opener()
    assert store.flush() == 0
    (result,) = opener.put(store, opener.message())
    assert store.flushed_offset == 0
    assert store.flush() == store.flushed_offset == result.end_offset
    assert store.flush_queues() == result.end_offset


def test_one_store_a_directory(opener):
    opener()
    with pytest.raises(StoreLocked):
        opener()


def test_a_wrong_file_size_is_named(opener):
    store = opener()
    opener.put(store, opener.message())
    store.close()
    with pytest.raises(StoreError, match="00000000000000000000 has 8192 bytes"):
        opener(mapped_file_size_commit_log=4096)


def test_a_read_only_store_reads_all_records(opener):
    store = opener()
    opener.put(store, *numbered(opener, 150, 2, TAGS="t"))
    report = verify(opener.root / "store")
    assert (report.ok, report.records, report.queues, report.units, report.waiting) == (True, 150, 2, 150, 0)
    assert [decode_record(view).body for _, view in read_store(opener.root / "store")] == [
        b"%d" % n for n in range(150)
    ]
    file = store._log.files.files[0]
    mapped.write_all(file._fd, b"!", 300)
    report = verify(opener.root / "store")
    assert not report.ok
    assert file.base <= report.damage.physical_offset <= file.base + 300
    with pytest.raises(StoreError, match="no commit log"):
        verify(opener.root / "nothing")


@pytest.mark.parametrize("flushed", [True, False])
def test_store_times_do_not_go_back_when_a_store_is_opened_with_a_clock_behind(opener, flushed):
    store = opener()
    opener.clock.set_wall(opener.clock.now_ms() + 120_000)
    opener.put(store, opener.message())
    newest = opener.clock.now_ms()
    if flushed:
        store.flush_queues()
    store.abandon()
    opener.clock.set_wall(newest - 120_000)
    again = opener()
    assert again.last_timestamp == newest
    opener.put(again, opener.message())
    assert again.queue_store_time("T", 0, 1) == newest


def test_opening_a_store_ends_the_store_times_of_a_clock_that_was_far_ahead(opener):
    """Delayed messages would be late by as much, for ever."""
    store = opener()
    now = opener.clock.now_ms()
    opener.clock.set_wall(now + 3_600_000)
    opener.put(store, opener.message())
    store.close()
    opener.clock.set_wall(now)
    again = opener()
    opener.put(again, opener.message())
    assert again.queue_store_time("T", 0, 1) == now


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_new_master_knows_the_newest_store_time_of_its_log(opener, confirmed):
    """Of records that came from two masters at once, or that are not confirmed yet."""
    source = opener("source")
    opener.clock.set_wall(opener.clock.now_ms() + 120_000)
    opener.put(source, opener.message())
    newest = opener.clock.now_ms()
    source.abandon()
    opener.clock.set_wall(newest - 700_000)
    source = opener("source")
    opener.put(source, opener.message())
    copy = opener("copy", confirm=True)
    copy.append_raw(0, source.read(0, source.max_offset))
    if confirmed:
        copy.confirm_offset = copy.max_offset
        copy.dispatch()
    opener.put(copy, opener.message())
    assert copy.last_timestamp == newest


def test_a_store_is_read_whose_last_file_has_only_been_created(opener):
    """By a live store in this moment, by one whose disk is full, or by one that was killed."""
    store = opener()
    opener.put(store, *numbered(opener, 150))
    (opener.root / "store/commitlog" / f"{store._log.files.end:020d}").touch()
    assert verify(opener.root / "store").ok
    assert len(list(read_store(opener.root / "store"))) == 150
    assert len(list((opener.root / "store/commitlog").iterdir())) == len(store._log.files.files) + 1
