"""What slaves know, and what sends and pulls do with them.

RocketMQ's GetMaxOffsetFromSlaveIT, SyncConsumerOffsetIT, RebalanceLockOnSlaveIT, PullMultipleReplicasIT,
PushMultipleReplicasIT, SendMultipleReplicasIT.
"""

from __future__ import annotations

from functools import partial

from tests.integration.container.stories.story import (
    COUNT,
    complete,
    consuming,
    offset_of,
    story,
)
from tests.integration.container.trio import SETS, SLAVES, Trio

from batonmq import MessageQueue
from batonmq.protocol.bodies.clients import LockBatchRequestBody, LockBatchResponseBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import LockBatchMq
from batonmq.protocol.headers.broker.pull import GetMaxOffset, GetMaxOffsetResponse
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import retry_topic


@story(queues=8)
async def the_acting_slave_knows_the_end_of_each_queue(trio: Trio) -> None:
    topic = "the_acting_slave_knows_the_end_of_each_queue"
    await trio.send("c", topic, 100, queues=8)

    async def ends(address: str) -> list[int]:
        found = []
        for queue_id in range(8):
            answer = await trio.client.call(address, GetMaxOffset(topic=topic, queue_id=queue_id))
            assert isinstance(answer.header, GetMaxOffsetResponse)
            found.append(answer.header.offset)
        return found

    before = await ends(trio.address("c"))
    assert sum(before) == 100
    await trio.whole()
    await trio.isolate("c")
    assert await ends(await trio.acting("c", topic)) == before
    await trio.rejoin("c")
    await trio.whole()


@story(sets="c")
async def slaves_copy_the_offsets_of_groups(trio: Trio) -> None:
    topic = "slaves_copy_the_offsets_of_groups"
    bodies = await trio.send("c", topic, 100)
    async with consuming(trio, "trio_copied", topic) as came:
        await complete(trio, came, bodies, 100)
        for broker_id in range(1 + SLAVES):
            await offset_of(trio, trio.address("c", broker_id), "trio_copied", topic, 100, 120)


@story(queues=8)
async def locks_need_more_than_half_of_the_replicas(trio: Trio) -> None:
    topic, group = "locks_need_more_than_half_of_the_replicas", "trio_locks"

    async def locked(name: str) -> bool:
        address = await trio.serving(name, topic)
        if address is None:
            return False
        queues = [MessageQueue(topic, name, queue_id) for queue_id in range(8)]
        body = LockBatchRequestBody(consumer_group=group, client_id="one", mq_set=queues)
        answer = await trio.client.call(address, LockBatchMq(), encode(body), timeout_ms=10_000)
        return len(decode(answer.body, LockBatchResponseBody).lock_ok_mq_set) == 8

    async def refused() -> bool:
        return not await locked("c")

    for name in SETS:
        await trio.until(partial(locked, name), f"locks of {name}", 60)
    await trio.isolate("c")
    await trio.acting("c", topic)
    await trio.until(partial(locked, "c"), "locks of c while its slave acts", 60)
    await trio.remove("c", 1)
    await trio.acting("c", topic, 2)
    await trio.until(refused, "one of three replicas grants no lock", 60)
    await trio.add("c", 1)
    await trio.rejoin("c")
    await trio.whole()


@story()
async def all_replicas_serve_a_pull(trio: Trio) -> None:
    topic = "all_replicas_serve_a_pull"
    bodies = await trio.send("b", topic, 3)

    async def same(broker_id: int) -> bool:
        return await trio.bodies(topic, ("b", broker_id)) == bodies

    for broker_id in range(1 + SLAVES):
        await trio.until(partial(same, broker_id), f"b{broker_id} serves pulls", 60)


@story()
async def a_master_beside_a_slave_stores_what_comes_back(trio: Trio) -> None:
    """A consumer sends a message back to a slave of c. The master of a, in the same container, stores it."""
    topic, group = "a_master_beside_a_slave_stores_what_comes_back", "trio_sent_back"
    bodies = await trio.send("c", topic, 1)
    async with consuming(trio, group, topic) as came:  # creates the group at all masters
        await complete(trio, came, bodies)
    await trio.whole()
    (message,) = await trio.read(trio.address("c", 1), topic)
    header = ConsumerSendMsgBack(
        offset=message.physical_offset,
        group=group,
        delay_level=1,
        origin_topic=topic,
        max_reconsume_times=16,
    )
    await trio.client.call(trio.address("c", 1), header)

    async def stored() -> bool:
        return len(await trio.bodies(retry_topic(group), ("a", 0))) >= 1

    await trio.until(stored, "the master of a has the message", 60)
    assert set(await trio.bodies(retry_topic(group), ("a", 0))) == set(bodies)


@story(sets="a")
async def consumers_go_on_at_the_slave_of_an_isolated_master(trio: Trio) -> None:
    topic, group = "consumers_go_on_at_the_slave_of_an_isolated_master", "trio_isolated"
    bodies = await trio.send("a", topic, COUNT)
    await trio.whole()
    await trio.isolate("a")
    slave = await trio.acting("a", topic)
    async with consuming(trio, group, topic) as came:
        await complete(trio, came, bodies)
        await offset_of(trio, slave, group, topic, COUNT)
    await trio.rejoin("a")
    await trio.whole()


@story()
async def a_send_needs_no_slaves_that_are_gone(trio: Trio) -> None:
    topic = "a_send_needs_no_slaves_that_are_gone"
    await trio.send("a", topic, 1)
    for broker_id in (1, 2):
        await trio.remove("a", broker_id)

    async def sent() -> bool:
        await trio.send("a", topic, 1)
        return True

    await trio.until(sent, "the master alone takes messages", 100)
    for broker_id in (1, 2):
        await trio.add("a", broker_id)
    await trio.whole()


@story()
async def without_automatic_degrade_a_send_is_refused(trio: Trio) -> None:
    topic = "without_automatic_degrade_a_send_is_refused"
    for broker_id in (1, 2):
        await trio.remove("a", broker_id)

    async def alone() -> bool:
        return len(await trio.members("a")) == 1 and await trio.slaves_of("a") == 0

    await trio.until(alone, "the master is alone", 100)
    await trio.set_key("a", 0, "enableAutoInSyncReplicas", "false")
    try:
        await trio.send("a", topic, 1)
    except MQError as error:
        assert error.code == ResponseCode.SYSTEM_ERROR and "in-sync" in error.remark.lower(), error
    else:
        raise AssertionError("the send was accepted with one copy")
    finally:
        await trio.set_key("a", 0, "enableAutoInSyncReplicas", "true")
        for broker_id in (1, 2):
            await trio.add("a", broker_id)
    await trio.whole()
