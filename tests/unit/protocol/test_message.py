"""Records, wire batches, properties and ids: round trips and hostile bytes."""

from __future__ import annotations

import contextlib
import random
import struct
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.compression import CompressionError, CompressionType, compress, decompress
from batonmq.protocol.message.batch import BatchItem, decode_batch, encode_batch, scan_batch, split_batch
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import (
    UniqueIds,
    decode_message_id,
    encode_message_id,
    pack_address,
    pack_host,
    unique_id_time_ms,
    unpack_host,
)
from batonmq.protocol.message.layout import BODY_POSITION_V4, MAGIC_BLANK
from batonmq.protocol.message.properties import (
    decode_properties,
    encode_properties,
    find_property,
    is_encoding,
)
from batonmq.protocol.message.record import (
    StoredMessage,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
    scan_frames,
)

hosts = st.sampled_from([pack_host("10.1.2.3", 10911), pack_host("2001:db8::1", 65535)])
texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
messages = st.builds(
    StoredMessage,
    topic=st.sampled_from(["t", "TopicTest", "x" * 127, "x" * 128, "ü" * 100]),
    queue_id=i32,
    body=st.binary(max_size=300),
    properties=st.dictionaries(texts, texts, max_size=4).map(encode_properties),
    flag=i32,
    born_timestamp=i64,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)


def encode(message: StoredMessage, queue_offset: int = 7, physical_offset: int = 4096) -> bytes:
    return encode_record(
        message, queue_offset=queue_offset, physical_offset=physical_offset, store_timestamp=1_700_000_000_000
    )


@given(messages, i64, i64)
def test_a_record_decodes_to_what_was_encoded(message, queue_offset, physical_offset):
    data = encode(message, queue_offset, physical_offset)
    back = decode_record(data, check_crc=True)
    assert (back.queue_offset, back.physical_offset) == (queue_offset, physical_offset)
    assert back.store_size == len(data)
    assert back.store_timestamp == 1_700_000_000_000
    assert back.properties == decode_properties(message.properties)
    given = asdict(message)
    for name in given.keys() - {"properties", "sys_flag", "batch", "accepted"}:
        assert getattr(back, name) == given[name], name
    assert bool(back.sys_flag & MessageSysFlag.BORN_HOST_V6) == (len(message.born_host) == 20)


@given(st.lists(messages, min_size=1, max_size=5), st.data())
def test_records_are_found_one_by_one_and_a_torn_one_ends_the_scan(batch, data):
    records = [encode(message) for message in batch]
    whole = b"".join(records)
    assert len(decode_records(whole)) == len(batch)
    cut = data.draw(st.integers(0, len(records[-1]) - 1))
    torn = whole[: len(whole) - len(records[-1]) + cut]
    starts = scan_frames(torn)
    assert len(starts) == len(batch)
    assert starts[-1] == len(whole) - len(records[-1])
    if cut:
        with pytest.raises(MessageFormatError):
            decode_records(torn)


@given(messages, st.data())
def test_a_damaged_record_raises_a_format_error_or_decodes(message, data):
    record = bytearray(encode(message))
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(MessageFormatError, CompressionError):
        decode_record(record)


def test_a_body_changed_on_disk_fails_its_crc():
    record = bytearray(encode(StoredMessage(topic="t", queue_id=0, body=b"hello")))
    record[BODY_POSITION_V4] ^= 1
    decode_record(record)
    with pytest.raises(MessageFormatError, match="CRC"):
        decode_record(record, check_crc=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b", {"a": "b"}),
        ("a\x01\x02c\x01d\x02", {"c": "d"}),
        ("\x01b\x02", {}),
        ("ab\x02c\x01d", {"c": "d"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text, expected):
    assert decode_properties(text) == expected
    assert decode_properties(text.encode()) == expected
    for name in ("a", "c"):
        value = expected.get(name)
        assert find_property(text.encode(), name.encode()) == (value.encode() if value else None)


@given(st.dictionaries(texts, texts))
def test_properties_round_trip(properties):
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    for name, value in properties.items():
        assert find_property(data, name.encode()) == value.encode()


@pytest.mark.parametrize("bad", [{"a\x01": "b"}, {"a": "b\x02"}, {"a": "x" * 32767}])
def test_properties_that_cannot_be_stored_are_refused(bad):
    with pytest.raises(MessageFormatError):
        encode_properties(bad)


batch_items = st.lists(
    st.builds(BatchItem, body=st.binary(max_size=50), properties=st.binary(max_size=30), flag=i32),
    min_size=1,
    max_size=6,
)


@given(batch_items)
def test_a_wire_batch_round_trips(items):
    assert list(decode_batch(encode_batch(items))) == items


@given(batch_items, st.data())
def test_a_torn_or_damaged_batch_is_refused_or_decodes(items, data):
    body = bytearray(encode_batch(items))
    cut = data.draw(st.integers(0, len(body) - 1))
    last = len(encode_batch(items[:-1]))
    if cut != last or cut == 0:
        boundaries = {len(encode_batch(items[:n])) for n in range(1, len(items))}
        if cut not in boundaries:
            with pytest.raises(MessageFormatError):
                scan_batch(body[:cut])
    body[cut] ^= 0x81
    with contextlib.suppress(MessageFormatError):
        list(decode_batch(body))


def test_a_batch_splits_into_messages_that_share_its_head():
    items = [BatchItem(body=b"1", properties=b"a\x01b\x02", flag=3), BatchItem(body=b"2")]
    batch = StoredMessage(topic="t", queue_id=2, body=encode_batch(items), batch=True, born_timestamp=5)
    parts = split_batch(batch)
    assert [(p.body, p.properties, p.flag, p.queue_id, p.batch) for p in parts] == [
        (b"1", b"a\x01b\x02", 3, 2, False),
        (b"2", b"", 0, 2, False),
    ]
    with pytest.raises(MessageFormatError):
        encode(batch)


@pytest.mark.parametrize("ip", ["127.0.0.1", "2001:db8::1"])
def test_offset_message_ids_round_trip(ip):
    text = encode_message_id(pack_host(ip, 10911), 1 << 40)
    assert len(text) == (32 if "." in ip else 56)
    assert decode_message_id(text) == (ip, 10911, 1 << 40)
    assert unpack_host(pack_address(f"{ip}:10911")) == (ip, 10911)


@pytest.mark.parametrize("bad", ["", "zz" * 16, "00" * 15, "00" * 29])
def test_bad_ids_are_refused(bad):
    with pytest.raises(MessageFormatError):
        decode_message_id(bad)
    with pytest.raises(MessageFormatError):
        unique_id_time_ms(bad, 0)


def test_unique_ids_differ_and_tell_their_time():
    ids = UniqueIds("10.0.0.1", 1234, 99)
    now = 1_700_000_123_456
    made = [ids.next(now) for _ in range(1000)]
    assert len(set(made)) == 1000
    assert made[0].startswith("0A00000104D200000063")
    assert unique_id_time_ms(made[0], now + 5) == now
    later = now + 20 * 86_400_000  # in the next month
    assert unique_id_time_ms(made[0], later) == now
    assert unique_id_time_ms(ids.next(later), later + 1) == later
    last_days = 1_701_000_000_000  # more than 2^31 ms after the month began
    late = UniqueIds("10.0.0.1", 1, 1).next(last_days)
    assert unique_id_time_ms(late, last_days + 1) == last_days


@pytest.mark.parametrize("kind", CompressionType)
def test_bodies_inflate_to_what_they_were(kind):
    body = b"some text that repeats itself " * 1000
    packed = compress(body, kind)
    assert len(packed) < len(body)
    assert decompress(packed, kind.sys_flag) == body
    with pytest.raises(CompressionError, match="more than"):
        decompress(packed, kind.sys_flag, limit=len(body) - 1)
    for cut in (0, 1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CompressionError):
            decompress(packed[:cut], kind.sys_flag)
    record = encode(StoredMessage(topic="t", queue_id=0, body=packed, sys_flag=kind.sys_flag))
    assert decode_record(record).body == body
    assert decode_record(record, inflate=False).body == packed


def test_an_unnamed_algorithm_is_zlib_and_an_unknown_one_refused():
    assert decompress(compress(b"x", CompressionType.ZLIB), 1) == b"x"
    with pytest.raises(CompressionError, match="unknown"):
        decompress(b"", 5 << 8)


def test_the_filler_says_how_far_the_file_goes():
    assert encode_blank(4096) == struct.pack(">ii", 4096, MAGIC_BLANK)
    assert scan_frames(encode_blank(8) + bytes(200)) == [0]


def test_only_properties_that_stand_as_they_are_stored_are_taken_over() -> None:
    whole = b"a\x01b\x02c\x01d\x02"
    assert is_encoding(whole, decode_properties(whole))
    assert not is_encoding(whole, {"a": "b"}), "one was removed"
    rng = random.Random(5)
    for _ in range(5_000):
        data = bytes(rng.choice(b"ab\x01\x02\xc3") for _ in range(rng.randrange(14)))
        properties = decode_properties(data)
        if is_encoding(data, properties):
            assert encode_properties(properties) == data
