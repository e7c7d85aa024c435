"""The log of a replica: raw pieces, the confirm offset, torn ends and truncation."""

from __future__ import annotations

import pytest
from tests.unit.store.helpers import numbered

from batonmq.protocol.message.record import decode_record
from batonmq.store.errors import OffsetGap, StoreError
from batonmq.store.results import GetStatus


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


FIRST_OF_A_FILE = 87


@pytest.mark.parametrize("kept", [0, 1, 60, FIRST_OF_A_FILE, 150])
def test_a_torn_record_is_cut_when_a_slave_becomes_master(opener, kept):
    """Whole records before it stay, and so does the filler between two files."""
    master, slave = opener("master"), opener("slave", confirm=True)
    results = opener.put(master, *numbered(opener, 150))
    assert results[FIRST_OF_A_FILE].physical_offset == opener.file_size
    assert results[FIRST_OF_A_FILE - 1].end_offset < opener.file_size, "a filler ends the first file"
    whole = results[kept].physical_offset if kept < len(results) else master.max_offset
    end = whole + 50 if kept < len(results) else whole
    while slave.max_offset < end:
        slave.append_raw(slave.max_offset, master.read(slave.max_offset, end - slave.max_offset))
    assert slave.max_offset == end
    assert slave.cut_torn_tail() == whole
    assert slave.max_offset == whole
    slave.confirm_offset = 1 << 60
    (result,) = opener.put(slave, opener.message(b"mine"))
    assert result.queue_offset == kept
    assert opener.bodies(slave) == [b"%d" % n for n in range(kept)] + [b"mine"]


@pytest.mark.parametrize("more", [4, 8, 50])
def test_a_new_master_whose_log_ends_within_a_filler_cuts_it_and_shows_all_records(opener, more):
    """A record that is appended within the filler is skipped by all who walk the log: an acknowledged message
    that no consumer sees."""
    master = opener("master", confirm=True)
    last = 0
    while master.max_offset < opener.file_size:
        last = master.max_offset
        opener.put(master, opener.message(bytes(700)))
    slave = opener("slave", confirm=True)
    slave.append_raw(0, bytes(master.read(0, last + more)))
    slave.dispatch()
    assert slave.cut_torn_tail() == slave.max_offset == slave.records_end == last
    slave.confirm_offset = 1 << 60
    assert slave.dispatch() == last
    (result,) = opener.put(slave, opener.message(b"mine"))
    assert result.physical_offset == last and result.end_offset < opener.file_size, "where the filler was"
    assert opener.bodies(slave)[-1] == b"mine"


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
