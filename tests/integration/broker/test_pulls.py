"""Pulls: their codes and offsets, filters, and pulls that wait for messages."""

import asyncio
import time
from typing import Any

import pytest
from tests.integration.broker.rig import HOLD, Starter

from batonmq.protocol.bodies.clients import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pull import PullMessageResponse
from batonmq.protocol.json import encode
from batonmq.protocol.message.record import decode_records


@pytest.mark.parametrize("most", [0, -1, 2**31 - 1])
async def test_a_pull_of_any_number_of_messages_skips_none(start: Starter, most: int) -> None:
    rig = await start()
    for _ in range(3):
        await rig.send()
    answer = await rig.pull(0, max_msg_nums=most)
    assert answer.code == ResponseCode.SUCCESS
    assert isinstance(answer.header, PullMessageResponse)
    assert answer.header.next_begin_offset == (3 if most > 0 else 1)


async def test_pull_statuses(start: Starter) -> None:
    rig = await start()
    for _ in range(3):
        await rig.send()
    for offset, code, following in (
        (0, ResponseCode.SUCCESS, 3),
        (3, ResponseCode.PULL_NOT_FOUND, 3),
        (9, ResponseCode.PULL_OFFSET_MOVED, 3),
    ):
        answer = await rig.pull(offset)
        assert answer.code == code
        assert isinstance(answer.header, PullMessageResponse)
        assert answer.header.next_begin_offset == following
        assert (answer.header.min_offset, answer.header.max_offset) == (0, 3)
    assert (await rig.pull(0, queue=1)).code == ResponseCode.PULL_NOT_FOUND
    assert (await rig.pull(5, queue=1)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_pulls_filter_by_the_properties_that_sql_names(start: Starter) -> None:
    rig = await start(enable_property_filter=True)
    for number in range(10):
        await rig.send(b"%d" % number, properties=f"a\x01{number}\x02")
    sql: dict[str, Any] = {"subscription": "a between 3 and 4 or a = 8", "expression_type": "SQL92"}
    assert [message.body for message in await rig.messages(**sql)] == [b"3", b"4", b"8"]
    answer = await rig.pull(9, **sql)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert isinstance(answer.header, PullMessageResponse) and answer.header.next_begin_offset == 10
    held = asyncio.ensure_future(rig.pull(10, **{**sql, "sys_flag": HOLD}))
    await rig.send(properties="a\x015\x02")
    await asyncio.sleep(0.1)
    assert not held.done()
    await rig.send(b"wanted", properties="a\x013\x02")
    assert [message.body for message in decode_records((await held).body)] == [b"wanted"]
    for wrong in (
        {**sql, "subscription": "a >"},
        {**sql, "subscription": ""},
        {**sql, "expression_type": "X"},
    ):
        with pytest.raises(MQError) as refused:
            await rig.pull(0, **wrong)
        assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_push_consumer_pulls_by_the_filter_of_its_heartbeat_also_after_a_restart(
    start: Starter,
) -> None:
    rig = await start(enable_property_filter=True)
    for number in range(4):
        await rig.send(b"%d" % number, properties=f"a\x01{number}\x02")

    async def heartbeat(expression: str, version: int) -> None:
        wanted = SubscriptionData("T", expression, sub_version=version, expression_type="SQL92")
        consumer = ConsumerData("g", ConsumeType.PASSIVELY, subscription_data_set=[wanted])
        await rig.call(Heartbeat(), encode(HeartbeatData("c", consumer_data_set=[consumer])))

    async def code(version: int) -> int:
        try:
            return (await rig.pull(0, sys_flag=0, subscription=None, sub_version=version)).code
        except MQError as error:
            return error.code

    await heartbeat("a >", 1)
    assert await code(1) == ResponseCode.FILTER_DATA_NOT_EXIST
    await heartbeat("a > 1", 2)
    bodies = [m.body for m in await rig.messages(sys_flag=0, subscription=None, sub_version=2)]
    assert bodies == [b"2", b"3"]
    assert await code(3) == ResponseCode.SUBSCRIPTION_NOT_LATEST
    await rig.broker.stop()
    rig = await start(enable_property_filter=True)
    found = rig.broker.broker.tables.filters.get("T", "g")
    assert found is not None and found.data.expression == "a > 1"
    await heartbeat("a > 2", 9)
    found.data.client_version = 8
    assert await code(9) == ResponseCode.SUCCESS


async def test_a_held_pull_is_woken_by_a_message_it_wants_and_by_no_other(start: Starter) -> None:
    rig = await start()
    await rig.send(properties="TAGS\x01a\x02")
    held = asyncio.ensure_future(rig.pull(1, sys_flag=HOLD, subscription="a || b"))
    await asyncio.sleep(0.05)
    await rig.send(properties="TAGS\x01c\x02")
    await rig.send(queue=1, properties="TAGS\x01b\x02")
    await asyncio.sleep(0.1)
    assert not held.done()
    await rig.send(b"wanted", properties="TAGS\x01b\x02")
    (message,) = decode_records((await held).body)
    assert message.body == b"wanted" and message.queue_offset == 2


async def test_a_held_pull_returns_when_its_time_is_up(start: Starter) -> None:
    rig = await start()
    await rig.send()
    began = time.monotonic()
    answer = await rig.pull(1, sys_flag=HOLD, suspend_timeout_millis=150)
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert 0.14 < time.monotonic() - began < 2


async def test_a_client_of_a_broadcasting_group_continues_where_it_was_when_a_proxy_pulls_for_it(
    start: Starter,
) -> None:
    rig = await start()
    for _ in range(5):
        await rig.send()
    consumer = ConsumerData("g", ConsumeType.PASSIVELY, MessageModel.BROADCASTING)
    consumer.subscription_data_set = [SubscriptionData("T", "*")]
    await rig.call(Heartbeat(), encode(HeartbeatData("c1", consumer_data_set=[consumer])))
    assert (await rig.pull(3)).code == ResponseCode.SUCCESS

    async def by_proxy(offset: int, client: str) -> tuple[int, int]:
        answer = await rig.pull(offset, request_source=1, proxy_froward_client_id=client)
        assert isinstance(answer.header, PullMessageResponse)
        return answer.code, answer.header.next_begin_offset

    assert await by_proxy(0, "c1") == (ResponseCode.PULL_OFFSET_MOVED, 3)
    assert await by_proxy(3, "c1") == (ResponseCode.SUCCESS, 5)
    assert (await rig.pull(1)).code == ResponseCode.PULL_OFFSET_MOVED, "back at the broker"
    assert (await rig.pull(4)).code == ResponseCode.SUCCESS
    assert await by_proxy(-1, "c2") == (ResponseCode.PULL_OFFSET_MOVED, 0), "nothing is known of it"
    rig.broker.broker.tables.offsets.commit("g@broadcast", "T", 0, 2)
    assert await by_proxy(-1, "c3") == (ResponseCode.PULL_OFFSET_MOVED, 2)
    assert await by_proxy(2, "c3") == (ResponseCode.SUCCESS, 5)


async def test_a_reset_offset_is_given_to_the_next_pull_once(start: Starter) -> None:
    rig = await start()
    await rig.send()
    await rig.send()
    rig.broker.broker.tables.offsets.reset("g", "T", 0, 1)
    answer = await rig.pull(0)
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert isinstance(answer.header, PullMessageResponse) and answer.header.next_begin_offset == 1
    assert (await rig.pull(1)).code == ResponseCode.SUCCESS


async def test_held_pulls_are_not_all_answered_with_messages_that_nobody_takes(start: Starter) -> None:
    """A message answers all pulls of its queue at once, and a connection may hold thousands of them."""
    rig = await start()
    await rig.send()
    held = [asyncio.ensure_future(rig.pull(1, sys_flag=HOLD)) for _ in range(40)]
    await asyncio.sleep(0.2)
    body = bytes(400_000)
    await rig.send(body)
    answers = await asyncio.gather(*held)
    taken = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
    later = [answer for answer in answers if answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY]
    assert len(taken) + len(later) == 40
    assert 4_000_000 <= sum(len(answer.body) for answer in taken) < 6_000_000
    assert {answer.header.next_begin_offset for answer in later} == {1}  # type: ignore[union-attr]
    (message,) = decode_records((await rig.pull(1, sys_flag=HOLD)).body)
    assert message.body == body
