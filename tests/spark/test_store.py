"""Store directories in Spark, against what the online source reads of the same broker."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from batonmq import Message
from batonmq.demo.cluster import LocalCluster

from .conftest import BROKER, Topics, bodies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "value binary, topic string, broker string, queueId int, queueOffset bigint, physicalOffset bigint, "
    "timestamp timestamp, bornTimestamp timestamp, keys string, tags string, msgId string, "
    "reconsumeTimes int, flag int, sysFlag int, properties map<string,string>"
)


def store_of(cluster: LocalCluster, number: int = 0) -> Path:
    """The directory of a replica's store."""
    return cluster.store_path(number)


def read(session: SparkSession, path: Path | str, schema: str | None = None, **options: object) -> DataFrame:
    reader = session.read.format("rocketmq-store")
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**{k: str(v) for k, v in options.items()}).load(str(path))


def rows(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: row["physicalOffset"])


def test_a_running_brokers_store_reads_as_the_broker_itself_does(
    session: SparkSession, cluster: LocalCluster, topics: Topics
) -> None:
    topic = topics.make()
    topics.fill(
        topic,
        {
            0: [
                Message(topic, b"v%d" % i, tags=f"t{i % 3}", keys=f"k{i}", properties={"n": str(i)})
                for i in range(700)
            ],
            1: [*bodies("b", 300), Message(topic, b"z" * 9000, keys="large")],
        },
    )
    online = rows(topics.read(session, topic, COLUMNS))
    offline = rows(read(session, store_of(cluster), COLUMNS, subscribe=topic, maxPartitionBytes=20_000))
    assert len(offline) == 1001
    assert [row.asDict() for row in offline] == [row.asDict() for row in online]


def test_filters_and_projection_give_what_spark_would(
    session: SparkSession, cluster: LocalCluster, topics: Topics
) -> None:
    topic, other = topics.make(), topics.make()
    topics.fill(topic, {q: [Message(topic, b"%d" % i, tags="ab"[i % 2]) for i in range(200)] for q in (0, 1)})
    topics.fill(other, {0: bodies("o", 50)})
    frame = read(session, store_of(cluster))
    mine = frame.where((F.col("topic") == topic) & (F.col("tags") == "a") & (F.col("queueId") == 1))
    assert sorted(int(r["value"]) for r in mine.select("value").collect()) == list(range(0, 200, 2))
    plan = mine._jdf.queryExecution().toString()
    assert "rocketmq-store" in plan
    late = frame.where(
        (F.col("topic") == topic) & (F.col("queueOffset") >= 150) & F.col("timestamp").isNotNull()
    )
    assert late.count() == 100
    assert frame.where(F.col("topic").isin(topic, other)).count() == 450
    assert frame.where(F.col("topic") == "RMQ_SYS_TRACE_TOPIC").count() == 0


def test_columns_that_consume_queues_have_are_those_of_the_log(
    session: SparkSession, cluster: LocalCluster, topics: Topics
) -> None:
    topic = topics.make()
    topics.fill(topic, {queue: [Message(topic, b"%d" % n * 300) for n in range(500)] for queue in (0, 1)})
    schema = "queueId int, queueOffset bigint, physicalOffset bigint"
    found = read(session, store_of(cluster), schema, subscribe=topic)
    expected = read(session, store_of(cluster), f"{schema}, sysFlag int", subscribe=topic).drop("sysFlag")
    assert rows(found) == rows(expected)
    assert found.count() == 1000
    assert found.where("queueId = 1 and queueOffset < 7").count() == 7


def test_a_copy_is_read_with_its_tables(
    session: SparkSession, cluster: LocalCluster, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make()
    topics.fill(topic, {0: bodies("b", 500), 1: bodies("c", 20)})
    topics.read(session, topic).count()
    copy = tmp_path / "copy"
    shutil.copytree(store_of(cluster), copy)
    assert read(session, copy, subscribe=topic).count() == 520
    assert read(session, copy, subscribe=topic).first()["broker"] == BROKER
    units = read(session, copy, table="consumequeue").where(F.col("topic") == topic)
    messages = read(session, copy, COLUMNS, subscribe=topic)
    keys = ["topic", "queueId", "queueOffset", "physicalOffset"]
    assert units.join(messages, keys).count() == 520
    epochs = read(session, copy, table="epochs").collect()
    assert epochs[0]["startOffset"] == 0 and epochs[-1]["endOffset"] is None
    (state,) = read(session, copy, table="files").collect()
    assert state["problem"] is None and 0 < state["confirmOffset"] <= state["endOffset"]


def test_timed_messages_that_wait_are_found_by_the_table_of_timers(
    session: SparkSession, cluster: LocalCluster, topics: Topics
) -> None:
    topic = topics.make()
    due = [int(time.time()) + 600 + n for n in range(3)]
    properties = [{"TIMER_DELIVER_MS": str(at * 1000)} for at in due]
    topics.fill(topic, {0: [Message(topic, b"x", properties=p) for p in properties]}, batch=1)
    timed = read(session, store_of(cluster), COLUMNS, subscribe="rmq_sys_wheel_timer")
    timed = timed.where(F.col("properties")["REAL_TOPIC"] == topic)

    def waiting() -> list[Any]:
        timers = read(session, store_of(cluster), table="timers").select(
            "physicalOffset", "slotTime", "kind", "passed"
        )
        return timed.join(timers, "physicalOffset").orderBy("slotTime").collect()

    deadline = time.monotonic() + 30
    while len(found := waiting()) < 3:
        assert time.monotonic() < deadline, "the messages are not in the wheel"
    assert [row["slotTime"].timestamp() for row in found] == [
        int(row["properties"]["TIMER_OUT_MS"]) / 1000 for row in found
    ]
    assert [int(row["properties"]["TIMER_DELIVER_MS"]) / 1000 for row in found] == due
    assert {(row["kind"], row["passed"]) for row in found} <= {("deliver", False), ("deliver", None)}


def test_errors_are_one_clear_line(session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no such directory") as caught:
        read(session, tmp_path / "none").count()
    assert "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="no column 'offset'"):
        read(session, tmp_path, "offset bigint").count()
