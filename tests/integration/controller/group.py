"""Controllers in this process, and brokers as controllers see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.net.server import RemotingServer
from batonmq.protocol.bodies.controller import SyncStateSetBody, decode_sync_state_set
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode

CLUSTER = "c"


async def until(condition: Callable[[], Any], what: str, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(0.002)


class Group:
    """Controllers in this process; each can be killed and started again."""

    def __init__(
        self, tmp_path: Path, count: int, *, election_timeout_ms: int = 300, **overrides: Any
    ) -> None:
        self.ports = free_ports(count)
        peers = ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(self.ports))
        self.configs = [
            ControllerConfig(
                controller_d_leger_group="g",
                controller_d_leger_peers=peers,
                controller_d_leger_self_id=f"n{i}",
                controller_store_path=str(tmp_path / f"n{i}"),
                bind_address="127.0.0.1",
                j_raft_election_timeout_ms=election_timeout_ms,
                **overrides,
            )
            for i in range(count)
        ]
        self.services: dict[int, ControllerService] = {}

    async def start(self, *numbers: int) -> None:
        for number in numbers or range(len(self.configs)):
            service = self.services[number] = ControllerService(self.configs[number])
            await service.start()

    async def stop(self, number: int) -> None:
        await self.services.pop(number).stop()

    async def stop_all(self) -> None:
        for number in list(self.services):
            await self.stop(number)

    async def leader(self) -> ControllerService:
        await until(lambda: any(service.leading for service in self.services.values()), "a leader")
        return next(service for service in self.services.values() if service.leading)

    def address(self, service: ControllerService) -> str:
        return service.topology.rpc_addresses[service.topology.self_id]


class FakeBroker:
    """A replica as the controller sees it: a listening port for notices and a connection for heartbeats."""

    def __init__(self, name: str, broker_id: int) -> None:
        self.name, self.broker_id = name, broker_id
        self.client = RemotingClient()
        self.notices: list[tuple[wire.NotifyBrokerRoleChanged, SyncStateSetBody]] = []
        self.epoch = 0
        self.offset = 0
        dispatcher = Dispatcher()
        dispatcher.on(wire.NotifyBrokerRoleChanged, self._notified)
        self.server = RemotingServer(dispatcher, "127.0.0.1", 0)

    def _notified(self, request: Request, header: wire.NotifyBrokerRoleChanged) -> Reply:
        self.notices.append((header, decode_sync_state_set(request.command.body)))
        return Reply()

    async def start(self, controller: str) -> None:
        await self.server.start()
        next_id = await self.client.call(controller, wire.GetNextBrokerId(self.name, CLUSTER))
        assert isinstance(next_id.header, wire.GetNextBrokerIdReply)
        assert next_id.header.next_broker_id == self.broker_id
        code = f"{self.address};1"
        await self.client.call(controller, wire.ApplyBrokerId(self.name, self.broker_id, code, CLUSTER))
        await self.client.call(
            controller, wire.RegisterBrokerToController(CLUSTER, self.name, self.broker_id, self.address)
        )
        await self.beat(controller)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def beat(self, controller: str) -> None:
        header = BrokerHeartbeat(
            CLUSTER, self.address, self.name, self.broker_id, self.epoch, self.offset, 0, 2_000, 100
        )
        await self.client.call(controller, header)

    async def elect(self, controller: str) -> wire.ElectMasterReply:
        header = wire.ElectMaster(CLUSTER, self.name, self.broker_id)
        accept = {0, int(ResponseCode.CONTROLLER_MASTER_STILL_EXIST)}
        reply = await self.client.call(controller, header, accept=accept)
        assert isinstance(reply.header, wire.ElectMasterReply)
        return reply.header

    async def alter(
        self, controller: str, epoch: int, members: tuple[int, ...], set_epoch: int
    ) -> SyncStateSetBody:
        reply = await self.client.call(
            controller,
            wire.AlterSyncStateSet(self.name, self.broker_id, epoch),
            encode(SyncStateSetBody(members, set_epoch)),
        )
        return decode_sync_state_set(bytes(reply.body))

    async def drop_connections(self) -> None:
        """What a controller sees of kill -9."""
        await self.client.close()
        self.client = RemotingClient()

    async def stop(self) -> None:
        await self.client.close()
        await self.server.stop()


async def brokers(controller: str, count: int = 2, name: str = "s") -> list[FakeBroker]:
    made = [FakeBroker(name, number + 1) for number in range(count)]
    for each in made:
        await each.start(controller)
    return made
