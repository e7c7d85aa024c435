"""SQL92 filters and offset resets outlive the death of the master, with processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

from tests.integration.ha.replica_group import ReplicaGroup

from batonmq import Message, MessageQueue, Producer
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import ConsumerData, ConsumeType, HeartbeatData, SubscriptionData
from batonmq.protocol.codes import PullSysFlag, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import ResetOffset
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pop import PopMessage
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse
from batonmq.protocol.headers.broker.replication import GetAllConsumerFilter
from batonmq.protocol.headers.broker.topics import CreateTopic
from batonmq.protocol.json import encode
from batonmq.protocol.message.record import decode_records

ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
)
WANTED = SubscriptionData("T", "a > 1", sub_version=7, expression_type="SQL92")


class Pulled(NamedTuple):
    code: int
    next_offset: int
    bodies: list[bytes]


async def heartbeat(group: ReplicaGroup, address: str) -> None:
    consumer = ConsumerData("g", ConsumeType.PASSIVELY, subscription_data_set=[WANTED])
    data = HeartbeatData("c", consumer_data_set=[consumer])
    await group.client.call(address, Heartbeat(), encode(data))


async def pull(group: ReplicaGroup, address: str, offset: int, sys_flag: int = 0) -> Pulled:
    expression = "*" if sys_flag else None
    header = PullMessage("g", "T", 0, offset, 32, sys_flag, 0, 0, 7, subscription=expression)
    answer = await group.client.call(address, header, accept=ANSWERS)
    assert isinstance(answer.header, PullMessageResponse)
    found = decode_records(bytes(answer.body)) if answer.code == ResponseCode.SUCCESS else []
    return Pulled(answer.code, answer.header.next_begin_offset, [message.body for message in found])


async def test_a_new_master_knows_filters_and_resets(tmp_path: Path) -> None:
    group = ReplicaGroup(tmp_path / "group", {"enablePropertyFilter": "true"}, replicas=2)
    await group.up()
    try:
        first = await group.master()
        second = next(each for each in group.cluster.brokers if each is not first)
        topic = CreateTopic("T", "TBW102", 1, 1, 6, "SINGLE_TAG", 0, False, None)
        await group.client.call(first.address, topic)
        queue = MessageQueue("T", group.cluster.broker_name, 0)
        async with Producer("p", group.cluster.namesrv_address, retries=10) as producer:
            for number in range(4):
                message = Message("T", b"%d" % number, properties={"a": str(number)})
                await producer.send(message, queue=queue)
        await heartbeat(group, first.address)
        assert (await pull(group, first.address, 0)).bodies == [b"2", b"3"]
        assert await pop(group, first.address) == [b"0", b"1", b"2", b"3"]
        for consumers, offset in (("g", 3), ("popping", 1)):
            reset = ResetOffset(
                group=consumers, topic="T", timestamp=0, is_force=True, queue_id=0, offset=offset
            )
            await group.client.call(first.address, reset)
        first.kill()
        while (await group.master()) is not second:
            await asyncio.sleep(0.01)
        await group.serving()
        body = bytes((await group.client.call(second.address, GetAllConsumerFilter())).body)
        copied = json.loads(body)["filterDataByTopic"]["T"]["groupFilterData"]["g"]
        assert (copied["expression"], copied["clientVersion"]) == ("a > 1", 7)
        met = await until_answered(group, second.address)
        assert met == Pulled(ResponseCode.PULL_OFFSET_MOVED, 3, []), "no pull had used the reset"
        assert await pop(group, second.address) == [b"1", b"2", b"3"], "no pop had used the reset"
        assert await pop(group, second.address) == [], "a reset counts once"
        await heartbeat(group, second.address)
        assert (await pull(group, second.address, 0)).bodies == [b"2", b"3"]
    finally:
        await group.close()


async def pop(group: ReplicaGroup, address: str) -> list[bytes]:
    """What the group `popping` finds now."""
    header = PopMessage("popping", "T", 0, 32, 60_000, 0, 0, 0)
    answer = await group.client.call(address, header, accept=(0, ResponseCode.POLLING_TIMEOUT))
    return [message.body for message in decode_records(bytes(answer.body))]


async def until_answered(group: ReplicaGroup, address: str) -> Pulled:
    """A pull of all messages, once the broker takes pulls."""
    while True:
        try:
            return await pull(group, address, 0, PullSysFlag.SUBSCRIPTION)
        except (MQError, NetError):
            await asyncio.sleep(0.05)
