"""Batch reads: which messages, which columns, and what is said when that can not be."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from batonmq import CompressionType, Message

from .conftest import Topics, bodies, values

if TYPE_CHECKING:
    pass


def numbers(session, topics, topic, **options):
    """``{queue id: sorted queue offsets}`` of what a read returns."""
    found: dict[int, list[int]] = {}
    for row in topics.read(session, topic, "queueId int, queueOffset bigint", **options).collect():
        found.setdefault(row["queueId"], []).append(row["queueOffset"])
    return {queue: sorted(offsets) for queue, offsets in sorted(found.items())}


def the_error(error: PySparkException) -> str:
    """The line that says what is wrong: the last one of the traceback, above Spark's SQLSTATE."""
    return str(error).rpartition("SQLSTATE")[0].strip().splitlines()[-1]


@pytest.fixture(scope="module")
def filled(cluster) -> tuple[Topics, str]:
    topics = Topics(cluster.namesrv_address)
    topic = topics.make("filled", queues=3)
    topics.fill(topic, {0: bodies("a", 50), 1: bodies("b", 30)})
    return topics, topic


def test_everything_with_the_default_columns(session, filled):
    topics, topic = filled
    frame = topics.read(session, topic)
    assert frame.columns == [
        "value",
        "topic",
        "broker",
        "queueId",
        "queueOffset",
        "timestamp",
        "keys",
        "tags",
    ]
    rows = frame.orderBy("queueId", "queueOffset").collect()
    assert [bytes(r["value"]) for r in rows] == bodies("a", 50) + bodies("b", 30)
    assert [r["keys"] for r in rows] == [bytes(r["value"]).decode() for r in rows]
    assert [r["queueOffset"] for r in rows] == [*range(50), *range(30)]
    assert {(r["topic"], r["broker"], r["tags"]) for r in rows} == {(topic, "broker-a", None)}
    assert all(abs(r["timestamp"].timestamp() - time.time()) < 3600 for r in rows)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"startingOffsets": {"broker-a:0": 40, "broker-a:1": -2, "broker-a:2": -1}},
            {0: (40, 50), 1: (0, 30)},
        ),
        ({"endingOffsets": {"broker-a:0": 3, "broker-a:1": -1, "broker-a:2": 0}}, {0: (0, 3), 1: (0, 30)}),
        (
            {
                "startingOffsets": {"broker-a:0": 10, "broker-a:1": 30, "broker-a:2": 0},
                "endingOffsets": {"broker-a:0": 11, "broker-a:1": 30, "broker-a:2": 0},
            },
            {0: (10, 11)},
        ),
        ({"pullBatchSize": 7}, {0: (0, 50), 1: (0, 30)}),
        ({"maxRecordsPerPartition": 9}, {0: (0, 50), 1: (0, 30)}),
    ],
)
def test_offsets(session, filled, options, expected):
    topics, topic = filled
    texts = {k: json.dumps({topic: v}) if isinstance(v, dict) else v for k, v in options.items()}
    assert numbers(session, topics, topic, **texts) == {q: [*range(*r)] for q, r in expected.items()}


def test_assigned_queues_alone(session, filled):
    topics, topic = filled
    assign = json.dumps({topic: ["broker-a:1"]})
    assert numbers(session, topics, None, assign=assign) == {1: [*range(30)]}


def test_from_and_to_a_time(session, topics):
    topic = topics.make()
    topics.fill(topic, {0: bodies("old", 20), 1: bodies("old", 1)})
    time.sleep(0.02)
    middle = int(time.time() * 1000)
    time.sleep(0.02)
    topics.fill(topic, {0: bodies("new", 10)})
    assert set(values(topics.read(session, topic, startingTimestamp=middle))) == set(bodies("new", 10))
    assert len(values(topics.read(session, topic, endingTimestamp=middle))) == 21
    assert values(topics.read(session, topic, startingTimestamp=middle + 3_600_000)) == []


def test_asked_columns_in_the_asked_order(session, topics):
    topic = topics.make(queues=1)
    message = Message(topic, b"body", tags="red", keys=["k1", "k2"], properties={"colour": "blü"}, flag=5)
    topics.fill(topic, {0: [message]})
    schema = "properties map<string,string>, tags string, keys string, flag int, value binary, msgId string"
    frame = topics.read(session, topic, schema)
    assert frame.columns == [part.split()[0] for part in schema.split(", ")]
    (row,) = frame.collect()
    assert (row["tags"], row["keys"], row["flag"], bytes(row["value"])) == ("red", "k1 k2", 5, b"body")
    assert row["properties"]["colour"] == "blü"
    assert row["msgId"] == row["properties"]["UNIQ_KEY"]
    (with_properties,) = topics.read(session, topic, includeProperties="true").collect()
    assert with_properties["properties"] == row["properties"]


def test_min_partitions_cuts_queues(session, filled):
    topics, topic = filled
    assert topics.read(session, topic).rdd.getNumPartitions() == 2
    frame = topics.read(session, topic, minPartitions=8)
    assert frame.rdd.getNumPartitions() >= 8
    assert sorted(values(frame)) == sorted(bodies("a", 50) + bodies("b", 30))


def test_an_empty_topic_has_no_rows(session, topics):
    assert topics.read(session, topics.make()).count() == 0


def test_two_topics_and_names_with_every_allowed_character(session, topics):
    odd = topics.make("%odd_Name-|1", queues=1)
    other = topics.make(queues=1)
    topics.fill(odd, {0: bodies("o", 3)})
    topics.fill(other, {0: bodies("p", 4)})
    frame = topics.read(session, f"{odd}, {other}")
    counts = {r["topic"]: r["count"] for r in frame.groupBy("topic").count().collect()}
    assert counts == {odd: 3, other: 4}
    start = json.dumps({odd: {"broker-a:0": 2}})
    assert values(topics.read(session, odd, startingOffsets=start)) == [b"o2"]


@pytest.mark.parametrize("compression", list(CompressionType), ids=lambda c: c.name.lower())
def test_compressed_bodies_come_out_whole(session, topics, compression):
    topic = topics.make(queues=1)
    sent = [bytes([i]) * 20_000 for i in range(5)]
    messages = [Message(topic, body) for body in sent]
    topics.fill(topic, {0: messages}, batch=1, compress_over=100, compression=compression)
    rows = topics.read(session, topic, "value binary, sysFlag int, queueOffset bigint").collect()
    assert [bytes(r["value"]) for r in sorted(rows, key=lambda r: r["queueOffset"])] == sent
    assert all(r["sysFlag"] & 1 for r in rows), "the bodies were not compressed: nothing was tested"


@pytest.mark.parametrize(
    ("topic", "schema", "options", "says"),
    [
        ("no-such-topic", None, {}, "topic 'no-such-topic' does not exist"),
        ("filled", None, {"startingOfsets": "earliest"}, "unknown option 'startingofsets'"),
        (
            "filled",
            None,
            {"startingOffsets": '{"filled": {"broker-a:0": 1}}'},
            "no offset for queue 'broker-a:1'",
        ),
        ("filled", None, {"startingOffsets": '{"other": {"broker-a:0": 1}}'}, "other"),
        ("filled", "valeu binary", {}, "no column 'valeu'"),
        ("filled", StructType([]), {}, "the schema has no column"),
        ("filled", "value binary NOT NULL", {}, "is NOT NULL in the schema"),
        ("filled", "topic string, topic string", {}, "the schema has a column twice"),
        ("filled", "value string", {}, "of type binary, not string"),
        (None, None, {"assign": '{"filled": ["broker-a:77"]}'}, "'broker-a:77'; there are: broker-a:0"),
    ],
)
def test_mistakes_are_named(session, filled, topic, schema, options, says):
    topics, _ = filled
    with pytest.raises(PySparkException) as caught:
        topics.read(session, topic, schema, **options).collect()
    assert says in the_error(caught.value)


def test_times_are_instants_whatever_the_session_calls_a_timestamp(session, filled):
    topics, _ = filled
    expected = topics.read(session, "filled").count()
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        frame = topics.read(session, "filled")
        assert dict(frame.dtypes)["timestamp"] == "timestamp"
        assert frame.where("timestamp IS NOT NULL").count() == expected
    finally:
        session.conf.unset("spark.sql.timestampType")


def test_no_name_server_is_one_clear_error(session):
    options = {"namesrvAddr": "127.0.0.1:1", "subscribe": "t", "pollTimeoutMs": "300"}
    with pytest.raises(PySparkException) as caught:
        session.read.format("rocketmq").options(**options).load().collect()
    assert "127.0.0.1:1" in the_error(caught.value)


@pytest.mark.parametrize(
    ("option", "says", "without_failing"),
    [
        (
            "startingOffsets",
            "ends at 50 (was the topic recreated?), reading was to start at 51",
            {1: [*range(30)]},
        ),
        ("endingOffsets", "ends at 50, reading was to end at 51", {0: [*range(50)], 1: [*range(30)]}),
    ],
)
def test_offsets_behind_the_queue(session, filled, option, says, without_failing):
    """`failOnDataLoss` both ways; a recreated topic shows such offsets."""
    topics, topic = filled
    whole = 0 if option == "startingOffsets" else 30
    behind = {option: json.dumps({topic: {"broker-a:0": 51, "broker-a:1": whole, "broker-a:2": 0}})}
    behind["pollTimeoutMs"] = "200"
    with pytest.raises(PySparkException) as caught:
        numbers(session, topics, topic, **behind)
    assert says in the_error(caught.value)
    assert numbers(session, topics, topic, **behind, failOnDataLoss="false") == without_failing
