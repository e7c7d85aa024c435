"""A broker set as processes, queried and changed as an operator does."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.integration.group import Group, read

from batonmq.demo.cluster import Program
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo
from batonmq.protocol.bodies.replication import EpochEntryCache, HARuntimeInfo
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.broker.replication import GetBrokerEpochCache, GetBrokerHAStatus
from batonmq.protocol.json import decode

PATIENCE_S = 20.0


class ReplicaGroup(Group):
    """`Group` with two or more replicas; `await close()` at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.client = RemotingClient(credentials=self.credentials)

    async def close(self) -> None:
        await self.client.close()
        await asyncio.to_thread(self.cluster.stop)

    async def up(self, in_sync: int | None = None) -> None:
        """Start everything; until so many replicas are in sync (all, unless given) and take sends."""
        cluster = self.cluster
        first, *others = cluster.brokers
        for program in (*cluster.namesrvs, *cluster.controller_programs, first):
            await asyncio.to_thread(program.start)
        await self.in_sync(1)  # on a busy machine another one could be elected first
        for program in others:
            await asyncio.to_thread(program.start)
        self.pids = {program.name: program.pid for program in cluster.programs}
        await self.in_sync(self.replicas if in_sync is None else in_sync)
        await self.serving()

    # -- state at the controller

    async def info(self) -> ReplicasInfo | None:
        """The broker set as the controller reports it; None while it does not know it."""
        name = self.cluster.broker_name
        for address in self.cluster.controller_addresses:
            try:
                answer = await self.client.call(address, wire.GetSyncStateData(), msgspec.json.encode([name]))
            except (NetError, MQError):
                continue  # not the leading one
            return decode(bytes(answer.body), BrokerReplicasInfo).replicas_info_table.get(name)
        return None

    async def in_sync(self, count: int, timeout_s: float = PATIENCE_S) -> ReplicasInfo:
        """Until the group has a master and `count` members in sync."""
        deadline = time.monotonic() + timeout_s
        while True:
            info = await self.info()
            if info is not None and info.master_address and len(info.in_sync_replicas) == count:
                return info
            assert time.monotonic() < deadline, f"not {count} in sync: {info}\n{self.logs()[-6000:]}"
            await asyncio.sleep(0.02)

    async def master(self) -> Program:
        """The replica that is master at the controller."""
        info = await self.info()
        assert info is not None and info.master_address
        return self.cluster.broker_at(info.master_address)

    async def ids(self) -> dict[str, int]:
        """Address -> broker id of all replicas."""
        info = await self.info()
        assert info is not None
        replicas = (*info.in_sync_replicas, *info.not_in_sync_replicas)
        return {replica.broker_address: replica.broker_id for replica in replicas}

    async def elect(self, program: Program) -> ReplicasInfo:
        """`mqadmin electMaster`; until the replica serves as master and all are in sync again."""
        broker_id = (await self.ids())[program.address]
        header = wire.ElectMaster(self.cluster.cluster_name, self.cluster.broker_name, broker_id, True)
        await self.client.call(self.cluster.controller_addresses[0], header)
        info = await self.in_sync(self.replicas)
        assert info.master_address == program.address
        return info

    # -- state at the brokers

    async def ha_status(self, program: Program) -> HARuntimeInfo:
        answer = await self.client.call(program.address, GetBrokerHAStatus())
        return decode(bytes(answer.body), HARuntimeInfo)

    async def epochs(self, program: Program) -> EpochEntryCache:
        answer = await self.client.call(program.address, GetBrokerEpochCache())
        return decode(bytes(answer.body), EpochEntryCache)

    # -- logs

    def lines(self, program: Program, *words: str) -> list[str]:
        """Lines of the program's log that contain all `words`."""
        return [line for line in read(program.log_path).splitlines() if all(word in line for word in words)]

    async def logs_it(self, program: Program, *words: str, timeout_s: float = PATIENCE_S) -> str:
        """The first such line, as soon as there is one."""
        await eventually(lambda: bool(self.lines(program, *words)), f"a line with {words}", timeout_s)
        return self.lines(program, *words)[0]


async def eventually(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.02)


def ha_address(program: Program) -> str:
    """Of a broker's replication port."""
    return f"127.0.0.1:{int(str(program.settings['listenPort'])) + 1}"


def commit_log(store: Path) -> bytes:
    """The bytes of a stopped or running replica's commit log, zeros behind its end included."""
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


def descriptors(program: Program) -> int:
    """Open sockets of a process."""
    count = 0
    for link in Path(f"/proc/{program.pid}/fd").iterdir():
        try:
            count += str(link.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue  # closed in the meantime
    return count


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)
