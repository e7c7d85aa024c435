"""Transactions of an isolated master are delivered and checked elsewhere.

RocketMQ's TransactionMessageIT.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.integration.container.stories.story import (
    complete,
    consuming,
    story,
)
from tests.integration.container.trio import Trio

from batonmq import Message, MessageExt, MessageQueue, TransactionProducer, TransactionState


class _Open(Exception):
    """Leaves a transaction open."""


@asynccontextmanager
async def _transactions(
    trio: Trio, topic: str, group: str, decided: asyncio.Event
) -> AsyncIterator[list[str]]:
    """A producer with 16 open half messages at a; it commits when asked, once `decided` is set."""

    def check(message: MessageExt) -> TransactionState:
        return TransactionState.COMMIT if decided.is_set() else TransactionState.UNKNOWN

    producer = TransactionProducer(group, trio.namesrv_address, check=check, poll_interval_ms=1_000)
    async with producer:
        bodies = [f"{topic} {number}" for number in range(16)]
        for body in bodies:
            half = producer.transaction(Message(topic, body.encode()), queue=MessageQueue(topic, "a", 0))
            with suppress(_Open):
                async with half:
                    raise _Open
        yield bodies


@story(sets="a")
async def committed_transactions_are_delivered(trio: Trio) -> None:
    topic = "committed_transactions_are_delivered"
    producer = TransactionProducer(
        "trio_tx", trio.namesrv_address, check=lambda message: TransactionState.COMMIT, poll_interval_ms=1_000
    )
    bodies = [f"{topic} {number}" for number in range(16)]
    async with consuming(trio, "trio_tx_group", topic) as came, producer:
        for body in bodies:
            async with producer.transaction(Message(topic, body.encode())):
                pass
        await complete(trio, came, bodies)


@story(sets="a")
async def open_transactions_are_checked_by_the_master_beside(trio: Trio) -> None:
    topic, decided = "open_transactions_are_checked_by_the_master_beside", asyncio.Event()
    async with (
        consuming(trio, "trio_tx_local", topic) as came,
        _transactions(trio, topic, "trio_tx_local_p", decided) as bodies,
    ):
        await trio.lose("a")
        await trio.create_at("b", topic)
        decided.set()
        await complete(trio, came, bodies, 300)
    await trio.bring_back("a")
    await trio.whole()


@story(sets="a")
async def open_transactions_are_checked_by_a_master_elsewhere(trio: Trio) -> None:
    topic, decided = "open_transactions_are_checked_by_a_master_elsewhere", asyncio.Event()
    async with (
        consuming(trio, "trio_tx_remote", topic) as came,
        _transactions(trio, topic, "trio_tx_remote_p", decided) as bodies,
    ):
        await trio.lose("a")
        for name in "bc":
            await trio.create_at(name, topic)
        await trio.lose("b")
        decided.set()
        await complete(trio, came, bodies, 180)
    await trio.bring_back("a")
    await trio.bring_back("b")
    await trio.whole()
    async with consuming(trio, "trio_tx_remote", topic) as again:
        await asyncio.sleep(10)
    assert not again, "nothing comes twice"
