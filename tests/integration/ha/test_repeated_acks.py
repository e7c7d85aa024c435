"""Acks of popped messages whose answers were lost with the master, with processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.ha.replica_group import ReplicaGroup

from batonmq import Message, Producer
from batonmq.client.simple_consumer import SimpleConsumer
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.topics import CreateTopic
from batonmq.protocol.message.record import MessageExt


async def test_a_new_master_takes_a_repeated_ack_for_what_it_is(tmp_path: Path) -> None:
    """Else the consumer would believe that the message comes again, and it does not."""
    group = ReplicaGroup(tmp_path / "group", {}, replicas=2)
    await group.up()
    try:
        first = await group.master()
        topic = CreateTopic("T", "TBW102", 1, 1, 6, "SINGLE_TAG", 0, False, None)
        await group.client.call(first.address, topic)
        namesrv = group.cluster.namesrv_address
        async with (
            Producer("p", namesrv, retries=10) as producer,
            SimpleConsumer("g", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer,
        ):
            for number in range(7):
                await producer.send(Message("T", b"%d" % number))
            consumer.subscribe("T")
            received: list[MessageExt] = []
            while len(received) < 7:
                received += await consumer.receive(2)
            *acked, changed, unacknowledged, _ = received
            for message in acked:
                await consumer.ack(message)
            old = dict(changed.properties)
            await consumer.change_invisible_duration(changed, 60)
            changed.properties.update(old)
            first.kill()
            while (await group.master()) is first:
                await asyncio.sleep(0.01)
            await group.serving()
            for message in (*acked, unacknowledged):
                await consumer.ack(message, timeout_ms=10_000)
            with pytest.raises(MQError) as refused:
                await consumer.ack(changed, timeout_ms=10_000)
            assert refused.value.code == ResponseCode.NO_MESSAGE, "the message comes again"
    finally:
        await group.close()
