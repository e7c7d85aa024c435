"""Faults of RocketMQ's pop that its users reported, and that BatonMQ must not have.

A number in a name is that of the issue at apache/rocketmq.

Tests of other reported faults:

- #9500, a bad half message freezes the rounds of checks: `tests/integration/test_transaction_checks.py`, "a
  message that cannot be handled does not stop the round".
- #10668, timers after a cut of the log: `tests/unit/broker/test_timer_files.py`, "a cut of the commit log
  takes its messages back".
- rocketmq-clients #913, a receive waits at one broker: `tests/unit/client/test_simple_consumer.py`.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.pop.rig import Starter

from batonmq.broker.messages.appender import PutStatus
from batonmq.broker.pop import reviver
from batonmq.protocol.headers.broker.topics import DeleteTopic

OLD_MESSAGES = 5
REFUSALS = 20


async def test_7914_a_message_stored_after_the_pop_began_is_revived(start: Starter) -> None:
    """The pop waits. RocketMQ took its time before the message was stored, and ignored the message."""
    rig = await start()
    waiting = asyncio.ensure_future(rig.pop(poll_time=5_000, invisible_time=1_000))
    await asyncio.sleep(0.3)
    await rig.send(b"late")
    assert [each.body for each in await waiting] == [b"late"]
    assert await rig.bodies(poll_time=6_000) == [b"late"]


async def test_8479_pops_of_a_deleted_topic_do_not_stop_the_revival_of_others(
    start: Starter,
) -> None:
    """The check points name offsets that the topic, created again, does not have."""
    rig = await start(revive_queue_num=1)
    await rig.create("Other")
    await rig.send(*(b"old%d" % n for n in range(OLD_MESSAGES)))
    assert len(await rig.pop(invisible_time=1_000)) == OLD_MESSAGES
    await rig.call(DeleteTopic(topic="T"))
    await rig.create()
    await rig.send(b"new")
    await rig.send(b"other", topic="Other")
    assert await rig.bodies(topic="Other", invisible_time=1_000) == [b"other"]
    assert await rig.bodies(topic="Other", poll_time=6_000) == [b"other"]
    assert await rig.bodies() == [b"new"]
    assert await rig.bodies(poll_time=500) == []


async def test_10827_a_repeated_ordered_pop_gets_its_batch_whoever_else_pops(
    start: Starter,
) -> None:
    """The answer was lost. The same attempt waits neither for others nor for the invisible time."""
    rig = await start()
    await rig.send(b"a", b"b")
    lost = await rig.bodies(order=True, attempt_id="x", invisible_time=3_600_000)
    others = [
        asyncio.ensure_future(rig.bodies(order=True, attempt_id=f"y{n}", poll_time=3_000)) for n in range(32)
    ]
    again = [
        await asyncio.wait_for(rig.bodies(order=True, attempt_id="x", poll_time=3_000), 1) for _ in range(8)
    ]
    assert again == [lost] * 8 == [[b"a", b"b"]] * 8
    assert await asyncio.gather(*others) == [[]] * 32


async def test_a_message_is_not_dropped_after_16_refused_revivals(
    start: Starter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RocketMQ gives up a check point whose message its store refused so often."""
    monkeypatch.setattr(reviver, "RETRY_MS", 10)
    rig = await start()
    assert rig.broker is not None
    await rig.send(b"a")
    assert await rig.bodies(invisible_time=200) == [b"a"]
    refusal = "g", "T", PutStatus.SERVICE_NOT_AVAILABLE.name
    rig.broker.broker.role.stopping = True
    async with asyncio.timeout(10):
        while dict(rig.part.reviver.retries.points()).get(refusal, 0) < REFUSALS:
            await asyncio.sleep(0.02)
    rig.broker.broker.role.stopping = False
    assert await rig.bodies(poll_time=5_000) == [b"a"]
