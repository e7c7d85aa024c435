"""Bulk decode against the record-by-record decoder, on random records."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.properties import encode_properties
from batonmq.protocol.message.record import StoredMessage, decode_records, encode_record
from batonmq.spark import decode
from batonmq.spark.columns import COLUMNS, schema_ddl
from batonmq.spark.decode import BodyError, Decoder, OffsetGap

V4, V6 = pack_host("127.0.0.1", 1), pack_host("2001:db8::1", 2)
ALL = tuple(COLUMNS)


def record(
    offset: int, body: bytes, *, topic: str = "t", properties: bytes = b"", v6: int = 0, zipped: bool = False
):
    if zipped:
        body = zlib.compress(body)
    message = StoredMessage(
        topic=topic,
        queue_id=3,
        body=body,
        properties=properties,
        flag=7,
        sys_flag=v6 | (MessageSysFlag.COMPRESSED if zipped else 0),
        born_timestamp=1_700_000_000_000 + offset,
        born_host=V6 if v6 & MessageSysFlag.BORN_HOST_V6 else V4,
        reconsume_times=2,
        store_host=V6 if v6 & MessageSysFlag.STORE_HOST_V6 else V4,
    )
    return encode_record(
        message,
        queue_offset=offset,
        physical_offset=offset * 1000,
        store_timestamp=1_700_000_000_500 + offset,
    )


def decoded(columns, data: bytes, first: int, end: int, topic: str = "t"):
    """The rows, and the next offset."""
    batches, following = Decoder(columns, topic=topic, broker="b").decode(data, first, end)
    return [row for batch in batches for row in batch.to_pylist()], following


bodies = st.binary(max_size=80)
properties = st.dictionaries(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "XKEYS"]), st.text("abc ü", min_size=1, max_size=5)
).map(encode_properties)
v6s = st.sampled_from(
    [0, 0, 0, MessageSysFlag.BORN_HOST_V6, MessageSysFlag.STORE_HOST_V6, MessageSysFlag.HOSTS_V6]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(bodies, properties, v6s, st.booleans()), min_size=1, max_size=20),
    st.sampled_from(["t", "ü" * 60, "x" * 200]),
)
def test_columns_equal_the_single_record_decoder(items, topic):
    data = b"".join(
        record(i, body, topic=topic, properties=p, v6=v6, zipped=zipped)
        for i, (body, p, v6, zipped) in enumerate(items)
    )
    rows, following = decoded(ALL, data, 0, len(items), topic)
    assert following == len(items) == len(rows)
    for row, expected in zip(rows, decode_records(data), strict=True):
        assert row["value"] == expected.body
        assert row["topic"] == expected.topic
        assert row["queueId"] == 3
        assert row["queueOffset"] == expected.queue_offset
        assert row["physicalOffset"] == expected.physical_offset
        assert row["timestamp"].timestamp() * 1000 == expected.store_timestamp
        assert row["bornTimestamp"].timestamp() * 1000 == expected.born_timestamp
        assert row["keys"] == expected.properties.get("KEYS")
        assert row["tags"] == expected.properties.get("TAGS")
        assert row["msgId"] == expected.properties.get("UNIQ_KEY")
        assert dict(row["properties"]) == expected.properties
        assert (row["flag"], row["reconsumeTimes"]) == (7, 2)


def test_only_the_asked_range_and_columns():
    data = b"".join(record(i, b"%d" % i) for i in range(10))
    rows, following = decoded(["queueOffset", "value"], data, 3, 7)
    assert rows == [{"queueOffset": n, "value": b"%d" % n} for n in range(3, 7)]
    assert following == 7


def test_a_record_cut_short_is_left_for_the_next_read():
    data = record(0, b"a") + record(1, b"b")[:-1]
    rows, following = decoded(["value"], data, 0, 9)
    assert (len(rows), following) == (1, 1)


def test_nothing_has_no_rows():
    assert decoded(ALL, b"", 5, 9) == ([], 5)


@pytest.mark.parametrize("present", [[1, 2], [0, 2], [0, 1, 3]])
def test_a_missing_message_is_not_passed_over(present):
    data = b"".join(record(i, b"x") for i in present)
    with pytest.raises(OffsetGap):
        Decoder(["value"], topic="t", broker="b").decode(data, 0, 10)


def test_schema_names_every_default_column_and_spark_types_match_arrow():
    assert "properties" not in schema_ddl(False)
    assert schema_ddl(True).endswith("properties map<string,string>")
    assert COLUMNS["timestamp"][1] == pa.timestamp("us", tz="UTC")


def test_a_body_that_does_not_inflate_is_named_and_only_its_column_fails():
    good, bad = record(0, b"a" * 50, zipped=True), bytearray(record(1, b"b" * 50, zipped=True))
    at = bad.index(zlib.compress(b"b" * 50))
    bad[at : at + 2] = b"\0\0"
    with pytest.raises(BodyError, match=r"topic 't', queue 3, offset 1: ZLIB body does not inflate"):
        decoded(["value"], good + bytes(bad), 0, 2)
    rows, _ = decoded(["queueOffset"], good + bytes(bad), 0, 2)
    assert rows == [{"queueOffset": 0}, {"queueOffset": 1}]


def test_lengths_that_no_broker_writes_are_errors():
    """Java reads the two bytes as a signed number."""
    properties = b"p\x01" + b"v" * 32_764 + b"\x02"
    longest = record(0, b"", properties=properties)
    assert len(decoded(["value"], longest, 0, 1)[0]) == 1
    longer = bytearray(longest + b"v")
    longer[:4] = len(longer).to_bytes(4, "big")
    longer[-32_770:-32_768] = (32_768).to_bytes(2, "big")
    with pytest.raises(MessageFormatError, match="do not add up"):
        decoded(["value"], bytes(longer), 0, 1)
    named = bytearray(record(0, b"", topic="t" * 32_767, properties=properties))
    named[:4] = (len(named) + 1).to_bytes(4, "big")
    at = named.index(b"t" * 32_767)
    named[at - 2 : at] = (32_768).to_bytes(2, "big") + b"t"
    with pytest.raises(MessageFormatError, match="do not add up"):
        decoded(["value"], bytes(named), 0, 1)


def test_bodies_that_inflate_to_much_make_more_batches(monkeypatch):
    monkeypatch.setattr(decode, "INFLATED_BYTES", 100)
    bodies = [b"a" * 40, b"b" * 60, b"c", b"d" * 300, b"e" * 99]
    zipped = [True, False, True, True, False]
    data = b"".join(record(i, b, zipped=z) for i, (b, z) in enumerate(zip(bodies, zipped, strict=True)))
    batches, following = Decoder(["queueOffset", "value"], topic="t", broker="b").decode(data, 0, 5)
    assert following == 5
    found = [(b["queueOffset"].to_pylist(), b["value"].to_pylist()) for b in batches]
    assert found == [([0, 1], bodies[:2]), ([2], bodies[2:3]), ([3], bodies[3:4]), ([4], bodies[4:])]
    batches, _ = Decoder(["queueOffset"], topic="t", broker="b").decode(data, 0, 5)
    assert [batch.num_rows for batch in batches] == [5]
