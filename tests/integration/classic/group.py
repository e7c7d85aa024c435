"""A name server, a master and its slaves without controllers, as processes, and what a test asks of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.load import CountingClient

from batonmq import Credentials, Message, MessageQueue, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.replication import GetBrokerHAStatus
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import decode_records

TOPIC = "Kept"
NAME = "classic"
PATIENCE_S = 20.0
PULLED = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


async def until(condition: Callable[[], bool], what: str = "", timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"in vain for {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


def commit_log(store: Path) -> dict[str, bytes]:
    """Commit log files by name, without the zeros behind the last record."""
    files = sorted((store / "commitlog").iterdir())
    return {path.name: path.read_bytes().rstrip(b"\0") for path in files}


@dataclass
class ClassicGroup:
    """`await close()` at the end."""

    directory: Path
    slaves: int = 1
    settings: dict[str, object] = field(default_factory=dict)
    master_settings: dict[str, object] = field(default_factory=dict)
    acked: list[bytes] = field(default_factory=list)
    credentials: Credentials | None = None
    repeated: int = 0
    """Attempts beyond one a send: each may have stored its message a second time."""

    def __post_init__(self) -> None:
        self.client = RemotingClient(credentials=self.credentials)
        namesrv_port, *ports = free_ports(self.slaves + 2)
        self.namesrv = Program(
            "namesrv",
            "namesrv",
            self.directory,
            {
                "listenPort": namesrv_port,
                "bindAddress": "127.0.0.1",
                "kvConfigPath": self.directory / "kvConfig.json",
            },
        )
        self.brokers = [
            Program(f"b{broker_id}", "broker", self.directory, self.broker_settings(broker_id, port))
            for broker_id, port in enumerate(ports)
        ]

    def broker_settings(self, broker_id: int, port: int) -> dict[str, object]:
        return {
            "brokerName": NAME,
            "brokerId": broker_id,
            "brokerRole": "SLAVE" if broker_id else "SYNC_MASTER",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": port,
            "namesrvAddr": self.namesrv.address,
            "storePathRootDir": self.directory / f"store{broker_id}",
            "mappedFileSizeCommitLog": 1 << 20,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "slaveReadEnable": "true",
            **self.settings,
            **({} if broker_id else self.master_settings),
        }

    @property
    def master(self) -> Program:
        return self.brokers[0]

    def store(self, broker_id: int) -> Path:
        return self.directory / f"store{broker_id}"

    async def up(self) -> None:
        for program in (self.namesrv, *self.brokers):
            await asyncio.to_thread(program.start)
        await self.in_sync(self.slaves)

    async def close(self) -> None:
        await self.client.close()
        for program in (*self.brokers, self.namesrv):
            await asyncio.to_thread(program.stop)

    def log(self, broker_id: int) -> str:
        return self.brokers[broker_id].log_path.read_text(errors="replace")

    async def status(self, program: Program) -> HARuntimeInfo | None:
        try:
            answer = await self.client.call(program.address, GetBrokerHAStatus(), timeout_ms=3_000)
        except NetError:
            return None
        return decode(bytes(answer.body), HARuntimeInfo)

    async def in_sync(self, slaves: int, timeout_s: float = PATIENCE_S) -> HARuntimeInfo:
        """Until the master has so many slaves that have everything."""
        deadline = time.monotonic() + timeout_s
        while True:
            info = await self.status(self.master)
            if info is not None:
                whole = [each for each in info.ha_connection_info if each.diff == 0]
                if len(whole) == slaves:
                    return info
            assert time.monotonic() < deadline, f"not {slaves} slaves: {info}\n" + self.log(0)[-3000:]
            await asyncio.sleep(0.02)

    async def send(
        self, count: int = 1, size: int = 100, *, timeout_ms: int = 6_000, retries: int = 0
    ) -> int:
        """Send; what was acknowledged is in `acked`. Returns how many were not."""
        failed = 0
        queue = MessageQueue(TOPIC, NAME, 0)
        client = CountingClient(credentials=self.credentials)
        async with Producer(
            "p",
            self.namesrv.address,
            send_timeout_ms=timeout_ms,
            retries=retries,
            remoting=client,
        ) as producer:
            for _ in range(count):
                body = b"%d " % len(self.acked) + os.urandom(size)
                try:
                    await producer.send(Message(TOPIC, body), queue=queue)
                except (NetError, MQError, ClientError):
                    failed += 1
                else:
                    self.acked.append(body)
        self.repeated += max(0, client.attempts - count)
        return failed

    async def bodies(self, address: str, begin: int = 0) -> list[bytes]:
        """What this broker gives to a consumer from queue offset `begin` on."""
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while True:
            header = PullMessage(
                consumer_group="g",
                topic=TOPIC,
                queue_id=0,
                queue_offset=begin + len(found),
                max_msg_nums=32,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            try:
                answer = await self.client.call(address, header, accept=PULLED)
            except TopicNotExistError:  # a slave that has just joined has not copied the topic yet
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
                continue
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += [message.body for message in decode_records(bytes(answer.body), check_crc=True)]

    async def serving(self) -> None:
        """Until the master takes sends."""
        deadline = time.monotonic() + PATIENCE_S
        while await self.send():
            assert time.monotonic() < deadline, self.log(0)[-3000:]
            await asyncio.sleep(0.1)
