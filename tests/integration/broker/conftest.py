"""Brokers that a test starts are stopped at its end."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Rig, Starter, configs

from batonmq.broker.service import BrokerService
from batonmq.net import RemotingClient


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        service = BrokerService(*configs(tmp_path / "store", **keys))
        await service.start()
        rig = Rig(service, RemotingClient())
        running.append(rig)
        return rig

    yield starter
    for rig in running:
        await rig.client.close()
        if not rig.broker.broker.role.stopping:
            await rig.broker.stop()
