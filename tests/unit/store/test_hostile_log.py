"""Bytes of another replica's log, appended as a slave does, that no honest broker would have written."""

from __future__ import annotations

import random
import struct

import pytest

from batonmq.broker.delay.unit_codes import delay_unit_codes
from batonmq.protocol.message.record import encode_record
from batonmq.store.policy import StorePolicy
from batonmq.store.results import PutStatus
from batonmq.store.scan import read_properties, read_records
from batonmq.store.verify import read_store

QUEUE_ID_AT, QUEUE_OFFSET_AT = 12, 20
"""Where a record has them."""

BAD_TOPICS = ["../../x", "/etc/x", "..", ".", "", "a/b", "\0", "x" * 256, "ü" * 128, "x" * 5000]


@pytest.fixture
def everything(opener):
    """Paths below the folder of the store, which nothing but the store may touch."""

    def found() -> set[str]:
        return {str(path.relative_to(opener.root)) for path in opener.root.rglob("*") if path.is_dir()}

    return found


class Log:
    """Records one behind the other, as a master's log has them."""

    def __init__(self, opener) -> None:
        self._opener = opener
        opener.file_size = 1 << 20
        self.data = b""

    def add(self, body: bytes, *, topic: str = "T", queue_offset: int = 0, **properties: str) -> bytearray:
        """The record, for `join`."""
        message = self._opener.message(body, topic=topic, **properties)
        at = len(self.data)
        return bytearray(
            encode_record(message, queue_offset=queue_offset, physical_offset=at, store_timestamp=1_000 + at)
        )

    def join(self, record: bytes) -> None:
        self.data += record


def errors(caplog, *words: str) -> list[str]:
    return [each.message for each in caplog.records if all(word in each.message for word in words)]


@pytest.mark.parametrize("topic", BAD_TOPICS, ids=lambda topic: repr(topic[:12]))
def test_a_topic_that_is_not_a_directory_gets_none_and_the_rest_is_served(opener, everything, caplog, topic):
    log = Log(opener)
    log.join(log.add(b"first"))
    for number in range(100):
        log.join(log.add(b"hostile %d" % number, topic=topic, queue_offset=number))
    log.join(log.add(b"second", queue_offset=1))
    (opener.root / "x").mkdir()
    before = everything()
    store = opener()
    store.append_raw(0, log.data)
    assert store.dispatch() == len(log.data)
    assert opener.bodies(store) == [b"first", b"second"]
    assert store.queues() == [("T", 0)]
    made = {path for path in everything() - before if not path.startswith("store")}
    assert not made and everything() & {"store/consumequeue/T"}
    lines = errors(caplog, "cannot be read: its topic", "of the log")
    assert 1 <= len(lines) <= 8 and "(64 such so far)" in lines[-1]
    assert max(map(len, lines)) < 600
    store.cut_torn_tail()
    opener.put(store, opener.message(b"third"))
    assert opener.bodies(store) == [b"first", b"second", b"third"]
    assert bytes(store.read(0, 64)) == log.data[:64]
    store.close()
    again = opener()
    assert opener.bodies(again) == [b"first", b"second", b"third"], "and after a restart"


@pytest.mark.parametrize("topic", BAD_TOPICS, ids=lambda topic: repr(topic[:12]))
def test_a_message_for_such_a_topic_is_refused_and_the_others_of_its_turn_are_not(opener, everything, topic):
    store = opener()
    (opener.root / "x").mkdir()
    before = everything()
    bad, good = opener.message(b"bad", topic=topic), opener.message(b"good")
    results = store.put([good, bad, opener.message(b"x", queue_id=-1), good])
    refused = PutStatus.MESSAGE_ILLEGAL
    assert [each.status for each in results] == [PutStatus.PUT_OK, refused, refused, PutStatus.PUT_OK]
    assert [record.topic for record, _ in read_store(store.config.root)] == ["T", "T"]
    made = everything() - before
    assert made == {"store/consumequeue", "store/consumequeue/T", "store/consumequeue/T/0"}
    store.delete_topic("../..")
    store.delete_topic(str(opener.root / "x"))
    assert (opener.root / "x").is_dir()


def test_names_that_only_brokers_give_are_kept(opener):
    """RocketMQ's pop retry topics, and topics that are called like a broker."""
    store = opener()
    for topic in ("%RETRY%group+topic", "broker.a.example", "x" * 255):
        opener.put(store, opener.message(b"x", topic=topic))
        assert [each.body for each in opener.messages(store, topic=topic)] == [b"x"]


@pytest.mark.parametrize("queue_id", [-1, -(1 << 31)])
def test_a_queue_below_0_is_none(opener, everything, caplog, queue_id):
    log = Log(opener)
    record = log.add(b"hostile")
    struct.pack_into(">i", record, QUEUE_ID_AT, queue_id)
    log.join(record)
    log.join(log.add(b"good"))
    store = opener()
    store.append_raw(0, log.data)
    assert store.dispatch() == len(log.data)
    assert opener.bodies(store) == [b"good"]
    assert errors(caplog, f"has no queue {queue_id}")


@pytest.mark.parametrize("queue_offset", [-1, -(1 << 63), 1 << 40, (1 << 63) - 1])
def test_a_queue_offset_that_cannot_be_fills_no_disk(opener, caplog, queue_offset):
    log = Log(opener)
    log.join(log.add(b"first"))
    record = log.add(b"hostile")
    struct.pack_into(">q", record, QUEUE_OFFSET_AT, queue_offset)
    log.join(record)
    log.join(log.add(b"second", queue_offset=1))
    store = opener()
    store.append_raw(0, log.data)
    assert store.dispatch() == len(log.data)
    assert opener.bodies(store) == [b"first", b"second"]
    assert errors(caplog, f"has no place for queue offset {queue_offset}")
    assert len(list((store.config.consume_queue_path / "T" / "0").iterdir())) == 1


def test_whatever_comes_in_a_record_the_store_lives_on(opener):
    """Dispatch stops at what is no record; nothing raises, nothing is made outside."""
    rng = random.Random(5)
    log = Log(opener)
    for number in range(6):
        topic = "SCHEDULE_TOPIC_XXXX" if number % 3 == 0 else "T"
        log.join(log.add(b"%d" % number, topic=topic, queue_offset=number, KEYS="k", TAGS="t", DELAY="1"))
    extremes = [b"\xff" * 4, b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"\0" * 4]
    for case in range(150):
        data = bytearray(log.data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data) - 8)
            piece = rng.choice([bytes([rng.randrange(256)]), rng.choice(extremes), rng.choice(extremes) * 2])
            data[at : at + len(piece)] = piece
        store = opener(f"store{case}", policy=StorePolicy(delay_unit_codes((1_000, 60_000))))
        store.append_raw(0, bytes(data))
        store.dispatch()
        store.build_index()
        for topic, queue_id in store.queues():
            store.get(topic, queue_id, store.queue_bounds(topic, queue_id).min_offset, 10)
        store.cut_torn_tail()
        opener.put(store, opener.message(b"after", topic="After"))
        assert [each.body for each in opener.messages(store, topic="After")] == [b"after"]
        assert all(path.name.startswith("store") for path in opener.root.iterdir())
        store.abandon()


def test_properties_are_read_as_those_of_the_whole_record(opener):
    rng = random.Random(4)
    log = Log(opener)
    records = [log.add(b"x" * n, topic="T" * (1 + n), key="k" * n) for n in (0, 1, 100)]
    v6 = opener.message(b"body", topic="V6", key="value")
    v6.born_host = v6.store_host = bytes(16) + b"\0\0\1\1"
    records.append(bytearray(encode_record(v6, queue_offset=0, physical_offset=0, store_timestamp=1)))
    long = opener.message(b"body", topic="L" * 200, key="value")
    records.append(bytearray(encode_record(long, queue_offset=0, physical_offset=0, store_timestamp=1)))
    for record in records:
        assert b"key" in (read_properties(bytes(record), 0, len(record)) or b"")
        assert read_properties(bytes(record), 0, len(record) - 1) is None
        for _ in range(300):
            data = bytearray(rng.randbytes(3)) + record + rng.randbytes(40)
            for _ in range(rng.randrange(3)):
                data[3 + rng.randrange(len(record))] = rng.choice((0, 1, 127, 128, 255))
            whole = next(read_records(bytes(data), 3, 3 + len(record)), None)
            read = read_properties(bytes(data), 3, 3 + len(record))
            assert read == (None if whole is None else whole.properties)
