"""Whether each broker set can be read: by its master, or by a slave that acts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from batonmq import MessageQueue
from batonmq.client.reader import QueueReader
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.topics import GetTopicConfig
from tests.chaos.fixed import FixedGroups
from tests.chaos.load import now_us

PAUSE_S = 0.02
TRY_MS = 3_000
COPY_TIMEOUT_S = 150.0
"""A Java slave copies topics once a minute."""


class Reads:
    """Somebody who reads the first messages of the topic from each broker set, again and again."""

    def __init__(self, topic: str, namesrv: str, names: Sequence[str]) -> None:
        """`names`: of the broker sets; none: nobody reads."""
        self._topic = topic
        self._namesrv = namesrv
        self._names = names
        self._tasks: list[asyncio.Task[None]] = []
        self.moments_us: list[list[int]] = [[] for _ in names]
        """Of each broker set the moments at which messages were read."""

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._read(MessageQueue(self._topic, name, 0), moments))
            for name, moments in zip(self._names, self.moments_us, strict=True)
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, queue: MessageQueue, moments: list[int]) -> None:
        async with QueueReader(self._namesrv, retry_timeout_ms=TRY_MS) as reader:
            while True:
                try:
                    pulled = await reader.pull(queue, 0, 1)
                except (NetError, MQError):
                    pass
                else:
                    if len(pulled.records):
                        moments.append(now_us())
                await asyncio.sleep(PAUSE_S)


async def topic_copied(cluster: FixedGroups, topic: str) -> None:
    """Until all replicas know the topic. Raises `TimeoutError`."""
    deadline = time.monotonic() + COPY_TIMEOUT_S
    client = RemotingClient()
    try:
        for pair in cluster.sets.values():
            for broker in pair:
                while not await _has(client, broker.address, topic):
                    if time.monotonic() > deadline:
                        raise TimeoutError(
                            f"{broker.address} does not know {topic} after {COPY_TIMEOUT_S:g} s"
                        )
                    await asyncio.sleep(0.2)
    finally:
        await client.close()


async def _has(client: RemotingClient, address: str, topic: str) -> bool:
    try:
        await client.call(address, GetTopicConfig(topic=topic))
    except (NetError, MQError):
        return False
    return True
