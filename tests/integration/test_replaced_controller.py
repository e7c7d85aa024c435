"""A controller that died for good is replaced by a new one, by the commands and under load: nothing is lost,
and from then on the new one counts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from batonmq import Message, MessageQueue, Producer, QueueReader
from batonmq.admin.main import admin
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.demo.ports import free_ports
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import decode_records

TOPIC = "Orders"
SMALL = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 5_000}


@dataclass
class Load:
    """One producer that never stops; `acked` has what was acknowledged."""

    cluster: LocalCluster
    acked: list[bytes] = field(default_factory=list)
    over: bool = False

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(TOPIC, self.cluster.broker_name, 0)

    async def run(self) -> None:
        number = 0
        async with Producer("p", self.cluster.namesrv_address, send_timeout_ms=3_000) as producer:
            while not self.over:
                body, number = b"%d" % number, number + 1
                try:
                    await producer.send(Message(TOPIC, body), queue=self.queue)
                except (ClientError, NetError, MQError):
                    await asyncio.sleep(0.02)
                else:
                    self.acked.append(body)

    async def goes_on(self, seconds: float = 20) -> None:
        before = len(self.acked)
        await self.until(lambda: len(self.acked) > before + 50, "messages are acknowledged", seconds)

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, what
            await asyncio.sleep(0.05)

    async def lost(self) -> list[bytes]:
        stored: set[bytes] = set()
        async with QueueReader(self.cluster.namesrv_address) as reader:
            offset, end = await reader.min_offset(self.queue), await reader.max_offset(self.queue)
            while offset < end:
                pulled = await reader.pull(self.queue, offset)
                stored |= {each.body for each in decode_records(pulled.records)}
                offset = pulled.next_offset
        return [body for body in self.acked if body not in stored]


async def command(*words: str, seconds: float = 0) -> Any:
    """What it prints; `seconds`: for so long it may fail, as between two leaders."""
    deadline = time.monotonic() + seconds
    while True:
        done = await asyncio.to_thread(CliRunner().invoke, admin, [*words, "--json"])
        if done.exit_code == 0:
            return json.loads(done.output)
        assert time.monotonic() < deadline, f"{words}: {done.output}"
        await asyncio.sleep(0.1)


async def test_a_dead_controller_is_replaced_under_load(tmp_path: Path) -> None:
    settings = {**SMALL, "syncControllerMetadataPeriod": 1_000}
    cluster = LocalCluster(tmp_path, controllers=3, broker_settings=settings)
    load = Load(cluster)
    addresses = ";".join(cluster.controller_addresses)
    port = free_ports(1)[0]
    old = cluster.controller_programs[0].settings
    new = Program(
        "controller-3",
        "controller",
        tmp_path,
        {
            **old,
            "controllerDLegerPeers": f"{old['controllerDLegerPeers']};n3-127.0.0.1:{port}",
            "controllerDLegerSelfId": "n3",
            "controllerStorePath": tmp_path / "controller-3",
            "controllerJoinRunningGroup": "true",
        },
        port=port,
    )

    async def in_sync(count: int, controllers: str) -> None:
        deadline = time.monotonic() + 20
        while True:
            rows = await command("getSyncStateSet", "-a", controllers, "-b", cluster.broker_name, seconds=10)
            if sum(row["inSync"] for row in rows) == count:
                return
            assert time.monotonic() < deadline, rows
            await asyncio.sleep(0.1)

    with cluster:
        working = asyncio.create_task(load.run())
        try:
            await in_sync(2, addresses)
            await load.goes_on()
            meta = await command("getControllerMetaData", "-a", addresses)
            dead = next(
                p for p in cluster.controller_programs if p.address == meta["ControllerLeaderAddress"]
            )
            dead.kill()
            new.start()
            await command(
                *("replaceController", "-a", addresses, "-o", meta["ControllerLeaderId"]),
                *("-i", "n3", "-r", new.address),
            )
            await load.goes_on()
            rows = await command("getControllerMembers", "-a", new.address)
            assert {row["id"] for row in rows} == {"n0", "n1", "n2", "n3"} - {meta["ControllerLeaderId"]}
            assert all(row["answers"] for row in rows)
            for broker in cluster.brokers:
                await load.until(
                    lambda broker=broker: (
                        f"controllers are now {addresses.replace(';', ', ')}, {new.address}"
                        in broker.log_path.read_text()
                    ),
                    f"{broker.name} has found the new controller",
                )
            # Now one more is lost: the new one must make the majority, and know who lives.
            second = next(p for p in cluster.controller_programs if p is not dead)
            second.kill()
            await load.goes_on()
            await in_sync(2, new.address)
            cluster.brokers[0].kill()
            await load.goes_on()
            load.over = True
            await working
            assert len(load.acked) > 200
            assert not await load.lost()
        finally:
            load.over = True
            working.cancel()
            new.stop()
