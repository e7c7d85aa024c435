"""RocketMQ's own producer and push consumer against our programs while masters are killed with `kill -9`."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from batonmq import MessageQueue, QueueReader
from batonmq.net import RemotingClient
from batonmq.protocol.bodies.controller import decode_sync_state_set
from batonmq.protocol.headers.controller import GetReplicaInfo, GetReplicaInfoReply
from tests.integration.group import Group, read
from tests.interop.conftest import Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
JAVA = Path(__file__).parent / "java"
TOPIC, SENDERS = "ThroughKill", 4


async def until(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 40) -> float:
    """Wait for a condition; returns how long it took, s."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.parametrize("kills", [pytest.param(1, id="quick"), pytest.param(3, id="thrice")])
async def test_java_clients_lose_nothing_when_the_master_is_killed(
    peer: Peer, tmp_path: Path, kills: int
) -> None:
    group = Group(tmp_path / "group", replicas=2, settings={"defaultTopicQueueNums": SENDERS})
    cluster, stop = group.cluster, tmp_path / "stop"
    client, reader = RemotingClient(), QueueReader(cluster.namesrv_address)

    async def replicas() -> tuple[str, set[int]]:
        """Address of the master, ids of the SyncStateSet."""
        answer = await client.call(cluster.controller_addresses[0], GetReplicaInfo(cluster.broker_name))
        assert isinstance(answer.header, GetReplicaInfoReply)
        return answer.header.master_address or "", set(decode_sync_state_set(answer.body).sync_state_set)

    async def written() -> int:
        return sum(
            [await reader.max_offset(MessageQueue(TOPIC, cluster.broker_name, i)) for i in range(SENDERS)]
        )

    async def grown(by: int) -> None:
        goal = await written() + by
        await until(lambda: reached(goal), f"{goal} messages")

    async def reached(goal: int) -> bool:
        return await written() >= goal

    async def whole() -> bool:
        return (await replicas())[1] == {1, 2}

    async def made() -> bool:
        return TOPIC in read(cluster.store_path(0) / "config/topics.json")

    java: asyncio.Task[str] | None = None
    try:
        group.start()
        await group.serving()
        await until(whole, "both replicas in sync")
        java = asyncio.ensure_future(
            peer.java(
                JAVA / "ThroughKill.java",
                cluster.namesrv_address,
                TOPIC,
                str(SENDERS),
                str(stop),
                timeout_s=200,
            )
        )
        await until(made, "the Java producer has begun")
        await grown(1000)
        for _ in range(kills):
            killed = cluster.broker_at((await replicas())[0])
            killed.kill()
            heir = next(broker for broker in cluster.brokers if broker is not killed)

            async def taken_over(heir: str = heir.address) -> bool:
                return (await replicas())[0] == heir

            took = await until(taken_over, "the slave is master")
            await grown(1000)
            killed.start()
            rejoined = await until(whole, "the killed broker is back in sync")
            print(
                f"elected after {took * 1000:.0f} ms, killed broker in sync {rejoined:.2f} s after its start"
            )
            await grown(500)
        stop.touch()
        output = await java
        print(output)
        found = dict(re.findall(r"(\w+)=(\d+)", output))
        assert found["lost"] == "0" and found["disordered"] == "0", output
        assert int(found["consumed"]) >= 1000 + 1500 * kills
        assert int(found["failed_attempts"]) > 0, "nobody noticed the kill: it proves nothing"
        assert int(found["longest_gap_ms"]) < 5000
        assert "Traceback" not in group.logs()
        assert set(cluster.stop().values()) == {0}
        logs = [
            b"".join(path.read_bytes() for path in sorted((cluster.store_path(i) / "commitlog").iterdir()))
            for i in (0, 1)
        ]
        assert logs[0] == logs[1]
    finally:
        stop.touch()
        if java is not None and not java.done():
            await java
        await reader.close()
        await client.close()
        cluster.stop()
