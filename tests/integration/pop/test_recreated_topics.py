"""A topic that is deleted and created again has nothing outstanding."""

import asyncio

from tests.integration.pop.rig import Starter

from batonmq.protocol.headers.broker.topics import DeleteTopic


async def test_a_recreated_topic_is_popped_from_its_beginning(start: Starter) -> None:
    rig = await start()
    await rig.send(*(b"old%d" % n for n in range(5)))
    assert len(await rig.pop(invisible_time=1_000)) == 5
    await rig.call(DeleteTopic(topic="T"))
    await rig.create()
    await rig.send(*(b"new%d" % n for n in range(9)))
    await rig.restart()
    assert await rig.bodies() == [b"new%d" % n for n in range(9)]
    await asyncio.sleep(1.2)
    assert await rig.bodies(poll_time=300) == []


async def test_a_recreated_topic_does_not_wait_for_an_ordered_batch_of_the_old_one(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    assert await rig.bodies(order=True, attempt_id="1") == [b"a", b"b"]
    await rig.call(DeleteTopic(topic="T"))
    await rig.create()
    await rig.send(b"c", b"d")
    await rig.restart()
    assert await rig.bodies(order=True, attempt_id="2", poll_time=500) == [b"c", b"d"]
