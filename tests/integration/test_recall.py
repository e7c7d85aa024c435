"""A recalled timed message does not come; handles that fit no message are refused."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest
from tests.integration.timer_rig import Starter, now_ms, start, timed, until

from batonmq.broker.timer.enqueuer import BATCH
from batonmq.broker.timer.layout import Checkpoint
from batonmq.broker.timer.part import TimerPart
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTimerMetrics
from batonmq.protocol.headers.broker.send import RecallMessage, RecallMessageResponse
from batonmq.protocol.message.recall import encode_recall_handle

__all__ = ["start"]


async def test_a_recalled_message_does_not_come(start: Starter) -> None:
    rig = await start(recall_message_enable=True)
    due = now_ms() + 2_500
    kept = await rig.send(b"kept", properties=timed("kept", TIMER_DELIVER_MS=due))
    gone = await rig.send(b"gone", properties=timed("gone", TIMER_DELIVER_MS=due))
    assert kept.recall_handle and gone.recall_handle
    answer = (await rig.call(RecallMessage(topic="T", recall_handle=gone.recall_handle))).header
    assert isinstance(answer, RecallMessageResponse) and answer.msg_id == "gone"
    await rig.call(RecallMessage(topic="T", recall_handle=gone.recall_handle))  # again: no harm
    unknown = encode_recall_handle("T", "b", due, "unknown")
    await rig.call(RecallMessage(topic="T", recall_handle=unknown))
    other = timed("other", TIMER_DELIVER_MS=due, TIMER_DEL_UNIQKEY="kept")
    await rig.send(topic="U", properties=other)  # who may send to one topic recalls none of another
    assert [message.body for message in await until(rig, 1)] == [b"kept"]
    await asyncio.sleep(1.2)
    assert len(await rig.messages()) == 1
    assert rig.broker.part(TimerPart).state.timers.waiting == 0
    assert b'"T":{"count":0' in bytes((await rig.call(GetTimerMetrics())).body)


async def test_a_message_that_was_sent_without_a_unique_id_can_be_recalled(start: Starter) -> None:
    rig = await start(recall_message_enable=True)
    due = now_ms() + 1_500
    gone = await rig.send(b"gone", properties=f"TIMER_DELIVER_MS\x01{due}\x02")
    await rig.send(b"kept", properties=f"TIMER_DELIVER_MS\x01{due}\x02")
    assert gone.recall_handle
    await rig.call(RecallMessage(topic="T", recall_handle=gone.recall_handle))
    assert [message.body for message in await until(rig, 1)] == [b"kept"]


async def test_a_recall_follows_its_message_through_rolls(start: Starter) -> None:
    rig = await start(recall_message_enable=True, timer_precision_ms=100, timer_roll_window_slot=9)
    far = await rig.send(b"gone", properties=timed("gone", TIMER_DELAY_MS=3_000))
    await rig.send(b"kept", properties=timed("kept", TIMER_DELAY_MS=3_100))
    await asyncio.sleep(0.3)
    assert far.recall_handle
    await rig.call(RecallMessage(topic="T", recall_handle=far.recall_handle))
    await asyncio.sleep(1)
    assert [message.body for message in await until(rig, 1)] == [b"kept"]


async def test_a_new_master_reads_what_recalls_a_message_before_it_delivers_it(start: Starter) -> None:
    rig = await start(recall_message_enable=True)
    service = rig.broker.part(TimerPart).service
    service.rest()
    due = now_ms() + 5_000
    gone = await rig.send(b"gone", properties=timed("gone", TIMER_DELIVER_MS=due))
    later = [rig.send(properties=timed(f"{n}", TIMER_DELAY_MS=60_000)) for n in range(2 * BATCH)]
    await asyncio.gather(*later)
    assert gone.recall_handle and now_ms() < due
    await rig.call(RecallMessage(topic="T", recall_handle=gone.recall_handle))
    await asyncio.sleep((due - now_ms()) / 1000 + 1.1)
    service.lead()
    await asyncio.sleep(1)
    assert service.state.timers.waiting == len(later)
    assert await rig.messages() == []


async def test_a_slave_forgets_what_its_master_has_delivered(start: Starter) -> None:
    """Else it delivers all of that again if it becomes master while its wheel has one message more than that
    of the last master, which only unique keys would prevent."""
    rig = await start()
    service = rig.broker.part(TimerPart).service
    service.follow()
    sent_ms, due = now_ms(), now_ms() + 1_000
    for _ in range(3):
        await rig.send(properties=f"TIMER_DELIVER_MS\1{due}\2")
    service.replace(Checkpoint(read_ms=sent_ms - 5_000, master_queue_offset=3).encode())
    await asyncio.sleep(0.2)
    assert service.state.timers.waiting == 3
    service.replace(Checkpoint(read_ms=due + 5_000, master_queue_offset=3).encode())
    await asyncio.sleep(0.2)
    assert (service.state.timers.waiting, service.state.timers.next_ms) == (0, None)
    service.replace(Checkpoint(read_ms=due + 4_000, master_queue_offset=2).encode())  # of another master
    service.lead()
    await asyncio.sleep(2)
    assert await rig.messages() == []


async def test_only_timed_messages_have_a_handle(start: Starter) -> None:
    rig = await start()
    for properties in (timed(), timed(TIMER_DELIVER_MS=5), timed(DELAY=1), "TIMER_DELAY_SEC\x015\x02"):
        answer = await rig.send(properties=properties)
        assert not answer.recall_handle or "UNIQ_KEY" not in properties


async def test_answers_to_recalls_name_the_region_by_which_clients_trace_them(start: Starter) -> None:
    rig = await start(recall_message_enable=True)
    sent = await rig.send(properties=timed("gone", TIMER_DELIVER_MS=now_ms() + 9_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.broker.port)
    fields = {"topic": "T", "recallHandle": sent.recall_handle}
    head = json.dumps({"code": 370, "opaque": 1, "flag": 0, "extFields": fields}).encode()
    writer.write(struct.pack(">II", 4 + len(head), len(head)) + head)
    length, head_length = struct.unpack(">II", await reader.readexactly(8))
    answer = json.loads((await reader.readexactly(length - 4))[:head_length])
    assert answer["extFields"] == {"msgId": "gone", "MSG_REGION": "DefaultRegion"}
    writer.close()
    with pytest.raises(MQError) as raised:
        await rig.call(RecallMessage(topic="T", recall_handle="bad"))
    assert raised.value.ext == {"MSG_REGION": "DefaultRegion"}


@pytest.mark.parametrize(
    ("handle", "code", "remark"),
    [
        ("", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("%%%", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("djE", ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        ("\u0661" * 20, ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"),
        (("U", "b", "9" * 13, "k"), ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match"),
        (("T", "c", "9" * 13, "k"), ResponseCode.ILLEGAL_OPERATION, "broker service not available"),
        (("T", "b", "5", "k"), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        (("T", "b", "9" * 13, "k"), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        (("T", "b", "9" * 99, "k"), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        (("T", "b", "soon", "k"), ResponseCode.ILLEGAL_OPERATION, "timestamp invalid"),
        (("T", "b", None, "k\1k"), ResponseCode.SYSTEM_ERROR, "recall failed, execute error"),
    ],
)
async def test_bad_handles(start: Starter, handle: Any, code: ResponseCode, remark: str) -> None:
    rig = await start(recall_message_enable=True)
    await rig.send()
    if isinstance(handle, tuple):
        topic, broker, timestamp, key = handle
        handle = encode_recall_handle(topic, broker, timestamp or now_ms() + 9_000, key)
    with pytest.raises(MQError, match=remark) as raised:
        await rig.call(RecallMessage(topic="T", recall_handle=handle))
    assert raised.value.code == code


async def test_recall_must_be_enabled_and_the_topic_known(start: Starter) -> None:
    rig = await start()
    await rig.send()
    request = RecallMessage(topic="T", recall_handle=encode_recall_handle("T", "b", now_ms() + 9_000, "k"))
    with pytest.raises(MQError, match="operation is forbidden") as raised:
        await rig.call(request)
    assert raised.value.code == ResponseCode.NO_PERMISSION
    await rig.broker.broker.settings.change({"recallMessageEnable": "true"}, now_ms(), 0)
    await rig.call(request)
    with pytest.raises(MQError, match="not exist") as raised:
        await rig.call(RecallMessage(topic="Unknown", recall_handle=request.recall_handle))
    assert raised.value.code == ResponseCode.TOPIC_NOT_EXIST
    await rig.broker.broker.settings.change(
        {"brokerPermission": "4", "allowRecallWhenBrokerNotWriteable": "false"}, now_ms(), 0
    )
    with pytest.raises(MQError, match="not available") as raised:
        await rig.call(request)
    assert raised.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
