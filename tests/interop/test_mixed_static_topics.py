"""A static topic whose queues move between RocketMQ's broker and ours, and back, by RocketMQ's mqadmin.

Whoever leads a queue reads the other's part for its clients, and keeps groups' positions there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import RemotingClient, Response
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import (
    GetMaxOffset,
    GetMaxOffsetResponse,
    GetMinOffset,
    GetMinOffsetResponse,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    QueryConsumerOffsetResponse,
    SearchOffset,
    SearchOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.send import SendMessageResponse, SendMessageV2
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import decode_records
from batonmq.store.config import StoreConfig
from tests.interop.conftest import Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
TOPIC, GROUP, QUEUES = "Logical", "group", 2
BLOCK = 10_000
PULLED = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


@dataclass
class Pair:
    """A name server and two brokers, `ours` and `java`."""

    peer: Peer
    namesrv: str
    brokers: Mapping[str, str]
    """Name -> address."""
    client: RemotingClient

    async def call(self, name: str, header: Any, body: bytes = b"", **options: Any) -> Response:
        return await self.client.call(self.brokers[name], header, body, timeout_ms=10_000, **options)

    async def admin(self, command: str, *arguments: str) -> None:
        answer = await self.peer.admin(command, "-n", self.namesrv, "-t", TOPIC, *arguments)
        assert "Exception" not in answer, answer

    async def led_by(self, name: str) -> None:
        async with asyncio.timeout(40):
            while True:
                answer = await self.client.call(self.namesrv, GetRouteInfo(TOPIC))
                mappings = decode(answer.body, TopicRouteData).topic_queue_mapping_by_broker or {}
                epochs = {info.epoch for info in mappings.values()}
                if name in mappings and len(mappings[name].curr_id_map) == QUEUES and len(epochs) == 1:
                    return
                await asyncio.sleep(0.2)

    async def send(self, name: str, queue_id: int, body: bytes) -> int:
        header = SendMessageV2("p", TOPIC, "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0, "")
        answer = await self.call(name, header, body)
        assert isinstance(answer.header, SendMessageResponse)
        assert answer.header.queue_id == queue_id
        return answer.header.queue_offset

    async def read(self, name: str, queue_id: int, offset: int = 0) -> list[tuple[int, bytes]]:
        """Logical offset and body of every message that this leader gives from the offset on."""
        found: list[tuple[int, bytes]] = []
        while True:
            header = PullMessage(
                GROUP, TOPIC, queue_id, offset, 3, PullSysFlag.SUBSCRIPTION, 0, 200, 0, subscription="*"
            )
            answer = await self.call(name, header, accept=PULLED)
            assert isinstance(answer.header, PullMessageResponse)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            if answer.code == ResponseCode.SUCCESS:
                delta = answer.header.offset_delta or 0
                found += [(each.queue_offset + delta, each.body) for each in decode_records(answer.body)]
            offset = answer.header.next_begin_offset

    async def committed(self, name: str, queue_id: int) -> int | None:
        try:
            answer = await self.call(name, QueryConsumerOffset(GROUP, TOPIC, queue_id))
        except MQError as error:
            assert error.code == ResponseCode.QUERY_NOT_FOUND
            return None
        assert isinstance(answer.header, QueryConsumerOffsetResponse)
        return answer.header.offset


@pytest.fixture(params=["our-name-server", "rocketmqs-name-server"])
async def namesrv(peer: Peer, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "rocketmqs-name-server":
        yield (await peer.start("namesrv")).address
        return
    service = NamesrvService(
        NamesrvConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=str(tmp_path / "kv.json"))
    )
    await service.start()
    yield f"127.0.0.1:{service.port}"
    await service.stop()


@pytest.fixture
async def pair(peer: Peer, namesrv: str, tmp_path: Path) -> AsyncIterator[Pair]:
    client = RemotingClient()
    ours = BrokerService(
        BrokerConfig(
            broker_name="ours",
            listen_port=peer.free_port(),
            namesrv_addr=namesrv,
            register_name_server_period=10_000,
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
        ),
        StoreConfig(store_path_root_dir=str(tmp_path / "ours"), mapped_file_size_commit_log=1 << 20),
        HAConfig(),
    )
    await ours.start()
    # RocketMQ's brokers know each other's addresses from a poll of all topics' routes.
    java = await peer.start(
        "broker",
        {"brokerName": "java", "namesrvAddr": namesrv, "loadBalancePollNameServerInterval": 1_000},
    )
    try:
        await peer.admin_until(java.address, "clusterList", "-n", namesrv)
        yield Pair(peer, namesrv, {"ours": f"127.0.0.1:{ours.port}", "java": java.address}, client)
    finally:
        await client.close()
        await ours.stop()


async def test_queues_go_from_our_broker_to_rocketmqs_and_back(pair: Pair) -> None:
    await pair.admin("updateStaticTopic", "-qn", str(QUEUES), "-b", "ours")
    await pair.led_by("ours")
    stored: dict[int, list[tuple[int, bytes]]] = {0: [], 1: []}

    async def send(name: str, count: int, begin: int) -> None:
        for queue_id, messages in stored.items():
            for number in range(count):
                body = f"{name}-{queue_id}-{begin + number}".encode()
                offset = await pair.send(name, queue_id, body)
                assert offset == begin + number
                messages.append((offset, body))

    await send("ours", 5, 0)
    for queue_id in stored:
        await pair.read("ours", queue_id)  # makes the group known
        await pair.call("ours", UpdateConsumerOffset(GROUP, TOPIC, queue_id, 4))

    await pair.admin("remappingStaticTopic", "-b", "java")
    await pair.led_by("java")
    with pytest.raises(MQError) as refused:
        await pair.send("ours", 0, b"x")
    assert refused.value.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    await send("java", 4, BLOCK)
    await asyncio.sleep(1)  # RocketMQ's consume queues
    for queue_id, messages in stored.items():
        assert await pair.committed("java", queue_id) == 4
        assert await pair.read("java", queue_id) == messages

    await pair.admin("remappingStaticTopic", "-b", "ours")
    await pair.led_by("ours")
    await send("ours", 3, 2 * BLOCK)
    for queue_id, messages in stored.items():
        assert await pair.committed("ours", queue_id) == 4
        assert await pair.read("ours", queue_id) == messages
        first = await pair.call("ours", GetMinOffset(TOPIC, queue_id))
        end = await pair.call("ours", GetMaxOffset(TOPIC, queue_id))
        assert isinstance(first.header, GetMinOffsetResponse) and first.header.offset == 0
        assert isinstance(end.header, GetMaxOffsetResponse) and end.header.offset == 2 * BLOCK + 3
        found = await pair.call("ours", SearchOffset(TOPIC, queue_id, 0))
        assert isinstance(found.header, SearchOffsetResponse) and found.header.offset == 0
        for offset in (BLOCK + 2, 3, 2 * BLOCK + 1, BLOCK):  # forwards and back, in both brokers' parts
            await pair.call("ours", UpdateConsumerOffset(GROUP, TOPIC, queue_id, offset))
            assert await pair.committed("ours", queue_id) == offset
