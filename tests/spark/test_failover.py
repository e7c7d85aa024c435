"""Reads and archive jobs that go on through a ``kill -9``: of the master, and of the job."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from batonmq.net import RemotingClient
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.admin import GetBrokerRuntimeInfo
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.json import decode

from .conftest import Topics, bodies, whole_group

COUNT = 6_000


async def _gave(address: str, enough: Callable[[int], bool]) -> int:
    """How many messages this broker has given to readers, once that is enough."""
    client = RemotingClient()
    try:
        async with asyncio.timeout(60):
            while True:
                answer = await client.call(address, GetBrokerRuntimeInfo())
                given = int(decode(bytes(answer.body), KVTable).table["msgGetTotalTodayNow"])
                if enough(given):
                    return given
                await asyncio.sleep(0.001)
    finally:
        await client.close()


async def _serves_all(slave: str, topic: str, queues: Iterable[int]) -> None:
    """Returns once a slave gives the last message of each queue. It gets the confirm offset after the ack."""
    client = RemotingClient()
    try:
        async with asyncio.timeout(60):
            for queue in queues:
                while True:
                    last = PullMessage.at_once("look", topic, queue, COUNT - 1, 1, 1 << 20)
                    answer = await client.invoke(slave, Command(int(PullMessage.code), last.to_ext()))
                    if answer.code == ResponseCode.SUCCESS:
                        break
                    await asyncio.sleep(0.05)
    finally:
        await client.close()


def test_a_read_continues_at_the_new_master(session, cluster_of):
    """Each pull brings a few messages, so that the kill is in the middle of the read of every queue."""
    cluster = cluster_of(maxTransferCountOnMessageInMemory=4, maxTransferCountOnMessageInDisk=4)
    topics = Topics(cluster.namesrv_address)
    topic = topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", COUNT), 1: bodies("b", COUNT)})
    master = asyncio.run(whole_group(cluster))
    frame = topics.read(session, topic, "queueId int, queueOffset bigint")
    frame.rdd.getNumPartitions()  # planned against the master that is to die
    seen: list[float] = []

    before = asyncio.run(_gave(master.master_address, lambda _: True))

    def kill() -> None:
        asyncio.run(_gave(master.master_address, lambda given: given >= before + 100))
        cluster.broker_at(master.master_address).kill()
        seen.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    rows = frame.collect()
    ended = time.monotonic()
    killer.join()
    assert seen[0] < ended, "the read was over before the master was killed: nothing was tested"
    got = sorted((r["queueId"], r["queueOffset"]) for r in rows)
    assert got == [(q, o) for q in (0, 1) for o in range(COUNT)]


def test_a_read_from_slaves_spares_the_master_and_continues_without_the_slave(session, cluster_of):
    cluster = cluster_of(
        slaveReadEnable="true", maxTransferCountOnMessageInMemory=40, maxTransferCountOnMessageInDisk=40
    )
    topics = Topics(cluster.namesrv_address)
    topic = topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", COUNT), 1: bodies("b", COUNT)})
    master = asyncio.run(whole_group(cluster)).master_address
    (slave,) = (broker.address for broker in cluster.brokers if broker.address != master)

    def given() -> tuple[int, int]:
        return asyncio.run(_gave(master, lambda _: True)), asyncio.run(_gave(slave, lambda _: True))

    def read() -> list[tuple[int, int]]:
        rows = topics.read(session, topic, "queueId int, queueOffset bigint", readFromSlaves="true").collect()
        return sorted((row["queueId"], row["queueOffset"]) for row in rows)

    expected = [(queue, offset) for queue in (0, 1) for offset in range(COUNT)]
    asyncio.run(_serves_all(slave, topic, queues=(0, 1)))
    before = given()
    assert read() == expected
    after = given()
    assert after[1] - before[1] == 2 * COUNT, "the slave gave everything"
    assert after[0] == before[0]

    def kill() -> None:
        asyncio.run(_gave(slave, lambda count: count >= after[1] + 100))
        cluster.broker_at(slave).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    assert read() == expected
    killer.join()
    assert asyncio.run(_gave(master, lambda _: True)) > after[0], "the slave was killed after the read"


@pytest.mark.timeout(240)
def test_archive_job_killed_and_master_killed_is_exactly_once(session, cluster_of, tmp_path):
    cluster = cluster_of()
    topics = Topics(cluster.namesrv_address)
    topic = topics.make(queues=2)
    topics.fill(topic, {0: bodies("a", COUNT), 1: bodies("b", COUNT)})
    target = tmp_path / "archive"
    command = [sys.executable, "-m", "batonmq", "spark", "archive", "-n", topics.namesrv, "-t", topic]
    command += ["--to", str(target), "--max-offsets", "200", "--every", "0 seconds", "--master", "local[2]"]
    command += ["--conf", "spark.driver.memory=512m"]
    log = tmp_path / "job.log"
    with log.open("wb") as out:
        job = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        committed = target / "_spark_metadata"
        deadline = time.monotonic() + 90
        while not (committed / "1").exists():
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
    finally:
        os.killpg(job.pid, signal.SIGKILL)  # the job, its JVM and its Python workers
        job.wait()
    first = session.read.parquet(str(target)).count()
    assert 0 < first < 2 * COUNT, "the job was not killed in the middle"

    master = asyncio.run(whole_group(cluster))
    cluster.broker_at(master.master_address).kill()
    topics.fill(topic, {0: bodies("c", 10)}, retries=50)
    subprocess.run(
        [*command[: command.index("--max-offsets")], "--master", "local[2]"],
        check=True,
        capture_output=True,
    )
    rows = session.read.parquet(str(target))
    assert rows.count() == rows.select("queueId", "queueOffset").distinct().count() == 2 * COUNT + 10
    assert rows.select("keys").distinct().count() == 2 * COUNT + 10
