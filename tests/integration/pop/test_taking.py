"""What a pop hands out and hides, what it waits for, and what peeks and notifications show."""

import asyncio
import random
from typing import Any

import pytest
from tests.integration.pop.rig import Starter

from batonmq.broker.pop.taker import LOG_FULL_S
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pop import (
    Notification,
    NotificationResponse,
    PeekMessage,
    PollingInfo,
    PollingInfoResponse,
)
from batonmq.protocol.message.record import decode_records


async def test_a_popped_message_is_hidden_and_an_acknowledged_one_is_gone(start: Starter) -> None:
    rig = await start()
    await rig.send(b"a", b"b")
    popped = await rig.pop(invisible_time=300)
    assert [each.body for each in popped] == [b"a", b"b"]
    assert await rig.bodies() == []
    await rig.ack(popped[0])
    again = await rig.pop(poll_time=5_000)
    assert [each.body for each in again] == [b"b"]
    assert again[0].record.reconsume_times == 1
    assert again[0].record.topic == "T"
    assert again[0].receipt.retry == "1"
    await rig.ack(*again)
    await asyncio.sleep(0.5)
    assert await rig.bodies() == []
    assert len(rig.part.check_points) == 0


async def test_a_waiting_pop_gets_the_next_message(start: Starter) -> None:
    rig = await start()
    waiting = asyncio.ensure_future(rig.bodies(poll_time=10_000))
    await asyncio.sleep(0.1)
    answer = await rig.call(PollingInfo(consumer_group="g", topic="T", queue_id=-1))
    assert isinstance(answer.header, PollingInfoResponse)
    assert answer.header.polling_num == 1
    await rig.send(b"x")
    assert await waiting == [b"x"]


async def test_a_pop_without_messages_is_answered_when_its_time_is_over(start: Starter) -> None:
    rig = await start()
    answer = await rig.ask(poll_time=100)
    assert answer.code == ResponseCode.POLLING_TIMEOUT


async def test_each_message_goes_to_one_of_many_consumers(start: Starter) -> None:
    rig = await start()
    await rig.create("Many", 4)
    sent = {f"m{n}".encode() for n in range(400)}
    for n, body in enumerate(sorted(sent)):
        await rig.send(body, topic="Many", queue=n % 4)
    got: list[bytes] = []

    async def consume() -> None:
        while popped := await rig.pop(topic="Many", max_msg_nums=random.randint(1, 32), poll_time=200):
            got.extend(each.body for each in popped)
            await rig.ack(*popped, topic="Many")

    await asyncio.gather(*(consume() for _ in range(8)))
    assert sorted(got) == sorted(sent)


async def test_pops_that_find_too_many_unacknowledged_batches_leave_one_timer(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start(pop_ck_max_buffer_size=1)
    await rig.send(b"a", b"b")
    assert await rig.bodies(max_msg_nums=1) == [b"a"]
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(delay: float, *args: Any) -> asyncio.TimerHandle:
        if delay == LOG_FULL_S:
            timers.append(delay)
        return call_later(delay, *args)

    monkeypatch.setattr(loop, "call_later", counted)
    for _ in range(5):
        assert await rig.bodies() == []
    assert timers == [LOG_FULL_S]


async def test_peek_and_notification_show_what_a_pop_would_find(start: Starter) -> None:
    rig = await start()
    ask = Notification(consumer_group="g", topic="T", queue_id=-1, poll_time=5_000, born_time=0)
    waiting = asyncio.ensure_future(rig.call(ask, timeout_ms=10_000))
    await asyncio.sleep(0.05)
    await rig.send(b"a")
    answer = await waiting
    assert isinstance(answer.header, NotificationResponse)
    assert answer.header.has_msg
    peek = PeekMessage(topic="T", queue_id=0, max_msg_nums=10, consumer_group="g")
    for _ in range(2):
        assert [each.body for each in decode_records((await rig.call(peek)).body)] == [b"a"]
    assert await rig.bodies() == [b"a"]
    with pytest.raises(MQError) as nothing:
        await rig.call(peek)
    assert nothing.value.code == ResponseCode.PULL_NOT_FOUND
