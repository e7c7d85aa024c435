"""Writes that are there exactly once, from real Spark into a real broker set: also through kills."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from batonmq.spark.sink.exactly_once.ledger import Ledger

from . import kill_matrix
from .conftest import Topics, bodies, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(
    session: SparkSession, topics: Topics, one: str, two: str, checkpoint: Path, **options: int | str
) -> None:
    stream = (
        session.readStream.format("rocketmq")
        .options(**topics.options(one, startingOffsets="earliest", maxOffsetsPerTrigger=200))
        .load()
        .select("value", "keys")
    )
    query = (
        stream.writeStream.format("rocketmq")
        .options(namesrvAddr=topics.namesrv, topic=two, deliveryGuarantee="exactlyOnce")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_stream_writes_each_row_once_and_continues_from_its_checkpoint(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    one, two = topics.make(), topics.make()
    topics.fill(one, {0: bodies("x", 300), 1: bodies("y", 300)})
    copy(session, topics, one, two, tmp_path / "checkpoint")
    topics.fill(one, {0: bodies("z", 50)})
    copy(session, topics, one, two, tmp_path / "checkpoint")
    assert sorted(values(topics.read(session, two))) == sorted(
        [*bodies("x", 300), *bodies("y", 300), *bodies("z", 50)]
    )
    ledger = Ledger(tmp_path / "checkpoint" / "rocketmq-sink")
    assert ledger.is_done(0) and ledger.unfinished() == []
    assert (ledger.path / "query").read_text() in (tmp_path / "checkpoint" / "metadata").read_text()


def test_a_micro_batch_that_spark_repeats_is_there_once(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    one, two = topics.make(), topics.make()
    topics.fill(one, {0: bodies("x", 500)})
    copy(session, topics, one, two, tmp_path / "checkpoint")
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)  # as if the driver had died before Spark noted the end of the batch
    copy(session, topics, one, two, tmp_path / "checkpoint")
    assert sorted(values(topics.read(session, two))) == sorted(bodies("x", 500))


def test_a_checkpoint_that_is_older_than_the_ledger_drops_no_rows(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    one, two = topics.make(), topics.make()
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    ledger = str(tmp_path / "ledger")
    for number in range(3):
        topics.fill(one, {0: bodies("x", 50, first=50 * number)})
        copy(session, topics, one, two, checkpoint, transactionLocation=ledger)
        if number == 0:
            shutil.copytree(checkpoint, backup)
    shutil.rmtree(checkpoint)
    with pytest.raises(PySparkException, match="the checkpoint is older than this ledger"):
        copy(session, topics, one, two, backup, transactionLocation=ledger)
    assert sorted(values(topics.read(session, two))) == sorted(bodies("x", 150))


def test_half_messages_name_the_micro_batch_of_their_task(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """Brokers' checks of what an attempt left over are answered by it."""
    one, two = topics.make(), topics.make()
    topics.fill(one, {0: bodies("x", 300)})
    copy(session, topics, one, two, tmp_path / "checkpoint", maxBatchBytes=1)  # each row is a half message
    marks = {
        row["properties"]["__SPARK_BATCH"]
        for row in topics.read(session, two, "properties map<string,string>").collect()
    }
    run = Ledger(tmp_path / "checkpoint" / "rocketmq-sink").run()
    assert {mark.split(":")[0] for mark in marks} == {run}
    assert {int(mark.split(":")[1]) for mark in marks} == {0, 1}


def test_a_batch_job_with_an_id_writes_once(session: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.make(queues=3)
    frame = session.range(3_000).select(
        F.col("id").cast("string").alias("value"), F.concat(F.lit("k"), F.col("id") % 7).alias("shardingKey")
    )
    for _ in range(2):
        frame.write.format("rocketmq").mode("append").options(
            namesrvAddr=topics.namesrv,
            topic=topic,
            deliveryGuarantee="exactlyOnce",
            transactionLocation=str(tmp_path),
            transactionId="load-1",
        ).save()
    assert sorted(int(value) for value in values(topics.read(session, topic))) == list(range(3_000))


def test_a_job_that_fails_leaves_nothing_visible(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make()
    good = session.range(100).select(F.col("id").cast("string").alias("value"))
    bad = session.createDataFrame([(None,)], "value string")
    options = {
        "namesrvAddr": topics.namesrv,
        "topic": topic,
        "deliveryGuarantee": "exactlyOnce",
        "transactionLocation": str(tmp_path),
        "transactionId": "load-2",
    }
    with pytest.raises(Exception, match="'value' is null"):
        good.union(bad).write.format("rocketmq").mode("append").options(**options).save()
    assert topics.read(session, topic).count() == 0
    good.write.format("rocketmq").mode("append").options(**options).save()
    assert topics.read(session, topic).count() == 100


@pytest.mark.timeout(600)
def test_kills_of_workers_driver_brokers_and_controller_leave_each_row_once(tmp_path: Path) -> None:
    outcome = kill_matrix.run(tmp_path, rows=40_000, kills=10, seed=7, rows_a_batch=2_000, timeout_s=500)
    assert outcome.right, str(outcome)
    assert outcome.kills.total() >= 5, str(outcome)
