"""Our clients on a broker with access control, with no more rights than docs/access-control.md says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.integration.access import AUTH, ROOT, Rig
from tests.integration.broker.rig import configs

from batonmq import Admin as ClientAdmin
from batonmq import (
    ConsumeFromWhere,
    Consumer,
    Credentials,
    Message,
    MessageExt,
    MessageQueue,
    MQError,
    PopConsumer,
    Producer,
    QueueReader,
    RetryLater,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from batonmq.broker.auth_config import AuthConfig
from batonmq.broker.service import BrokerService
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService

FIRST = ConsumeFromWhere.FIRST_OFFSET


class Place:
    def __init__(self, namesrv: str, rig: Rig) -> None:
        self.namesrv = namesrv
        self.rig = rig

    async def user(self, name: str, *rights: tuple[str, str]) -> Credentials:
        """A user with these actions on these resources."""
        user = await self.rig.user(name)
        for action, resource in rights:
            await self.rig.allow(user, resource, action)
        return user


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    address = f"127.0.0.1:{namesrv.port}"
    service = BrokerService(
        *configs(tmp_path / "store", namesrv_addr=address, message_delay_level="1s 1s 1s"),
        auth=AuthConfig(**AUTH),
    )
    await service.start()
    rig = Rig(service)
    async with ClientAdmin(address, credentials=ROOT) as admin:
        await admin.create_topic("T", 2)
    async with Producer("p", address, credentials=ROOT) as producer:
        for number in range(4):
            await producer.send(Message("T", b"%d" % number))
    yield Place(address, rig)
    await rig.close()
    await namesrv.stop()


async def until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def commit(message: MessageExt) -> TransactionState:
    return TransactionState.COMMIT


async def test_producers_need_pub_on_the_topic(place: Place) -> None:
    user = await place.user("shop", ("Pub", "Topic:T"))
    async with Producer("p", place.namesrv, credentials=user) as producer:
        await producer.send(Message("T", b"x"))
        await producer.send([Message("T", b"y"), Message("T", b"z")])
        with pytest.raises(MQError, match="has no permission to access Topic:Other"):
            await producer.send(Message("Other", b"x"))
    async with (
        TransactionProducer("tp", place.namesrv, check=commit, credentials=user) as committing,
        committing.transaction(Message("T", b"t")),
    ):
        pass


@pytest.mark.parametrize("make", [Consumer, PopConsumer])
@pytest.mark.parametrize("orderly", [False, True])
async def test_consumers_need_sub_on_topic_and_group_also_for_retries(
    place: Place, make: type[Consumer] | type[PopConsumer], orderly: bool
) -> None:
    user = await place.user("billing", ("Sub", "Topic:T"), ("Sub", "Group:g"))
    attempts: dict[bytes, int] = {}

    async def handle(message: MessageExt) -> None:
        attempts[message.body] = attempts.get(message.body, 0) + 1
        if attempts[message.body] == 1:
            raise RetryLater()

    consumer = make("g", place.namesrv, from_where=FIRST, orderly=orderly, credentials=user)
    consumer.subscribe("T", "*", handle)
    await consumer.start()
    try:
        await until(lambda: len(attempts) == 4 and min(attempts.values()) >= 2)
    finally:
        await consumer.stop()


async def test_a_simple_consumer_needs_sub_on_topic_and_group(place: Place) -> None:
    user = await place.user("billing", ("Sub", "Topic:T"), ("Sub", "Group:g"))
    seen: set[bytes] = set()
    async with SimpleConsumer(
        "g", place.namesrv, from_where=FIRST, invisible_duration=1, credentials=user
    ) as consumer:
        consumer.subscribe("T")
        deadline = time.monotonic() + 20
        attempts: dict[bytes, int] = {}
        while len(seen) < 4 and time.monotonic() < deadline:
            for message in await consumer.receive(wait=2):
                attempts[message.body] = attempts.get(message.body, 0) + 1
                if attempts[message.body] > 1:  # the first time it comes again, from the retry topic
                    await consumer.ack(message)
                    seen.add(message.body)
    assert len(seen) == 4


async def test_a_reader_needs_sub_and_get(place: Place) -> None:
    sub = await place.user("sub", ("Sub", "Topic:T"), ("Sub", "Group:reader"))
    both = await place.user("both", ("Sub", "Group:reader"))
    await place.rig.allow(both, "Topic:T", "Sub", "Get")
    queue = MessageQueue("T", "b", 0)
    async with QueueReader(place.namesrv, group="reader", credentials=sub) as reader:
        assert (await reader.pull(queue, 0)).records
        with pytest.raises(MQError, match="has no permission to access Topic:T"):
            await reader.max_offset(queue)
    async with QueueReader(place.namesrv, group="reader", credentials=both) as reader:
        assert await reader.max_offset(queue) == 2
