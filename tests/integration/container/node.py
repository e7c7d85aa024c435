"""A container on the test's event loop, with a client and a name server of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import v2
from tests.integration.container.files import BrokerConf

from batonmq.broker.service import BrokerService
from batonmq.container.config import ContainerConfig
from batonmq.container.core import BrokerIdentity
from batonmq.container.in_process import InProcess
from batonmq.container.service import ConfiguredBrokers, ContainerService
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import RemotingClient
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import AddBroker, RemoveBroker

CLUSTER = "DefaultCluster"


class Node:
    """A container in this process, and a client of it."""

    def __init__(self, config: ContainerConfig, path: Path | None) -> None:
        self.service = ContainerService(config, config_path=path)
        self.said: list[str] = []
        self.configured = ConfiguredBrokers(self.service, config.broker_config_paths, self.said.append)
        self.client = RemotingClient()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    @property
    def running(self) -> dict[BrokerIdentity, BrokerService]:
        (place,) = self.service._places
        assert isinstance(place, InProcess)
        return place._running

    @property
    def names(self) -> list[str]:
        return sorted(entry.claims.identity.canonical_name for entry in self.service.container.table)

    def broker(self, conf: BrokerConf) -> BrokerService:
        return self.running[BrokerIdentity(CLUSTER, conf.name, conf.broker_id)]

    async def add(self, path: object) -> None:
        await self.client.call(self.address, AddBroker(config_path=str(path)), timeout_ms=20_000)

    async def remove(self, name: str, broker_id: int = 0, cluster: str = CLUSTER) -> None:
        header = RemoveBroker(broker_name=name, broker_cluster_name=cluster, broker_id=broker_id)
        await self.client.call(self.address, header, timeout_ms=20_000)

    async def send(self, conf: BrokerConf, body: bytes = b"x") -> None:
        await self.client.call(conf.address, v2("T"), body)


@asynccontextmanager
async def container(path: Path | None = None, **keys: Any) -> AsyncIterator[Node]:
    config = ContainerConfig(**{"listen_port": 0, "bind_address": "127.0.0.1", **keys})
    node = Node(config, path)
    await node.service.start()
    try:
        await node.configured.start()
        yield node
    finally:
        await node.configured.stop()
        await node.client.close()
        await node.service.stop()


@asynccontextmanager
async def name_server(root: Path) -> AsyncIterator[tuple[NamesrvService, str]]:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json"))
    service = NamesrvService(config)
    await service.start()
    try:
        yield service, f"127.0.0.1:{service.port}"
    finally:
        await service.stop()


def registered(service: NamesrvService) -> set[str]:
    return set(service.name_server.routes.cluster_info().broker_addr_table)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def refused(call: Any, code: ResponseCode, *words: str) -> None:
    with pytest.raises(MQError) as caught:
        await call
    assert caught.value.code == code, caught.value
    assert "\n" not in caught.value.remark
    for each in words:
        assert each in caught.value.remark
