"""Writes by Spark, read back by the source: each row, its place and its properties."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from .conftest import BROKER, Topics, bodies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ = (
    "value binary, queueId int, queueOffset bigint, keys string, tags string, properties map<string,string>"
)


def write(frame: DataFrame, namesrv: str, **options: object) -> None:
    given = {"namesrvAddr": namesrv, **{k: str(v) for k, v in options.items()}}
    frame.write.format("rocketmq").mode("append").options(**given).save()


def test_every_row_becomes_a_message_with_its_parts(session: SparkSession, topics: Topics) -> None:
    topic = topics.make(queues=4)
    frame = session.range(5_000).select(
        F.concat(F.lit("v"), "id").alias("value"),
        F.concat(F.lit("k"), "id").alias("keys"),
        F.concat(F.lit("t"), F.col("id") % 3).alias("tags"),
        F.concat(F.lit("s"), F.col("id") % 10).alias("shardingKey"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("properties"),
    )
    write(frame, topics.namesrv, topic=topic, maxBatchRows=100)
    found = topics.read(session, topic, READ).collect()
    assert len(found) == 5_000
    queue_of: dict[str, set[int]] = {}
    for row in found:
        n = row["properties"]["n"]
        assert bytes(row["value"]) == f"v{n}".encode()
        assert (row["keys"], row["tags"]) == (f"k{n}", f"t{int(n) % 3}")
        queue_of.setdefault(row["properties"]["__SHARDINGKEY"], set()).add(row["queueId"])
    assert all(len(queues) == 1 for queues in queue_of.values()) and len(set(map(str, queue_of.values()))) > 1


def test_rows_of_one_key_keep_their_order(session: SparkSession, topics: Topics) -> None:
    topic = topics.make(queues=3)
    frame = session.range(3_000, numPartitions=1).select(
        F.col("id").cast("string").alias("value"), F.concat(F.lit("s"), F.col("id") % 5).alias("shardingKey")
    )
    write(frame, topics.namesrv, topic=topic, maxBatchRows=7)
    by_key: dict[str, list[int]] = {}
    for row in topics.read(session, topic, READ).orderBy("queueId", "queueOffset").collect():
        by_key.setdefault(row["properties"]["__SHARDINGKEY"], []).append(int(row["value"]))
    assert by_key == {f"s{k}": list(range(k, 3_000, 5)) for k in range(5)}


def test_queue_and_topic_columns_say_where_to(session: SparkSession, topics: Topics) -> None:
    one, two = topics.make(), topics.make()
    frame = session.createDataFrame(
        [(one, "a", 1, BROKER), (two, "b", 0, BROKER), (two, "c", 1, None)],
        "topic string, value string, queueId int, broker string",
    )
    write(frame, topics.namesrv)
    assert [(bytes(r["value"]), r["queueId"]) for r in topics.read(session, one, READ).collect()] == [
        (b"a", 1)
    ]
    assert sorted((bytes(r["value"]), r["queueId"]) for r in topics.read(session, two, READ).collect()) == [
        (b"b", 0),
        (b"c", 1),
    ]


def test_a_copy_of_a_topic_keeps_keys_tags_and_properties(session: SparkSession, topics: Topics) -> None:
    one, two = topics.make(), topics.make()
    topics.fill(one, {0: bodies("x", 50)})
    source = topics.read(session, one, READ).select("value", "keys", "tags", "properties")
    write(source, topics.namesrv, topic=two)
    copied = {bytes(r["value"]): r["keys"] for r in topics.read(session, two, READ).collect()}
    assert copied == {body: body.decode() for body in bodies("x", 50)}


def test_delayed_rows_come_later(session: SparkSession, topics: Topics) -> None:
    topic = topics.make()
    frame = session.createDataFrame([("now", None), ("later", 1)], "value string, delayLevel int")
    write(frame, topics.namesrv, topic=topic)
    deadline = time.monotonic() + 60
    while topics.read(session, topic, READ).count() < 2:
        assert time.monotonic() < deadline
    found = {
        bytes(r["value"]): r["properties"].get("DELAY") for r in topics.read(session, topic, READ).collect()
    }
    assert found.keys() == {b"now", b"later"}


def test_a_stream_from_topic_to_topic(session: SparkSession, topics: Topics, tmp_path: Path) -> None:
    one, two = topics.make(), topics.make()
    topics.fill(one, {0: bodies("x", 300), 1: bodies("y", 300)})
    stream = (
        session.readStream.format("rocketmq")
        .options(**topics.options(one, startingOffsets="earliest", maxOffsetsPerTrigger=200))
        .load()
        .select("value", "keys")
    )
    query = (
        stream.writeStream.format("rocketmq")
        .options(namesrvAddr=topics.namesrv, topic=two)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sent = [bytes(r["value"]) for r in topics.read(session, two, READ).collect()]
    assert sorted(sent) == sorted([*bodies("x", 300), *bodies("y", 300)])


@pytest.mark.parametrize(
    ("options", "mode", "problem"),
    [
        ({"topic": "T"}, "overwrite", "messages cannot be overwritten"),
        # Spark's default, which it refuses before it asks the sink; docs/spark.md names this error.
        ({"topic": "T"}, "errorifexists", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        (
            {"topic": "T", "deliveryGuarantee": "exactlyOnce"},
            "append",
            "needs the options 'transactionLocation'",
        ),
        ({}, "append", "name the topic"),
    ],
)
def test_what_cannot_be_written_is_one_clear_line(
    session: SparkSession, topics: Topics, options: dict[str, str], mode: str, problem: str
) -> None:
    frame = session.range(1).select(F.col("id").cast("string").alias("value"))
    with pytest.raises(Exception, match=problem) as caught:
        frame.write.format("rocketmq").mode(mode).options(namesrvAddr=topics.namesrv, **options).save()
    assert "Traceback" not in str(caught.value)


def test_an_error_of_a_task_says_what_to_do(session: SparkSession, topics: Topics) -> None:
    frame = session.createDataFrame([("a", 77)], "value string, queueId int")
    with pytest.raises(Exception, match="has no queue broker-a:77; broker 'broker-a' has queues 0 to 1"):
        write(frame, topics.namesrv, topic=topics.make())
