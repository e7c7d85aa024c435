"""What brokers select for Spark, and Spark's own filters."""

from __future__ import annotations

import asyncio

import pytest

from batonmq import Message
from batonmq.demo.cluster import LocalCluster

from .conftest import Topics
from .test_failover import _gave

COUNT = 400
COLUMNS = "value binary, topic string, queueId int, queueOffset bigint, timestamp timestamp, tags string"


@pytest.fixture(scope="module")
def cluster_of_module(tmp_path_factory):
    """Brokers that filter by properties."""
    settings = {"enablePropertyFilter": "true"}
    with LocalCluster(tmp_path_factory.mktemp("filters"), broker_settings=settings) as made:
        yield made


@pytest.fixture(scope="module")
def filled(topics_of_module: Topics) -> str:
    """A topic of two queues: message n of a queue has tag "a", "b" or "c" and the property n."""
    topic = topics_of_module.make(queues=2)
    queues = {
        queue: [Message(topic, b"%d" % n, tags="abc"[n % 3], properties={"n": str(n)}) for n in range(COUNT)]
        for queue in (0, 1)
    }
    topics_of_module.fill(topic, queues)
    return topic


@pytest.fixture(scope="module")
def topics_of_module(cluster_of_module) -> Topics:
    return Topics(cluster_of_module.namesrv_address)


@pytest.fixture(scope="module")
def given(cluster_of_module):
    """How many messages the brokers have given since the last call."""
    before = 0

    def count() -> int:
        nonlocal before
        total = sum(asyncio.run(_gave(b.address, lambda _: True)) for b in cluster_of_module.brokers)
        since, before = total - before, total
        return since

    return count


def rows(frame) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in frame.collect())


def offsets(wanted) -> list[tuple[int, int]]:
    return [(queue, n) for queue in (0, 1) for n in range(COUNT) if wanted(queue, n)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"tags": "a"}, lambda _, n: n % 3 == 0),
        ({"tags": " a || c "}, lambda _, n: n % 3 != 1),
        ({"tags": "x"}, lambda _, n: False),
        ({"sql": "n > 100 AND TAGS = 'b'"}, lambda _, n: n > 100 and n % 3 == 1),
    ],
)
def test_brokers_select(session, topics_of_module, filled, given, options, wanted):
    given()
    expected = offsets(wanted)
    assert rows(topics_of_module.read(session, filled, COLUMNS, **options)) == expected
    assert given() == len(expected)
    assert rows(topics_of_module.read(session, filled, COLUMNS, minPartitions=5, **options)) == expected


def test_a_stream_reads_what_brokers_select(session, topics_of_module, filled, tmp_path):
    stream = session.readStream.format("rocketmq").schema("queueId int, queueOffset bigint")
    stream = stream.options(**topics_of_module.options(filled, tags="b", startingOffsets="earliest"))
    query = (
        stream.option("maxOffsetsPerTrigger", 150)
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert rows(session.read.parquet(str(tmp_path / "out"))) == offsets(lambda _, n: n % 3 == 1)
    assert len(query.recentProgress) > 4


def test_a_filter_goes_with_the_option(session, topics_of_module, filled):
    frame = topics_of_module.read(session, filled, COLUMNS, tags="a || b").where("tags IN ('b', 'c')")
    assert rows(frame) == offsets(lambda _, n: n % 3 == 1)


@pytest.mark.parametrize("pushdown", ["true", "false"])
@pytest.mark.parametrize("offline", [False, True])
def test_each_use_of_a_frame_has_its_own_filter(
    session, topics_of_module, cluster_of_module, filled, pushdown, offline
):
    """Spark keeps one plan for all uses of a frame."""
    key = "spark.sql.python.filterPushdown.enabled"
    held = session.conf.get(key)
    session.conf.set(key, pushdown)
    try:
        if offline:
            reader = session.read.format("rocketmq-store").schema(COLUMNS).option("subscribe", filled)
            frame = reader.load(str(cluster_of_module.store_path(0)))
        else:
            frame = topics_of_module.read(session, filled, COLUMNS)
        some = "tags = 'a' AND queueId = 1"
        assert rows(frame.where(some)) == offsets(lambda q, n: q == 1 and n % 3 == 0)
        assert rows(frame) == offsets(lambda q, n: True)
        both = frame.where(some).union(frame.where("queueOffset < 10 AND queueId = 0"))
        wanted = offsets(lambda q, n: (q == 1 and n % 3 == 0) or (q == 0 and n < 10))
        assert rows(both) == wanted
    finally:
        session.conf.set(key, held)


def test_a_wrong_expression_is_one_line(session, topics_of_module, filled, cluster):
    with pytest.raises(Exception, match=r"OptionError: option 'sql': Invalid MessageSelector"):
        topics_of_module.read(session, filled, COLUMNS, sql="n >").collect()
    elsewhere = Topics(cluster.namesrv_address)
    with pytest.raises(Exception, match=r"option 'sql': the broker at .* set enablePropertyFilter=true"):
        elsewhere.read(session, elsewhere.make(), COLUMNS, sql="n > 1").collect()
