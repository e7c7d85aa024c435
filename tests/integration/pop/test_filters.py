"""Pops with a filter: what they skip, and how long they look on."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from tests.integration.pop.rig import Starter

from batonmq.broker.pop import looks as pop_looks
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig


async def test_tags_are_filtered_and_passed_over(start: Starter) -> None:
    rig = await start()
    for n in range(20):
        await rig.send(b"%d" % n, tags="odd" if n % 2 else "even")
    popped = await rig.pop(exp="odd", exp_type="TAG", invisible_time=300)
    assert [each.body for each in popped] == [b"%d" % n for n in range(1, 20, 2)]
    await rig.ack(*popped[1:])
    assert await rig.bodies(exp="odd", poll_time=3_000) == [b"1"]


@pytest.mark.parametrize("damage", [bytes(600), b"\xff" * 600], ids=["zeros", "ones"])
async def test_a_damaged_record_costs_nobody_the_rest(start: Starter, damage: bytes) -> None:
    rig = await start()
    for n in range(9):
        await rig.send(b"%d" % n + bytes(600), tags="odd" if n % 2 else "even")
    rig.damage("T", 4, damage)
    found: list[int] = []
    for _ in range(12):
        found += await rig.popped_offsets(exp="even", exp_type="TAG")
    assert found == [0, 2, 4, 6, 8]  # each can be acknowledged


async def test_a_filter_that_passes_over_a_backlog_of_many_queues_leaves_turns_to_others(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = 0
    looks: Counter[int] = Counter()

    def counted(topic: str, group: str) -> None:
        looks[turn] += 1
        wake(topic, group)

    async def take_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    rig = await start(enable_property_filter=True)
    await rig.call(UpdateBrokerConfig(), b"maxFilterMessageSize=100\n")
    queues, messages = 8, 40
    await rig.create("U", queues)
    for begin in range(0, queues * messages, 40):
        sends = (rig.send(b"x", topic="U", queue=n % queues, tags="no") for n in range(begin, begin + 40))
        await asyncio.gather(*sends)
    await rig.send(b"hit", topic="U", queue=5, tags="yes")
    waiting = rig.part.popper._looks
    wake, waiting._look = waiting._look, counted
    monkeypatch.setattr(pop_looks, "TURN_US", 0)
    others = asyncio.ensure_future(take_turns())
    found = await rig.bodies(topic="U", exp="TAGS = 'yes'", exp_type="SQL92", max_msg_nums=1, poll_time=5_000)
    others.cancel()
    assert found == [b"hit"]
    # One look sees 5 messages of each queue.
    assert messages // 5 - 1 <= looks.total() <= messages // 5 + 4
    assert max(looks.values()) == 1, looks


async def test_a_filtered_pop_does_not_look_on_while_too_many_batches_are_unacknowledged(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start(enable_property_filter=True)
    await rig.call(UpdateBrokerConfig(), b"maxFilterMessageSize=20\n")
    await rig.send(*[b"x"] * 40, tags="no")
    await rig.send(b"hit", tags="yes")
    assert len(await rig.pop(group="other", max_msg_nums=1)) == 1
    waiting = rig.part.popper._looks
    wake, looks = waiting._look, 0

    def allow(batches: int) -> None:
        assert rig.broker is not None
        settings = rig.broker.broker.settings
        settings.broker = replace(settings.broker, pop_ck_max_buffer_size=batches)

    def counted(topic: str, group: str) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            allow(1)
        wake(topic, group)

    waiting._look = counted
    monkeypatch.setattr(pop_looks, "TURN_LOOKS", 1)
    wanted = {"exp": "TAGS = 'yes'", "exp_type": "SQL92", "max_msg_nums": 1}
    assert (await rig.ask(**wanted, poll_time=400)).code == ResponseCode.POLLING_TIMEOUT
    assert looks == 2
    allow(100)
    assert await rig.bodies(**wanted, poll_time=4_000) == [b"hit"]
