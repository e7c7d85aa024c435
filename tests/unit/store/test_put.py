"""What `put` stores, where, and what it refuses."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from tests.unit.store.helpers import Filter, numbered

from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.layout import MAGIC_BLANK
from batonmq.protocol.message.record import StoredMessage, decode_record
from batonmq.store.results import PutStatus


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
