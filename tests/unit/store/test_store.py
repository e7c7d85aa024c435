"""The store as its callers see it."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.layout import MAGIC_BLANK
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import StoredMessage, decode_record, decode_records
from batonmq.protocol.tags import java_hash
from batonmq.store import collector, commitlog, index, indexer, mapped
from batonmq.store.append import WRITE_BYTES
from batonmq.store.errors import OffsetGap, StoreError, StoreLocked
from batonmq.store.policy import OneProperty
from batonmq.store.results import Boundary, GetStatus, PutStatus
from batonmq.store.verify import read_store, verify


class Filter(NamedTuple):
    by_code: Callable[[int], bool] | None
    by_properties: Callable[[bytes], bool] | None = None
    weight: int = 1
    one_property: OneProperty | None = None


def numbered(opener, count, queues=1, **properties):
    return [opener.message(b"%d" % n, queue_id=n % queues, **properties) for n in range(count)]


def test_messages_come_back_in_order_and_with_their_offsets(opener):
    store = opener()
    results = opener.put(store, *numbered(opener, 300, 3, TAGS="a"))
    assert [result.queue_offset for result in results[:7]] == [0, 0, 0, 1, 1, 1, 2]
    for queue_id in range(3):
        assert opener.bodies(store, queue_id) == [b"%d" % n for n in range(queue_id, 300, 3)]
    assert results[-1].end_offset == store.max_offset > 3 * opener.file_size
    record = decode_record(store.message_at(results[100].physical_offset), check_crc=True)
    assert (record.body, record.physical_offset) == (b"100", results[100].physical_offset)
    assert record.store_timestamp == opener.clock.now_ms()
    assert store.message_at(results[100].physical_offset + 1) is None


@pytest.mark.parametrize("clean", [True, False])
def test_a_reopened_store_goes_on_where_it_was(opener, clean):
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


def test_a_wire_batch_is_stored_as_one_record_a_message(opener):
    store = opener()
    opener.put(store, opener.message(b"first"))
    items = [BatchItem(body=b"%d" % n * 50, properties=b"TAGS\x01t%d\x02" % n, flag=n) for n in range(200)]
    batch = StoredMessage(topic="T", queue_id=0, body=encode_batch(items), batch=True)
    (result,) = opener.put(store, batch)
    assert (result.records, result.queue_offset) == (200, 1)
    found = opener.messages(store)[1:]
    assert [m.body for m in found] == [item.body for item in items]
    assert [m.flag for m in found] == list(range(200))
    assert [m.queue_offset for m in found] == list(range(1, 201))
    assert tuple(m.physical_offset for m in found) == result.physical_offsets
    assert found[7].tags == "t7"
    assert store.get("T", 0, 0, 500, message_filter=Filter({java_hash("t7")}.__contains__)).count == 1


def test_a_message_of_a_batch_whose_properties_end_with_zero_survives_a_crash(opener):
    """Its record looked torn, and was cut off with all that came after it."""
    store = opener()
    items = [BatchItem(body=b"0", properties=b"A\x01a\0"), BatchItem(body=b"1", properties=b"")]
    opener.put(store, StoredMessage(topic="T", queue_id=0, body=encode_batch(items), batch=True))
    opener.put(store, opener.message(b"2"))
    store.abandon()
    assert opener.bodies(opener()) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("hosts", [("10.0.0.1", "::1"), ("::1", "10.0.0.1"), ("::1", "::2")])
def test_ipv6_hosts_and_long_topics(opener, hosts):
    store = opener()
    topic = "x" * 200
    message = StoredMessage(
        topic=topic,
        queue_id=1,
        body=b"b",
        born_host=pack_host(hosts[0], 1),
        store_host=pack_host(hosts[1], 2),
    )
    opener.put(store, message, message)
    found = opener.messages(store, 1, topic)
    assert [(m.born_address, m.store_address, m.topic) for m in found] == [
        ((hosts[0], 1), (hosts[1], 2), topic)
    ] * 2
    store.abandon()
    assert opener().queue_bounds(topic, 1).max_offset == 2


def test_a_file_ends_with_a_filler_and_records_never_cross(opener):
    store = opener()
    opener.put(store, *[opener.message(b"y" * 700) for _ in range(40)])
    end = 0
    for message in opener.messages(store):
        assert message.physical_offset // opener.file_size == (
            (message.physical_offset + message.store_size + 7) // opener.file_size
        )
        if message.physical_offset != end:
            filler = store.read(end, 8)
            assert int.from_bytes(filler[4:8], "big", signed=True) == MAGIC_BLANK
            assert end + int.from_bytes(filler[:4], "big") == message.physical_offset
        end = message.physical_offset + message.store_size


def test_messages_that_cannot_be_stored_are_refused_one_by_one(opener):
    store = opener(max_message_size=2000)
    bad_batch = StoredMessage(topic="T", queue_id=0, body=b"nonsense", batch=True)
    results = store.put(
        [
            opener.message(b"good"),
            opener.message(bytes(2001)),
            bad_batch,
            StoredMessage(topic="T", queue_id=0, body=b"", properties=bytes(32768)),
            opener.message(b"fine"),
        ]
    )
    assert [result.status.name for result in results] == [
        "PUT_OK",
        "MESSAGE_ILLEGAL",
        "MESSAGE_ILLEGAL",
        "PROPERTIES_SIZE_EXCEEDED",
        "PUT_OK",
    ]
    assert opener.bodies(store) == [b"good", b"fine"]
    large = opener("large")
    assert large.put([opener.message(bytes(8192 - 92))])[0].status is PutStatus.MESSAGE_ILLEGAL
    assert large.put([]) == []


def test_a_turn_that_cannot_be_encoded_leaves_no_hole_in_its_queues(opener):
    store = opener()
    opener.put(store, opener.message(b"0"))
    odd = opener.message(b"odd")
    odd.reconsume_times = 1 << 31
    with pytest.raises(struct.error):
        store.put([opener.message(b"1"), opener.message(b"1", queue_id=1), odd])
    opener.put(store, opener.message(b"2"), opener.message(b"2", queue_id=1))
    assert opener.bodies(store) == [b"0", b"2"]
    assert opener.bodies(store, queue_id=1) == [b"2"]


def test_prepared_and_rolled_back_messages_take_no_queue_offset(opener):
    store = opener()
    prepared = StoredMessage(topic="T", queue_id=0, body=b"p", sys_flag=4)
    rolled_back = StoredMessage(topic="T", queue_id=0, body=b"r", sys_flag=12)
    committed = StoredMessage(topic="T", queue_id=0, body=b"c", sys_flag=8)
    results = opener.put(store, prepared, committed, rolled_back, opener.message(b"n"))
    assert [result.queue_offset for result in results] == [0, 0, 0, 1]
    assert opener.bodies(store) == [b"c", b"n"]
    store.abandon()
    assert opener.bodies(opener()) == [b"c", b"n"]


@pytest.mark.parametrize(
    ("queue_offset", "status", "next_offset"),
    [
        (5, GetStatus.FOUND, 12),
        (20, GetStatus.OFFSET_OVERFLOW_ONE, 20),
        (21, GetStatus.OFFSET_OVERFLOW_BADLY, 20),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_statuses_of_get(opener, queue_offset, status, next_offset):
    store = opener()
    opener.put(store, *numbered(opener, 20))
    result = store.get("T", 0, queue_offset, 7)
    assert (result.status, result.next_offset, result.max_offset) == (status, next_offset, 20)
    assert result.count == (7 if status is GetStatus.FOUND else 0)
    assert store.get("unknown", 0, 0, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE


def test_get_keeps_to_its_limits_and_its_filter(opener):
    store = opener()
    opener.put(store, *[opener.message(bytes(100), TAGS="ab"[n % 2]) for n in range(16)])
    size = store.get("T", 0, 0, 1).size
    assert store.get("T", 0, 0, 32, max_bytes=3 * size).count == 3
    assert store.get("T", 0, 0, 32, max_bytes=1).count == 1
    only_b = store.get("T", 0, 0, 32, message_filter=Filter({java_hash("b")}.__contains__))
    assert (only_b.count, only_b.next_offset) == (8, 16)
    none = store.get("T", 0, 0, 32, message_filter=Filter(lambda code: False))
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 16)
    far = opener("far", access_message_in_memory_max_ratio=0, max_transfer_count_on_message_in_disk=2)
    opener.put(far, *numbered(opener, 9))
    assert (far.get("T", 0, 0, 32).count, far.get("T", 0, 0, 32).suggest_slave) == (2, True)


def test_a_filter_sees_the_properties_of_those_whose_code_passes(opener):
    store, seen = opener(), []
    opener.put(store, *[opener.message(b"%d" % n, TAGS="ab"[n % 2], N=str(n)) for n in range(16)])

    def odd_fives(properties):
        seen.append(int(decode_properties(properties)["N"]))
        return seen[-1] // 5 % 2 == 1

    def bodies(wanted):
        result = store.get("T", 0, 0, 40, message_filter=wanted)
        assert result.next_offset == 16
        return [message.body for view in result.buffers for message in decode_records(view)]

    expected = [b"%d" % n for n in range(16) if n // 5 % 2 == 1]
    assert bodies(Filter(None, odd_fives)) == expected
    assert seen == list(range(16))
    seen.clear()
    assert bodies(Filter({java_hash("b")}.__contains__, odd_fives)) == [b"5", b"7", b"9", b"15"]
    assert seen == list(range(1, 16, 2))


@pytest.mark.pure
def test_one_read_filters_a_bounded_number_of_bytes_and_the_next_goes_on(opener, monkeypatch):
    monkeypatch.setattr(collector, "MAX_EXAMINED", 200)
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, N="n" * 40) for n in range(30)])
    none, every = Filter(None, lambda properties: False), Filter(None, lambda properties: True)
    offset, reads = 0, 0
    while offset < 30:
        result = store.get("T", 0, offset, 40, message_filter=none)
        assert result.status is GetStatus.NO_MATCHED_MESSAGE and offset < result.next_offset <= offset + 6
        offset, reads = result.next_offset, reads + 1
    assert reads >= 5
    found = store.get("T", 0, 0, 40, message_filter=every)
    assert found.status is GetStatus.FOUND and found.next_offset == found.count <= 6
    assert store.get("T", 0, 0, 40, message_filter=none._replace(weight=5)).next_offset == 1


def test_a_filter_by_properties_says_that_messages_are_gone_as_any_reader_learns_it(opener):
    store = opener()
    opener.put(store, *[opener.message(bytes(1000), N=str(n)) for n in range(20)])
    for path in store._log.files.drop_first(1):
        path.unlink()
    gone = store.get("T", 0, 0, 1)
    assert gone.status is GetStatus.MESSAGE_WAS_REMOVING
    filtered = store.get("T", 0, 0, 1, message_filter=Filter(None, lambda properties: False))
    assert filtered.status is GetStatus.MESSAGE_WAS_REMOVING


def test_what_may_be_out_of_memory_can_be_fetched_first(opener):
    far = opener(access_message_in_memory_max_ratio=0)
    opener.put(far, *numbered(opener, 60))
    assert far.get("T", 0, 0, 1).fetch is not None
    far.close()
    store = opener()  # whether the last process left its pages in memory nobody knows
    result = store.get("T", 0, 0, 32)
    assert result.fetch is not None
    result.fetch()
    opener.put(store, *numbered(opener, 1))
    assert store.get("T", 0, 60, 32).fetch is None
    store.abandon()
    with pytest.raises(OSError, match="Bad file descriptor"):
        result.fetch()


def test_the_log_can_be_read_by_another_thread(opener):
    store = opener()
    opener.put(store, *numbered(opener, 1000))
    offset, jobs = store.min_offset, []
    while offset < store.max_offset:
        view = store.read(offset, 10_000)
        jobs.append((store.reading(offset, 10_000), bytes(view)))
        offset += len(view)
    assert len(jobs) > 3
    opener.put(store, *numbered(opener, 10))  # what a job reads was decided when it was made
    assert all(job() == expected for job, expected in jobs)
    with pytest.raises(StoreError, match="is not in the log"):
        store.reading(store.max_offset + 1, 1)
    path = store._log.files.files[0].path
    with pytest.raises(OSError, match="only 0 of 8192 bytes at 8192"):
        mapped.read_path(path, 8192, 8192)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        jobs[0][0]()


def keyed(opener, count, size=10):
    return [opener.message(b"%-*d" % (size, n), KEYS=f"k{n}") for n in range(count)]


def found_numbers(store, count):
    """Which of `keyed` the index finds, and each at its place."""
    found = [store._indexer.query("T", f"k{n}", 64, 0, 1 << 62).records for n in range(count)]
    return [[int(decode_record(record).body) for record in records] for records in found]


@pytest.mark.parametrize("size", [10, 5_000, 14_000])
def test_an_index_far_behind_is_built_from_what_was_read_of_the_files(opener, monkeypatch, size):
    """Across file ends, and with records larger than what is read at once: all are found, none is twice, and
    none of it comes from the map, whose pages may have left memory."""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener(mapped_file_size_commit_log=64 * 1024)
    assert store.index_reading() is None
    count = 400_000 // (size + 150)
    opener.put(store, *keyed(opener, count, size))
    assert len(store._log.files.files) > 3
    by_map, pieces = [], 0
    read_records = indexer.read_records

    def watched(data, begin, end):
        if not isinstance(data, bytes):
            by_map.append(store._indexer._position)
        return read_records(data, begin, end)

    monkeypatch.setattr(indexer, "read_records", watched)
    more = True
    while more:
        while (job := store.index_reading()) is not None:
            job()
            pieces += 1
        more = store.build_index(5)
    assert pieces > 10
    assert all(store.max_offset - position <= 8 * 1024 for position in by_map)
    assert found_numbers(store, count) == [[n] for n in range(count)]


def test_what_was_read_for_the_index_is_forgotten_when_the_log_is_cut(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 50))
    half = store.max_offset
    opener.put(store, *keyed(opener, 200))
    job = store.index_reading()
    assert job is not None
    store.build_index(10)
    store.truncate(half)
    job()
    opener.put(store, *[opener.message(b"%d" % (1000 + n), KEYS=f"k{n}") for n in range(50)])
    more = True
    while more:
        if (job := store.index_reading()) is not None:
            job()
        more = store.build_index(7)
    assert [sorted(numbers) for numbers in found_numbers(store, 50)] == [[n, 1000 + n] for n in range(50)]


def test_what_could_not_be_read_for_the_index_is_tried_again(opener, monkeypatch):
    """Whoever goes on to a page that the disk cannot bring is ended by SIGBUS."""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *numbered(opener, 2000))

    def broken(path, position, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        for _ in range(3):
            job = store.index_reading()
            assert job is not None
            with pytest.raises(OSError, match="Input/output error"):
                job()
    job = store.index_reading()
    assert job is not None
    job()
    assert store.index_reading() is None


def test_neither_a_query_nor_the_stop_touches_what_the_disk_did_not_give_the_index(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))

    def broken(path, position, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        job = store.index_reading()
        assert job is not None
        with pytest.raises(OSError, match="Input/output error"):
            job()
        patch.setattr(indexer, "read_records", lambda *data: pytest.fail("SIGBUS"))
        assert not store.query_by_key("T", "k0", 10).records
        assert not store.build_index()


def test_what_could_not_be_read_for_the_index_is_asked_for_when_little_is_left_too(opener, monkeypatch):
    """The log may have been cut behind it meanwhile."""
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 10))
    half = store.max_offset
    opener.put(store, *keyed(opener, 200))

    def broken(path, position, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(commitlog, "read_path", broken)
        job = store.index_reading()
        assert job is not None
        with pytest.raises(OSError, match="Input/output error"):
            job()
    store.truncate(half)
    job = store.index_reading()
    assert job is not None
    job()
    store.build_index()
    assert store.index_reading() is None
    assert found_numbers(store, 10) == [[n] for n in range(10)]


def test_a_size_that_rotted_does_not_make_the_index_read_the_file_again_and_again(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))
    with store._log.files.files[0].path.open("r+b") as file:
        file.write(struct.pack(">i", 1 << 30))
    read = []
    reading = mapped.read_path
    monkeypatch.setattr(commitlog, "read_path", lambda *asked: (read.append(asked), reading(*asked))[1])
    for _ in range(5):
        while (job := store.index_reading()) is not None:
            job()
        assert not store.build_index()
    assert [size for _, _, size in read] == [8 * 1024]


def test_a_file_deleted_by_hand_is_indexed_by_its_map(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))
    store._log.files.files[0].path.rename(store._log.files.files[0].path.with_suffix(".gone"))
    more = True
    while more:
        while (job := store.index_reading()) is not None:
            job()
        more = store.build_index(50)
    assert found_numbers(store, 500) == [[n] for n in range(500)]
    store._log.files.files[0].path.with_suffix(".gone").rename(store._log.files.files[0].path)


def test_a_key_longer_than_any_message_has_is_not_searched(opener, monkeypatch):
    """Its hash code would take seconds, and everybody would wait."""
    store = opener()
    opener.put(store, *keyed(opener, 5))
    store.build_index()
    asked = []
    monkeypatch.setattr(index, "java_hash", lambda key: asked.append(len(key)) or 0)
    assert not store.query_by_key("T", "k" * (1 << 20), 10).records
    assert not store.query_by_key("T", "k" * 32_767, 10).records
    assert asked == [32_769]


def test_a_query_finds_what_is_behind_what_was_read_ahead(opener, monkeypatch):
    monkeypatch.setattr(indexer, "READ_BYTES", 8 * 1024)
    store = opener()
    opener.put(store, *keyed(opener, 500))
    job = store.index_reading()
    assert job is not None
    job()
    assert len(store.query_by_key("T", "k499", 10).records) == 1


def test_offsets_are_found_by_time(opener):
    store = opener()
    begin = opener.clock.now_ms()
    for _ in range(3):  # at 0, 10 and 20 ms, two messages each
        opener.put(store, *numbered(opener, 2))
        opener.clock.advance(10)
    for at, lower, upper in [(-1, 0, 0), (0, 0, 1), (5, 2, 1), (10, 2, 3), (20, 4, 5), (25, 6, 5)]:
        assert store.offset_by_time("T", 0, begin + at) == lower, at
        assert store.offset_by_time("T", 0, begin + at, Boundary.UPPER) == upper, at
    assert store.earliest_message_time("T", 0) == store.earliest_message_time() == begin
    assert store.queue_store_time("T", 0, 5) == begin + 20
    assert store.queue_store_time("T", 0, 6) == store.earliest_message_time("no") == -1


def test_messages_wait_for_confirmation_but_have_their_offsets(opener):
    store = opener(confirm=True)
    results = opener.put(store, *numbered(opener, 100))
    assert [result.queue_offset for result in results] == list(range(100))
    assert store.queue_bounds("T", 0).max_offset == 0
    assert store.message_at(0) is None
    nothing_yet = [store.get("T", 0, offset, 1) for offset in (0, 7, 101)]
    assert [(found.status, found.next_offset) for found in nothing_yet] == [
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0),
        (GetStatus.OFFSET_OVERFLOW_ONE, 7),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0),
    ]
    store.confirm_offset = results[49].end_offset + 5
    assert store.dispatch() == results[49].end_offset
    assert opener.bodies(store) == [b"%d" % n for n in range(50)]
    store.close()
    again = opener(confirm=True)
    assert again.confirm_offset == results[49].end_offset + 5
    assert again.queue_bounds("T", 0).max_offset == 50
    again.cut_torn_tail()
    ends = {
        50: (GetStatus.OFFSET_OVERFLOW_ONE, 50),
        70: (GetStatus.OFFSET_OVERFLOW_ONE, 70),
        100: (GetStatus.OFFSET_OVERFLOW_ONE, 100),
        101: (GetStatus.OFFSET_OVERFLOW_BADLY, 50),
    }
    for offset, expected in ends.items():
        found = again.get("T", 0, offset, 1)
        assert (found.status, found.next_offset) == expected, "readers may have been ahead of this offset"
        assert found.log_max_offset == (100 if offset < 100 else 0)
    assert opener.put(again, opener.message(b"next"))[0].queue_offset == 100
    again.confirm_offset = 1 << 60
    again.dispatch()
    assert opener.bodies(again) == [b"%d" % n for n in range(100)] + [b"next"]


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
    from datetime import datetime

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


def test_limits_may_change_while_the_store_is_open(opener):
    store = opener()
    opener.put(store, *[opener.message(b"%d" % n, KEYS="k") for n in range(16)])
    assert store.get("T", 0, 0, 40).count == 16
    opener.usage = 0.5
    assert not store.check_disk().clean
    store.config = replace(
        store.config,
        max_transfer_count_on_message_in_memory=5,
        max_transfer_count_on_message_in_disk=5,
        max_message_size=10,
        max_msgs_num_batch=3,
        disk_max_used_space_ratio=40,
    )
    assert store.get("T", 0, 0, 40).count == 5
    assert store.put([opener.message(bytes(11))])[0].status is PutStatus.MESSAGE_ILLEGAL
    assert len(store.query_by_key("T", "k", 40).records) == 3
    assert store.check_disk().clean


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


def test_what_a_failing_disk_took_of_a_turn_is_no_message_after_a_restart(opener, monkeypatch):
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


@pytest.mark.parametrize("more", [4, 8, 50])
def test_a_new_master_whose_log_ends_within_a_filler_shows_all_its_records(opener, more):
    master = opener("master", confirm=True)
    last = 0
    while master.max_offset < opener.file_size:
        last = master.max_offset
        opener.put(master, opener.message(bytes(700)))
    slave = opener("slave", confirm=True)
    slave.append_raw(0, bytes(master.read(0, last + more)))
    slave.dispatch()
    slave.cut_torn_tail()
    slave.confirm_offset = slave.max_offset
    assert slave.dispatch() >= slave.records_end == last


def test_full_consume_queues_catch_up_later(opener, monkeypatch, caplog):
    from batonmq.store import consumequeue

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


def test_a_file_size_limit_is_a_status_not_a_signal(tmp_path):
    """The limit stands for a full disk in a process of its own: a store through a map would be killed."""
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


def test_flush_tells_what_is_durable(opener):
    store = opener()
    assert store.flush() == 0
    (result,) = opener.put(store, opener.message())
    assert store.flushed_offset == 0
    assert store.flush() == store.flushed_offset == result.end_offset
    assert store.flush_queues() == result.end_offset


def test_replication_of_arbitrary_pieces(opener):
    master, slave = opener("master"), opener("slave")
    opener.put(master, *numbered(opener, 200, 3))
    piece = 1
    while slave.max_offset < master.max_offset:
        slave.append_raw(slave.max_offset, master.read(slave.max_offset, piece))
        slave.dispatch()
        piece = piece * 3 % 1009 + 1
    for queue_id in range(3):
        assert opener.bodies(slave, queue_id) == opener.bodies(master, queue_id)
    with pytest.raises(OffsetGap):
        slave.append_raw(slave.max_offset + 1, b"x")
    with pytest.raises(StoreError):
        slave.read(slave.max_offset + 1, 1)
    assert not slave.read(slave.max_offset, 10)


def test_a_slave_may_begin_with_a_later_file(opener):
    master, slave = opener("master"), opener("slave")
    opener.put(master, *numbered(opener, 300))
    start = 2 * opener.file_size
    with pytest.raises(OffsetGap):
        slave.append_raw(start + 1, b"x")
    while (at := max(start, slave.max_offset)) < master.max_offset:
        slave.append_raw(at, master.read(at, 999))
        slave.dispatch()
    first = slave.queue_bounds("T", 0).min_offset
    assert first > 0
    assert opener.bodies(slave) == [b"%d" % n for n in range(first, 300)]
    slave.close()
    again = opener("slave")
    assert (again.min_offset, again.queue_bounds("T", 0).min_offset) == (start, first)
    assert opener.put(again, opener.message())[0].queue_offset == 300


@pytest.mark.parametrize("kept", [0, 1, 60, 150])
def test_a_torn_record_is_cut_when_a_slave_becomes_master(opener, kept):
    master, slave = opener("master"), opener("slave", confirm=True)
    results = opener.put(master, *numbered(opener, 150))
    end = results[kept].physical_offset + 50 if kept < 150 else master.max_offset
    while slave.max_offset < end:
        slave.append_raw(slave.max_offset, master.read(slave.max_offset, end - slave.max_offset))
    expected = results[kept].physical_offset if kept < 150 else end
    if kept and results[kept - 1].end_offset != expected:
        expected = results[kept - 1].end_offset if end < expected + 0 else expected
    assert slave.cut_torn_tail() == expected
    slave.confirm_offset = 1 << 60
    (result,) = opener.put(slave, opener.message(b"mine"))
    assert result.queue_offset == kept
    assert opener.bodies(slave) == [b"%d" % n for n in range(kept)] + [b"mine"]


def test_truncation_takes_everything_behind_it(opener):
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n, KEYS=f"k{n}") for n in range(200)])
    while store.build_index():
        pass
    store.truncate(results[120].physical_offset)
    assert store.max_offset == results[120].physical_offset
    assert opener.bodies(store) == [b"%d" % n for n in range(120)]
    assert store.query_by_key("T", "k119", 1).records
    assert not store.query_by_key("T", "k120", 1).records
    (result,) = opener.put(store, opener.message(b"new", KEYS="k120"))
    assert result.queue_offset == 120
    assert [decode_record(r).body for r in store.query_by_key("T", "k120", 9).records] == [b"new"]
    store.abandon()
    again = opener()
    assert opener.bodies(again) == [b"%d" % n for n in range(120)] + [b"new"]
    again.truncate(0)
    assert (again.max_offset, again.queue_bounds("T", 0).max_offset) == (0, 0)
    assert opener.put(again, opener.message(b"0"))[0].queue_offset == 0


def test_keys_are_found_newest_first_within_times(opener):
    store = opener()
    begin = opener.clock.now_ms()
    for n in range(100):
        opener.put(store, opener.message(b"%d" % n, KEYS=f"a{n % 10} common", UNIQ_KEY=f"U{n}"))
        opener.clock.advance(1000)

    def bodies(key, count=64, **times):
        return [decode_record(r).body for r in store.query_by_key("T", key, count, **times).records]

    assert bodies("U42") == [b"42"]
    assert bodies("a3") == [b"%d" % n for n in range(93, 0, -10)]
    assert bodies("common", 3) == [b"99", b"98", b"97"]
    assert bodies("a3", begin_ms=begin + 13_000, end_ms=begin + 33_000) == [b"33", b"23", b"13"]
    assert bodies("a", 5) == []
    assert store.query_by_key("other", "a3", 5).records == []
    assert len(store._indexer._index.files) > 3


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


def test_a_topic_is_deleted_with_its_queues(opener):
    store = opener()
    opener.put(store, opener.message(), opener.message(topic="U"))
    store.delete_topic("T")
    assert store.queues() == [("U", 0)]
    assert not (opener.root / "store/consumequeue/T").exists()
    assert opener.put(store, opener.message())[0].queue_offset == 0


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
        pytest.skip("a file system of its own can only be mounted by root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_really_full_disk_kills_nothing_and_loses_nothing(small_disk):
    """In a process of its own: SIGBUS, the danger of maps on a full disk, would end the test run."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK_PROGRAM, str(small_disk)], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr[-1000:]


def test_a_full_index_is_logged_once_and_goes_on_later(opener, monkeypatch, caplog):
    from batonmq.store.index import IndexFile

    store = opener()
    opener.put(store, *[opener.message(KEYS="k") for _ in range(3)])

    def full(self, keys):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IndexFile, "add", full)
    for _ in range(3):
        assert not store.build_index()
    assert caplog.text.count("the index cannot be written") == 1
    monkeypatch.undo()
    store.build_index()
    assert "the index is written again" in caplog.text
    assert len(store.query_by_key("T", "k", 10).records) == 3


def test_a_queue_that_is_full_while_the_log_is_read_stays_behind(opener, monkeypatch):
    from batonmq.store import consumequeue

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


def _at(records, offset, size):
    """Records of `size` bytes moved to another commit log offset."""
    moved = bytearray(records)
    for number in range(len(records) // size):
        moved[number * size + 28 : number * size + 36] = (offset + number * size).to_bytes(8, "big")
    return bytes(moved)


def test_a_record_that_cannot_be_read_stops_indexing_and_is_not_asked_for_for_ever(opener):
    store = opener()
    results = opener.put(store, *[opener.message(b"%d" % n, KEYS=f"k{n}") for n in range(3)])
    store.dispatch()
    begin = results[0].end_offset
    store._log.files.file_at(begin).write(begin, bytes(results[1].end_offset - begin))
    store.build_index()
    assert not store.build_index()
