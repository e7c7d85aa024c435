"""Reset offsets: the next pop uses one, once, also across restarts and in ordered groups."""

import asyncio

import pytest
from tests.integration.pop.rig import Starter

from batonmq.net import RemotingClient
from batonmq.protocol.headers.broker.admin import ResetOffset


async def test_a_reset_offset_holds_for_the_next_pop(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert len(await rig.pop()) == 2
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    assert await rig.bodies() == [b"b"]
    await rig.restart()
    assert await rig.bodies() == []


@pytest.mark.parametrize("order", [False, True])
async def test_a_reset_that_a_pop_has_used_holds_once_whatever_the_table_says(
    start: Starter, order: bool
) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    assert len(await rig.pop(order=order)) == 3
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    assert rig.broker is not None
    offsets = rig.broker.broker.tables.offsets
    pending = offsets.pending_reset("g", "T", 0)
    assert pending is not None and pending[0] == 1
    # The next master may have the log of what follows, and the tables as they are now.
    tables = {"resetOffset": offsets.encode_resets(), "consumerOffset": offsets.encode()}
    popped = await rig.pop(order=order)
    assert [each.body for each in popped] == [b"b", b"c"]
    await rig.ack(*popped)
    end = asyncio.get_running_loop().time() + 5
    while offsets.pending_reset("g", "T", 0) is not None:
        assert asyncio.get_running_loop().time() < end, "the reset is used, and its record is safe"
        await asyncio.sleep(0.02)
    await rig.stop()
    for name, data in tables.items():
        (rig.root / "config" / f"{name}.json").write_bytes(data)
    rig.client = RemotingClient()
    await rig.start()
    assert await rig.bodies(order=order) == []
    assert rig.broker.broker.tables.offsets.pending_reset("g", "T", 0) is None


async def test_a_reset_whose_record_is_not_in_the_log_is_used_again(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert len(await rig.pop()) == 2
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    positions, key = rig.part.positions, ("T", "g", 0)
    taken = positions.take_reset(key)
    assert taken is not None and taken[0] == 1
    assert positions.take_reset(key) is None
    positions.reset_refused(key, taken[1])
    assert positions.take_reset(key) == taken
    positions.clear()  # another term
    assert await rig.bodies() == [b"b"]


async def test_an_ordered_group_follows_a_reset(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert len(await rig.pop(order=True)) == 2
    await rig.call(ResetOffset(topic="T", group="g", timestamp=0, is_force=True, queue_id=0, offset=1))
    assert await rig.bodies(order=True) == [b"b"]


async def test_a_reset_holds_for_an_ordered_queue_whose_messages_are_acknowledged_just_then(
    start: Starter,
) -> None:
    """The ack and the pop that uses the reset come in one read. Another queue may fill that pop."""
    rig = await start()
    await rig.create(queues=2)
    await rig.send(b"a")
    await rig.send(b"b", b"c", queue=1)
    for group in [f"g{number}" for number in range(8)]:  # which queue a pop takes first is random
        (popped,) = await rig.pop(group=group, queue_id=1, order=True, max_msg_nums=1)
        await rig.call(ResetOffset(topic="T", group=group, timestamp=0, is_force=True))
        _, found = await asyncio.gather(
            rig.ack(popped, group=group), rig.bodies(group=group, order=True, max_msg_nums=1)
        )
        found += await rig.bodies(group=group, order=True)
        assert sorted(found)[:2] == [b"a", b"b"], group
