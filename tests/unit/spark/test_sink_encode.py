"""Rows to wire batches, against the batch decoder, message by message. No Spark, no broker."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonmq.client.message import SYSTEM_PREFIXES, SYSTEM_PROPERTIES, Message
from batonmq.common.config import ConfigError
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.batch import decode_batch
from batonmq.protocol.message.ids import UniqueIds, unique_id_time_ms
from batonmq.protocol.message.properties import PROPERTY_PRIORITY, RESERVED_PROPERTIES, decode_properties
from batonmq.protocol.signing import Credentials
from batonmq.spark.options import OptionError
from batonmq.spark.sink.encode import (
    MARK_PROPERTY,
    Encoded,
    Encoder,
    QueueChoice,
    Queues,
    RowError,
    Single,
    check_columns,
)
from batonmq.spark.sink.options import parse_sink_options
from batonmq.spark.sink.send import Sending, message_of, producer_options
from batonmq.spark.tls import tls_context

NOW = 1_790_000_000_000
TYPES = {
    "value": pa.binary(),
    "queueId": pa.int32(),
    "delayLevel": pa.int32(),
    "deliverAt": pa.timestamp("us", tz="UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
}


class Four(Queues):
    """Every topic has four queues; a choice is answered with itself, or the number of the queue of a key."""

    def of(self, topic: str, choice: QueueChoice) -> Any:
        if choice.free:
            return None
        return (choice.broker, choice.queue_id) if choice.key_hash is None else choice.key_hash

    def count(self, topic: str) -> int:
        return 4


def encoder(**options: Any) -> Encoder:
    return Encoder(UniqueIds("10.0.0.1", 7, 9), Four(), **options)


def rows(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(v, TYPES.get(name, pa.string())) for name, v in columns.items()], names=list(columns)
    )


def messages(work: list[Encoded | Single]) -> list[tuple[str, Any, bytes, dict[str, str]]]:
    found = []
    for one in work:
        if isinstance(one, Single):
            found.append((one.topic, one.queue, one.body, one.properties))
            continue
        items = list(decode_batch(one.body))
        assert len(items) == one.count
        found += [(one.topic, one.queue, bytes(i.body), decode_properties(i.properties)) for i in items]
    return found


def encode(batch: pa.RecordBatch, **options: Any) -> list[tuple[str, Any, bytes, dict[str, str]]]:
    return messages(list(encoder(**options).encode(batch, NOW)))


def test_all_columns_become_parts_of_the_message() -> None:
    batch = rows(
        topic=["T", "T"],
        value=[b"a", b"b"],
        key=["k", None],
        keys=["x y", "z"],
        tags=["red", ""],
        shardingKey=["s", None],
        properties=[[("p", "1"), ("UNIQ_KEY", "no"), ("e", None)], None],
    )
    (one, two) = sorted(encode(batch), key=lambda m: m[2])
    assert one[2:][0] == b"a"
    assert one[3]["KEYS"] == "k x y" and two[3]["KEYS"] == "z"
    assert one[3]["TAGS"] == "red" and "TAGS" not in two[3]
    assert one[3]["__SHARDINGKEY"] == "s" and "__SHARDINGKEY" not in two[3]
    assert one[3]["p"] == "1" and "e" not in one[3]
    assert one[3]["UNIQ_KEY"].startswith("0A000001") and one[3]["WAIT"] == "true"
    assert set(two[3]) == {"KEYS", "UNIQ_KEY", "WAIT"}
    assert (one[1], two[1]) == (java_hash("s") % 4, None)


def is_ours(name: str) -> bool:
    """Whether the property is RocketMQ's or the sink's. Hypothesis takes such names from the source."""
    names = RESERVED_PROPERTIES | SYSTEM_PROPERTIES - {PROPERTY_PRIORITY} | {MARK_PROPERTY}
    return name in names or name.startswith(SYSTEM_PREFIXES)


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x01\x02"), max_size=8)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["T", "U"]),
            st.binary(min_size=1, max_size=60),
            st.none() | st.sampled_from(["a", "b", "ü"]),
            st.none() | texts,
            st.none() | st.integers(0, 3),
            st.none() | st.dictionaries(texts, st.none() | texts, max_size=3),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(40, 300),
    st.integers(1, 7),
    st.integers(0, 3),
)
def test_every_row_is_one_message_and_queues_keep_the_order(items, most, many, skipped) -> None:
    topics, bodies, keys, tags, queue_ids, properties = zip(*items, strict=True)
    batch = rows(
        topic=list(topics),
        value=list(bodies),
        shardingKey=list(keys),
        tags=list(tags),
        queueId=list(queue_ids),
        properties=[None if p is None else list(p.items()) for p in properties],
    ).slice(min(skipped, len(items) - 1))
    expected = batch.to_pylist()
    work = list(encoder(max_batch_bytes=most, max_batch_rows=many).encode(batch, NOW))
    for one in work:
        if isinstance(one, Encoded):
            assert one.count <= many and (len(one.body) <= most or one.count == 1)
    got = messages(work)
    assert len(got) == len(expected)
    ids = [m[3]["UNIQ_KEY"] for m in got]
    assert len(set(ids)) == len(ids)

    def of(row: dict[str, Any]) -> tuple[Any, ...]:
        queue = (
            (None, row["queueId"])
            if row["queueId"] is not None
            else None
            if not row["shardingKey"]
            else abs(java_hash(row["shardingKey"])) % 4
        )
        wanted = {k: v for k, v in (row["properties"] or []) if k and v and not is_ours(k)}
        tag = (row["tags"] or "").strip()
        if tag:
            wanted["TAGS"] = tag
        if row["shardingKey"]:
            wanted["__SHARDINGKEY"] = row["shardingKey"]
        return row["topic"], queue, row["value"], wanted

    def plain(message: tuple[str, Any, bytes, dict[str, str]]) -> tuple[Any, ...]:
        return (*message[:3], {k: v for k, v in message[3].items() if k not in ("UNIQ_KEY", "WAIT")})

    wanted = [of(row) for row in expected]
    for target in {w[:2] for w in wanted}:
        sent = [plain(m) for m in got if m[:2] == target]
        meant = [w for w in wanted if w[:2] == target]
        assert sent == meant


@pytest.mark.parametrize(
    "name",
    [
        "UNIQ_KEY",
        "__TRAN_BATCH",
        "__SPARK_BATCH",
        "__transactionId__",
        "TIMER_ROLL_TIMES",
        "DLQ_ORIGIN_TOPIC",
    ],
)
def test_properties_of_rocketmq_and_of_the_sink_do_not_come_from_rows(name: str) -> None:
    (work,) = encoder(topic="T").encode(rows(value=[b"x"], properties=[[(name, "1"), ("mine", "2")]]), NOW)
    ((_, _, _, properties),) = messages([work])
    assert properties["mine"] == "2" and properties.get(name) != "1"


def test_delayed_and_large_messages_travel_alone() -> None:
    due = datetime(2026, 12, 1, 1, 2, 3, 456_789, tzinfo=UTC)
    batch = rows(
        value=[b"now", b"later", b"then", b"x" * 500],
        delayLevel=[0, 3, None, None],
        deliverAt=[None, None, due, None],
    )
    work = list(encoder(topic="T", max_batch_bytes=300).encode(batch, NOW))
    assert [type(w) for w in work] == [Encoded, Single, Single, Single]
    _, later, then, large = messages(work)
    assert later[3]["DELAY"] == "3"
    assert then[3]["TIMER_DELIVER_MS"] == str(int(due.replace(microsecond=456_000).timestamp() * 1000))
    assert large[2] == b"x" * 500


def test_only_a_blank_separates_keys_also_of_a_message_that_travels_alone() -> None:
    keys = "a\u00a0b c\td"
    alone, together = (
        list(encoder(topic="T", max_batch_bytes=most).encode(rows(value=[b"x" * 1_500], keys=[keys]), 1_000))
        for most in (1_000, 100_000)
    )
    assert isinstance(alone[0], Single) and isinstance(together[0], Encoded)
    message = message_of(alone[0])
    assert isinstance(message, Message)
    message.check(4096)
    (item,) = decode_batch(together[0].body)
    assert decode_properties(message.encoded_properties())["KEYS"] == keys
    assert decode_properties(item.properties)["KEYS"] == keys


def test_a_time_in_the_hour_that_summer_time_repeats_is_delivered_then() -> None:
    due = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    times = pa.array([due, due + timedelta(hours=1)], pa.timestamp("us", tz="Europe/Berlin"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"]), times], names=["value", "deliverAt"])
    found = [int(message[3]["TIMER_DELIVER_MS"]) for message in encode(batch, topic="T")]
    assert found == [1_792_888_200_000, 1_792_888_200_000 + 3_600_000]


def test_unique_ids_carry_their_time_and_never_repeat() -> None:
    one = encoder(topic="T")
    batch = rows(value=[b"x"] * 66_000)
    bodies = [
        bytes(work.body) for _ in range(2) for work in one.encode(batch, NOW) if isinstance(work, Encoded)
    ]
    ids = [found.decode() for body in bodies for found in re.findall(rb"UNIQ_KEY\x01(\w+)\x02", body)]
    assert len(ids) == 132_000
    assert len(set(ids)) == 132_000
    assert {len(i) for i in ids} == {32}
    assert abs(unique_id_time_ms(ids[0], NOW + 1000) - NOW) < 10


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"value": [b""]}, "'value' is null or empty"),
        ({"value": [None]}, "'value' is null or empty"),
        ({"value": [b"x"], "topic": [None]}, "'topic' is null"),
        ({"value": [b"x"], "topic": ["a b"]}, "'topic': The specified topic"),
        ({"value": [b"x"], "tags": ["a\x01"]}, "'tags' holds"),
        ({"value": [b"x"], "key": ["a b"]}, "'key' has a blank"),
        ({"value": [b"x"], "queueId": [-1]}, "'queueId' is negative"),
        ({"value": [b"x"], "delayLevel": [-1]}, "'delayLevel' is negative"),
        ({"value": [b"x"], "properties": [[("a", "\x02")]]}, "'properties' holds"),
        ({"value": [b"x"], "properties": [[("a", "x" * 40_000)]]}, "at most 32767"),
    ],
)
def test_rows_that_are_no_message_are_named(columns: dict[str, list[Any]], problem: str) -> None:
    columns.setdefault("topic", ["T"])
    with pytest.raises(RowError, match=problem):
        encode(rows(**columns))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ([("value", "binary"), ("queueOffset", "bigint")], "'queueOffset' cannot be written"),
        ([("value", "bigint")], "must be of type binary or string, not bigint"),
        ([("tags", "string")], "no column 'value'"),
        ([("value", "string")], "name the topic"),
        ([("value", "string"), ("broker", "string")], "'broker' chooses a queue only with column 'queueId'"),
    ],
)
def test_columns_that_cannot_be_written_are_named(schema: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        check_columns(schema, topic=None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "'namesrvAddr' is missing"),
        ({"namesrvAddr": "a:1", "deliveryGuarantee": "maybe"}, "must be atLeastOnce or exactlyOnce"),
        ({"namesrvAddr": "a:1", "transactionId": "x"}, "no effect without deliveryGuarantee=exactlyOnce"),
        ({"namesrvAddr": "a:1", "transactionLocation": "/t"}, "no effect without deliveryGuarantee"),
        ({"namesrvAddr": "a:1", "topic": "a b"}, "'topic': The specified topic"),
        ({"namesrvAddr": "a:1", "producerGroup": "a b"}, "'producerGroup'"),
        ({"namesrvAddr": "a:1", "maxInFlight": "0"}, "at least 1"),
        ({"namesrvAddr": "a:1", "subscribe": "T"}, "unknown option 'subscribe'"),
        ({"namesrvAddr": "a:1", "tls.client.certPath": "x"}, "no effect without tls.enable"),
        ({"namesrvAddr": "a:1", "secretKey": "x"}, "needs both accessKey and secretKey"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_sink_options(options)


ONCE = {"namesrvAddr": "a:1", "deliveryGuarantee": "exactlyOnce"}


@pytest.mark.parametrize(
    ("options", "streaming", "ledger"),
    [
        ({"checkpointLocation": "/c/p"}, True, "/c/p/rocketmq-sink"),
        ({"checkpointLocation": "file:///c/p%20q/"}, True, "/c/p q/rocketmq-sink"),
        ({"checkpointLocation": "hdfs://n/c", "transactionLocation": "/t"}, True, "/t"),
        ({"transactionLocation": "/t/", "transactionId": "load-1"}, False, "/t/load-1"),
    ],
)
def test_the_ledger_is_beside_the_checkpoint_or_where_the_options_say(
    options: dict[str, str], streaming: bool, ledger: str
) -> None:
    assert parse_sink_options({**ONCE, **options}, streaming=streaming).ledger == ledger
    assert parse_sink_options({"namesrvAddr": "a:1"}, streaming=streaming).ledger is None


@pytest.mark.parametrize(
    ("options", "streaming", "problem"),
    [
        ({}, True, "needs the option 'checkpointLocation'"),
        ({"checkpointLocation": "hdfs://n/c"}, True, "is not a directory of the driver"),
        ({"checkpointLocation": "relative"}, True, "not an absolute path"),
        ({"checkpointLocation": "/c", "transactionId": "x"}, True, "'transactionId' is for batch jobs"),
        ({}, False, "needs the options 'transactionLocation'"),
        ({"transactionId": "x"}, False, "needs the options 'transactionLocation'"),
        ({"transactionLocation": "/t"}, False, "needs the options 'transactionLocation'"),
        ({"transactionLocation": "/t", "transactionId": "../x"}, False, "'../x' is not a name"),
        (
            {"transactionLocation": "s3://b/t", "transactionId": "x"},
            False,
            "is not a directory of the driver",
        ),
    ],
)
def test_a_ledger_that_the_driver_cannot_reach_is_named(
    options: dict[str, str], streaming: bool, problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        parse_sink_options({**ONCE, **options}, streaming=streaming)


@pytest.mark.parametrize("column", [("deliverAt", "timestamp"), ("delayLevel", "int")])
def test_exactly_once_delays_nothing(column: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match=f"'{column[0]}': exactlyOnce cannot delay rows"):
        check_columns([("value", "binary"), column], topic="T", exactly_once=True)
    check_columns([("value", "binary"), column], topic="T")


def test_a_missing_certificate_is_named() -> None:
    options = parse_sink_options(
        {"namesrvAddr": "a:1", "tls.enable": "true", "tls.client.certPath": "/none/cert.pem"}
    )
    with pytest.raises(ConfigError, match=r"/none/cert\.pem"):
        tls_context(options.tls)
    before = threading.active_count()
    with pytest.raises(ConfigError):
        Sending(options)
    assert threading.active_count() == before


def test_the_user_of_a_sink_signs_its_sends_and_its_secret_is_not_shown() -> None:
    user = {"accessKey": "alice", "secretKey": "hidden99"}
    options = parse_sink_options({"namesrvAddr": "a:1", **user})
    assert producer_options(options, None)["credentials"] == Credentials("alice", "hidden99")
    assert "hidden" not in repr(options)
