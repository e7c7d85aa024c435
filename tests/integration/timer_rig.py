"""A broker for timed messages, and what their tests do with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Rig, Starter, starting

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def timed(key: str = "k", **properties: object) -> str:
    return "".join(f"{name}\1{value}\2" for name, value in {"UNIQ_KEY": key, **properties}.items())


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    defaults = {"vip_channel_enabled": False, "mapped_file_size_timer_log": 4096}
    async with starting(tmp_path / "store", **defaults) as start:
        yield start


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
