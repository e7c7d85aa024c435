"""Reads and writes of a static topic whose queues move between two broker sets."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from batonmq import Message
from batonmq.admin.operations import static_topics
from batonmq.admin.session import Admin
from batonmq.demo.cluster import LocalCluster
from batonmq.sync import Producer

from .conftest import Topics, bodies, values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

BLOCK = 10_000
SCHEMA = "value binary, broker string, queueId int, queueOffset bigint"


class Moving(Topics):
    """Topics of two broker sets, `a` and `b`."""

    async def _carry_out(self, topic: str, brokers: Sequence[str], queues: int | None) -> None:
        async with Admin(self.namesrv) as admin:
            if queues is not None:
                _, plan = await static_topics.plan_queues(admin, topic, queues, brokers)
                await static_topics.update(admin, plan)
            else:
                _, plan = await static_topics.plan_remapping(admin, topic, brokers)
                await static_topics.remap(admin, plan)

    def make_static(self, topic: str, queues: int, *brokers: str) -> str:
        asyncio.run(self._carry_out(topic, brokers, queues))
        return topic

    def move(self, topic: str, *brokers: str) -> None:
        asyncio.run(self._carry_out(topic, brokers, None))

    def send(self, topic: str, items: Sequence[bytes]) -> None:
        """To its queues in turn."""
        with Producer("filler", self.namesrv, send_timeout_ms=20_000) as producer:
            for item in items:
                producer.send(Message(topic, item))


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moving]:
    directory: Path = tmp_path_factory.mktemp("sets")
    with LocalCluster(directory / "a", replicas=1, broker_name="a") as first:
        namesrv = first.namesrv_address
        with LocalCluster(
            directory / "b", replicas=1, broker_name="b", broker_settings={"namesrvAddr": namesrv}
        ):
            asyncio.run(both_there(namesrv))
            yield Moving(namesrv)


async def both_there(namesrv: str) -> None:
    async with Admin(namesrv) as admin:
        while len(await admin.masters()) < 2:
            await asyncio.sleep(0.05)


def test_a_batch_reads_all_parts(session, moving):
    topic = moving.make_static("batch", 2, "a")
    moving.send(topic, bodies("old", 40))
    before_ms = int(time.time() * 1000) + 1  # the last one may have been stored in this millisecond
    while time.time() * 1000 < before_ms:
        time.sleep(0.0005)
    moving.move(topic, "b")
    moving.send(topic, bodies("new", 20))
    moving.move(topic, "a", "b")
    moving.send(topic, bodies("newer", 20))
    rows = moving.read(session, topic, SCHEMA, minPartitions=7).collect()
    assert sorted(bytes(row["value"]) for row in rows) == sorted(
        bodies("old", 40) + bodies("new", 20) + bodies("newer", 20)
    )
    assert {row["broker"] for row in rows} == {"__syslo__global__"}
    places = [(row["queueId"], row["queueOffset"]) for row in rows]
    assert len(set(places)) == 80
    assert {queue for queue, _ in places} == {0, 1}
    assert {offset // BLOCK for _, offset in places} == {0, 1, 2}
    later = values(moving.read(session, topic, startingTimestamp=before_ms))
    assert sorted(later) == sorted(bodies("new", 20) + bodies("newer", 20))
    earlier = values(moving.read(session, topic, endingTimestamp=before_ms))
    assert sorted(earlier) == sorted(bodies("old", 40))


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": 4_000}])
def test_a_stream_continues_through_moves(session, moving, tmp_path, limit):
    topic = moving.make_static(f"stream{len(limit)}", 2, "a")
    seen: list[bytes] = []
    query = (
        session.readStream.format("rocketmq")
        .schema(SCHEMA)
        .options(**moving.options(topic, startingOffsets="earliest", **limit))
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, number: seen.extend(values(frame)))
        .start()
    )
    sent: list[bytes] = []
    try:
        for number, brokers in enumerate([("a",), ("b",), ("a", "b"), ("a",)]):
            if number:
                moving.move(topic, *brokers)
            sent += bodies(f"{number}-", 30)
            moving.send(topic, sent[-30:])
            query.processAllAvailable()
            assert sorted(seen) == sorted(sent)
    finally:
        query.stop()


def test_the_sink_writes_through_a_move(session, moving):
    topic = moving.make_static("sink", 4, "a")
    frame = session.createDataFrame([(body,) for body in bodies("x", 100)], "value binary")
    frame.write.format("rocketmq").options(namesrvAddr=moving.namesrv, topic=topic).mode("append").save()
    moving.move(topic, "b")
    frame.write.format("rocketmq").options(namesrvAddr=moving.namesrv, topic=topic).mode("append").save()
    assert sorted(values(moving.read(session, topic))) == sorted(2 * bodies("x", 100))
