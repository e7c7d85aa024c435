"""Static topics on brokers with access control: they sign what they ask each other about a queue's parts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.integration.access import AUTH, ROOT
from tests.integration.broker.rig import configs, v2
from tests.integration.static_cluster import BLOCK, Cluster

from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.service import BrokerService
from batonmq.net import RemotingClient
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError


class Guarded(Cluster):
    """Brokers that only users may use; the client is the super user."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.client = RemotingClient(credentials=ROOT)

    def broker(self, name: str, **keys: Any) -> BrokerService:
        return BrokerService(*configs(self.root / name, broker_name=name, **keys), auth=AuthConfig(**AUTH))


async def test_brokers_with_access_control_read_each_others_parts(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        each = Guarded(tmp_path)
        await each.start(stack)
        await each.create("a")
        await each.send(b"0")
        await each.call("a", v2("T", properties="DELAY\x011\x02"), b"late")
        await each.pull(0)
        await each.commit(1)
        await each.remap("b")
        for broker in each.brokers.values():
            broker.broker.tables.subscriptions.get_or_create("g")
        assert await each.committed() == 1
        async with asyncio.timeout(10):
            while len(found := await each.read_all()) < 2:
                await asyncio.sleep(0.05)
        assert found == [(0, b"0"), (BLOCK, b"late")]
        stranger = RemotingClient()
        stack.push_async_callback(stranger.close)
        each.client = stranger
        with pytest.raises(MQError) as refused:
            await each.pull(0)
        assert refused.value.code == ResponseCode.NO_PERMISSION
