"""Arrays give the index what reading record by record gives."""

from __future__ import annotations

import mmap
import random

import pytest

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.record import StoredMessage, encode_blank, encode_record
from batonmq.store import bulk
from batonmq.store.index import Key, Keys, keys_of
from batonmq.store.scan import read_records

V6 = bytes(range(16)) + b"\0\0\x10\x00"
VALUES = (b"a", b"key", b"two keys", b" ", b"k " * 9, b"\xc3\xa4", b"\xff\xfe", b"", b"x\x01y", b"v" * 2_000)
NAMES = (b"KEYS", b"UNIQ_KEY", b"XKEYS", b"KEYS2", b"TAGS", b"MY_UNIQ_KEY", b"", b"KEYS\x02KEYS")
FLAGS = (0, 0, 0, 0, MessageSysFlag.TRANSACTION_ROLLBACK, MessageSysFlag.TRANSACTION_PREPARED)


def properties(rng: random.Random, *, plain: bool) -> bytes:
    unique = b"UNIQ_KEY\x01" + bytes(rng.choices(b"0123456789ABCDEF", k=32)) + b"\x02"
    if plain:
        return unique + b"WAIT\x01true\x02TAGS\x01T\x02"
    parts = [unique] if rng.random() < 0.8 else []
    for _ in range(rng.randint(0, 4)):
        parts.append(
            rng.choice(NAMES) + rng.choice((b"\x01", b"\x01", b"\x01", b"")) + rng.choice(VALUES) + b"\x02"
        )
    rng.shuffle(parts)
    found = b"".join(parts)
    return found[:-1] if rng.random() < 0.2 else found


def log_of(rng: random.Random, count: int, topics: int, *, plain: bool) -> bytes:
    data = b""
    names = [rng.choice(["T", "Topic", "%RETRY%g", "\u00fc", "L" * 120]) + str(n) for n in range(topics)]
    if not plain:
        names.append("V2" * 70)
    for number in range(count):
        message = StoredMessage(
            topic=rng.choice(names),
            queue_id=rng.randint(0, 3),
            body=rng.randbytes(rng.choice([0, 1, 50, 300])),
            properties=properties(rng, plain=plain),
            sys_flag=0 if plain else rng.choice(FLAGS),
            **({} if plain or rng.random() < 0.9 else {"born_host": V6}),
            **({} if plain or rng.random() < 0.9 else {"store_host": V6}),
        )
        data += encode_record(
            message, queue_offset=number, physical_offset=len(data), store_timestamp=10**12 + number
        )
    return data


def one_by_one(data: bytes, most: int) -> tuple[Keys, int]:
    keys: list[Key] = []
    end = 0
    for record, _ in zip(read_records(data, 0, len(data)), range(most), strict=False):
        keys += [(key, record.physical_offset, record.store_timestamp) for key in keys_of(record)]
        end += record.size
    return Keys.of(keys), end


@pytest.mark.parametrize("seed", range(60))
def test_the_index_gets_the_same_keys(seed: int) -> None:
    rng = random.Random(seed)
    data = log_of(rng, 260, rng.choice([1, 3, 20]), plain=seed % 4 == 0)
    behind = rng.choice([b"", encode_blank(500) + bytes(492), bytes(100), data[:40], b"\xff" * 95])
    most = rng.choice([200, 230, 10_000])
    piece = bulk.scan(data + behind, 0, len(data + behind), most)
    assert piece is not None
    keys, end = one_by_one(data + behind, most)
    found = bulk.index_keys(piece)
    assert piece.end == end
    assert [column.tolist() for column in found] == [column.tolist() for column in keys]
    assert len(keys.hashes) > 100


def test_a_map_can_be_closed_afterwards() -> None:
    data = log_of(random.Random(1), 300, 2, plain=True)
    with mmap.mmap(-1, len(data)) as view:
        view[:] = data
        piece = bulk.scan(view, 0, len(data))
        assert piece is not None
    assert bulk.index_keys(piece).hashes.tolist() == one_by_one(data, 300)[0].hashes.tolist()


def test_what_arrays_do_not_help_is_left_to_others() -> None:
    rng = random.Random(2)
    few = log_of(rng, bulk.LEAST_RECORDS - 1, 1, plain=True)
    assert bulk.scan(few, 0, len(few)) is None
    topics = log_of(rng, 400, 90, plain=True)
    assert bulk.scan(topics, 0, len(topics)) is None
    assert bulk.scan(b"", 0, 0) is None
    assert bulk.scan(bytes(100_000), 0, 100_000) is None


@pytest.mark.parametrize("seed", range(30))
def test_records_that_do_not_add_up_end_neither_differently_nor_in_an_error(seed: int) -> None:
    """A log that another broker sent may be anything."""
    rng = random.Random(seed)
    data = bytearray(log_of(rng, 260, 2, plain=True))
    starts = bulk.record_starts(bytes(data), 0, len(data), 1_000)
    at = starts[rng.randint(0, 250)]
    where = rng.choice([8, 36, 39, 84, 85, 88, 89])
    data[at + where] ^= rng.choice([0x80, 0x10, 0xFF])
    piece = bulk.scan(bytes(data), 0, len(data), 10_000)
    if piece is None:
        return  # left to `read_records`
    keys, end = one_by_one(bytes(data), 10_000)
    assert piece.end == end
    assert [column.tolist() for column in bulk.index_keys(piece)] == [column.tolist() for column in keys]
