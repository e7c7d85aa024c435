"""Messages that a broker delivers later: delayed ones and those that consumers send back."""

import asyncio
import time

import pytest
from tests.integration.broker.rig import HOLD, Starter

from batonmq.broker.delay.part import DelayPart
from batonmq.protocol.bodies.statistics import SNDBCK_PUT_NUMS
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import UpdateBrokerConfig
from batonmq.protocol.headers.broker.send import ConsumerSendMsgBack, EndTransaction
from batonmq.protocol.message.ids import decode_message_id


async def test_a_delayed_message_arrives_late_and_once(start: Starter) -> None:
    rig = await start(message_delay_level="1s 2s")
    await rig.send(b"first")
    began = time.monotonic()
    await rig.send(b"late", properties="DELAY\x011\x02")
    (message,) = await rig.messages(1, sys_flag=HOLD)
    assert message.body == b"late" and time.monotonic() - began >= 0.9
    assert "DELAY" not in message.properties
    assert rig.broker.part(DelayPart).schedule.offsets == {1: 1}
    assert len(await rig.messages(0)) == 2


async def test_a_message_sent_back_returns_on_the_retry_topic_and_ends_as_dead_letter(start: Starter) -> None:
    rig = await start(message_delay_level="1s")
    await rig.send(b"poison", properties="TAGS\x01a\x02")
    (message,) = await rig.messages()
    back = ConsumerSendMsgBack(offset=message.physical_offset, group="g", delay_level=1)
    await rig.call(back)
    (retried,) = await rig.messages(0, topic="%RETRY%g", sys_flag=HOLD)
    assert retried.reconsume_times == 1 and retried.properties["RETRY_TOPIC"] == "T"
    back = ConsumerSendMsgBack(offset=retried.physical_offset, group="g", delay_level=-1)
    await rig.call(back)
    (dead,) = await rig.messages(0, topic="%DLQ%g")
    assert dead.body == b"poison" and dead.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
    sent_back = rig.broker.broker.stats.find(SNDBCK_PUT_NUMS, "T@g")
    assert sent_back is not None and sent_back.total == 2


async def test_a_message_sent_back_with_the_greatest_count_keeps_it(start: Starter) -> None:
    """Senders choose the count. One more would not fit into a record, and the whole turn would fail."""
    rig = await start()
    most = (1 << 31) - 1
    await rig.send(b"poison", reconsume_times=most)
    (message,) = await rig.messages()
    assert message.reconsume_times == most
    back = ConsumerSendMsgBack(offset=message.physical_offset, group="g", delay_level=-1)
    await asyncio.gather(rig.send(b"1"), rig.call(back), rig.send(b"2"))
    (dead,) = await rig.messages(0, topic="%DLQ%g")
    assert dead.body == b"poison" and dead.reconsume_times == most
    assert [each.body for each in await rig.messages()] == [b"poison", b"1", b"2"]


async def test_messages_that_wait_are_delivered_although_messages_must_be_smaller_now(start: Starter) -> None:
    """They were acknowledged when `maxMessageSize` was greater."""
    rig = await start(message_delay_level="1s")
    body = bytes(5_000)
    await rig.send(body, topic="Level", properties="DELAY\x011\x02")
    await rig.send(body, topic="Timed", properties="TIMER_DELAY_MS\x011000\x02")
    half = await rig.send(
        body, topic="Half", sys_flag=4, properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02"
    )
    await rig.send(body, topic="Back")
    (back,) = await rig.messages(topic="Back")
    await rig.call(UpdateBrokerConfig(), b"maxMessageSize=1000")
    with pytest.raises(MQError, match="msg body length limit 1000B"):
        await rig.send(body)
    await rig.call(ConsumerSendMsgBack(offset=back.physical_offset, group="g", delay_level=1))
    await rig.call(
        EndTransaction(
            producer_group="p",
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=decode_message_id(half.msg_id)[2],
            commit_or_rollback=8,
            msg_id="K",
        )
    )
    for topic in ("Half", "Level", "Timed", "%RETRY%g"):
        (message,) = await rig.messages(0, topic=topic, sys_flag=HOLD)
        assert message.body == body, topic
