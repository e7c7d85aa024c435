"""Topics with priorities: the order of queues and of retries."""

import pytest
from tests.integration.pop.rig import Starter

from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.headers.broker.pop import Notification, NotificationResponse
from batonmq.protocol.headers.broker.topics import UpdateSubscriptionGroup
from batonmq.protocol.json import encode

PRIORITIES = "+message.type=PRIORITY"


@pytest.mark.parametrize(("ascending", "first"), [(True, [3, 2, 1, 0]), (False, [0, 1, 2, 3])])
async def test_queues_of_a_priority_topic_are_popped_by_priority(
    start: Starter, ascending: bool, first: list[int]
) -> None:
    rig = await start(priority_order_asc=ascending)
    await rig.create("P", 4, PRIORITIES)
    for _ in range(3):
        for queue in (1, 3, 0, 2):
            await rig.send(b"m", topic="P", queue=queue)
    popped = [await rig.pop("P", max_msg_nums=3) for _ in range(4)]
    assert [[each.receipt.queue_id for each in batch] for batch in popped] == [[queue] * 3 for queue in first]


async def test_a_group_with_priority_factor_0_pops_without_priority(start: Starter) -> None:
    rig = await start()
    await rig.create("P", 4, PRIORITIES)
    group = SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": "0"})
    await rig.call(UpdateSubscriptionGroup(), encode(group))
    first = set()
    for _ in range(60):
        for queue in range(4):
            await rig.send(b"m", topic="P", queue=queue)
        popped = await rig.pop("P", max_msg_nums=1)
        first.add(popped[0].receipt.queue_id)
        await rig.pop("P")
    assert first == {0, 1, 2, 3}


@pytest.mark.parametrize(("share", "retry_first"), [(0, False), (100, True)])
async def test_retries_of_a_priority_topic_come_last_or_first(
    start: Starter, share: int, retry_first: bool
) -> None:
    rig = await start(pop_from_retry_probability_for_priority=share)
    await rig.create("P", 2, PRIORITIES)
    await rig.send(b"again", topic="P", queue=1)
    await rig.pop("P", invisible_time=300)
    waiting = await rig.call(
        Notification(consumer_group="g", topic="P", queue_id=-1, poll_time=10_000, born_time=0),
        timeout_ms=20_000,
    )
    assert isinstance(waiting.header, NotificationResponse) and waiting.header.has_msg
    await rig.send(b"new", topic="P", queue=0)
    popped = await rig.pop("P")
    assert [each.body for each in popped] == ([b"again", b"new"] if retry_first else [b"new", b"again"])
