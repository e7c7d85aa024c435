"""Nodes as processes: `batonmq container` with the files of its brokers, and a name server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.integration.container.files import BrokerConf

from batonmq import Admin, Message, MessageQueue, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.bodies.routes import ClusterInfo
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.replication import AddBroker, GetBrokerHAStatus, RemoveBroker
from batonmq.protocol.headers.namesrv import GetBrokerClusterInfo
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import decode_records

TOPIC = "Kept"
PATIENCE_S = 20.0
PULLED = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


async def until(condition: Callable[[], bool], what: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()[-3000:]
        await asyncio.sleep(0.02)


class Nodes:
    """A name server and containers; `await close()` at the end."""

    def __init__(self, directory: Path, brokers: Sequence[Sequence[BrokerConf]], **settings: object) -> None:
        """`brokers`: of each container. `settings`: keys of all containers."""
        namesrv_port, *ports = free_ports(1 + len(brokers))
        self.client = RemotingClient()
        self.acked: dict[str, list[bytes]] = {}
        """Broker name -> bodies of acknowledged messages, in order."""
        self.namesrv = Program(
            "namesrv",
            "namesrv",
            directory,
            {
                "listenPort": namesrv_port,
                "bindAddress": "127.0.0.1",
                "kvConfigPath": directory / "kv.json",
                "supportActingMaster": "true",
            },
        )
        self.containers = [
            Program(
                f"container-{number}",
                "container",
                directory,
                {
                    "listenPort": port,
                    "bindAddress": "127.0.0.1",
                    "brokerContainerIP": "127.0.0.1",
                    "namesrvAddr": self.namesrv.address,
                    "brokerConfigPaths": ":".join(str(each.path) for each in confs),
                    **settings,
                },
            )
            for number, (port, confs) in enumerate(zip(ports, brokers, strict=True))
        ]
        self._counts = {each.name: len(confs) for each, confs in zip(self.containers, brokers, strict=True)}

    async def up(self) -> None:
        await asyncio.to_thread(self.namesrv.start)
        for container in self.containers:
            await self.start(container)

    async def start(self, container: Program) -> None:
        """Until all of its brokers serve."""
        before = log(container).count("Broker [")
        await asyncio.to_thread(container.start)
        count = self._counts[container.name]
        await until(lambda: log(container).count("Broker [") >= before + count, lambda: log(container))

    async def kill(self, container: Program) -> None:
        """As the loss of a node: returns when its workers are gone, too."""
        pids = workers(container)
        container.kill()
        await until(lambda: not any(map(running, pids)))

    async def close(self) -> None:
        await self.client.close()
        for program in (*self.containers, self.namesrv):
            await asyncio.to_thread(program.stop)

    async def add(self, container: Program, path: Path) -> None:
        await self.client.call(container.address, AddBroker(config_path=str(path)), timeout_ms=20_000)

    async def remove(self, container: Program, name: str, broker_id: int = 0) -> None:
        header = RemoveBroker(broker_name=name, broker_cluster_name="DefaultCluster", broker_id=broker_id)
        await self.client.call(container.address, header, timeout_ms=20_000)

    async def send(self, name: str, count: int, timeout_ms: int = 10_000) -> int:
        """To the broker set of this name; returns how many were not acknowledged."""
        failed = 0
        if name not in self.acked:
            await self._make_topic(name)
        acked = self.acked.setdefault(name, [])
        async with Producer("p", self.namesrv.address, send_timeout_ms=timeout_ms) as producer:
            for _ in range(count):
                body = b"%s %d " % (name.encode(), len(acked)) + os.urandom(100)
                try:
                    await producer.send(Message(TOPIC, body), queue=MessageQueue(TOPIC, name, 0))
                except (ClientError, NetError, MQError):
                    failed += 1
                else:
                    acked.append(body)
        return failed

    async def _make_topic(self, name: str) -> None:
        """At all masters, once this one is registered."""
        async with Admin(self.namesrv.address) as admin:
            deadline = time.monotonic() + PATIENCE_S
            while name not in await admin.masters():
                assert time.monotonic() < deadline, f"{name} is not registered"
                await asyncio.sleep(0.05)
            await admin.create_topic(TOPIC, 1)

    async def bodies(self, address: str) -> list[bytes]:
        """What this broker gives to a consumer."""
        found: list[bytes] = []
        while True:
            header = PullMessage(
                consumer_group="g",
                topic=TOPIC,
                queue_id=0,
                queue_offset=len(found),
                max_msg_nums=32,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            answer = await self.client.call(address, header, accept=PULLED)
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += [message.body for message in decode_records(bytes(answer.body), check_crc=True)]

    async def in_sync(self, master: BrokerConf, slaves: int = 1) -> None:
        """Until this master's slaves have everything."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = await self.client.call(master.address, GetBrokerHAStatus())
                info = decode(bytes(answer.body), HARuntimeInfo)
                if sum(each.diff == 0 for each in info.ha_connection_info) == slaves:
                    return
            except NetError:
                pass
            assert time.monotonic() < deadline, "no slave in sync"
            await asyncio.sleep(0.05)

    async def registered(self, broker: BrokerConf) -> None:
        """Until the name server lists this broker. Before, a broker that was away may lack tables, and no
        client finds it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = await self.client.call(self.namesrv.address, GetBrokerClusterInfo())
            sets = decode(bytes(answer.body), ClusterInfo).broker_addr_table
            if broker.name in sets and sets[broker.name].broker_addrs.get(broker.broker_id) == broker.address:
                return
            assert time.monotonic() < deadline, f"{broker.path.name} is not registered"
            await asyncio.sleep(0.05)


def log(program: Program) -> str:
    return program.log_path.read_text(errors="replace") if program.log_path.exists() else ""


def workers(container: Program) -> list[int]:
    """Process ids of a container's workers, the oldest first."""
    path = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    return sorted(int(each) for each in path.read_text().split())


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
