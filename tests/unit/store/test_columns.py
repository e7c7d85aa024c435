"""Filters by one property find the same messages with arrays as one by one."""

from __future__ import annotations

import mmap
import random
from typing import Any

import pytest
from tests.unit.store.helpers import Filter

from batonmq.broker.sql.one_property import OneProperty
from batonmq.protocol.message.properties import find_value, property_start
from batonmq.protocol.message.record import StoredMessage
from batonmq.store.collector import MAX_EXAMINED
from batonmq.store.columns import LEAST_UNITS, candidates
from batonmq.store.consumequeue import UNIT
from batonmq.store.store import MessageStore

MARK = property_start("a")
V4, V6 = b"\x7f\0\0\1\0\0\x2a\x9f", bytes(15) + b"\1\0\0\x2a\x9f"
VALUES = (
    b"7",
    b"8",
    b"",
    b"77",
    b"1234567",
    b"12345678",
    b"123456789",
    b"7\0",
    b"\0",
    "ü".encode(),
    b"x" * 600,
)
NAMES = (b"a", b"b", b"ba", b"UNIQ_KEY", b"aa")


def properties(random_: random.Random) -> bytes:
    pieces = [
        random_.choice(NAMES) + b"\1" + random_.choice(VALUES[: random_.randint(2, len(VALUES))])
        for _ in range(random_.randint(0, 4))
    ]
    return b"\2".join(pieces) + random_.choice((b"", b"\2"))


def put(store: MessageStore, random_: random.Random, count: int) -> None:
    messages = []
    for _ in range(count):
        body = random_.choice((b"x", b"y" * 300, b"a\1007\2", b"\2a\0017", MARK + b"7"))
        host = V6 if random_.random() < 0.05 else V4
        topic = random_.choice(("Topic", "T"))
        messages.append(
            StoredMessage(
                topic=topic,
                queue_id=0,
                body=body,
                properties=properties(random_),
                born_host=host,
                store_host=V4,
            )
        )
    store.put(messages)


def read_all(store: MessageStore, topic: str, asked: Filter, max_count: int) -> bytes:
    at, found = 0, []
    while at < store.queue_bounds(topic, 0).max_offset:
        result = store.get(topic, 0, at, max_count, 1 << 20, asked)
        assert result.next_offset > at
        found += [bytes(buffer) for buffer in result.buffers]
        at = result.next_offset
    return b"".join(found)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("wanted", [(b"7",), (b"12345678", None), (b"77", b"7", b"8"), ()])
def test_arrays_find_what_is_found_one_by_one(
    opener: Any, seed: int, wanted: tuple[bytes | None, ...]
) -> None:
    random_ = random.Random(seed)
    store = opener(
        mapped_file_size_consume_queue=20 * 512, mapped_file_size_commit_log=1 << random_.randint(14, 20)
    )
    for _ in range(4):
        put(store, random_, random_.randint(0, 400))
    one = OneProperty("a", lambda value: value in wanted)
    max_count = random_.choice((1, 5, 32, 1000))
    for topic in ("Topic", "T"):
        plain = read_all(store, topic, Filter(None, one), max_count)
        assert read_all(store, topic, Filter(None, one, one_property=one), max_count) == plain


class Counting:
    """Passes one value, and counts the messages that it is shown one by one."""

    mark = MARK

    def __init__(self) -> None:
        self.shown = 0
        self.rare = False

    def __call__(self, encoded: bytes) -> bool:
        self.shown += 1
        return find_value(encoded, MARK) == b"7"

    def answer(self, number: int) -> bool:
        return number == ord("7")


@pytest.mark.parametrize(("every", "count", "next_offset", "shown"), [(100, 8, 800, 23), (3, 32, 94, 94)])
def test_where_few_pass_only_these_are_looked_at_one_by_one(
    opener: Any, every: int, count: int, next_offset: int, shown: int
) -> None:
    """After a sample. Where many pass, an answer is soon full."""
    store = opener(mapped_file_size_consume_queue=20 * 1024, mapped_file_size_commit_log=1 << 20)
    store.put(
        [
            StoredMessage(topic="T", queue_id=0, body=b"x", properties=b"a\1%d\2" % (8 - (n % every == 0)))
            for n in range(800)
        ]
    )
    one = Counting()
    found = store.get("T", 0, 0, 1_000, 1 << 20, Filter(None, one, one_property=one))
    assert (found.count, found.next_offset, one.shown) == (count, next_offset, shown)
    store.get("T", 0, 0, 1_000, 1 << 20, Filter(None, one, one_property=one))
    assert one.shown - shown == (count if every == 100 else shown), "the next answer goes without a sample"


def test_a_filter_that_is_much_work_is_asked_one_by_one(opener: Any) -> None:
    """One look at the queue may take only so long, also if each message has another value."""
    store = opener(mapped_file_size_consume_queue=20 * 1024, mapped_file_size_commit_log=1 << 20)
    store.put(
        [StoredMessage(topic="T", queue_id=0, body=b"x", properties=b"a\1v%06d\2" % n) for n in range(800)]
    )
    one, weight = Counting(), 1_000
    found = store.get("T", 0, 0, 32, 1 << 20, Filter(None, one, weight, one))
    assert found.next_offset == one.shown == -(-(MAX_EXAMINED + 1) // (10 * weight))


def test_a_full_answer_continues_at_the_next_message_that_may_pass(opener: Any) -> None:
    store = opener(mapped_file_size_consume_queue=20 * 1024, mapped_file_size_commit_log=1 << 20)
    store.put(
        [
            StoredMessage(topic="T", queue_id=0, body=b"x", properties=b"a\1%d\2" % (7 if n % 50 == 0 else 8))
            for n in range(800)
        ]
    )
    one = Counting()
    found = store.get("T", 0, 0, 4, 1 << 20, Filter(None, one, one_property=one))
    assert (found.count, found.next_offset) == (4, 200)


def test_units_that_no_record_belongs_to_are_left_to_others() -> None:
    units = b"".join(UNIT.pack(n * 100, 100, 0) for n in range(LEAST_UNITS))
    data = mmap.mmap(-1, 1 << 16)
    assert candidates(units, data, 0, 1 << 16, MARK, lambda _: False) == list(range(LEAST_UNITS))
    assert candidates(units, data, 0, 6_000, MARK, lambda _: False) is None
    assert candidates(units, data, 50, 1 << 16, MARK, lambda _: False) is None
    assert candidates(units[20:], data, 0, 1 << 16, MARK, lambda _: False) is None
    assert candidates(UNIT.pack(0, 0, 0) * LEAST_UNITS, data, 0, 1 << 16, MARK, lambda _: False) is None
