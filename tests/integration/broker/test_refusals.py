"""Requests that a broker refuses, and with which code."""

import asyncio
import gc
import re
import time
from types import TracebackType
from typing import Any

import pytest
from tests.integration.broker.rig import STORED, Starter, v2
from tests.unit.broker.fakes import become_slave

from batonmq.net import Response
from batonmq.protocol.bodies.clients import ConsumerData, ConsumeType, HeartbeatData
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.send import SendMessageResponse
from batonmq.protocol.json import encode
from batonmq.protocol.message.batch import BatchItem, encode_batch


@pytest.mark.parametrize(
    ("fields", "body", "code", "remark"),
    [
        ({"topic": "bad topic"}, b"x", ResponseCode.INVALID_PARAMETER, "illegal characters"),
        ({"topic": ""}, b"x", ResponseCode.INVALID_PARAMETER, "blank"),
        ({"topic": "t" * 128}, b"x", ResponseCode.INVALID_PARAMETER, "longer than topic max length"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION, "is forbidden"),
        ({"default_topic": "nothing"}, b"x", ResponseCode.TOPIC_NOT_EXIST, "apply first please"),
        ({"queue": 99}, b"x", ResponseCode.INVALID_PARAMETER, "request queueId[99] is illegal"),
        (
            {"topic": "new", "queue": -1, "default_topic_queue_nums": 0},
            b"x",
            ResponseCode.INVALID_PARAMETER,
            "request queueId[-1] is illegal",
        ),
        ({}, b"x" * (4 * 1024 * 1024 + 1), ResponseCode.MESSAGE_ILLEGAL, "msg body length limit 4194304B"),
        ({}, b"", ResponseCode.MESSAGE_ILLEGAL, "the message is illegal"),
        ({"properties": "K\x01" + "v" * 32_767 + "\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
        ({"sys_flag": 4}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
        ({"sys_flag": 12}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
        ({"properties": "DELAY\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "DELAY=soon"),
        (
            {"properties": "TIMER_DELAY_SEC\x01soon\x02"},
            b"x",
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal",
        ),
        ({"properties": "INNER_NUM\x012\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL, "illegal"),
    ],
)
async def test_refused_sends(
    start: Starter, fields: dict[str, Any], body: bytes, code: int, remark: str
) -> None:
    rig = await start()
    with pytest.raises(MQError) as refused:
        await rig.send(body, **fields)
    assert refused.value.code == code
    assert remark in refused.value.remark
    assert rig.broker.broker.store.max_offset == 0
    assert (await rig.send(b"good")).queue_offset == 0


@pytest.mark.parametrize(
    ("properties", "refused"),
    [
        ("DELAY\x013\x02", True),
        ("DELAY\x010\x02", False),
        ("DELAY\x01-1\x02", False),
        ("TIMER_DELAY_SEC\x013\x02", True),
        ("TIMER_DELIVER_MS\x019999999999999\x02", True),
        ("KEYS\x01DELAY\x02WAIT\x01true\x02", False),
    ],
)
async def test_a_batch_that_is_to_be_delivered_later_is_refused(
    start: Starter, properties: str, refused: bool
) -> None:
    rig = await start()
    body = encode_batch([BatchItem(body=b"a", properties=b""), BatchItem(body=b"b", properties=b"")])
    if refused:
        with pytest.raises(MQError) as error:
            await rig.send(body, batch=True, properties=properties)
        assert error.value.code == ResponseCode.MESSAGE_ILLEGAL
    else:
        await rig.send(body, batch=True, properties=properties)
    assert len(await rig.messages()) == (0 if refused else 2)


async def test_a_batch_that_is_none_and_a_number_that_is_none(start: Starter) -> None:
    rig = await start()
    with pytest.raises(MQError) as refused:
        await rig.send(b"garbage", batch=True)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
    address = f"127.0.0.1:{rig.broker.port}"
    for binary in (False, True):
        ext = {**v2().to_ext(), "h": "9" * 12}
        command = Command(RequestCode.SEND_MESSAGE_V2, ext, b"x", binary=binary)
        answer = await rig.client.invoke(address, command, timeout_ms=3000)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "<h>" in (answer.remark or "")
        del ext["h"]
        command = Command(RequestCode.SEND_MESSAGE_V2, ext, b"x", binary=binary)
        answer = await rig.client.invoke(address, command, timeout_ms=3000)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "<h> is null" in (answer.remark or "")
    assert rig.broker.broker.store.max_offset == 0


async def test_an_unknown_code_is_answered_so(start: Starter) -> None:
    rig = await start()
    answer = await rig.client.invoke(f"127.0.0.1:{rig.broker.port}", Command(31_999), timeout_ms=3000)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_sends_are_refused_until_the_time_to_open(start: Starter) -> None:
    opens_ms = int(time.time() * 1000) + 400
    rig = await start(start_accept_send_request_time_stamp=opens_ms)
    with pytest.raises(MQError, match="broker unable to service, until 20") as refused:
        await rig.send()
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    await asyncio.sleep(0.5)
    assert (await rig.send()).queue_offset == 0


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queue": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queue": -1}, ResponseCode.INVALID_PARAMETER),
        ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "a > 5", "expression_type": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"consumer_group": "bad group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
async def test_refused_pulls(start: Starter, fields: dict[str, Any], code: int) -> None:
    rig = await start()
    await rig.send()
    with pytest.raises(MQError) as refused:
        await rig.pull(0, **fields)
    assert refused.value.code == code


async def test_pull_consumers_are_refused_where_only_push_consumers_are_wanted(start: Starter) -> None:
    rig = await start(reject_pull_consumer_enable=True)
    await rig.send()

    async def pulled(group: str) -> int:
        try:
            return (await rig.pull(0, consumer_group=group)).code
        except MQError as refused:
            return refused.code

    async def beat(group: str, kind: ConsumeType) -> None:
        consumer = ConsumerData(group_name=group, consume_type=kind)
        data = HeartbeatData(client_id="c", consumer_data_set=[consumer])
        await rig.call(Heartbeat(), encode(data))

    assert await pulled("pulls") == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await beat("pulls", ConsumeType.ACTIVELY)
    assert await pulled("pulls") == ResponseCode.SUBSCRIPTION_NOT_EXIST
    await beat("pushes", ConsumeType.PASSIVELY)
    assert await pulled("pushes") == ResponseCode.SUCCESS
    assert await pulled("TOOLS_CONSUMER") == ResponseCode.SUCCESS


async def test_a_slave_takes_no_messages_and_gives_none(start: Starter) -> None:
    rig = await start()
    await rig.send()
    become_slave(rig.broker.broker)
    with pytest.raises(MQError) as refused:
        await rig.send()
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    busy = "[REJECTREQUEST]system busy, start flow control for a while: "
    assert re.fullmatch(
        re.escape(busy) + "this broker is a slave.*, and takes no messages", refused.value.remark
    )
    with pytest.raises(MQError) as refused:
        await rig.pull(0)
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


async def test_refusals_leave_nothing_in_memory(start: Starter) -> None:
    """Each kept its frames: one exception was raised for all of them."""
    rig = await start()
    await rig.send()
    become_slave(rig.broker.broker)

    async def frames_after(refusals: int) -> int:
        for _ in range(refusals):
            for ask in (rig.send, lambda: rig.pull(0)):
                with pytest.raises(MQError):
                    await ask()
        gc.collect()
        return sum(isinstance(each, TracebackType) for each in gc.get_objects())

    few = await frames_after(3)
    assert await frames_after(100) < few + 100


async def test_too_few_replicas_refuse_and_missing_acks_time_out(start: Starter) -> None:
    rig = await start(
        broker_role="SYNC_MASTER",
        enable_slave_acting_master=True,
        in_sync_replicas=2,
        min_in_sync_replicas=2,
        total_replicas=2,
        slave_timeout=200,
    )
    with pytest.raises(MQError) as refused:
        await rig.send()
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.remark == "in-sync replicas not enough"
    await rig.broker.stop()
    late = await start(broker_role="SYNC_MASTER", in_sync_replicas=2, total_replicas=2, slave_timeout=200)
    answer = await late.call(v2(), b"x", accept=STORED)
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert isinstance(answer.header, SendMessageResponse) and answer.header.queue_offset == 0
    assert (await late.send(properties="WAIT\x01false\x02")).queue_offset == 1


async def test_a_backlog_of_unacknowledged_sends_is_bounded(start: Starter) -> None:
    rig = await start(
        broker_role="SYNC_MASTER",
        in_sync_replicas=2,
        total_replicas=2,
        slave_timeout=300,
        send_thread_pool_queue_capacity=10,
    )
    answers = await asyncio.gather(
        *(rig.call(v2(), b"x", accept=STORED) for _ in range(30)), return_exceptions=True
    )
    codes = [answer.code for answer in answers if isinstance(answer, Response | MQError)]
    assert codes.count(ResponseCode.FLUSH_SLAVE_TIMEOUT) == 10
    assert codes.count(ResponseCode.SYSTEM_BUSY) == 20
