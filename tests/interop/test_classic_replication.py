"""Groups without controllers with one replica of RocketMQ: its slave under our master, and the reverse."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from batonmq import QueueReader
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import KVTable
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.headers.broker.admin import GetBrokerRuntimeInfo
from batonmq.protocol.headers.broker.replication import GetBrokerHAStatus
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import decode_records
from tests.integration.classic.group import NAME, TOPIC, ClassicGroup, commit_log, until
from tests.interop.conftest import JavaProcess, Peer, fetch

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]

FILE_SIZE = 1 << 20
TWO_COPIES = {"inSyncReplicas": 2, "totalReplicas": 2, "slaveTimeout": 3_000}
FIRST_REPORT_S = 60.0
"""A Java slave finds its master with a registration, and reports an empty log after some silence."""

Starter = Callable[[], Awaitable[ClassicGroup]]
OLD = "4.9.7"
"""It does not answer GET_BROKER_HA_STATUS."""


@pytest.fixture(params=[None, OLD], ids=["5.5", "4.9"])
def java(request: pytest.FixtureRequest, rocketmq: Path, tmp_path: Path) -> Iterator[Peer]:
    """RocketMQ of either release."""
    if request.param is not None:
        fetch(request.param)
    made = Peer(tmp_path, request.param)
    yield made
    made.stop_all()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    """Our name server and no broker yet."""
    group = ClassicGroup(tmp_path, 1, {"mappedFileSizeCommitLog": FILE_SIZE, **TWO_COPIES})

    async def go() -> ClassicGroup:
        await asyncio.to_thread(group.namesrv.start)
        return group

    yield go
    await group.close()


def java_settings(group: ClassicGroup, broker_id: int, role: str) -> dict[str, object]:
    return {
        "brokerName": NAME,
        "brokerId": broker_id,
        "brokerRole": role,
        "namesrvAddr": group.namesrv.address,
        "storePathRootDir": group.store(broker_id),
        "storePathCommitLog": group.store(broker_id) / "commitlog",
        "mappedFileSizeCommitLog": FILE_SIZE,
        "mapedFileSizeCommitLog": FILE_SIZE,
        "slaveReadEnable": "true",
        "aclEnable": "false",
        **TWO_COPIES,
    }


async def ha_status(group: ClassicGroup, address: str) -> HARuntimeInfo | None:
    try:
        answer = await group.client.call(address, GetBrokerHAStatus(), timeout_ms=3_000)
    except NetError:
        return None
    return decode(bytes(answer.body), HARuntimeInfo)


async def followed(group: ClassicGroup, master: str, timeout_s: float = FIRST_REPORT_S) -> None:
    """Until the master has one slave that has everything, and holds more than nothing."""
    deadline = time.monotonic() + timeout_s
    while True:
        info = await ha_status(group, master)
        if info is not None and any(each.diff == 0 for each in info.ha_connection_info):
            return
        assert time.monotonic() < deadline, f"no slave follows: {info}"
        await asyncio.sleep(0.1)


def equal_logs(group: ClassicGroup) -> bool:
    ours, theirs = commit_log(group.store(0)), commit_log(group.store(1))
    return bool(ours) and {k: v for k, v in ours.items() if v} == {k: v for k, v in theirs.items() if v}


async def test_a_java_slave_follows_and_acknowledges_under_our_master(java: Peer, start: Starter) -> None:
    group = await start()
    await asyncio.to_thread(group.master.start)
    slave = await java.start("broker", java_settings(group, 1, "SLAVE"))
    await followed(group, group.master.address)
    await group.serving()
    for size in (10, 3_000, 40_000, 100_000):
        assert await group.send(15, size) == 0, "an acknowledgement needs the Java slave"
    if java.release != OLD:
        info = await ha_status(group, slave.address)
        assert info is not None
        assert not info.master
        master = await ha_status(group, group.master.address)
        assert master is not None
        assert info.ha_client_runtime_info.max_offset == master.master_commit_log_max_offset > 2 * FILE_SIZE
    await _reads_the_same(group, slave.address)
    await _spares_the_master(group)

    slave.kill()
    assert await group.send(1, timeout_ms=5_000) == 1, "nobody acknowledges"
    slave = await java.start("broker", slave.config)
    await followed(group, group.master.address)
    assert await group.send(10, 500) == 0
    # Our master is killed and comes back: the Java slave goes on.
    await asyncio.to_thread(group.master.kill)
    await asyncio.to_thread(group.master.start)
    await followed(group, group.master.address)
    assert await group.send(10, 500) == 0
    await asyncio.to_thread(group.master.stop)
    slave.terminate()
    assert equal_logs(group)


async def _reads_the_same(group: ClassicGroup, address: str) -> None:
    """The slave copies topics later (RocketMQ's every 60 s), and then shows what was acknowledged."""
    deadline = time.monotonic() + 75
    while True:
        try:
            found = await group.bodies(address)
        except Exception as error:
            found, problem = [], str(error)
        else:
            problem = f"{len(found)} messages"
        if [body for body in found if body in set(group.acked)] == group.acked:
            return
        assert time.monotonic() < deadline, problem
        await asyncio.sleep(0.5)


async def _spares_the_master(group: ClassicGroup) -> None:
    """A reader of slaves gets everything from the slave."""

    async def given() -> int:
        answer = await group.client.call(group.master.address, GetBrokerRuntimeInfo())
        return int(decode(bytes(answer.body), KVTable).table["msgGetTotalTodayNow"])

    async with QueueReader(group.namesrv.address, slaves=True) as reader:
        before, found = await given(), []
        for queue in await reader.queues(TOPIC):
            offset, end = await reader.min_offset(queue), await reader.max_offset(queue)
            while offset < end:
                pulled = await reader.pull(queue, offset)
                found += [bytes(message.body) for message in decode_records(pulled.records)]
                offset = pulled.next_offset
        assert sorted(found) == sorted(group.acked)
        assert await given() == before


async def _accepted(group: ClassicGroup) -> None:
    """Until the master takes a send with a copy."""
    deadline = time.monotonic() + FIRST_REPORT_S
    while await group.send(1, timeout_ms=5_000):
        assert time.monotonic() < deadline, "the slave does not follow"
        await asyncio.sleep(0.2)


async def test_our_slave_follows_and_acknowledges_under_a_java_master(java: Peer, start: Starter) -> None:
    group = await start()
    master = await java.start("broker", java_settings(group, 0, "SYNC_MASTER"))
    ours = group.brokers[1]
    await asyncio.to_thread(ours.start)
    await _accepted(group)
    for size in (10, 3_000, 40_000, 100_000):
        assert await group.send(15, size) == 0, "an acknowledgement needs our slave"
    await _reads_the_same(group, ours.address)

    ours.kill()
    assert await group.send(1, timeout_ms=5_000) == 1
    await asyncio.to_thread(ours.start)
    await _accepted(group)
    assert await group.send(10, 500) == 0

    master.kill()
    again = await java.start("broker", master.config)
    await _accepted(group)
    assert await group.send(10, 500) == 0
    await _reads_the_same(group, ours.address)
    await asyncio.to_thread(ours.stop)
    again.terminate()
    assert equal_logs(group)


async def test_our_slave_refuses_a_java_master_that_lost_the_end_of_its_log(
    peer: Peer, start: Starter, tmp_path: Path
) -> None:
    """RocketMQ's own slave goes on behind what its master lost, with two histories in its log."""
    group = await start()
    master: JavaProcess = await peer.start("broker", java_settings(group, 0, "SYNC_MASTER"))
    ours = group.brokers[1]
    await asyncio.to_thread(ours.start)
    await followed(group, master.address)
    await group.serving()
    assert await group.send(10, 300) == 0
    master.terminate()
    kept = commit_log(group.store(0))
    master = await peer.start("broker", master.config)
    await followed(group, master.address)
    assert await group.send(10, 300) == 0
    before = await group.bodies(ours.address)
    master.kill()
    for path in (group.store(0) / "commitlog").iterdir():
        data = kept.get(path.name, b"")
        with path.open("r+b") as file:
            file.write(data.ljust(FILE_SIZE, b"\0"))
    for folder in ("consumequeue", "index"):
        for path in sorted((group.store(0) / folder).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    (group.store(0) / "checkpoint").unlink()
    master = await peer.start("broker", master.config)
    await until(lambda: "does not send bytes" in group.log(1), group.log(1)[-3000:], 60)
    await group.send(15, 300, timeout_ms=4_000)  # in vain, but it is in the master's log now
    await until(lambda: "have different histories" in group.log(1), group.log(1)[-3000:], 60)
    assert await group.bodies(ours.address) == before
