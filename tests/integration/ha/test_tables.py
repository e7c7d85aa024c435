"""What the log does not carry outlives a change of the master, with processes: topics, subscription groups,
consumer offsets, delay offsets."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.ha.replica_group import ReplicaGroup

from batonmq import Message, MessageQueue, Producer, QueueReader
from batonmq.demo.cluster import Program
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from batonmq.protocol.bodies.static_topics import LogicQueueMappingItem, TopicQueueMappingDetail
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from batonmq.protocol.bodies.topics import TopicConfigAndMappingSerializeWrapper, TopicConfigAndQueueMapping
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.pull import (
    GetAllConsumerOffset,
    GetAllDelayOffset,
    GetMaxOffset,
    GetMaxOffsetResponse,
    UpdateConsumerOffset,
)
from batonmq.protocol.headers.broker.topics import (
    CreateStaticTopic,
    CreateTopic,
    DeleteTopic,
    GetAllSubscriptionGroup,
    GetAllTopicConfig,
    GetTopicConfig,
    UpdateSubscriptionGroup,
)
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.record import decode_records
from batonmq.protocol.registry import Header

COPIED_S = 6.0
"""Offsets are copied every 3 s."""


@dataclass(frozen=True)
class Tables:
    """The tables that a broker reports, limited to names that begin with `Made`."""

    topics: dict[str, int]
    """Name -> queues."""
    groups: dict[str, int]
    """Name -> retryMaxTimes."""
    offsets: dict[str, dict[int, int]]
    """topic@group -> queue -> offset."""
    delays: dict[int, int]
    """Level -> first message not delivered."""


async def tables(group: ReplicaGroup, broker: Program) -> Tables:
    async def body(header: Header) -> bytes:
        return bytes((await group.client.call(broker.address, header)).body)

    topics = decode(await body(GetAllTopicConfig()), TopicConfigAndMappingSerializeWrapper)
    groups = decode(await body(GetAllSubscriptionGroup()), SubscriptionGroupWrapper)
    offsets = decode(await body(GetAllConsumerOffset()), ConsumerOffsetSerializeWrapper)
    delays = decode(await body(GetAllDelayOffset()) or b"{}", DelayOffsetSerializeWrapper)
    return Tables(
        {n: t.write_queue_nums for n, t in topics.topic_config_table.items() if n.startswith("Made")},
        {n: g.retry_max_times for n, g in groups.subscription_group_table.items() if n.startswith("Made")},
        {name: found for name, found in offsets.offset_table.items() if name.startswith("Made")},
        delays.offset_table,
    )


async def copied(group: ReplicaGroup) -> Tables:
    """Until the slaves have what the master has."""
    deadline = time.monotonic() + COPIED_S
    while True:
        first, *others = [await tables(group, broker) for broker in group.cluster.brokers if broker.running]
        if all(other == first for other in others):
            return first
        assert time.monotonic() < deadline, (first, others)
        await asyncio.sleep(0.05)


async def create(group: ReplicaGroup, name: str, queues: int) -> None:
    """Create a topic with `queues` queues and a group with as many retries, as an administrator does."""
    address = (await group.master()).address
    topic = CreateTopic(name, "TBW102", queues, queues, 6, "SINGLE_TAG", 0, False, None)
    await group.client.call(address, topic)
    made = SubscriptionGroupConfig(group_name=name, retry_max_times=queues)
    await group.client.call(address, UpdateSubscriptionGroup(), encode(made))


async def commit(group: ReplicaGroup, name: str, offset: int) -> None:
    header = UpdateConsumerOffset(name, name, 1, offset)
    await group.client.call((await group.master()).address, header)


async def delivered(group: ReplicaGroup, name: str) -> list[bytes]:
    """Bodies in queue 0, once the name server knows a master that was just elected."""
    queue = MessageQueue(name, group.cluster.broker_name, 0)
    deadline = time.monotonic() + 10
    async with QueueReader(group.cluster.namesrv_address) as reader:
        while True:
            try:
                if not await reader.max_offset(queue):
                    return []
                return [message.body for message in decode_records((await reader.pull(queue, 0)).records)]
            except TopicNotExistError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)


async def send_delayed(group: ReplicaGroup, name: str, body: bytes) -> None:
    """Sends a message that is due in 1 s, and waits until it was delivered."""
    queue = MessageQueue(name, group.cluster.broker_name, 0)
    async with Producer("p", group.cluster.namesrv_address, retries=10) as producer:
        await producer.send(Message(name, body, delay_level=1), queue=queue)
    deadline = time.monotonic() + 10
    while body not in await delivered(group, name):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def other(group: ReplicaGroup, broker: Program) -> Program:
    return next(each for each in group.cluster.brokers if each is not broker)


async def test_all_tables_outlive_one_switch_and_a_second_one_right_after(group: ReplicaGroup) -> None:
    first = await group.master()
    second = other(group, first)
    await create(group, "Made", 3)
    await commit(group, "Made", 5)
    await send_delayed(group, "Made", b"once")
    before = await copied(group)
    assert before == Tables({"Made": 3}, {"Made": 3}, {"Made@Made": {1: 5}}, {1: 1})
    await group.elect(second)
    assert await tables(group, second) == before
    await group.elect(first)
    assert await tables(group, first) == await copied(group) == before
    await commit(group, "Made", 6)
    await send_delayed(group, "Made", b"twice")
    after = await copied(group)
    assert after == Tables({"Made": 3}, {"Made": 3}, {"Made@Made": {1: 6}}, {1: 2})
    await group.elect(second)
    await group.elect(first)
    await group.elect(second)
    assert await tables(group, second) == after
    await asyncio.sleep(1.5)  # a level whose offset was lost delivers again within its second
    assert await delivered(group, "Made") == [b"once", b"twice"]
    await group.check()


async def test_what_was_just_made_outlives_switches_in_a_row(group: ReplicaGroup) -> None:
    master = await group.master()
    made: dict[str, int] = {}
    for number in range(8):
        name = f"Made{number}"
        await create(group, name, 2 + number)
        made[name] = 2 + number
        master = other(group, master)
        await group.elect(master)
        found = await tables(group, master)
        assert found.topics == made and found.groups == made
    await group.check()


async def test_what_was_just_made_outlives_the_masters_death(group: ReplicaGroup) -> None:
    master = await group.master()
    slave = other(group, master)
    await create(group, "Made", 3)
    master.kill()
    await group.in_sync(1)
    while (await group.master()) is not slave:
        await asyncio.sleep(0.01)
    found = await tables(group, slave)
    assert found.topics == found.groups == {"Made": 3}
    await create(group, "MadeToo", 5)
    master.start()
    group.pids[master.name] = master.pid
    await group.in_sync(2)
    await copied(group)
    await group.elect(master)  # the second switch: back to the one that knows both only from the other
    found = await tables(group, master)
    assert found.topics == found.groups == {"Made": 3, "MadeToo": 5}
    await group.check(repeats=True)


async def static_topic(group: ReplicaGroup, broker: Program) -> TopicQueueMappingDetail | None:
    answer = await group.client.call(broker.address, GetTopicConfig("MadeStatic", lo=True))
    return decode(answer.body, TopicConfigAndQueueMapping).mapping_detail


async def test_a_static_topic_that_was_just_made_outlives_the_masters_death(group: ReplicaGroup) -> None:
    name = group.cluster.broker_name
    # The physical queue has another number than the logical one.
    parts = [LogicQueueMappingItem(gen=2, queue_id=1, bname=name, logic_offset=700)]
    mapping = TopicQueueMappingDetail(
        topic="MadeStatic", total_queues=1, bname=name, epoch=5, hosted_queues={0: parts}
    )
    master = await group.master()
    header = CreateStaticTopic("MadeStatic", "TBW102", 2, 2, 6, "SINGLE_TAG")
    await group.client.call(master.address, header, encode(mapping))
    slave = other(group, master)
    assert await static_topic(group, slave) == mapping
    master.kill()
    while (await group.master()) is not slave:
        await asyncio.sleep(0.01)
    await group.serving()
    assert await static_topic(group, slave) == mapping
    end = await group.client.call(slave.address, GetMaxOffset("MadeStatic", 0))
    assert isinstance(end.header, GetMaxOffsetResponse) and end.header.offset == 700
    master.start()
    group.pids[master.name] = master.pid
    await group.in_sync(2)
    await group.client.call(slave.address, DeleteTopic("MadeStatic"))
    await group.elect(master)
    with pytest.raises(TopicNotExistError):
        await static_topic(group, master)
    await group.check(repeats=True)


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[ReplicaGroup]:
    """A stalled slave stays in sync."""
    settings: dict[str, object] = {"haMaxTimeSlaveNotCatchup": 60_000}
    made = ReplicaGroup(tmp_path / "group", replicas=2, settings=settings)
    await made.up()
    yield made
    await made.close()


async def test_a_mapping_that_a_stalled_slave_lacks_is_not_answered_as_done(patient: ReplicaGroup) -> None:
    """The slave may be elected: it would lead the queue that has just moved away."""
    group = patient
    name = group.cluster.broker_name
    mapping = TopicQueueMappingDetail(
        topic="MadeStatic",
        total_queues=1,
        bname=name,
        epoch=5,
        hosted_queues={0: [LogicQueueMappingItem(bname=name)]},
    )
    header = CreateStaticTopic("MadeStatic", "TBW102", 1, 1, 6, "SINGLE_TAG")
    master = await group.master()
    slave = other(group, master)
    slave.signal(signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(MQError, match=r"slave \d, which may be elected, has not copied it"):
                await group.client.call(master.address, header, encode(mapping), timeout_ms=8_000)
    finally:
        slave.signal(signal.SIGCONT)
    async with asyncio.timeout(2 * COPIED_S):  # its request has timed out
        while True:
            try:
                await group.client.call(master.address, header, encode(mapping), timeout_ms=8_000)
                break
            except MQError:
                await asyncio.sleep(0.1)
    master.kill()
    while (await group.master()) is not slave:
        await asyncio.sleep(0.01)
    assert await static_topic(group, slave) == mapping
    master.start()
    group.pids[master.name] = master.pid
    await group.check(repeats=True)


async def test_offsets_outlive_a_kill_of_the_master_and_of_the_next_one(group: ReplicaGroup) -> None:
    await create(group, "Made", 2)
    await send_delayed(group, "Made", b"once")
    await commit(group, "Made", 9)
    before = await copied(group)
    assert before.offsets == {"Made@Made": {1: 9}} and before.delays == {1: 1}
    for _ in range(2):
        killed = await group.master()
        killed.kill()
        while (await group.master()) is killed:
            await asyncio.sleep(0.01)
        await group.serving()
        assert await tables(group, await group.master()) == before
        killed.start()
        group.pids[killed.name] = killed.pid
        await group.in_sync(2)
        assert await copied(group) == before
    await asyncio.sleep(1.5)
    assert await delivered(group, "Made") == [b"once"]
    await group.check(repeats=True)


async def produce(group: ReplicaGroup, name: str, *bodies: bytes) -> None:
    queue = MessageQueue(name, group.cluster.broker_name, 0)
    async with Producer("p", group.cluster.namesrv_address, retries=10) as producer:
        for body in bodies:
            await producer.send(Message(name, body), queue=queue)


async def test_of_a_recreated_topic_a_new_master_shows_the_new_messages(
    group: ReplicaGroup,
) -> None:
    master = await group.master()
    slave = other(group, master)
    await create(group, "Made", 2)
    await produce(group, "Made", b"old 0", b"old 1", b"old 2")
    await commit(group, "Made", 3)
    await copied(group)
    await group.client.call(master.address, DeleteTopic("Made"))
    await create(group, "Made", 2)
    await produce(group, "Made", b"new 0", b"new 1")
    before = await copied(group)
    assert before.offsets == {}, "they were about the former topic"
    for broker in (slave, master):
        await group.elect(broker)
        assert await delivered(group, "Made") == [b"new 0", b"new 1"]
        assert await tables(group, broker) == before
    await group.check()


async def test_a_deleted_topic_stays_deleted_when_the_slave_restarts_and_takes_over(
    group: ReplicaGroup,
) -> None:
    master = await group.master()
    slave = other(group, master)
    await create(group, "Made", 2)
    await create(group, "MadeToo", 2)
    await produce(group, "Made", b"x")
    await produce(group, "MadeToo", b"y")
    await copied(group)
    await group.client.call(master.address, DeleteTopic("Made"))
    while "Made" in (await tables(group, slave)).topics:
        await asyncio.sleep(0.02)
    master.kill()
    await group.in_sync(1)
    slave.kill()
    slave.start()
    group.pids[slave.name] = slave.pid
    await group.in_sync(1)
    assert (await tables(group, slave)).topics == {"MadeToo": 2}
    assert await delivered(group, "MadeToo") == [b"y"]
    await create(group, "Made", 2)
    await produce(group, "Made", b"z")
    slave.kill()
    slave.start()
    group.pids[slave.name] = slave.pid
    await group.in_sync(1)
    assert (await tables(group, slave)).topics == {"Made": 2, "MadeToo": 2}


async def test_offsets_in_a_recreated_topic_are_forgotten_also_if_the_master_dies_at_once(
    group: ReplicaGroup,
) -> None:
    """Who goes on from where it was in the former topic passes over as many of the new one's messages."""
    master = await group.master()
    slave = other(group, master)
    await create(group, "Made", 2)
    await produce(group, "Made", b"old 0", b"old 1", b"old 2")
    await commit(group, "Made", 3)
    await copied(group)
    await group.client.call(master.address, DeleteTopic("Made"))
    await create(group, "Made", 2)
    await produce(group, "Made", *(b"new %d" % number for number in range(5)))
    master.kill()
    await group.in_sync(1)
    while (await group.master()) is not slave:
        await asyncio.sleep(0.01)
    # First what only a master gives: the controller may have elected it before it knows.
    assert await delivered(group, "Made") == [b"new %d" % number for number in range(5)]
    assert (await tables(group, slave)).offsets == {}


async def test_what_an_administrator_makes_is_on_the_disk_of_a_broker_that_is_alone(
    group: ReplicaGroup,
) -> None:
    master = await group.master()
    other(group, master).kill()
    await group.in_sync(1)
    for number in range(1, 6):
        name = f"Made{number}"
        await create(group, name, number)
        master.kill()
        master.start()
        group.pids[master.name] = master.pid
        await group.in_sync(1)
        found = await tables(group, master)
        assert found.topics[name] == number and found.groups[name] == number
