"""A cluster of the last version becomes one of this version, program by program, while a producer sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.group import TOPIC
from tests.integration.ha.replica_group import ReplicaGroup
from tests.released import command, last_released

from batonmq import Message, Producer
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import decode_controller_members
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.controller import GetControllerMembers
from batonmq.protocol.headers.namesrv import BrokerHeartbeat, GetRouteInfo
from batonmq.routing.through import call_through

SECRET = {"haSecret": "a secret of the brokers"}
"""So that the handshake has the frames that only BatonMQ has."""


class Cluster(ReplicaGroup):
    """Three controllers, two brokers and a name server, all of the last version at first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        released = last_released()
        self.version = released.version
        first = self.cluster.brokers[0].settings
        kept = ("mappedFileSizeCommitLog", "maxHashSlotNum", "maxIndexNum", "bindAddress", *self.settings)
        self.cluster = LocalCluster(
            self.directory,
            replicas=self.replicas,
            controllers=3,
            broker_settings={key: first[key] for key in kept},
        )
        self.present = self.cluster.brokers[0].command
        old = command(released.unpack(self.directory / "old"), "-m", "batonmq")
        for program in self.cluster.programs:
            program.command = old

    async def upgrade(self, program: Program) -> None:
        assert await asyncio.to_thread(program.stop) == 0
        program.command = self.present
        await asyncio.to_thread(program.start)
        self.pids[program.name] = program.pid

    async def agreed(self, timeout_s: float = 20) -> None:
        """Until all controllers know one leader and have nearly the same log."""
        deadline = time.monotonic() + timeout_s
        while True:
            shown = []
            for address in self.cluster.controller_addresses:
                try:
                    answer = await self.client.call(address, GetControllerMembers())
                except (NetError, MQError):
                    break
                shown.append(decode_controller_members(bytes(answer.body)))
            leaders = {each.leader_id for each in shown}
            indexes = [each.commit_index for each in shown]
            one = len(shown) == 3 and len(leaders) == 1 and not leaders & {None, ""}
            if one and max(indexes) - min(indexes) < 20:
                return
            assert time.monotonic() < deadline, f"{shown}\n{self.logs()[-6000:]}"
            await asyncio.sleep(0.05)

    async def routed(self) -> None:
        """Until the brokers have registered with the name server."""
        async with asyncio.timeout(20):
            while True:
                try:
                    await self.client.call(self.cluster.namesrv_address, GetRouteInfo(TOPIC))
                except TopicNotExistError:
                    await asyncio.sleep(0.05)
                else:
                    return


class Sending:
    """Sends one message after the other, each until it is acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.longest_s = 0.0
        self._stop = False
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        acked = self.cluster.acked
        async with Producer(
            "p", self.cluster.cluster.namesrv_address, send_timeout_ms=2_000, retries=3
        ) as producer:
            number, last = 0, time.monotonic()
            while not self._stop:
                body = b"sent %d" % number
                try:
                    await producer.send(Message(TOPIC, body), queue=self.cluster._queue)
                except (MQError, NetError):
                    await asyncio.sleep(0.02)
                    continue
                acked.append(body)
                number += 1
                self.longest_s = max(self.longest_s, time.monotonic() - last)
                last = time.monotonic()
                await asyncio.sleep(0.002)

    async def some_more(self, count: int = 20) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.cluster.acked) + count
        async with asyncio.timeout(20):
            while len(self.cluster.acked) < wanted:
                assert not self._task.done(), self._task.exception()
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        self._stop = True
        await self._task


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    group = Cluster(tmp_path, settings=dict(SECRET), replicas=2)
    try:
        yield group
    finally:
        await group.close()


async def test_controllers_first_then_brokers_while_messages_are_sent(cluster: Cluster) -> None:
    await cluster.up()
    sending = Sending(cluster)
    await sending.some_more()
    for program in cluster.cluster.controller_programs:
        await cluster.upgrade(program)
        await cluster.agreed()
        await cluster.in_sync(2)
        await sending.some_more()
        # The master of the last version is lost, and comes back, under controllers of both versions.
        master = await cluster.master()
        await asyncio.to_thread(master.kill)
        await asyncio.to_thread(master.start)
        cluster.pids[master.name] = master.pid
        await cluster.in_sync(2)
        await sending.some_more()
    await forward_heartbeats(cluster)
    for role in ("slave", "master"):
        master = await cluster.master()
        slave = next(broker for broker in cluster.cluster.brokers if broker is not master)
        await cluster.upgrade(slave if role == "slave" else master)
        await cluster.in_sync(2)
        await sending.some_more()
        if role == "slave":
            await cluster.elect(slave)  # a master of this version with a slave of the last one
            await sending.some_more()
            await cluster.elect(master)
            await sending.some_more()
    await cluster.upgrade(cluster.cluster.namesrv)
    await sending.some_more()
    await sending.end()
    print(f"from {cluster.version}: {len(cluster.acked)} messages, longest pause {sending.longest_s:.2f} s")
    for program in cluster.cluster.programs:
        assert program.command == cluster.present
    logs = cluster.logs()
    for bad in ("malformed message", "is refused", "lost_bytes", "bytes are lost", "cannot be read"):
        assert bad not in logs, [line for line in logs.splitlines() if bad in line][:3]
    await cluster.routed()
    await cluster.check(repeats=True)


async def forward_heartbeats(cluster: Cluster) -> None:
    """Heartbeats that another controller passes on count: the leader writes entries of version 2. Raises
    `MQError` otherwise."""
    info = await cluster.in_sync(2)
    replica = info.in_sync_replicas[0]
    beat = BrokerHeartbeat.from_ext(
        {
            "clusterName": cluster.cluster.cluster_name,
            "brokerName": cluster.cluster.broker_name,
            "brokerAddr": replica.broker_address,
            "brokerId": str(replica.broker_id),
            "forwarded": "true",
        }
    )
    for address in cluster.cluster.controller_addresses:
        await call_through(cluster.client, address, beat, timeout_ms=3_000)
