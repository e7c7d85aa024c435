"""A story, and what several stories do: send, consume, wait for offsets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.integration.container.trio import SETS, Trio

from batonmq import MessageExt
from batonmq.protocol.names import pop_retry_topic

COUNT = 32
LATE_S = 4.0
"""How late a delayed or timed message may come while brokers come and go; RocketMQ's tests allow as much."""


@dataclass(frozen=True)
class Story:
    run: Callable[[Trio], Awaitable[None]]
    sets: str = SETS
    """Masters that have the topic beforehand."""
    queues: int = 1
    pop_group: str = ""
    """Its retry topic of pop exists beforehand, too."""

    @property
    def name(self) -> str:
        return self.run.__name__

    async def prepare(self, trio: Trio) -> None:
        await trio.create_topic(self.name, sets=self.sets, queues=self.queues)
        if self.pop_group:
            await trio.create_topic(pop_retry_topic(self.pop_group, self.name, v2=False), sets=self.sets)


STORIES: list[Story] = []
Send = Callable[[Trio, str, str], Awaitable[dict[str, float]]]
"""`delayed` or `timed`."""


def story(**values: Any) -> Callable[[Callable[[Trio], Awaitable[None]]], Callable[[Trio], Awaitable[None]]]:
    """Adds the function to `STORIES`; its topic has the function's name."""

    def add(run: Callable[[Trio], Awaitable[None]]) -> Callable[[Trio], Awaitable[None]]:
        STORIES.append(Story(run, **values))
        return run

    return add


@asynccontextmanager
async def consuming(trio: Trio, group: str, topic: str) -> AsyncIterator[dict[str, list[float]]]:
    """A push consumer of the topic: body -> the wall times at which it came."""
    came: dict[str, list[float]] = {}

    async def handle(message: MessageExt) -> None:
        came.setdefault(message.body.decode(), []).append(time.time())

    consumer = trio.consumer(group)
    consumer.subscribe(topic, "*", handle)
    async with consumer:
        yield came


async def complete(
    trio: Trio, came: dict[str, list[float]], bodies: list[str], timeout_s: float = 60
) -> None:
    async def all_there() -> bool:
        return came.keys() >= set(bodies)

    await trio.until(all_there, f"{len(bodies)} messages come", timeout_s)


async def on_time(trio: Trio, came: dict[str, list[float]], due: dict[str, float]) -> None:
    """Until all came; 95 of 100 on time, none early."""
    await complete(trio, came, list(due))
    late = {body: came[body][0] - due[body] for body in due}
    assert min(late.values()) > -1.1, late
    assert sum(each < LATE_S for each in late.values()) >= 0.95 * len(due), late


async def delayed(trio: Trio, name: str, topic: str) -> dict[str, float]:
    """Send delayed messages to a set: body -> when each is due, wall time in s."""
    bodies = await trio.send(name, topic, COUNT, delay_level=trio.delay_level)
    return dict.fromkeys(bodies, time.time() + trio.delay_s)


async def timed(trio: Trio, name: str, topic: str) -> dict[str, float]:
    """The same of timed ones."""
    due_s = time.time() + trio.delay_s
    return dict.fromkeys(await trio.send(name, topic, COUNT, deliver_at=due_s), due_s)


async def offset_of(
    trio: Trio, address: str, group: str, topic: str, wanted: int, timeout_s: float = 60
) -> None:
    async def reached() -> bool:
        return await trio.committed(address, group, topic) >= wanted

    await trio.until(reached, f"{address} has offset {wanted} of {group}", timeout_s)
