"""Groups without controllers, as processes: a master, its slaves, and what an acknowledgement means."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.integration.classic.group import NAME, PATIENCE_S, TOPIC, ClassicGroup, commit_log, until

from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import (
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode

Starter = Callable[..., Awaitable[ClassicGroup]]

TWO_COPIES = {"inSyncReplicas": 2, "totalReplicas": 2, "slaveTimeout": 1_000}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    made: list[ClassicGroup] = []

    async def go(slaves: int = 1, **settings: object) -> ClassicGroup:
        group = ClassicGroup(tmp_path, slaves, settings)
        made.append(group)
        await group.up()
        return group

    yield go
    for group in made:
        await group.close()
        text = "".join(group.log(each) for each in range(len(group.brokers)))
        assert "Traceback" not in text, text[text.index("Traceback") - 300 :][:3000]


async def test_a_slave_registers_follows_and_serves_reads(start: Starter) -> None:
    group = await start(**TWO_COPIES)
    await group.serving()
    assert await group.send(30) == 0
    answer = await group.client.call(group.namesrv.address, GetRouteInfo(topic=TOPIC))
    (members,) = [each.broker_addrs for each in decode(answer.body, TopicRouteData).broker_datas]
    assert members == {0: group.brokers[0].address, 1: group.brokers[1].address}
    assert await group.bodies(group.brokers[1].address) == group.acked
    assert await group.bodies(group.master.address) == group.acked  # also creates the consumer group
    status = await group.status(group.brokers[1])
    assert status is not None and not status.master
    assert status.ha_client_runtime_info.max_offset > 0
    # Offsets are copied at once, as the master announces changed tables.
    header = UpdateConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0, commit_offset=7)
    await group.client.call(group.master.address, header)

    async def copied() -> int:
        query = QueryConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0)
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await group.client.call(group.brokers[1].address, query, accept=accept)
        return answer.header.offset if isinstance(answer.header, QueryConsumerOffsetResponse) else -1

    for _ in range(100):
        if await copied() == 7:
            break
        await asyncio.sleep(0.05)
    assert await copied() == 7
    for each in (group.brokers[1], group.master):
        await asyncio.to_thread(each.stop)
    assert commit_log(group.store(0)) == commit_log(group.store(1))


async def test_a_send_waits_for_the_slave_and_fails_without_it(start: Starter) -> None:
    group = await start(**TWO_COPIES)
    await group.serving()
    group.brokers[1].kill()
    assert await group.send(2, timeout_ms=4_000) == 2
    log = await asyncio.to_thread(group.log, 0)
    assert "sends were not acknowledged in time" in log
    await asyncio.to_thread(group.brokers[1].start)
    await group.in_sync(1)
    assert await group.send(5) == 0
    stored = await group.bodies(group.brokers[1].address)
    assert [body for body in stored if body in set(group.acked)] == group.acked


async def test_kill_of_either_at_any_moment_loses_nothing_acknowledged(start: Starter) -> None:
    group = await start(**TWO_COPIES)
    await group.serving()
    for turn in range(6):
        victim = group.brokers[turn % 2]
        sending = asyncio.create_task(group.send(60, 2_000, timeout_ms=2_000))
        await asyncio.sleep(0.05 + 0.03 * turn)
        victim.kill()
        await asyncio.to_thread(victim.start)
        await sending
        await group.serving()
        await group.in_sync(1)
    for broker_id in (0, 1):
        stored = await group.bodies(group.brokers[broker_id].address)
        acked = [body for body in stored if body in set(group.acked)]
        assert list(dict.fromkeys(acked)) == group.acked
        # A master that is killed between store and answer has the message, and the client sends it again.
        assert len(acked) - len(group.acked) <= group.repeated
    for each in (group.brokers[1], group.master):
        await asyncio.to_thread(each.stop)
    assert commit_log(group.store(0)) == commit_log(group.store(1))


async def test_a_slave_becomes_master_by_its_file(start: Starter, tmp_path: Path) -> None:
    """What an operator does when the master is lost for good."""
    group = await start(**TWO_COPIES)
    await group.serving()
    assert await group.send(20) == 0
    group.master.kill()
    await asyncio.to_thread(group.brokers[1].stop)
    shutil.rmtree(group.store(0))
    former, promoted = group.brokers
    promoted.settings = {**promoted.settings, "brokerId": 0, "brokerRole": "ASYNC_MASTER"}
    former.settings = {**former.settings, "brokerId": 1, "brokerRole": "SLAVE"}
    group.brokers.reverse()
    for each in group.brokers:
        await asyncio.to_thread(each.start)
    await group.in_sync(1)
    assert await group.send(20) == 0
    await group.in_sync(1)
    assert await group.bodies(promoted.address) == group.acked == await group.bodies(former.address)


async def test_several_slaves_and_a_degraded_group(start: Starter) -> None:
    group = await start(
        2,
        totalReplicas=3,
        inSyncReplicas=3,
        minInSyncReplicas=2,
        enableAutoInSyncReplicas="true",
        enableSlaveActingMaster="true",
        slaveTimeout=1_000,
    )
    await group.serving()
    assert await group.send(5) == 0
    group.brokers[2].kill()
    await group.in_sync(1)
    assert await group.send(5) == 0, "two copies are enough for now"
    group.brokers[1].kill()
    await group.in_sync(0)
    assert await group.send(1, timeout_ms=3_000) == 1, "one is below minInSyncReplicas"
    for each in group.brokers[1:]:
        await asyncio.to_thread(each.start)
    await group.in_sync(2)
    # A slave counts once the name server lists it, and the master asks the name server once a second.
    await group.serving()
    deadline = time.monotonic() + PATIENCE_S
    while "enough replicas are in sync again" not in await asyncio.to_thread(group.log, 0):
        assert time.monotonic() < deadline, "sends wait for three copies again"
        assert await group.send() == 0
    assert await group.send(5) == 0
    await group.in_sync(2)
    for each in group.brokers:
        stored = await group.bodies(each.address)
        assert [body for body in stored if body in set(group.acked)] == group.acked


async def test_a_master_that_lost_the_end_of_its_log_gets_no_slave(start: Starter, tmp_path: Path) -> None:
    group = await start(**TWO_COPIES)
    await group.serving()
    await group.send(5)
    await asyncio.to_thread(group.master.stop)
    shutil.copytree(group.store(0), tmp_path / "earlier")
    await asyncio.to_thread(group.master.start)
    await group.in_sync(1)
    assert await group.send(5) == 0
    await group.bodies(
        group.brokers[1].address
    )  # the slave has the topic, which it copies after the messages
    group.master.kill()
    shutil.rmtree(group.store(0))
    shutil.copytree(tmp_path / "earlier", group.store(0))
    before = await group.bodies(group.brokers[1].address)
    await asyncio.to_thread(group.master.start)
    await until(lambda: "the master lost what this slave still has" in group.log(0))
    await group.send(8, timeout_ms=2_000)  # now the master's log is longer, and another one
    await until(lambda: "have different histories" in group.log(1), group.log(1), 40)
    assert await group.bodies(group.brokers[1].address) == before == group.acked


async def test_a_slave_keeps_its_tables_when_its_master_has_lost_its_disk(start: Starter) -> None:
    """Until an operator has decided: they belong to the log that only the slave still has."""
    group = await start(**TWO_COPIES)
    await group.serving()
    assert await group.send(10) == 0
    await group.bodies(
        group.brokers[1].address
    )  # the slave has the topic, which it copies after the messages
    group.master.kill()
    shutil.rmtree(group.store(0))
    await asyncio.to_thread(group.master.start)
    await until(lambda: "the master lost what this slave still has" in group.log(0))
    await until(lambda: group.log(1).count("master is ") > 1 or "lost master" in group.log(1))
    await asyncio.sleep(6)  # two rounds of copies
    for each in group.brokers:
        await asyncio.to_thread(each.stop)
    group.brokers[1].settings = {**group.brokers[1].settings, "brokerId": 0, "brokerRole": "ASYNC_MASTER"}
    await asyncio.to_thread(group.brokers[1].start)
    assert await group.bodies(group.brokers[1].address) == group.acked
    answer = await group.client.call(group.namesrv.address, GetRouteInfo(topic=TOPIC))
    assert decode(answer.body, TopicRouteData).queue_datas


async def test_an_empty_slave_of_an_empty_master_counts_at_once(start: Starter) -> None:
    began = time.monotonic()
    silent = {"haSendHeartbeatInterval": 60_000, "haHousekeepingInterval": 120_000}
    group = await start(**TWO_COPIES, enableSlaveActingMaster="true", **silent)
    await group.serving()
    assert await group.send(1) == 0
    assert time.monotonic() - began < 45, "it waited for a heartbeat of the slave"


async def test_the_master_is_found_by_haMasterAddress_and_without_a_name_server(
    start: Starter, tmp_path: Path
) -> None:
    group = ClassicGroup(tmp_path, 1, {"namesrvAddr": ""})
    port = int(str(group.master.settings["listenPort"])) + 1
    group.brokers[1].settings = {**group.brokers[1].settings, "haMasterAddress": f"127.0.0.1:{port}"}
    try:
        for each in group.brokers:
            await asyncio.to_thread(each.start)
        await group.in_sync(1)
    finally:
        await group.close()


async def test_a_slave_refuses_sends(start: Starter) -> None:
    group = await start()
    await group.serving()
    from tests.integration.broker.rig import v2

    with pytest.raises(MQError) as refused:
        await group.client.call(group.brokers[1].address, v2(TOPIC, 0), b"x")
    assert refused.value.code != ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"brokerRole": "SLAVE", "brokerId": 0}, "brokerId=0"),
        ({"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": "nowhere"}, "haMasterAddress=nowhere"),
        ({"brokerRole": "FOLLOWER"}, "brokerRole=FOLLOWER"),
        ({"haMaxGapNotInSync": -5}, "haMaxGapNotInSync=-5"),
    ],
)
def test_a_wrong_role_says_so_in_one_line(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    conf = tmp_path / "b.conf"
    given = {"brokerName": NAME, "storePathRootDir": tmp_path / "s", "listenPort": 0, **settings}
    conf.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    done = subprocess.run(
        [sys.executable, "-m", "batonmq", "broker", "-c", str(conf)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("broker: ")]
    assert len(lines) == 1 and words in lines[0], done.stderr
