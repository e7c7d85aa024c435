"""Timed messages on a whole broker: when they come, which are refused, what administrators see."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import Counter
from typing import Any

import pytest
from tests.integration.timer_rig import Starter, now_ms, refused, start, timed, until

from batonmq.broker.admin.runtime_info import runtime_info
from batonmq.broker.timer.layout import decode_checkpoint
from batonmq.broker.timer.metrics import SNAPSHOT, TIMING
from batonmq.broker.timer.part import TimerPart
from batonmq.common.metrics import read
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint, GetTimerMetrics
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import TIMER_TOPIC

__all__ = ["start"]


@pytest.mark.parametrize("precision_ms", [100, 1_000])
async def test_messages_come_at_their_times_and_in_order(start: Starter, precision_ms: int) -> None:
    rig = await start(timer_precision_ms=precision_ms)
    begin = now_ms()
    due = {}
    for number, (name, value, delay) in enumerate(
        [
            ("TIMER_DELAY_MS", 2_300, 2_300),
            ("TIMER_DELAY_SEC", 1, 1_000),
            ("TIMER_DELIVER_MS", begin + 1_700, 1_700),
            ("TIMER_DELAY_MS", 400, 400),
        ]
    ):
        due[f"{number}"] = begin + delay if name == "TIMER_DELIVER_MS" else now_ms() + delay
        await rig.send(b"%d" % number, properties=timed(f"{number}", **{name: value}))
    messages = await until(rig, 4)
    for message in messages:
        late_ms = message.store_timestamp - due[message.message_id]
        assert -50 <= late_ms < precision_ms + 1_000  # the broker looked at its clock some ms later than we
        assert (
            int(message.properties["TIMER_DEQUEUE_MS"])
            >= int(message.properties["TIMER_OUT_MS"]) + precision_ms
        )
    slots = [(int(message.properties["TIMER_OUT_MS"]), message.body) for message in messages]
    assert slots == sorted(slots)  # those of one slot in the order in which they were sent
    assert messages[0].topic == "T" and messages[0].properties["REAL_TOPIC"] == "T"


async def test_times_in_the_past_are_now(start: Starter) -> None:
    rig = await start()
    await rig.send(b"past", properties=timed(TIMER_DELIVER_MS=5))
    await rig.send(b"zero", properties=timed(TIMER_DELAY_SEC=0))
    await rig.send(b"minus", properties=timed(TIMER_DELAY_MS=-9))
    assert [message.body for message in await rig.messages()] == [b"past", b"zero", b"minus"]
    assert rig.broker.broker.store.queue_bounds(TIMER_TOPIC, 0).max_offset == 0


async def test_a_delay_level_wins(start: Starter) -> None:
    rig = await start()
    await rig.send(b"level", properties=timed(DELAY=1, TIMER_DELAY_SEC=100))
    (message,) = await until(rig, 1)
    assert "TIMER_DELAY_SEC" not in message.properties


async def test_a_message_beyond_the_roll_window_is_stored_again_and_comes_in_time(start: Starter) -> None:
    rig = await start(timer_precision_ms=100, timer_roll_window_slot=9)
    due = now_ms() + 3_000
    await rig.send(b"far", properties=timed(TIMER_DELIVER_MS=due))
    (message,) = await until(rig, 1)
    assert due <= int(message.properties["TIMER_DEQUEUE_MS"]) < due + 1_000
    assert int(message.properties["TIMER_ROLL_TIMES"]) >= 2


async def test_many_messages_of_one_slot_come_once_each_and_in_order(start: Starter) -> None:
    rig = await start(timer_precision_ms=100)
    due = now_ms() + 2_500
    for begin in range(0, 1_500, 100):
        await asyncio.gather(
            *[
                rig.send(b"%d" % n, properties=timed(f"{n}", TIMER_DELIVER_MS=due))
                for n in range(begin, begin + 100)
            ]
        )
    found: list[MessageExt] = []
    end = time.monotonic() + 30
    while len(found) < 1_500 and time.monotonic() < end:
        found += await rig.messages(len(found))
        await asyncio.sleep(0.01)
    assert [int(message.body) for message in found] == list(range(1_500))
    assert await rig.messages(1_500) == []
    assert min(int(message.properties["TIMER_DEQUEUE_MS"]) for message in found) >= due


async def test_a_disk_that_fails_for_a_while_does_not_end_all_deliveries(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    timers = rig.broker.part(TimerPart).state.timers
    chain, failures = timers.chain, [OSError(errno.EIO, "Input/output error")] * 2

    def failing(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return chain(*args)

    monkeypatch.setattr(timers, "chain", failing)
    await rig.send(properties=timed(TIMER_DELAY_MS=500))
    await until(rig, 1, timeout_s=6)
    assert not failures


async def test_what_is_not_a_time_or_too_late_is_illegal(start: Starter) -> None:
    rig = await start(timer_max_delay_sec=100)
    for properties in (
        {"TIMER_DELAY_SEC": "x"},
        {"TIMER_DELAY_SEC": "9" * 30},
        {"TIMER_DELAY_MS": 100_001},
        {"TIMER_DELIVER_MS": now_ms() + 200_000},
        {"TIMER_DELIVER_MS": 5, "TIMER_DEL_UNIQKEY": "k"},
    ):
        remark = await refused(rig, ResponseCode.MESSAGE_ILLEGAL, **properties)
        assert "bigger than the max delay 100000ms" in remark and "timerMaxDelaySec" in remark
    assert "msg properties length" in await refused(
        rig, ResponseCode.MESSAGE_ILLEGAL, TIMER_DELAY_SEC=5, own="x" * 32_550
    )


async def test_without_the_wheel_timed_messages_are_refused(start: Starter) -> None:
    rig = await start(timer_wheel_enable=False)
    remark = await refused(rig, ResponseCode.SYSTEM_ERROR, TIMER_DELAY_SEC=5)
    assert remark == "accurate timer message is not enabled, timerWheelEnable is false"
    for header in (GetTimerCheckPoint(), GetTimerMetrics()):
        with pytest.raises(MQError):
            await rig.call(header)
    assert TIMER_TOPIC not in rig.broker.broker.tables.topics


async def test_a_crowded_slot_takes_no_more(start: Starter) -> None:
    rig = await start(timer_congest_num_each_slot=3)
    due = (now_ms() // 1_000 + 60) * 1_000
    outcomes: Counter[str] = Counter()
    for number in range(60):
        try:
            await rig.send(properties=timed(f"{number}", TIMER_DELIVER_MS=due))
            outcomes["stored"] += 1
        except MQError as error:
            assert error.code == ResponseCode.SYSTEM_ERROR
            assert "max num limit is 6 or the current value is greater than 3" in str(error.remark)
            outcomes["refused"] += 1
    assert 4 <= outcomes["stored"] <= 6
    await rig.send(properties=timed("other", TIMER_DELIVER_MS=due + 1_000))


async def test_figures(start: Starter) -> None:
    rig = await start()
    for number in range(5):
        await rig.send(properties=timed(f"{number}", TIMER_DELAY_SEC=30 + number))
    await rig.send(properties=timed("soon", TIMER_DELAY_SEC=1))
    await until(rig, 1)
    info = runtime_info(rig.broker.broker)
    assert (info["timerCongestNum"], info["timerOffsetBehind"]) == ("5", "0")
    assert float(info["timerEnqueueTps"]) > 0 and float(info["timerDequeueTps"]) > 0
    assert int(info["timerReadBehind"]) <= 2
    sources = rig.broker.part(TimerPart).metrics()
    assert await read(sources[TIMING]) == [(("local", "disk", "T"), 5)]
    periods = {labels[2]: value for labels, value in await read(sources[SNAPSHOT])}
    assert (periods["5"], periods["60"], periods["86400"]) == (0, 5, 0)
    checkpoint = decode_checkpoint(bytes((await rig.call(GetTimerCheckPoint())).body))
    assert (checkpoint.queue_offset, checkpoint.master_queue_offset) == (6, 6)
    assert 0 <= now_ms() - checkpoint.read_ms < 3_000


async def test_stopped_by_configuration(start: Starter) -> None:
    rig = await start(timer_precision_ms=100)
    settings = rig.broker.broker.settings
    await settings.change({"timerStopDequeue": "true"}, now_ms(), 0)
    await rig.send(properties=timed(TIMER_DELAY_MS=200))
    await asyncio.sleep(1)
    assert await rig.messages() == []
    await settings.change({"timerStopDequeue": "false"}, now_ms(), 0)
    await until(rig, 1)
