"""Light queues: RocketMQ's client on brokers of both kinds, and one store under both in turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import RemotingClient
from batonmq.protocol.headers.broker.pull import QueryConsumerOffset
from batonmq.store.config import StoreConfig
from batonmq.store.verify import verify
from tests.interop.conftest import Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
JAVA = Path(__file__).parent / "java"
NAME = "light"
COUNT = 40
LMQ = {"enableLmq": "true", "enableMultiDispatch": "true"}
SIZES = {"mappedFileSizeCommitLog": 1 << 20, "mapedFileSizeCommitLog": 1 << 20}


def our_broker(root: Path, namesrv: str, port: int) -> BrokerService:
    here = "127.0.0.1"
    return BrokerService(
        BrokerConfig(
            broker_name=NAME,
            broker_ip1=here,
            bind_address=here,
            listen_port=port,
            namesrv_addr=namesrv,
            slave_read_enable=True,
        ),
        StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 20,
            max_index_num=100_000,
            max_hash_slot_num=20_000,
            enable_lmq=True,
            enable_multi_dispatch=True,
        ),
        HAConfig(),
    )


def java_settings(root: Path, namesrv: str) -> dict[str, object]:
    return {
        **SIZES,
        **LMQ,
        "brokerName": NAME,
        "namesrvAddr": namesrv,
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
    }


@pytest.fixture
async def namesrv(tmp_path: Path) -> AsyncIterator[str]:
    service = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await service.start()
    yield f"127.0.0.1:{service.port}"
    await service.stop()


async def used(peer: Peer, namesrv: str, group: str, before: int = 0) -> None:
    """RocketMQ's client sends and pulls; `before`: messages that are in the queues already."""
    output = await peer.java(JAVA / "LightQueues.java", namesrv, "Parent", NAME, group, str(COUNT))
    seen = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    total = before + COUNT
    assert seen.get("all_offsets") == f"0-{total}", output[-3000:]
    bodies = [int(body) for body in seen["all"].split(",")]
    assert bodies[-COUNT:] == list(range(COUNT)) and len(bodies) == total
    assert seen["odd"] == ",".join(str(body) for body in bodies if body % 2)
    assert seen["odd_offsets"] == f"0-{sum(body % 2 for body in bodies)}"
    assert seen["tagged"] == ",".join(str(body) for body in bodies if body % 3 == 1)
    assert (seen["topic"], seen["property"], seen["searched"]) == ("Parent", "3,1", "3")
    assert (seen["never"], seen["committed"], seen["held"], seen["woken"]) == ("0", "3", "true", "1001")


@pytest.mark.parametrize("kind", [pytest.param("ours", id="ours-quick"), pytest.param("java", id="java")])
@pytest.mark.parametrize("group", ["light_group", "%LMQ%light_group"])
async def test_rocketmqs_client_uses_light_queues(
    peer: Peer, namesrv: str, tmp_path: Path, kind: str, group: str
) -> None:
    if kind == "java":
        broker = await peer.start("broker", java_settings(tmp_path / "store", namesrv))
        await peer.admin_until(broker.address, "clusterList", "-n", namesrv)
        return await used(peer, namesrv, group)
    service = our_broker(tmp_path / "store", namesrv, peer.free_port())
    await service.start()
    try:
        await used(peer, namesrv, group)
        status = await peer.admin("topicStatus", "-n", namesrv, "-t", "%LMQ%all", "-c", "DefaultCluster")
        assert str(COUNT + 1) in status, status
        topics = await peer.admin("topicList", "-n", namesrv)
        assert "Parent" in topics and "%LMQ%all" not in topics
    finally:
        await service.stop()


async def test_a_store_with_light_queues_changes_hands_and_goes_back(
    peer: Peer, namesrv: str, tmp_path: Path
) -> None:
    root, group = tmp_path / "store", "%LMQ%light_group"
    broker = await peer.start("broker", java_settings(root, namesrv))
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv)
    await used(peer, namesrv, group)
    assert broker.terminate() in (0, 143)

    service = our_broker(root, namesrv, peer.free_port())
    await service.start()
    try:
        client = RemotingClient()
        asked = QueryConsumerOffset(consumer_group=group, topic="%LMQ%all", queue_id=0)
        answer = await client.call(f"127.0.0.1:{service.port}", asked)
        assert answer.header.offset == 3
        await client.close()
        await used(peer, namesrv, group, COUNT + 1)
    finally:
        await service.stop()
    report = verify(root)
    assert report.ok and not report.waiting, report.errors
    offsets = json.loads((root / "config" / "lmqConsumerOffset.json").read_bytes())
    assert offsets["lmqOffsetTable"] == {f"%LMQ%all@{group}": 3}

    broker = await peer.start("broker", java_settings(root, namesrv))
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv)
    await asyncio.sleep(1)
    await used(peer, namesrv, group, 2 * (COUNT + 1))
    broker.kill()
