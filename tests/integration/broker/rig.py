"""One broker on real sockets and a client that talks to it."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.net import RemotingClient, Response
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.protocol.headers.broker.send import SendMessageResponse, SendMessageV2
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.store.config import FlushDiskType, StoreConfig

ALL = PullSysFlag.SUBSCRIPTION


PULLED = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


STORED = (0, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT)


HOLD = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND


@dataclass
class Rig:
    """One broker and a client that talks to it."""

    broker: BrokerService
    client: RemotingClient

    async def call(self, header: Any, body: bytes = b"", **options: Any) -> Response:
        return await self.client.call(f"127.0.0.1:{self.broker.port}", header, body, **options)

    async def send(
        self, body: bytes = b"x", topic: str = "T", queue: int = 0, **fields: Any
    ) -> SendMessageResponse:
        answer = await self.call(v2(topic, queue, **fields), body)
        assert isinstance(answer.header, SendMessageResponse)
        return answer.header

    async def pull(self, offset: int, topic: str = "T", queue: int = 0, **fields: Any) -> Response:
        values: dict[str, Any] = {
            "consumer_group": "g",
            "topic": topic,
            "queue_id": queue,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": ALL,
            "commit_offset": 0,
            "suspend_timeout_millis": 10_000,
            "sub_version": 0,
            "subscription": "*",
        }
        answer = await self.call(PullMessage(**{**values, **fields}), accept=PULLED, timeout_ms=15_000)
        return answer

    async def messages(self, offset: int = 0, **fields: Any) -> list[MessageExt]:
        return decode_records((await self.pull(offset, **fields)).body)


def v2(topic: str = "T", queue: int = 0, **fields: Any) -> SendMessageV2:
    values: dict[str, Any] = {
        "producer_group": "p",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": queue,
        "sys_flag": 0,
        "born_timestamp": 1_700_000_000_000,
        "flag": 0,
    }
    return SendMessageV2(**{**values, **fields})


def configs(root: Path, **keys: Any) -> tuple[BrokerConfig, StoreConfig, HAConfig]:
    flush = keys.pop("flush_disk_type", FlushDiskType.ASYNC_FLUSH)
    file_size = keys.pop("mapped_file_size_commit_log", 16 << 20)
    broker = {"broker_name": "b", "broker_ip1": "127.0.0.1", "bind_address": "127.0.0.1", "listen_port": 0}
    store = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=file_size,
        max_hash_slot_num=1000,
        max_index_num=5000,
        flush_disk_type=flush,
    )
    return BrokerConfig(**{**broker, **keys}), store, HAConfig()


Starter = Callable[..., Awaitable[Rig]]


def program(conf: Path) -> list[str]:
    return [sys.executable, "-m", "batonmq", "broker", "-c", str(conf)]


def write_conf(path: Path, **keys: Any) -> Path:
    defaults = {"brokerName": "b", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": 0}
    path.write_text("".join(f"{key}={value}\n" for key, value in {**defaults, **keys}.items()))
    return path


@asynccontextmanager
async def starting(root: Path, **defaults: Any) -> AsyncIterator[Starter]:
    """Starts brokers with the store `root`; all of them are stopped at the end.

    `defaults`: their configuration, where a call of the `Starter` gives no other.
    """
    running: list[Rig] = []

    async def start(**keys: Any) -> Rig:
        service = BrokerService(*configs(root, **{**defaults, **keys}))
        await service.start()
        rig = Rig(service, RemotingClient())
        running.append(rig)
        return rig

    yield start
    for rig in running:
        await rig.client.close()
        if not rig.broker.broker.role.stopping:
            await rig.broker.stop()
