"""Reads of selected messages, as the Spark source does them, from RocketMQ's brokers."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonmq import Message, MessageQueue, Producer, QueueReader
from batonmq.spark.fetch import fetcher
from batonmq.spark.options import OptionError, parse_read_options
from batonmq.spark.plan import ranges, resolve
from tests.interop.conftest import Peer, fetch
from tests.interop.test_client_features_against_java import create, start_cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
COUNT = 3_000
TAGS = ("Aa", "BB", "c")
"""The first two have one hash code in Java."""


def read(namesrv: str, **options: str) -> list[int]:
    """The numbers in the messages that Spark's tasks read."""
    given = parse_read_options({"namesrvAddr": namesrv, "subscribe": "t", **options}, streaming=False)
    with fetcher(given) as fetch:
        fetch.check_filter()
        bounds = fetch.bounds()
        start = resolve(given.starting_offsets, bounds, name="startingOffsets")
        end = resolve(given.ending_offsets, bounds, name="endingOffsets")
        work = ranges(start, end, min_partitions=given.min_partitions)
        batches = [batch for part in work for batch in fetch.read(part, ("value",))]
    return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


@pytest.fixture(params=["4.9.7", None], ids=["4.9.7", "newest"])
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Peer]:
    """RocketMQ 4.9 answers a search by time with the nearest message."""
    fetch(request.param)
    made = Peer(tmp_path, request.param)
    yield made
    made.stop_all()


async def test_the_first_message_after_a_time_is_found(release: Peer) -> None:
    namesrv = await start_cluster(release, "java-a")
    await create(namesrv, {"t": 1})
    queue = MessageQueue("t", "java-a", 0)
    async with Producer("p", namesrv, send_timeout_ms=30_000) as producer:
        for n in range(30):
            await producer.send(Message("t", b"%d" % n), queue=queue)
            await asyncio.sleep(0.012 * (n % 3))
    async with QueueReader(namesrv) as reader:
        times = [message.store_timestamp async for message in reader.messages("t")]
        assert times == sorted(times) and len(times) == 30
        for at in {t + d for t in times for d in (-1, 0, 1)} | {0, times[-1] + 86_400_000}:
            assert await reader.offset_at(queue, at) == bisect_left(times, at), at


async def test_rocketmqs_brokers_select_by_tags_and_by_sql(peer: Peer) -> None:
    namesrv = await start_cluster(peer, "java-a", settings={"enablePropertyFilter": "true"})
    await create(namesrv, {"t": 2})
    async with Producer("p", namesrv, send_timeout_ms=30_000) as producer:
        for begin in range(0, COUNT, 100):
            await producer.send(
                [
                    Message("t", b"%d" % n, tags=TAGS[n % 3], properties={"n": str(n)})
                    for n in range(begin, begin + 100)
                ]
            )
    for options, wanted in (
        ({"tags": "Aa"}, lambda n: n % 3 == 0),
        ({"tags": "BB || c"}, lambda n: n % 3 > 0),
        ({"tags": "x"}, lambda n: False),
        ({"sql": "n BETWEEN 1000 AND 1999 AND TAGS = 'BB'"}, lambda n: 1000 <= n < 2000 and n % 3 == 1),
    ):
        for partitions in ("2", "7"):
            found = await asyncio.to_thread(read, namesrv, minPartitions=partitions, **options)
            assert found == [n for n in range(COUNT) if wanted(n)], options
    with pytest.raises(OptionError, match="option 'sql': "):
        await asyncio.to_thread(read, namesrv, sql="n >")
