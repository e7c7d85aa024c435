"""Streams: admission control, restart from the checkpoint, and recreated topics."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException

from batonmq import MessageQueue
from batonmq.client.offsets import GroupOffsets
from batonmq.routing.session import Session
from batonmq.spark.jobs import archive
from batonmq.spark.lag import LagListener

from .conftest import Topics, bodies


def available_now(session, topics: Topics, topic: str, root, **options):
    """Take what is there into Parquet, and end. Returns the progress of the batches that had rows."""
    query = (
        session.readStream.format("rocketmq")
        .options(**topics.options(topic, startingOffsets="earliest", **options))
        .load()
        .writeStream.format("parquet")
        .option("path", str(root / "out"))
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [p for p in query.recentProgress if p["numInputRows"]]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def written(session, root) -> Counter[bytes]:
    rows = session.read.parquet(str(root / "out")).select("value").collect()
    return Counter(bytes(row["value"]) for row in rows)


def test_available_now_in_limited_batches_then_only_what_is_new(session, topics, tmp_path):
    topic = topics.make(queues=3)
    topics.fill(topic, {0: bodies("a", 70), 1: bodies("b", 7)})
    batches = available_now(session, topics, topic, tmp_path, maxOffsetsPerTrigger=30)
    assert [b["numInputRows"] for b in batches] == [30, 30, 17]
    last = json.loads(batches[-1]["sources"][0]["endOffset"])
    assert last == {topic: {"broker-a:0": 70, "broker-a:1": 7, "broker-a:2": 0}}
    assert written(session, tmp_path) == Counter(bodies("a", 70) + bodies("b", 7))

    assert available_now(session, topics, topic, tmp_path) == []
    topics.fill(topic, {1: bodies("b", 5, first=7), 2: bodies("c", 1)})
    assert [b["numInputRows"] for b in available_now(session, topics, topic, tmp_path)] == [6]
    assert written(session, tmp_path) == Counter(bodies("a", 70) + bodies("b", 12) + bodies("c", 1))


def test_starts_at_the_end_by_default(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("before", 5)})
    query = (
        session.readStream.format("rocketmq")
        .options(**topics.options(topic))
        .load()
        .writeStream.format("memory")
        .queryName("from_the_end")
        .start()
    )
    try:
        query.processAllAvailable()
        topics.fill(topic, {0: bodies("after", 4)})
        query.processAllAvailable()
        rows = session.table("from_the_end").collect()
        assert sorted(bytes(r["value"]) for r in rows) == bodies("after", 4)
    finally:
        query.stop()


def test_queues_added_later_are_read_from_their_first_message(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 3)})
    available_now(session, topics, topic, tmp_path)
    topics.make(topic, queues=2)
    topics.fill(topic, {1: bodies("b", 4)})
    available_now(session, topics, topic, tmp_path)
    assert written(session, tmp_path) == Counter(bodies("a", 3) + bodies("b", 4))


def test_a_recreated_topic_is_data_loss_or_a_new_start(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("old", 20)})
    available_now(session, topics, topic, tmp_path)
    topics.delete(topic)
    topics.make(topic, queues=1)
    topics.fill(topic, {0: bodies("new", 5)})
    with pytest.raises(PySparkException, match="ends at 5"):
        available_now(session, topics, topic, tmp_path, pollTimeoutMs=300)
    available_now(session, topics, topic, tmp_path, pollTimeoutMs=300, failOnDataLoss="false")
    assert written(session, tmp_path) == Counter(bodies("old", 20) + bodies("new", 5))


def test_archive_stopped_between_batches_is_exactly_once(session, topics, tmp_path):
    topic = topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", 400), 1: bodies("b", 300)})
    common = {"namesrv": topics.namesrv, "topic": topic, "target": tmp_path / "archive"}
    query = archive.start(session, **common, max_offsets_per_trigger=50, every="0 seconds")
    deadline = time.monotonic() + 60
    while not query.recentProgress and time.monotonic() < deadline:
        time.sleep(0.02)
    query.stop()
    first = session.read.parquet(str(tmp_path / "archive")).count()
    assert 0 < first < 700, "the job was not stopped in the middle"
    finished = archive.finish(archive.start(session, **common, max_offsets_per_trigger=500))
    rows = session.read.parquet(str(tmp_path / "archive"))
    assert rows.count() == rows.select("queueId", "queueOffset").distinct().count() == 700
    assert finished.rows <= 700 - first + 50
    assert {"topic", "date", "properties", "msgId"} <= set(rows.columns)


def test_a_pattern_takes_in_topics_that_appear_later(session, topics, tmp_path):
    first = topics.make("pattern-a", queues=1)
    topics.fill(first, {0: bodies("a", 3)})
    given = {"subscribePattern": "pattern-.*", "maxBytesPerTrigger": 400}
    available_now(session, topics, None, tmp_path, **given)
    second = topics.make("pattern-b", queues=1)
    topics.fill(second, {0: bodies("b", 4)})
    batches = available_now(session, topics, None, tmp_path, **given)
    assert len(batches) > 1, "four messages are more than 400 bytes"
    assert written(session, tmp_path) == Counter(bodies("a", 3) + bodies("b", 4))


def test_a_group_shows_the_progress_of_a_stream(session, topics, tmp_path):
    topic = topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", 30), 1: bodies("b", 5)})
    available_now(session, topics, topic, tmp_path, groupId="spark-lag", maxOffsetsPerTrigger=20)
    topics.fill(topic, {1: bodies("c", 2)})
    available_now(session, topics, topic, tmp_path, groupId="spark-lag")

    async def committed():
        session_ = Session(topics.namesrv)
        try:
            offsets = GroupOffsets(session_, "spark-lag")
            return [await offsets.read(MessageQueue(topic, "broker-a", q)) for q in (0, 1)]
        finally:
            await session_.close()

    assert asyncio.run(committed()) == [30, 7]
    query = (
        session.readStream.format("rocketmq")
        .options(**topics.options(topic, groupId="spark-lag"))
        .load()
        .writeStream.format("memory")
        .queryName("idle")
        .option("checkpointLocation", str(tmp_path / "idle"))
        .start()
    )
    try:
        wait_until(lambda: query.lastProgress is not None)
        topics.fill(topic, {1: bodies("d", 3)})
        wait_until(lambda: asyncio.run(committed()) == [30, 10])  # though no other micro-batch follows
    finally:
        query.stop()


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_mistake_in_the_options_of_a_stream_is_named(session, topics, tmp_path, available_now, restart):
    topic = topics.make(queues=1)

    def run(**options: object) -> None:
        stream = session.readStream.format("rocketmq").options(**topics.options(topic, **options)).load()
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = (writer.trigger(availableNow=True) if available_now else writer).start()
        query.awaitTermination(60)

    if restart:
        topics.fill(topic, {0: bodies("a", 1)})
        stream = session.readStream.format("rocketmq").options(**topics.options(topic)).load()
        written = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert written.trigger(availableNow=True).start().awaitTermination(60)
    with pytest.raises(Exception, match="OptionError: option 'maxTriggerDelay' must be like 500ms") as raised:
        run(maxTriggerDelay="5")
    assert "Traceback" not in str(raised.value)


def test_a_micro_batch_waits_for_enough_messages_but_not_for_ever(session, topics):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 3)})
    query = (
        session.readStream.format("rocketmq")
        .options(
            **topics.options(topic, startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="8s")
        )
        .load()
        .writeStream.format("memory")
        .queryName("held_back")
        .start()
    )
    lag = LagListener()
    session.streams.addListener(lag)

    def wait_for(count: int, seconds: float) -> float:
        began = time.monotonic()
        while session.table("held_back").count() < count:
            assert time.monotonic() - began < seconds
            time.sleep(0.1)
        return time.monotonic() - began

    try:
        wait_for(3, 60)
        topics.fill(topic, {0: bodies("b", 4)})
        assert wait_for(7, 60) > 3, "four messages wait for the delay"
        topics.fill(topic, {0: bodies("c", 12)})
        wait_for(19, 60)
        deadline = time.monotonic() + 30
        while "held_back" not in lag.last and time.monotonic() < deadline:
            time.sleep(0.1)
        assert lag.last["held_back"].by_queue.keys() == {f"{topic}/broker-a:0"}
    finally:
        session.streams.removeListener(lag)
        query.stop()
