"""Ordered groups: one batch of a queue at a time."""

import asyncio

from tests.integration.pop.rig import Starter

from batonmq.protocol.headers.broker.pop import Notification, NotificationResponse, PopMessageResponse
from batonmq.protocol.message.record import decode_records
from batonmq.protocol.pop import parse_order_count_info, queue_offset_key


async def test_an_ordered_group_gets_one_batch_at_a_time(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    first = await rig.pop(order=True, max_msg_nums=2, attempt_id="x", invisible_time=60_000)
    assert [each.body for each in first] == [b"a", b"b"]
    assert first[0].receipt.revive_queue == 999
    assert await rig.bodies(order=True, attempt_id="y") == []
    again = await rig.pop(order=True, max_msg_nums=2, attempt_id="x")
    assert [each.body for each in again] == [b"a", b"b"]
    waiting = asyncio.ensure_future(rig.pop(order=True, attempt_id="y", poll_time=5_000))
    await asyncio.sleep(0.05)
    await rig.ack(*again)
    assert [each.body for each in await waiting] == [b"c"]


async def test_a_notification_comes_when_an_ordered_batch_is_due(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    assert await rig.bodies(order=True, invisible_time=500) == [b"a"]
    ask = Notification(consumer_group="g", topic="T", queue_id=-1, poll_time=4_000, born_time=0, order=True)
    answer = await rig.call(ask, timeout_ms=10_000)
    assert isinstance(answer.header, NotificationResponse)
    assert answer.header.has_msg


async def test_a_pop_waits_for_the_ordered_batch_that_is_due_first(start: Starter) -> None:
    rig = await start()
    await rig.create("O", 2)
    for queue, invisible_ms in ((0, 500), (1, 60_000)):
        await rig.send(b"%d" % queue, topic="O", queue=queue)
        assert await rig.bodies(topic="O", order=True, queue_id=queue, invisible_time=invisible_ms)
    waiting = [
        asyncio.ensure_future(rig.bodies(topic="O", order=True, queue_id=queue, poll_time=4_000))
        for queue in (0, 1)
    ]
    assert await asyncio.gather(*waiting) == [[b"0"], []]


async def test_an_ordered_batch_survives_a_restart(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    first = await rig.pop(order=True, max_msg_nums=2, attempt_id="x", invisible_time=2_000)
    await rig.ack(first[0])
    await rig.restart()
    assert await rig.bodies(order=True, attempt_id="y") == []
    answer = await rig.ask(order=True, attempt_id="y", poll_time=5_000)
    assert [each.body for each in decode_records(answer.body)] == [b"b", b"c"]
    assert isinstance(answer.header, PopMessageResponse)
    counts = parse_order_count_info(answer.header.order_count_info)
    assert counts == {("0", queue_offset_key(0, 1)): 1, ("0", "0"): 0}
