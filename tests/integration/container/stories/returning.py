"""What the acting slave did, the master knows when it is back.

RocketMQ's GetMetadataReverseIT.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.integration.container.stories.story import (
    COUNT,
    Send,
    complete,
    consuming,
    delayed,
    offset_of,
    story,
    timed,
)
from tests.integration.container.trio import Trio

from batonmq.broker.timer.layout import decode_checkpoint
from batonmq.protocol.bodies.statistics import DelayOffsetSerializeWrapper
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint
from batonmq.protocol.headers.broker.pull import GetAllDelayOffset
from batonmq.protocol.json import decode


@story(sets="a")
async def a_master_that_returns_takes_the_offsets_of_groups(trio: Trio) -> None:
    topic, group = "a_master_that_returns_takes_the_offsets_of_groups", "trio_reverse"
    bodies = await trio.send("a", topic, COUNT)
    await trio.whole()
    await trio.lose("a")
    slave = await trio.acting("a", topic)
    async with consuming(trio, group, topic) as came:
        await complete(trio, came, bodies, 180)
        await offset_of(trio, slave, group, topic, COUNT)
    await trio.bring_back("a")
    await offset_of(trio, trio.address("a"), group, topic, COUNT)
    await trio.whole()


async def _progress_is_taken(
    trio: Trio, topic: str, send: Send, progress: Callable[[], Awaitable[int]]
) -> dict[str, float]:
    """The acting slave delivers what waited at a; the master's `progress` counts it after the return."""
    before = await progress()
    due = await send(trio, "a", topic)
    await trio.lose("a")
    async with consuming(trio, f"of_{topic}", topic) as came:
        await complete(trio, came, list(due))
    await trio.bring_back("a")

    async def taken() -> bool:
        return await progress() >= before + COUNT

    await trio.until(taken, "the master knows that they were delivered", 60)
    await trio.whole()
    return due


@story()
async def a_master_that_returns_takes_the_progress_of_delay_levels(trio: Trio) -> None:
    async def progress() -> int:
        answer = await trio.client.call(trio.address("a"), GetAllDelayOffset())
        return decode(bytes(answer.body), DelayOffsetSerializeWrapper).offset_table.get(trio.delay_level, 0)

    topic = "a_master_that_returns_takes_the_progress_of_delay_levels"
    due = await _progress_is_taken(trio, topic, delayed, progress)
    assert sorted(await trio.bodies(topic, ("a", 0), ("b", 0), ("c", 0))) == sorted(due), "each came once"


@story()
async def a_master_that_returns_takes_the_progress_of_timers(trio: Trio) -> None:
    async def progress() -> int:
        answer = await trio.client.call(trio.address("a"), GetTimerCheckPoint())
        return decode_checkpoint(bytes(answer.body)).master_queue_offset

    topic = "a_master_that_returns_takes_the_progress_of_timers"
    await _progress_is_taken(trio, topic, timed, progress)
