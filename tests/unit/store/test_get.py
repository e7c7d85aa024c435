"""What readers find: by queue offset, through filters, by time and from another thread."""

from __future__ import annotations

import pytest
from tests.unit.store.helpers import Filter, numbered

from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.properties import decode_properties
from batonmq.protocol.message.record import decode_records
from batonmq.store import collector, mapped
from batonmq.store.errors import StoreError
from batonmq.store.results import Boundary, GetStatus


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
def test_one_read_filters_a_bounded_number_of_bytes_and_the_next_continues(opener, monkeypatch):
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
    for message_filter in (None, Filter(None, lambda properties: properties.find(b"N\x0119") >= 0)):
        gone = store.get("T", 0, 0, 32, message_filter=message_filter)
        assert gone.status is GetStatus.MESSAGE_WAS_REMOVING and 0 < gone.next_offset < 19
        found = store.get("T", 0, gone.next_offset, 32, message_filter=message_filter)
        assert found.status is GetStatus.FOUND
        assert found.count == (1 if message_filter else found.next_offset - gone.next_offset)


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


@pytest.mark.parametrize("damage", [bytes(40), b"\xff" * 40, b"\0\0\0\1"])
def test_a_damaged_record_has_no_time(opener, damage):
    """The times of the others can still be asked for, by admin tools and metrics."""
    store = opener()
    results = opener.put(store, *numbered(opener, 9))
    for number in 0, 4:
        mapped.write_all(store._log.files.files[0]._fd, damage, results[number].physical_offset)
    assert store.earliest_message_time() == store.queue_store_time("T", 0, 4) == -1
    stored = store.queue_store_time("T", 0, 1)
    assert store.offset_by_time("T", 0, stored + 1) == 9
