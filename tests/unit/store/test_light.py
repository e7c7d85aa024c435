"""Light queues in the store: a message also enters the queues that its properties name."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.light import light_names, light_offsets
from batonmq.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    encode_properties,
)
from batonmq.protocol.message.record import StoredMessage, decode_record
from batonmq.protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from batonmq.store import mapped
from batonmq.store.consumequeue import UNIT
from batonmq.store.store import GetStatus, MessageStore, PutStatus, QueueBounds
from batonmq.store.verify import read_store, verify

ON = {"enable_lmq": True, "enable_multi_dispatch": True}
A, B = "%LMQ%a", "%LMQ%b"


def naming(opener, *names: str, body: bytes = b"x", topic: str = "T", **properties: str) -> StoredMessage:
    properties[PROPERTY_INNER_MULTI_DISPATCH] = ",".join(names)
    return opener.message(body, topic=topic, **properties)


def bodies(store: MessageStore, topic: str, queue_offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while (result := store.get(topic, 0, queue_offset, 32)).status is GetStatus.FOUND:
        data = b"".join(result.buffers)
        while data:
            size = int.from_bytes(data[:4], "big")
            found.append(decode_record(data[:size]).body)
            data = data[size:]
        queue_offset = result.next_offset
    return found


def stored_offsets(store: MessageStore, physical_offset: int) -> str | None:
    record = decode_record(store.message_at(physical_offset))
    return record.properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET)


def test_a_message_enters_its_topic_and_the_light_queues_that_it_names(opener) -> None:
    store = opener(**ON)
    first, second, third = opener.put(
        store,
        naming(opener, A, body=b"1"),
        naming(opener, A, B, body=b"2"),
        opener.message(b"3"),
    )
    assert bodies(store, "T") == [b"1", b"2", b"3"]
    assert bodies(store, A) == [b"1", b"2"] and bodies(store, B) == [b"2"]
    assert store.queue_bounds(A, 0) == QueueBounds(0, 2)
    assert [stored_offsets(store, each.physical_offset) for each in (first, second, third)] == [
        "0",
        "1,0",
        None,
    ]
    assert store.take_grown() == [(("T", 0), 3), ((A, 0), 2), ((B, 0), 1)]
    store.flush_queues()
    report = verify(opener.root / "store")
    assert report.ok and (report.queues, report.units) == (3, 6)


def test_without_the_keys_the_property_means_nothing(opener) -> None:
    store = opener()
    (result,) = opener.put(store, naming(opener, A))
    assert store.queues() == [("T", 0)]
    assert stored_offsets(store, result.physical_offset) is None


def test_a_slave_builds_the_same_queues_from_the_log(opener) -> None:
    store, copy = opener(**ON), opener("copy", **ON)
    for number in range(40):
        opener.put(store, naming(opener, *([A] if number % 2 else [A, B]), body=b"%d" % number))
    while store.max_offset > copy.max_offset:
        copy.append_raw(copy.max_offset, bytes(store.read(copy.max_offset, 777)))
        copy.dispatch()
    for name in ("T", A, B):
        assert bodies(copy, name) == bodies(store, name)
    # The slave becomes master: it goes on where the master was.
    assert copy.cut_torn_tail() == store.max_offset
    opener.put(copy, naming(opener, A, B, body=b"last"))
    assert store.queue_bounds(A, 0) == QueueBounds(0, 40)
    assert copy.queue_bounds(A, 0) == QueueBounds(0, 41) and copy.queue_bounds(B, 0) == QueueBounds(0, 21)
    assert bodies(copy, A, 39) == [b"39", b"last"]


def test_a_new_master_counts_light_offsets_that_are_not_confirmed(opener) -> None:
    store, copy = opener(**ON), opener("copy", confirm=True, **ON)
    opener.put(store, *[naming(opener, A, body=b"%d" % number) for number in range(3)])
    copy.append_raw(0, bytes(store.read(0, store.max_offset)))
    copy.confirm_offset = copy.max_offset // 3
    copy.dispatch()
    assert copy.queue_bounds(A, 0) == QueueBounds(0, 1)
    copy.cut_torn_tail()
    (result,) = opener.put(copy, naming(opener, A, body=b"3"))
    assert stored_offsets_raw(copy, result.physical_offset) == [(A, 3)]
    copy.confirm_offset = copy.max_offset
    copy.dispatch()
    assert bodies(copy, A) == [b"0", b"1", b"2", b"3"]


def stored_offsets_raw(store: MessageStore, physical_offset: int) -> list[tuple[str, int]]:
    record = decode_record(store.read(physical_offset, 1 << 16))
    return light_offsets(record.topic, encode_properties(record.properties))


def test_a_crash_loses_no_unit_of_a_light_queue(opener) -> None:
    store = opener(**ON)
    for number in range(50):
        opener.put(store, naming(opener, A, B, body=b"%d" % number))
        if number == 30:
            store.flush_queues()
    store.abandon()
    again = opener(**ON)
    expected = [b"%d" % number for number in range(50)]
    assert bodies(again, A) == bodies(again, B) == bodies(again, "T") == expected
    opener.put(again, naming(opener, B, body=b"50"))
    assert again.queue_bounds(B, 0).max_offset == 51
    again.flush_queues()
    assert verify(opener.root / "store").ok


@pytest.mark.parametrize("lost", [A, B, "T"])
def test_recovery_keeps_the_units_from_before_the_checkpoint(opener, lost) -> None:
    """Units of light queues are compared with what the record says of its light queues: otherwise all of them
    would be cut, and those from before the checkpoint would be gone."""
    store = opener(**ON)
    # Offsets in the topic are others than in light queues.
    opener.put(store, *[opener.message(b"plain")] * 3)
    opener.put(store, *[naming(opener, A, B, body=b"%d" % number) for number in range(10)])
    store.flush_queues()
    store.abandon()
    path = store.config.consume_queue_path / lost / "0" / f"{0:020}"
    data = bytearray(path.read_bytes())
    # What a power cut may leave behind the checkpoint: a unit that looks like one from before it.
    last = 12 if lost == "T" else 9
    data[(last + 1) * 20 : (last + 2) * 20] = data[last * 20 : (last + 1) * 20]
    path.write_bytes(data)
    again = opener(**ON)
    for name in ("T", A, B):
        assert bodies(again, name)[-10:] == [b"%d" % number for number in range(10)]
    assert [again.queue_bounds(name, 0).max_offset for name in ("T", A, B)] == [13, 10, 10]


def test_a_cut_log_gives_light_offsets_again(opener) -> None:
    store = opener(**ON)
    _, second = opener.put(store, naming(opener, A, body=b"1"), naming(opener, A, B, body=b"2"))
    store.truncate(second.physical_offset)
    assert store.queue_bounds(A, 0) == QueueBounds(0, 1) and store.queue_bounds(B, 0) == QueueBounds(0, 0)
    (result,) = opener.put(store, naming(opener, A, B, body=b"3"))
    assert stored_offsets(store, result.physical_offset) == "1,0"
    assert bodies(store, A) == [b"1", b"3"]


def test_each_message_of_a_batch_enters_its_light_queues(opener) -> None:
    store, copy = opener(**ON), opener("copy", **ON)
    items = [
        BatchItem(body=b"%d" % at, properties=encode_properties({PROPERTY_INNER_MULTI_DISPATCH: names}))
        for at, names in enumerate([A, f"{A},{B}", B])
    ]
    items.insert(1, BatchItem(body=b"plain", properties=b""))
    opener.put(store, StoredMessage(topic="T", queue_id=0, body=encode_batch(items), batch=True))
    assert (bodies(store, A), bodies(store, B)) == ([b"0", b"1"], [b"1", b"2"])
    assert bodies(store, "T") == [b"0", b"plain", b"1", b"2"]
    copy.append_raw(0, bytes(store.read(0, store.max_offset)))
    copy.dispatch()
    assert (bodies(copy, A), bodies(copy, B)) == ([b"0", b"1"], [b"1", b"2"])


def test_offsets_that_a_client_made_up_do_not_count(opener) -> None:
    store, copy = opener(**ON), opener("copy", **ON)
    forged = {PROPERTY_INNER_MULTI_QUEUE_OFFSET: "7", "k": "v"}
    named = {PROPERTY_INNER_MULTI_DISPATCH: A, **forged}
    batch = encode_batch(
        [BatchItem(body=b"1", properties=encode_properties(each)) for each in (forged, named)]
    )
    results = opener.put(
        store,
        opener.message(b"0", **forged),
        opener.message(b"0", **named),
        StoredMessage(topic="T", queue_id=0, body=batch, batch=True),
    )
    offsets = [results[0].physical_offset, results[1].physical_offset, *results[2].physical_offsets]
    assert [stored_offsets(store, each) for each in offsets] == [None, "0", None, "1"]
    assert decode_record(store.message_at(offsets[0])).properties == {"k": "v"}
    copy.append_raw(0, bytes(store.read(0, store.max_offset)))
    copy.dispatch()
    assert copy.queue_bounds(A, 0) == store.queue_bounds(A, 0) == QueueBounds(0, 2)


def test_a_queue_that_is_named_twice_has_the_message_once(opener) -> None:
    store = opener(**ON)
    (result,) = opener.put(store, naming(opener, A, A, B, ""))
    opener.put(store, naming(opener, A))
    assert stored_offsets(store, result.physical_offset) == "0,0,0"
    assert store.queue_bounds(A, 0) == QueueBounds(0, 2)


@pytest.mark.parametrize("topic", [SCHEDULE_TOPIC, TRANS_HALF_TOPIC, "%RETRY%g", "%DLQ%g", TIMER_TOPIC])
def test_messages_that_wait_or_were_delivered_before_enter_none(opener, topic) -> None:
    store = opener(**ON)
    (result,) = opener.put(store, naming(opener, A, topic=topic))
    assert store.queues() == [(topic, 0)]
    assert stored_offsets(store, result.physical_offset) is None


@pytest.mark.parametrize("type_", [MessageSysFlag.TRANSACTION_PREPARED, MessageSysFlag.TRANSACTION_ROLLBACK])
def test_a_message_without_a_unit_enters_none(opener, type_) -> None:
    store = opener(**ON)
    message = naming(opener, A)
    message.sys_flag |= type_
    opener.put(store, message)
    opener.put(store, naming(opener, A, body=b"1"))
    assert bodies(store, A) == [b"1"]


@pytest.mark.parametrize("names", ["a", f"{A},b", f",{A}", f"{A},,{B}", "%LMQ%a/b", "%LMQ%" + "x" * 251, "T"])
def test_names_that_are_no_light_queues_are_refused(opener, names) -> None:
    store = opener(**ON)
    message = naming(opener, names)
    assert store.put([message])[0].status is PutStatus.MESSAGE_ILLEGAL
    assert store.light_refusal("T", message.properties) is PutStatus.MESSAGE_ILLEGAL
    # It was acknowledged before, as a delayed message: it is stored in its topic.
    message.accepted = True
    opener.put(store, message)
    assert store.queues() == [("T", 0)]


def test_a_message_may_not_name_its_own_topic(opener) -> None:
    store = opener(**ON)
    assert store.put([naming(opener, A, topic=A)])[0].status is PutStatus.MESSAGE_ILLEGAL
    opener.put(store, opener.message(b"sent", topic=A), naming(opener, A, body=b"named"))
    assert bodies(store, A) == [b"sent", b"named"]


def test_properties_must_leave_room_for_the_offsets(opener) -> None:
    opener.file_size = 1 << 16
    store = opener(**ON)
    message = naming(opener, A, k="v")
    filling = MAX_PROPERTIES_BYTES - len(message.properties)
    message = naming(opener, A, k="v" * (filling - 40))
    assert store.put([message])[0].status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    opener.put(store, naming(opener, A, k="v" * (filling - 60)))


def test_a_record_that_the_offsets_make_too_large_is_refused_without_a_gap(opener) -> None:
    store = opener(**ON)
    opener.put(store, naming(opener, A))
    lengths = range(7960, 8060)
    stored = [store.put([naming(opener, A, body=b"x" * length)])[0].status for length in lengths]
    refused = stored.index(PutStatus.MESSAGE_ILLEGAL)
    assert set(stored[:refused]) == {PutStatus.PUT_OK} and set(stored[refused:]) == {
        PutStatus.MESSAGE_ILLEGAL
    }
    assert store.queue_bounds(A, 0).max_offset == 1 + refused > 1
    (result,) = opener.put(store, naming(opener, A))
    assert stored_offsets(store, result.physical_offset) == str(1 + refused)


def test_the_quota_refuses_new_light_queues_only(opener) -> None:
    store = opener(**ON, enable_lmq_quota=True, max_lmq_consume_queue_num=1)
    opener.put(store, naming(opener, A))
    more = naming(opener, A, B)
    exceeded = PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
    assert store.put([more])[0].status is exceeded
    assert store.light_refusal("T", more.properties) is exceeded
    opener.put(store, naming(opener, A))
    more.accepted = True  # as a delayed message that was acknowledged when there was room
    opener.put(store, more)
    assert store.queue_bounds(B, 0) == QueueBounds(0, 1)
    store.delete_topic(A)
    store.delete_topic(B)
    opener.put(store, naming(opener, B))


def test_a_failed_append_gives_light_offsets_back(opener, monkeypatch) -> None:
    store = opener(**ON)
    opener.put(store, naming(opener, A))
    with monkeypatch.context() as broken:
        broken.setattr(mapped.os, "pwrite", _full)
        assert store.put([naming(opener, A, B)])[0].status is PutStatus.CREATE_MAPPED_FILE_FAILED
    (result,) = opener.put(store, naming(opener, A, B))
    assert stored_offsets(store, result.physical_offset) == "1,0"


def _full(fd: int, data: bytes, position: int, pwrite=os.pwrite) -> int:
    if any(data):
        raise OSError(errno.ENOSPC, "No space left on device")
    return pwrite(fd, data, position)


def test_expired_messages_leave_light_queues(opener) -> None:
    store = opener(**ON)
    opener.put(store, *[naming(opener, B) for _ in range(5)])
    opener.put(store, *[naming(opener, A, body=b"x" * 500) for _ in range(100)])
    opener.clock.advance(10**12)  # well past the files' times
    opener.usage = 0.8
    paths = store.delete_expired()
    assert any(A in str(path) for path in paths)
    for path in paths:
        path.unlink()
    bounds = store.queue_bounds(A, 0)
    assert 0 < bounds.min_offset < bounds.max_offset == 100
    assert store.min_offset > 0
    assert store.queue_bounds(B, 0) == QueueBounds(5, 5)
    opener.put(store, naming(opener, B, body=b"new"))
    store.abandon()
    again = opener(**ON)
    assert again.queue_bounds(A, 0) == bounds and again.queue_bounds(B, 0) == QueueBounds(5, 6)
    assert bodies(again, B, 5) == [b"new"]


def test_a_recreated_light_queue_begins_at_zero_on_every_replica(opener) -> None:
    store, copy = opener(**ON), opener("copy", **ON)
    opener.put(store, naming(opener, A, body=b"1"), naming(opener, A, body=b"2"))
    store.delete_topic(A)
    opener.put(store, naming(opener, A, body=b"3"))
    assert bodies(store, A) == [b"3"]
    copy.append_raw(0, bytes(store.read(0, store.max_offset)))
    copy.dispatch()
    assert bodies(copy, A) == [b"3"] and copy.recreated_topics == {A}


def test_deleted_consume_queues_are_built_again_with_light_queues(opener) -> None:
    """A replica that followed without the keys lacks light queues; its operator deletes all queues."""
    store, copy = opener(**ON), opener("copy")
    opener.put(store, *[naming(opener, A, B, body=b"%d" % number) for number in range(30)])
    copy.append_raw(0, bytes(store.read(0, 4000)))
    copy.dispatch()
    copy.close()
    late = opener("copy", **ON)
    assert late.queue_bounds(A, 0) == QueueBounds(0, 0)
    late.close()
    shutil.rmtree(late.config.consume_queue_path)
    again = opener("copy", **ON)
    while again.max_offset < store.max_offset:
        again.append_raw(again.max_offset, bytes(store.read(again.max_offset, 1 << 16)))
    again.dispatch()
    for name in ("T", A, B):
        assert bodies(again, name) == bodies(store, name) == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_each_light_queue_holds_what_the_log_names(opener, seed) -> None:
    """Sends, batches, flushes, crashes, cuts, and a slave that takes over now and then."""
    rng = random.Random(seed)
    names = [f"%LMQ%{number}" for number in range(5)]
    store, copy, number = opener("0", **ON), opener("1", **ON), 0

    def message() -> StoredMessage:
        nonlocal number
        number += 1
        chosen = rng.sample(names, rng.randrange(4))
        named = {PROPERTY_INNER_MULTI_DISPATCH: ",".join(chosen)} if chosen else {}
        if rng.random() < 0.2:
            items = [BatchItem(body=b"%d" % number, properties=encode_properties(named))] * 2
            return StoredMessage(topic="T", queue_id=1, body=encode_batch(items), batch=True)
        return opener.message(b"%d" % number, queue_id=rng.randrange(3), **named)

    def follow() -> None:
        while copy.max_offset < store.max_offset:
            copy.append_raw(copy.max_offset, bytes(store.read(copy.max_offset, rng.randrange(1, 3000))))
            if rng.random() < 0.5:
                copy.dispatch()
        copy.dispatch()

    opener.put(store, message())
    follow()
    for _ in range(60):
        match rng.randrange(8):
            case 0:
                store.flush_queues()
            case 1:
                follow()
            case 2:
                follow()
                store, copy = copy, store
                store.cut_torn_tail()
            case 3:
                name = store.config.root.name
                store.abandon()
                store = opener(name, **ON)
            case 4:
                starts = [record.physical_offset for record, _ in read_store(store.config.root)]
                if len(starts) > 1:
                    offset = rng.choice(starts[1:][-10:])
                    store.truncate(offset)
                    copy.truncate(min(offset, copy.max_offset))
            case _:
                opener.put(store, *[message() for _ in range(rng.randrange(1, 8))])
    follow()
    expected: dict[str, list[int]] = {name: [] for name in names}
    for record, _ in read_store(store.config.root):
        for name in light_names(record.properties):
            expected[name].append(record.physical_offset)
    for each in (store, copy):
        each.flush_queues()
        report = verify(each.config.root)
        assert report.ok and not report.waiting, report.errors
        for name in names:
            data = b"".join(path.read_bytes() for path in queue_files(each, name))
            assert [at for at, size, _ in UNIT.iter_unpack(data) if size] == expected[name]
            assert each.queue_bounds(name, 0) == QueueBounds(0, len(expected[name]))


def queue_files(store: MessageStore, name: str) -> list[Path]:
    directory = store.config.consume_queue_path / name / "0"
    return sorted(directory.iterdir()) if directory.is_dir() else []
