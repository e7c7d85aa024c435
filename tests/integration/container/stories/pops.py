"""What was popped at an acting slave comes back when it was not acknowledged, and never otherwise.

RocketMQ's PopSlaveActingMasterIT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.integration.container.stories.story import (
    story,
)
from tests.integration.container.trio import SETS, Trio
from tests.integration.pop.rig import Rig as PopRig

from batonmq import MessageExt, PopConsumer
from batonmq.protocol.errors import MQError
from batonmq.protocol.names import pop_retry_topic


async def _pop_all(trio: Trio, address: str, topic: str, group: str, count: int, invisible_ms: int) -> None:
    """Pop so many messages of the topic, and acknowledge none."""
    rig = PopRig(Path(), {}, trio.client, address=address)
    found: list[bytes] = []

    async def enough() -> bool:
        popped = await rig.pop(topic, group, init_mode=0, invisible_time=invisible_ms)
        found.extend(each.body for each in popped)
        return len(found) >= count

    await trio.until(enough, f"{count} messages are popped", 60)


async def _popped_and_acknowledged(trio: Trio, topic: str, group: str) -> None:
    bodies = await trio.send("a", topic, 16)
    await trio.whole("a")
    came: list[str] = []

    async def handle(message: MessageExt) -> None:
        came.append(message.body.decode())

    await trio.isolate("a")
    await trio.acting("a", topic)
    consumer = PopConsumer(group, trio.namesrv_address, poll_interval_ms=1_000, invisible_duration=5)
    consumer.subscribe(topic, "*", handle)
    async with consumer:

        async def enough() -> bool:
            return set(came) >= set(bodies)

        await trio.until(enough, "all come", 60)


async def _popped_and_forgotten(
    trio: Trio, topic: str, group: str, *, lost: Sequence[tuple[str, int]]
) -> None:
    """Messages are popped from the acting slave of a, while a is isolated and other brokers are lost. Nobody
    acknowledges them, so all come into the retry topic."""
    bodies = await trio.send("a", topic, 16)
    await trio.whole()
    await trio.isolate("a")
    for place in lost:
        await trio.lose(*place)
    await _pop_all(trio, await trio.acting("a", topic), topic, group, 16, 5_000)

    async def back() -> bool:
        return sorted(await _retried(trio, topic, group)) == sorted(bodies)

    await trio.until(back, "all are in the retry topic, once", 180)
    await trio.rejoin("a")
    for place in lost:
        await trio.bring_back(*place)
    await trio.whole()


async def _retried(trio: Trio, topic: str, group: str) -> list[str]:
    """What was put into the retry topics of pop, at all brokers that masters or slaves in their place."""
    found = []
    for name in SETS:
        try:
            address = await trio.serving(name, topic)
        except MQError:
            continue
        if address is None:
            continue
        for v2 in (False, True):
            records = await trio.read(address, pop_retry_topic(group, topic, v2=v2))
            found += [each.body.decode() for each in records]
    return found


@story(pop_group="trio_pop_local")
async def what_was_acknowledged_at_the_acting_slave_never_comes_back(trio: Trio) -> None:
    topic, group = "what_was_acknowledged_at_the_acting_slave_never_comes_back", "trio_pop_local"
    await _popped_and_acknowledged(trio, topic, group)
    await asyncio.sleep(10)
    assert await _retried(trio, topic, group) == []
    await trio.rejoin("a")
    await trio.whole()


@story(pop_group="trio_pop_late")
async def what_was_not_acknowledged_comes_back_at_the_master_beside(trio: Trio) -> None:
    topic = "what_was_not_acknowledged_comes_back_at_the_master_beside"
    await _popped_and_forgotten(trio, topic, "trio_pop_late", lost=[])


@story(pop_group="trio_pop_remote")
async def what_was_acknowledged_never_comes_back_without_a_master_beside(trio: Trio) -> None:
    topic, group = "what_was_acknowledged_never_comes_back_without_a_master_beside", "trio_pop_remote"
    await trio.lose("b")
    await _popped_and_acknowledged(trio, topic, group)
    await asyncio.sleep(10)
    assert await _retried(trio, topic, group) == []
    await trio.rejoin("a")
    await trio.bring_back("b")
    await trio.whole()
    await asyncio.sleep(10)
    assert await _retried(trio, topic, group) == []


@story(pop_group="trio_pop_near")
async def what_was_not_acknowledged_comes_back_at_a_master_beside_another_slave(trio: Trio) -> None:
    """The master of c stores the check points. It reads the messages from slave 2 of a in its container."""
    topic = "what_was_not_acknowledged_comes_back_at_a_master_beside_another_slave"
    await _popped_and_forgotten(trio, topic, "trio_pop_near", lost=[("b", 0)])


@story(pop_group="trio_pop_far")
async def what_was_not_acknowledged_comes_back_at_a_master_elsewhere(trio: Trio) -> None:
    """The master of c has no replica of a in its container, and reads the messages over the network."""
    topic = "what_was_not_acknowledged_comes_back_at_a_master_elsewhere"
    await _popped_and_forgotten(trio, topic, "trio_pop_far", lost=[("b", 0), ("a", 2)])
