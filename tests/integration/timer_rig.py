"""A broker for timed messages, and what their tests do with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Rig, configs

from batonmq.broker.service import BrokerService
from batonmq.net import RemotingClient
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt

Starter = Callable[..., Awaitable[Rig]]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def timed(key: str = "k", **properties: object) -> str:
    return "".join(f"{name}\1{value}\2" for name, value in {"UNIQ_KEY": key, **properties}.items())


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        keys = {"vip_channel_enabled": False, "mapped_file_size_timer_log": 4096, **keys}
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


async def stop(rig: Rig) -> None:
    await rig.client.close()
    await rig.broker.stop()


async def until(rig: Rig, count: int, timeout_s: float = 20, **queue: Any) -> list[MessageExt]:
    """The messages of T once there are so many."""
    end = time.monotonic() + timeout_s
    while len(found := await rig.messages(**queue)) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} came"
        await asyncio.sleep(0.05)
    return found


async def refused(rig: Rig, code: ResponseCode, **properties: object) -> str:
    with pytest.raises(MQError) as raised:
        await rig.send(properties=timed(**properties))
    assert raised.value.code == code
    return str(raised.value.remark)
