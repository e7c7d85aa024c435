"""Messages that are not acknowledged: they come again, and end as dead letters."""

import asyncio

import pytest
from tests.integration.broker.rig import v2
from tests.integration.pop.rig import Starter

from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig
from batonmq.protocol.headers.broker.topics import UpdateSubscriptionGroup
from batonmq.protocol.json import encode


async def test_a_message_that_is_never_acknowledged_becomes_a_dead_letter(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    attempts = 0
    while await rig.pop(invisible_time=1, poll_time=1_000):
        attempts += 1
    assert attempts == 17  # retryMaxTimes 16, and the first
    assert rig.broker is not None
    assert rig.broker.broker.store.queue_bounds("%DLQ%g", 0).max_offset == 1


async def test_a_popped_message_comes_back_although_messages_must_be_smaller_now(start: Starter) -> None:
    """It was acknowledged when `maxMessageSize` was greater. So do its next retry and its dead letter."""
    rig = await start()
    body = bytes(5_000)
    await rig.call(
        UpdateSubscriptionGroup(), encode(SubscriptionGroupConfig(group_name="g", retry_max_times=2))
    )
    await rig.send(body)
    assert await rig.bodies(invisible_time=300) == [body]
    await rig.call(UpdateBrokerConfig(), b"maxMessageSize=1000")
    with pytest.raises(MQError, match="msg body length limit 1000B"):
        await rig.send(body)
    for _ in range(2):
        assert await rig.bodies(invisible_time=300, poll_time=5_000) == [body]
    await asyncio.sleep(1)
    assert rig.broker is not None
    assert rig.broker.broker.store.get("%DLQ%g", 0, 0, 1).size > len(body)


async def test_a_message_without_room_for_a_receipt_is_delivered_again(start: Starter) -> None:
    rig = await start()
    await rig.call(v2("T", properties=f"UNIQ_KEY\1{'0' * 32}\2K\1{'x' * 32_622}\2"), b"a")
    assert await rig.bodies(invisible_time=1) == [b"a"]
    again = await rig.pop(poll_time=5_000)
    assert [(each.body, each.receipt.retry) for each in again] == [(b"a", "1")]
    await rig.ack(*again)
    await rig.send(b"b")
    assert await rig.bodies() == [b"b"]


@pytest.mark.parametrize("damage", [bytes(600), b"\xff" * 600], ids=["zeros", "ones"])
async def test_a_damaged_record_of_a_retry_topic_costs_nobody_the_rest(start: Starter, damage: bytes) -> None:
    rig = await start()
    await rig.send(*(b"%d" % n + bytes(600) for n in range(5)))
    assert len(await rig.pop(invisible_time=1)) == 5
    assert rig.broker is not None
    store = rig.broker.broker.store
    async with asyncio.timeout(10):
        while store.queue_bounds("%RETRY%g_T", 0).max_offset < 5:
            await asyncio.sleep(0.05)
    rig.damage("%RETRY%g_T", 2, damage)
    found: list[int] = []
    for _ in range(5):
        found += await rig.popped_offsets(poll_time=300)
    assert found == [0, 1, 2, 3, 4], "each can be acknowledged"
    await rig.send(b"new")
    assert await rig.bodies() == [b"new"]


async def test_retries_stay_in_their_queues_and_their_topic_grows_with_the_other(start: Starter) -> None:
    rig = await start(use_separate_retry_queue=True)
    await rig.create("S", 2)
    await rig.send(b"one", topic="S", queue=1)
    await rig.pop("S", invisible_time=300)
    (again,) = await rig.pop("S", poll_time=10_000, invisible_time=300)
    assert (again.body, again.receipt.retry, again.receipt.queue_id) == (b"one", "1", 1)
    await rig.create("S", 4)
    await rig.send(b"three", topic="S", queue=3)
    await rig.pop("S", invisible_time=300)
    found: dict[bytes, int] = {}
    while len(found) < 2:
        for each in await rig.pop("S", poll_time=10_000):
            assert each.receipt.retry == "1"
            found[each.body] = each.receipt.queue_id
            await rig.ack(each, topic="S")
    assert found == {b"one": 1, b"three": 3}
