"""RocketMQ's own broker, client and mqadmin against our name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[str]:
    service = NamesrvService(
        NamesrvConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            kv_config_path=str(tmp_path / "kvConfig.json"),
            config_store_path=str(tmp_path / "namesrv.properties"),
        )
    )
    await service.start()
    yield f"127.0.0.1:{service.port}"
    await service.stop()


async def test_a_java_broker_registers_and_the_tools_work(peer: Any, namesrv: str) -> None:
    broker = await peer.start("broker", {"namesrvAddr": namesrv, "brokerName": "java-a"})
    clusters = await peer.admin_until(broker.address, "clusterList", "-n", namesrv)
    assert "DefaultCluster" in clusters and "java-a" in clusters

    made = await peer.admin(
        "updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", "flights", "-r", "3", "-w", "3"
    )
    assert "success" in made, made
    route = await peer.admin_until('"readQueueNums":3', "topicRoute", "-n", namesrv, "-t", "flights")
    assert broker.address in route
    assert "flights" in await peer.admin("topicList", "-n", namesrv)
    assert "flights" in await peer.admin("topicList", "-n", namesrv, "-c")

    wiped = await peer.admin("wipeWritePerm", "-n", namesrv, "-b", "java-a")
    assert "wipe write perm of broker[java-a]" in wiped, wiped
    assert '"perm":4' in await peer.admin("topicRoute", "-n", namesrv, "-t", "flights")
    await peer.admin("addWritePerm", "-n", namesrv, "-b", "java-a")
    assert '"perm":6' in await peer.admin("topicRoute", "-n", namesrv, "-t", "flights")

    assert "success" in await peer.admin(
        "updateKvConfig", "-n", namesrv, "-s", "SOME", "-k", "key", "-v", "value"
    )
    assert "success" in await peer.admin("deleteKvConfig", "-n", namesrv, "-s", "SOME", "-k", "key")
    assert "listenPort" in await peer.admin("getNamesrvConfig", "-n", namesrv)
    assert "success" in await peer.admin(
        "updateNamesrvConfig", "-n", namesrv, "-k", "orderMessageEnable", "-v", "true"
    )

    broker.kill()
    for _ in range(20):
        gone = await peer.admin("clusterList", "-n", namesrv)
        if "java-a" not in gone:
            break
        await asyncio.sleep(0.2)
    assert "java-a" not in gone


async def test_a_compressed_registration_of_java_is_read(peer: Any, namesrv: str) -> None:
    broker = await peer.start(
        "broker", {"namesrvAddr": namesrv, "brokerName": "java-z", "compressedRegister": "true"}
    )
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv)
    assert "TBW102" in await peer.admin("topicList", "-n", namesrv)
    assert broker.terminate() in (0, 143)
    assert "java-z" not in await peer.admin("clusterList", "-n", namesrv)
