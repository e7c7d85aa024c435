"""What several tests of the client use: messages to consume, and waiting for a condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.message.record import StoredMessage

from .fakes import FakeCluster

FIRST = ConsumeFromWhere.FIRST_OFFSET


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)


async def fill(
    cluster: FakeCluster, count: int, topic: str = "t", queue: MessageQueue | None = None, **options: object
) -> None:
    async with Producer("p", cluster.namesrv) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, **options), queue=queue)  # type: ignore[arg-type]


def store_as_sent(cluster: FakeCluster, body: bytes, sys_flag: int = 0) -> None:
    """Store a message as its sender compressed it, or claims to have."""
    cluster.logs["a"].append("t", "a", StoredMessage(topic="t", queue_id=0, body=body, sys_flag=sys_flag))
