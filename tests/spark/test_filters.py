"""What brokers select for Spark, and what Spark's filters leave out of a batch read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

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


def at(hours: int) -> str:
    """A time so many hours from now, as a literal."""
    return f"timestamp'{(datetime.now(UTC) + timedelta(hours=hours)).isoformat()}'"


FILTERS = [
    ("queueId = 1", lambda q, _: q == 1, lambda q, _: q == 1),
    ("tags = 'a'", lambda _, n: n % 3 == 0, lambda _, n: n % 3 == 0),
    ("tags IN ('a', 'b')", lambda _, n: n % 3 < 2, lambda _, n: n % 3 < 2),
    ("queueOffset >= 10 AND queueOffset < 30", lambda _, n: 10 <= n < 30, lambda _, n: 10 <= n <= 30),
    ("queueOffset > 1000000", lambda q, n: False, lambda q, n: False),
    ("broker = 'nobody'", lambda q, n: False, lambda q, n: False),
    ("topic = 'other'", lambda q, n: False, lambda q, n: False),
    (f"timestamp > {at(2)}", lambda q, n: False, lambda q, n: False),
    (f"timestamp < {at(-2)}", lambda q, n: False, lambda q, n: False),
    (f"timestamp < {at(2)}", lambda q, n: True, lambda q, n: True),
    ("length(value) = 1", lambda _, n: n < 10, lambda q, n: True),
]
"""Filter, the rows that it accepts, the messages that are read."""


@pytest.mark.parametrize("case", range(len(FILTERS)))
def test_sparks_filters_leave_out_messages(session, topics_of_module, filled, given, case):
    condition, wanted, read = FILTERS[case]
    given()
    frame = topics_of_module.read(session, filled, f"{COLUMNS}, broker string")
    assert rows(frame.where(condition)) == offsets(wanted)
    assert given() == len(offsets(read))


def test_a_filter_goes_with_the_option(session, topics_of_module, filled):
    frame = topics_of_module.read(session, filled, COLUMNS, tags="a || b").where("tags IN ('b', 'c')")
    assert rows(frame) == offsets(lambda _, n: n % 3 == 1)


def test_without_filter_pushdown_all_is_read_and_filtered(session, topics_of_module, filled):
    key = "spark.sql.python.filterPushdown.enabled"
    held = session.conf.get(key)
    session.conf.set(key, "false")
    try:
        frame = topics_of_module.read(session, filled, COLUMNS).where("tags = 'a' AND queueId = 1")
        assert rows(frame) == offsets(lambda q, n: q == 1 and n % 3 == 0)
    finally:
        session.conf.set(key, held)


def test_a_wrong_expression_is_one_line(session, topics_of_module, filled, cluster):
    with pytest.raises(Exception, match=r"OptionError: option 'sql': Invalid MessageSelector"):
        topics_of_module.read(session, filled, COLUMNS, sql="n >").collect()
    elsewhere = Topics(cluster.namesrv_address)
    with pytest.raises(Exception, match=r"option 'sql': the broker at .* set enablePropertyFilter=true"):
        elsewhere.read(session, elsewhere.make(), COLUMNS, sql="n > 1").collect()
