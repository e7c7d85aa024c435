"""Delayed and timed messages come while their master is isolated.

RocketMQ's ScheduledMessageIT, ScheduleSlaveActingMasterIT.
"""

from __future__ import annotations

from tests.integration.container.stories.story import (
    Send,
    complete,
    consuming,
    delayed,
    on_time,
    story,
    timed,
)
from tests.integration.container.trio import Trio


async def _come_from_an_isolated_master(trio: Trio, topic: str, send: Send) -> None:
    due = await send(trio, "a", topic)
    await trio.isolate("a")
    async with consuming(trio, f"of_{topic}", topic) as came:
        await complete(trio, came, list(due))
    await trio.rejoin("a")
    await trio.whole()


async def _come_elsewhere(trio: Trio, topic: str, send: Send, *, lost: str, at: str) -> None:
    """Messages wait at a, and the masters of these sets are lost: they come in time at the master of `at`."""
    async with consuming(trio, f"of_{topic}", topic) as came:
        due = await send(trio, "a", topic)
        for name in lost:
            await trio.lose(name)
        await on_time(trio, came, due)
    assert set(await trio.bodies(topic, (at, 0))) == set(due)
    for name in lost:
        await trio.bring_back(name)
    await trio.whole()


@story()
async def delayed_messages_of_an_isolated_master_come(trio: Trio) -> None:
    await _come_from_an_isolated_master(trio, "delayed_messages_of_an_isolated_master_come", delayed)


@story()
async def timed_messages_of_an_isolated_master_come(trio: Trio) -> None:
    await _come_from_an_isolated_master(trio, "timed_messages_of_an_isolated_master_come", timed)


@story()
async def delayed_messages_come_at_the_master_beside(trio: Trio) -> None:
    """The master of b is in the container of the acting slave."""
    topic = "delayed_messages_come_at_the_master_beside"
    await _come_elsewhere(trio, topic, delayed, lost="a", at="b")


@story()
async def timed_messages_come_at_the_master_beside(trio: Trio) -> None:
    await _come_elsewhere(trio, "timed_messages_come_at_the_master_beside", timed, lost="a", at="b")


@story()
async def delayed_messages_come_at_a_master_elsewhere(trio: Trio) -> None:
    """The master of c is in another container than the acting slave."""
    topic = "delayed_messages_come_at_a_master_elsewhere"
    await _come_elsewhere(trio, topic, delayed, lost="ab", at="c")


@story()
async def timed_messages_come_at_a_master_elsewhere(trio: Trio) -> None:
    await _come_elsewhere(trio, "timed_messages_come_at_a_master_elsewhere", timed, lost="ab", at="c")
