"""replay, restore and mirror with real Spark: what they write, and that a second run adds nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from batonmq import Admin, Message, MessageQueue
from batonmq.client.offsets import GroupOffsets
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.routing.session import Session
from batonmq.spark.jobs import archive, dlq, mirror, replay, restore
from batonmq.sync import QueueReader

from .conftest import BROKER, ClusterOf, Topics, bodies, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ = (
    "value binary, queueId int, queueOffset bigint, keys string, tags string, properties map<string,string>"
)


def tagged(topic: str, count: int) -> list[Message]:
    return [
        Message(topic, f"m{i}".encode(), tags=f"t{i % 2}", keys=f"k{i}", properties={"n": str(i)})
        for i in range(count)
    ]


def test_a_replay_writes_what_the_filter_lets_through_once(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    one, two = topics.make(), topics.make(queues=3)
    topics.fill(one, {0: tagged(one, 40), 1: tagged(one, 60)})
    wanted = replay.Replay(topics.namesrv, one, two, tmp_path / "state", where="tags = 't1'", rate=1_000)
    seen: list[tuple[int, int]] = []
    done = replay.run(session, wanted, progress=lambda *p: seen.append(p))
    topics.fill(one, {0: tagged(one, 10)})  # not in the window of the first run
    again = replay.run(session, wanted)
    assert (done.rows, done.skipped, again.rows, again.skipped) == (100, 0, 100, again.chunks)
    assert seen[-1] == (100, 100)
    found = topics.read(session, two, READ).collect()
    assert len(found) == 50 and {row["tags"] for row in found} == {"t1"}
    assert all(row["keys"] == f"k{row['properties']['n']}" for row in found)


def test_a_replay_in_chunks_is_whole_and_keeps_its_queues(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    one, two = topics.make(), topics.make()
    topics.fill(one, {0: bodies("a", 30), 1: bodies("b", 50)})
    wanted = replay.Replay(topics.namesrv, one, two, tmp_path / "state", rate=5, keep_queues=True)
    done = replay.run(session, wanted, sleep=lambda _: None)
    assert done.chunks == 4  # of 25 messages
    rows = topics.read(session, two, READ).orderBy("queueId", "queueOffset").collect()
    assert [bytes(row["value"]) for row in rows] == [*bodies("a", 30), *bodies("b", 50)]


def test_an_archive_comes_back_in_the_order_of_its_queues(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    one, two, three = topics.make(), topics.make(), topics.make(queues=1)
    topics.fill(one, {0: tagged(one, 50), 1: bodies("b", 70)})
    archive.finish(archive.start(session, namesrv=topics.namesrv, topic=one, target=tmp_path / "archive"))

    def queues(topic: str):  # type: ignore[no-untyped-def]
        with QueueReader(topics.namesrv) as reader:
            return reader.queues(topic)

    for target in (two, three):
        wanted = restore.Restore(
            topics.namesrv, str(tmp_path / "archive"), tmp_path / target, topic=one, target=target
        )
        done = restore.run(session, wanted, queues=queues)
        again = restore.run(session, wanted, queues=queues)
        assert (done.rows, done.skipped, again.rows, again.skipped) == (120, 0, 0, again.dates)
    rows = topics.read(session, two, READ).orderBy("queueId", "queueOffset").collect()
    assert [bytes(row["value"]) for row in rows] == [b"m%d" % i for i in range(50)] + bodies("b", 70)
    assert rows[3]["tags"] == "t1" and rows[3]["keys"] == "k3"
    merged = values(topics.read(session, three, READ).orderBy("queueOffset"))
    assert [v for v in merged if v.startswith(b"m")] == [b"m%d" % i for i in range(50)]
    assert [v for v in merged if v.startswith(b"b")] == bodies("b", 70)


def test_a_mirror_copies_queues_in_order_and_translates_the_offsets_of_groups(
    session: SparkSession, topics: Topics, cluster_of: ClusterOf, tmp_path: Path
) -> None:
    one = topics.make()
    topics.fill(one, {0: bodies("a", 30), 1: bodies("b", 50)})
    there = Topics(cluster_of().namesrv_address)
    wanted = mirror.Mirror(topics.namesrv, there.namesrv, (one,), tmp_path, groups=("billing",))
    lanes = asyncio.run(mirror.prepare(wanted))

    async def offsets(namesrv: str, commit: dict[int, int]) -> list[int | None]:
        known = Session(namesrv)
        try:
            group = GroupOffsets(known, "billing")
            queues = [MessageQueue(one, BROKER, number) for number in range(2)]
            for number, offset in commit.items():
                await group.commit(queues[number], offset)
            return [await group.read(queue) for queue in queues]
        finally:
            await known.close()

    for round_ in range(2):
        mirror.start(session, wanted, lanes, every=None, max_offsets_per_trigger=25).awaitTermination()
        assert asyncio.run(mirror.prepare(wanted)) == lanes
        rows = there.read(session, one, READ).orderBy("queueId", "queueOffset").collect()
        found = [[bytes(row["value"]) for row in rows if row["queueId"] == queue] for queue in range(2)]
        assert found == [bodies("a", 30 + 5 * round_), bodies("b", 50)]
        topics.fill(one, {0: bodies("a", 5, first=30)})

    async def create_group() -> None:
        async with Admin(topics.namesrv) as admin:
            await admin.create_group(SubscriptionGroupConfig(group_name="billing"))

    asyncio.run(create_group())
    asyncio.run(offsets(topics.namesrv, {0: 12, 1: 40}))
    assert asyncio.run(mirror.translate(wanted, lanes)) == 2
    assert asyncio.run(offsets(there.namesrv, {})) == [12, 40]
    asyncio.run(offsets(there.namesrv, {0: 20}))  # consumers have moved to the target
    asyncio.run(offsets(topics.namesrv, {0: 13, 1: 41}))
    assert asyncio.run(mirror.translate(wanted, lanes)) == 1
    assert asyncio.run(offsets(there.namesrv, {})) == [20, 41]


def test_dead_letters_are_counted_and_sent_again_once(
    session: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    origin, group = topics.make(), "dlq-group"
    dead = topics.make(f"%DLQ%{group}", queues=1)
    letters = [
        Message(dead, b"m%d" % i, tags=f"t{i % 2}", properties={"DLQ_ORIGIN_TOPIC": origin}) for i in range(9)
    ]
    topics.fill(dead, {0: letters})
    frame = (
        session.read.format("rocketmq")
        .schema(replay.COLUMNS)
        .options(namesrvAddr=topics.namesrv, subscribe=dead)
        .load()
    )
    found = dlq.deaths(frame)
    assert [(death.topic, death.tags, death.count) for death in found] == [
        (origin, "t0", 5),
        (origin, "t1", 4),
    ]
    wanted = replay.Replay(topics.namesrv, dead, None, tmp_path / "state", where="tags = 't1'")
    for _ in range(2):
        replay.run(session, wanted)
    rows = topics.read(session, origin, READ).collect()
    assert sorted(bytes(row["value"]) for row in rows) == [b"m1", b"m3", b"m5", b"m7"]
    assert all("DLQ_ORIGIN_TOPIC" not in row["properties"] for row in rows)
