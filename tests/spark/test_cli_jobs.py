"""Each job of `batonmq spark` from the command line to real brokers: its output, its exit code, its result.

The jobs' details have their own tests; `test_cli.py` has archive and audit.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batonmq import Admin, Message
from batonmq.client.message import PROPERTY_DLQ_ORIGIN_TOPIC
from batonmq.client.offsets import GroupOffsets
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.names import dead_letter_topic
from batonmq.routing.session import Session

from .conftest import BROKER, Topics, bodies, values, whole_group
from .test_cli import batonmq_spark

FAST = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")
pytestmark = pytest.mark.timeout(240)


def ran(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = batonmq_spark(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def commit(namesrv: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit offsets of a group, as its consumers do."""

    async def work() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_group(SubscriptionGroupConfig(group_name=group))
        session = Session(namesrv)
        try:
            known = GroupOffsets(session, group)
            for queue_id, offset in offsets.items():
                await known.commit(MessageQueue(topic, BROKER, queue_id), offset)
        finally:
            await session.close()

    asyncio.run(work())


def test_lag(topics, tmp_path):
    topic = topics.make(queues=2)
    tagged = [Message(topic, b"0123456789", tags="paid") for _ in range(30)]
    topics.fill(topic, {0: tagged, 1: bodies("b", 10)})
    commit(topics.namesrv, "billing", topic, {0: 5, 1: 10})
    common = ("lag", "-n", topics.namesrv, "-t", topic)
    done = ran(*common, "--json", "--contents", "--out", tmp_path / "out", *FAST)
    result = json.loads(done.stdout)
    (reader,) = result["readers"]
    assert (reader["reader"], reader["behind"], reader["worst"]) == ("billing", 25, "broker-a:0")
    assert 0 < reader["oldest_ms"] <= result["at_ms"]
    (unread,) = result["contents"]
    assert (unread["tags"], unread["messages"], unread["bytes"]) == ("paid", 25, 250)
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
    late = ran(*common, "--max-behind", 24, "--samples", 2, "--every", 0.5, code=1)
    assert "25 messages behind" in late.stderr
    assert "never, at this rate" in late.stdout
    assert "Error: " in ran("lag", "-n", topics.namesrv, "-g", "nobody", "-t", topic, code=1).stderr


def test_lag_of_a_stream_without_group(session, topics, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 40)})
    stream = session.readStream.format("rocketmq").options(
        **topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    )
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    topics.fill(topic, {0: bodies("b", 7)})
    done = ran("lag", "-n", topics.namesrv, "--checkpoint", tmp_path / "checkpoint", "--json")
    (reader,) = json.loads(done.stdout)["readers"]
    assert (reader["topic"], reader["behind"]) == (topic, 7)


def test_skew(topics, tmp_path):
    topic = topics.make(queues=3)
    hot = [Message(topic, b"x" * 10, keys="hot") for _ in range(60)]
    topics.fill(topic, {0: hot, 1: bodies("k", 40)})
    common = ("skew", "-n", topics.namesrv, "-t", topic, *FAST)
    done = ran(*common, "--json", "--max-share", 0.5, "--out", tmp_path / "out", code=1)
    result = json.loads(done.stdout)
    assert (result["messages"], result["keys"]) == (100, 41)
    assert (result["top"][0]["key"], result["top"][0]["share"]) == ("hot", 0.6)
    assert {queue["queue"]: queue["messages"] for queue in result["queues"]} == {
        "broker-a:0": 60,
        "broker-a:1": 40,
        "broker-a:2": 0,
    }
    assert result["wrong"] == ["key hot has 60.0% of the messages"]
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") == 2
    ran("skew", "-t", topic, code=2)


def test_rollup(topics, tmp_path):
    topic = topics.make(queues=1)
    flight = {"year": 2013, "month": 1, "day": 1, "hour": 5, "carrier": "UA", "dep_delay": 2, "arr_delay": 11}
    topics.fill(topic, {0: [Message(topic, json.dumps(flight).encode())] * 3})
    done = ran("rollup", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "hours", *FAST)
    assert "UA" in done.stdout and "11.0" in done.stdout
    assert list((tmp_path / "hours").glob("*.parquet"))


def test_rollup_of_nothing_says_why(topics):
    topic = topics.make(queues=1)
    said = ran("rollup", "-n", topics.namesrv, "-t", topic, *FAST).stdout
    assert said == f"nothing to show: topic {topic!r} has no message\n"


def test_archive_then_restore(session, topics, tmp_path):
    topic, target = topics.make(queues=2), topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", 30), 1: bodies("b", 20)})
    ran("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "archive", *FAST)
    restore = ("restore", "-n", topics.namesrv, "--archive", tmp_path / "archive", "--to", target)
    restore += ("--state", tmp_path / "state", *FAST)
    assert "restored 50 messages" in ran(*restore).stdout
    rows = topics.read(session, target).orderBy("queueId", "queueOffset")
    assert values(rows) == [*bodies("a", 30), *bodies("b", 20)]
    assert "1 of 1 date was done before" in ran(*restore).stdout
    assert topics.read(session, target).count() == 50


def test_replay(session, topics, tmp_path):
    topic, target = topics.make(queues=1), topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 30)})
    replay = ("replay", "-n", topics.namesrv, "-t", topic, "--to", target, "--state", tmp_path / "state")
    replay += ("--where", "cast(value as string) < 'a2'", *FAST)
    assert "read 30 messages and sent those for which --where is true" in ran(*replay).stdout
    wanted = [body for body in bodies("a", 30) if body < b"a2"]
    assert sorted(values(topics.read(session, target))) == sorted(wanted)
    ran(*replay)
    assert topics.read(session, target).count() == len(wanted)
    assert (
        "twice"
        in ran("replay", "-n", topics.namesrv, "-t", topic, "--to", topic, "--state", tmp_path, code=2).stderr
    )


def test_mirror(session, topics, cluster_of, tmp_path):
    topic = topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", 30), 1: bodies("b", 20)})
    commit(topics.namesrv, "movers", topic, {0: 12, 1: 20})
    other = cluster_of()
    asyncio.run(whole_group(other))
    mirror = ("mirror", "-n", topics.namesrv, "--to-namesrv", other.namesrv_address, "-t", topic)
    mirror += ("-g", "movers", "--once", "--state", tmp_path / "state", *FAST)
    ran(*mirror)
    options = {"namesrvAddr": other.namesrv_address, "subscribe": topic}
    rows = session.read.format("rocketmq").options(**options).load().orderBy("queueId", "queueOffset")
    assert values(rows) == [*bodies("a", 30), *bodies("b", 20)]
    lag = json.loads(ran("lag", "-n", other.namesrv_address, "-g", "movers", "-t", topic, "--json").stdout)
    assert lag["readers"][0]["behind"] == 18
    ran(*mirror)
    assert rows.count() == 50


def test_a_cluster_by_another_name_is_not_a_second_cluster(topics, tmp_path):
    """A mirror would copy its own copies, without end."""
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 3)})
    other_name = topics.namesrv.replace("127.0.0.1", "localhost")
    places = ("-n", topics.namesrv, "--to-namesrv", other_name, "-t", topic, "--state", tmp_path / "state")
    for job in (("mirror", "--once"), ("replay", "--to", topic)):
        said = ran(*job, *places, *FAST, code=2).stderr
        assert "--to-namesrv is the source itself" in said and "Spark" not in said
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_archive_that_is_stopped_ends_in_order(session, topics, tmp_path, number):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("a", 30)})
    command = ("archive", "-n", topics.namesrv, "-t", topic, "--to", tmp_path / "archive", *FAST)
    running = subprocess.Popen(
        [sys.executable, "-m", "batonmq", "spark", *map(str, command), "--every", "1 second"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        while not (tmp_path / "archive" / "_checkpoint" / "commits" / "0").exists():
            assert running.poll() is None
            time.sleep(0.1)
        os.killpg(running.pid, number)
        said, errors = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0 and not re.search(r"Traceback|^\tat ", errors, re.MULTILINE), errors
    assert said.startswith("archived 30 messages in 1 batch,")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_replay_that_is_stopped_ends_in_order_and_continues(session, topics, tmp_path, number):
    """Ctrl-C in a call of Spark's JVM left 57 lines of tracebacks."""
    topic, target, state = topics.make(queues=1), topics.make(queues=1), tmp_path / "state"
    topics.fill(topic, {0: bodies("a", 30)})
    command = ("replay", "-n", topics.namesrv, "-t", topic, "--to", target, "--state", state, *FAST)
    running = subprocess.Popen(
        [sys.executable, "-m", "batonmq", "spark", *map(str, command), "--rate", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        while not (state / "chunk-0" / "run").exists():
            assert running.poll() is None
            time.sleep(0.01)
        os.killpg(running.pid, number)  # as a terminal does
        said, errors = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 1 and not said, errors
    assert not re.search(r"Traceback|^\tat ", errors, re.MULTILINE), errors
    assert errors.splitlines()[-1] == "Error: stopped; the same command continues"
    assert topics.read(session, target).count() < 30
    ran(*command)
    assert sorted(values(topics.read(session, target))) == sorted(bodies("a", 30))


def test_dead_letters_and_their_redrive(session, topics, tmp_path):
    origin = topics.make(queues=1)
    group = f"billing-{origin}"
    letters = topics.make(dead_letter_topic(group), queues=1)
    dead = [
        Message(letters, body, tags="paid", properties={PROPERTY_DLQ_ORIGIN_TOPIC: origin})
        for body in bodies("m", 3)
    ]
    topics.fill(letters, {0: dead})
    dlq = ("dlq", "-n", topics.namesrv, "-g", group, *FAST)
    (found,) = json.loads(ran(*dlq, "--json", code=1).stdout)
    assert (found["topic"], found["tags"], found["count"]) == (origin, "paid", 3)
    ran(*dlq, "--redrive", "--state", tmp_path / "state")
    assert sorted(values(topics.read(session, origin))) == bodies("m", 3)


def test_audit_of_equal_and_of_different_replicas(session, topics, cluster, tmp_path):
    topic = topics.make(queues=1)
    topics.fill(topic, {0: bodies("k", 3)})
    schema = "key string, status string, queue string, offset long, sent_us long, acked_us long"
    history = [(f"k{i}", "acked", f"{BROKER}:0", i, 10 + i, 20 + i) for i in range(3)]
    session.createDataFrame(history, schema).write.parquet(str(tmp_path / "history"))
    audit = ("audit", "-n", topics.namesrv, "-t", topic, "--history", tmp_path / "history")
    stores = [part for number in range(2) for part in ("--store", cluster.store_path(number))]
    done = ran(*audit, *stores, "--json", *FAST)
    report = json.loads(done.stdout)
    assert (report["sent"], report["lost"]) == (3, 0)
    assert report["replicas"]["first_difference"] is None


def test_failover_report_of_a_killed_master(cluster_of, tmp_path):
    """The report has the election, with the sets and the producer's gap."""
    from batonmq.demo.group import Group
    from batonmq.demo.history import History, now_us
    from batonmq.sync import Producer

    cluster = cluster_of()
    state = asyncio.run(whole_group(cluster))
    topic = Topics(cluster.namesrv_address).make(queues=1)
    history = History()

    def send(producer: Producer, count: int) -> None:
        for _ in range(count):
            key, sent_us = f"k{len(history)}", now_us()
            result = producer.send(Message(topic, b"x", keys=key))
            history.acked(key, f"{BROKER}:{result.queue.queue_id}", result.queue_offset, sent_us, now_us())

    with Producer("p", cluster.namesrv_address, send_timeout_ms=30_000) as producer:
        send(producer, 50)
        cluster.broker_at(state.master_address).kill()
        send(producer, 50)
    history.write(cluster.directory / "history.parquet")

    async def new_state():
        group = Group(cluster.controller_addresses, cluster.broker_name)
        try:
            return await group.state()
        finally:
            await group.close()

    now = asyncio.run(new_state())
    report = ("failover-report", "--dir", cluster.directory, *FAST)
    result = json.loads(ran(*report, "--json", "--out", tmp_path / "out").stdout)
    first, second = result["elections"]
    assert (first["cause"], first["old_master"], first["master_epoch"]) == ("broker", None, 1)
    assert (second["cause"], second["master_epoch"]) == ("channel-closed", now.master_epoch)
    assert (second["before"], second["after"]) == ([1, 2], [second["new_master"]])
    assert second["served_ms"] >= second["time_ms"] and second["start_offset"] > 0
    acks = history.acks_us()
    longest_ms = max(b - a for a, b in itertools.pairwise(acks)) / 1000
    gaps = {o["producer"]: o["gap_ms"] for o in result["outages"] if o["master_epoch"] == now.master_epoch}
    assert gaps == {"history": longest_ms, "all producers": longest_ms}
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") == 2
    assert "waited" in ran(*report, "--max-gap", longest_ms / 2000, code=1).stdout


def test_what_cannot_be_used_is_one_line(tmp_path: Path):
    (tmp_path / "events.jsonl").write_text('{"time_ms": 1, "event": "leader"}\n{"half a li')
    done = ran("failover-report", "--dir", tmp_path, "--json", *FAST)
    assert json.loads(done.stdout)["notes"] == ["1 line of the events is damaged and left out"]
    assert "no source of elections" in ran("failover-report", code=2).stderr
    assert "no time zone" in ran("failover-report", "--dir", tmp_path, "--log-zone", "Mars/X", code=2).stderr
    assert "is not a checkpoint" in ran("lag", "-n", "127.0.0.1:1", "--checkpoint", tmp_path, code=1).stderr
