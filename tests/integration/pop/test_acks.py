"""Acknowledgements and changed invisible times: which receipts count."""

import asyncio

import pytest
from tests.integration.pop.rig import Popped, Starter

from batonmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody, bit_set_of
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import BatchAckMessage
from batonmq.protocol.json import encode


async def test_a_batch_of_acks_settles_its_messages(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b", b"c")
    popped = await rig.pop(invisible_time=400)
    receipt = popped[0].receipt
    ack = BatchAck(
        consumer_group="g",
        topic="T",
        start_offset=receipt.start_offset,
        queue_id=0,
        revive_queue_id=receipt.revive_queue,
        pop_time=receipt.pop_time,
        invisible_time=receipt.invisible_time,
        bit_set=bit_set_of([0, 2]),
    )
    await rig.call(BatchAckMessage(), encode(BatchAckMessageRequestBody("b", [ack])))
    assert await rig.bodies(poll_time=3_000) == [b"b"]


async def test_a_late_ack_may_be_repeated_for_ever(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    (popped,) = await rig.pop()
    await rig.ack(popped)
    for _ in range(20):
        await rig.ack(popped)  # its answer may have been lost
    assert not rig.part.acknowledger.early


async def test_a_changed_invisible_time_counts_from_now(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a")
    (popped,) = await rig.pop(invisible_time=300)
    changed = await rig.change(popped, 1_200)
    await asyncio.sleep(0.6)
    assert await rig.bodies() == []
    with pytest.raises(MQError) as refused:
        await rig.change(popped, 1_000)
    assert refused.value.code == ResponseCode.NO_MESSAGE
    receipt = popped.receipt._replace(
        start_offset=popped.receipt.offset, pop_time=changed.pop_time, invisible_time=changed.invisible_time
    )
    await rig.ack(Popped(popped.record, receipt))
    await asyncio.sleep(1.0)
    assert await rig.bodies() == []


async def test_an_old_receipt_does_not_acknowledge_after_a_change(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    popped = await rig.pop()
    await rig.change(popped[0], 500)
    with pytest.raises(MQError) as late:
        await rig.ack(popped[0])
    assert late.value.code == ResponseCode.NO_MESSAGE
    await rig.ack(popped[1])
    assert await rig.bodies(poll_time=5_000) == [b"a"]
