"""Three broker sets with a name server, and a static topic with one logical queue that moves between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.integration.broker.rig import ALL, PULLED, configs, v2

from batonmq.broker.service import BrokerService
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import RemotingClient, Response
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem, TopicQueueMappingDetail
from batonmq.protocol.bodies.topics import TopicConfigAndQueueMapping
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import (
    GetMaxOffset,
    GetMinOffset,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.send import SendMessageResponse
from batonmq.protocol.headers.broker.topics import CreateStaticTopic, GetTopicConfig
from batonmq.protocol.headers.namesrv import GetRouteInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.record import MessageExt, decode_records

NAMES = ("a", "b", "c")
BLOCK = 10_000
"""Distance of the parts of a logical queue, as mqadmin has it."""


class Cluster:
    """Three broker sets without replicas; topic T with one logical queue that moves between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = RemotingClient()
        self.brokers: dict[str, BrokerService] = {}
        self.parts: list[LogicQueueMappingItem] = []
        self.epoch = 0

    async def start(self, stack: AsyncExitStack) -> None:
        stack.push_async_callback(self.client.close)
        config = NamesrvConfig(
            bind_address="127.0.0.1", listen_port=0, kv_config_path=str(self.root / "kv.json")
        )
        self.name_server = NamesrvService(config)
        await self.name_server.start()
        stack.push_async_callback(self.name_server.stop)
        for name in NAMES:
            await self.start_broker(name)
        stack.push_async_callback(self.stop)

    async def start_broker(self, name: str) -> None:
        broker = self.broker(
            name, namesrv_addr=f"127.0.0.1:{self.name_server.port}", vip_channel_enabled=False
        )
        await broker.start()
        self.brokers[name] = broker

    def broker(self, name: str, **keys: Any) -> BrokerService:
        return BrokerService(*configs(self.root / name, broker_name=name, **keys))

    async def stop(self) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    async def call(self, name: str, header: Any, body: bytes = b"", **options: Any) -> Response:
        address = f"127.0.0.1:{self.brokers[name].port}"
        return await self.client.call(address, header, body, timeout_ms=15_000, **options)

    # -- what mqadmin does

    async def create_static(
        self, name: str, *, force: bool = False, attributes: str = "", **changes: Any
    ) -> None:
        """Send a broker what it has of the logical queue; `changes` to the mapping."""
        own = any(part.bname == name for part in self.parts)
        queues = 1 + max((part.queue_id for part in self.parts if part.bname == name), default=-1)
        header = CreateStaticTopic(
            topic="T",
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            attributes=attributes,
            force=force,
        )
        mapping = TopicQueueMappingDetail(
            topic="T",
            total_queues=1,
            bname=name,
            epoch=self.epoch,
            hosted_queues={0: self.parts} if own else {},
        )
        await self.call(name, header, encode(replace(mapping, **changes)))

    async def create(self, name: str) -> None:
        """The topic, led by this broker."""
        self.epoch = 1
        self.parts = [LogicQueueMappingItem(gen=0, queue_id=0, bname=name)]
        await self.create_static(name)
        await self.routed(name)

    async def remap(self, name: str, *, decide: bool = True) -> None:
        """Hand the queue to this broker; without `decide` stop before the logic offset is known."""
        self.epoch += 1
        old = self.parts[-1]
        number = sum(part.bname == name for part in self.parts)
        new = LogicQueueMappingItem(gen=old.gen + 1, queue_id=number, bname=name, logic_offset=-1)
        self.parts = [*self.parts, new]
        await self.create_static(name)
        await self.create_static(old.bname)
        if decide:
            await self.decide(old.logic_offset + BLOCK)
        await self.routed(name)

    async def decide(self, logic_offset: int) -> None:
        self.parts = [*self.parts[:-1], replace(self.parts[-1], logic_offset=logic_offset)]
        await self.create_static(self.leader)

    @property
    def leader(self) -> str:
        return self.parts[-1].bname

    async def route(self) -> TopicRouteData:
        answer = await self.client.call(f"127.0.0.1:{self.name_server.port}", GetRouteInfo("T"))
        return decode(answer.body, TopicRouteData)

    async def routed(self, name: str) -> None:
        """Wait until the name server knows that this broker leads."""
        async with asyncio.timeout(5):
            while True:
                try:
                    mappings = (await self.route()).topic_queue_mapping_by_broker or {}
                    if name in mappings and mappings[name].epoch == self.epoch:
                        return
                except MQError as error:
                    assert error.code == ResponseCode.TOPIC_NOT_EXIST
                await asyncio.sleep(0.01)

    # -- what clients do

    async def send(self, *bodies: bytes, at: str | None = None, queue: int = 0) -> list[int]:
        """Send to the logical queue; the logical offsets."""
        offsets = []
        for body in bodies:
            answer = await self.call(at or self.leader, v2("T", queue), body)
            assert isinstance(answer.header, SendMessageResponse)
            assert answer.header.queue_id == 0
            offsets.append(answer.header.queue_offset)
        return offsets

    async def pull(self, offset: int, *, at: str | None = None, **fields: Any) -> Response:
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": "T",
            "queue_id": 0,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": ALL,
            "commit_offset": 0,
            "suspend_timeout_millis": 200,
            "sub_version": 0,
            "subscription": "*",
        }
        return await self.call(at or self.leader, PullMessage(**{**values, **fields}), accept=PULLED)

    async def read_all(self, offset: int = 0) -> list[tuple[int, bytes]]:
        """Every message from an offset on, as a consumer reads them: logical offset and body."""
        found: list[tuple[int, bytes]] = []
        while True:
            answer = await self.pull(offset)
            header = answer.header
            assert isinstance(header, PullMessageResponse)
            if answer.code == ResponseCode.SUCCESS:
                delta = header.offset_delta
                assert delta is not None
                for record in decode_records(answer.body):
                    found.append((record.queue_offset + delta, record.body))
            elif answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            offset = header.next_begin_offset

    async def records(self, offset: int) -> list[MessageExt]:
        return decode_records((await self.pull(offset)).body)

    async def config(self, name: str) -> TopicConfigAndQueueMapping:
        answer = await self.call(name, GetTopicConfig(topic="T", lo=True))
        return decode(answer.body, TopicConfigAndQueueMapping)

    async def committed(self, group: str = "g") -> int | None:
        header = QueryConsumerOffset(consumer_group=group, topic="T", queue_id=0)
        try:
            answer = await self.call(self.leader, header)
        except MQError as error:
            assert error.code == ResponseCode.QUERY_NOT_FOUND
            return None
        offset: int = answer.header.offset  # type: ignore[union-attr]
        return offset

    async def commit(self, offset: int, group: str = "g") -> None:
        header = UpdateConsumerOffset(consumer_group=group, topic="T", queue_id=0, commit_offset=offset)
        await self.call(self.leader, header)

    async def bounds(self) -> tuple[int, int]:
        first = await self.call(self.leader, GetMinOffset("T", 0))
        end = await self.call(self.leader, GetMaxOffset("T", 0))
        return first.header.offset, end.header.offset  # type: ignore[union-attr]


@asynccontextmanager
async def cluster(root: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        made = Cluster(root)
        await made.start(stack)
        yield made
