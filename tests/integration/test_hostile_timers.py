"""Records of the timer topic that are not timed messages, or damaged, stop no other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.integration.timer_rig import Starter, now_ms, start, stop, timed, until

from batonmq.broker.timer.part import TimerPart
from batonmq.protocol.names import TIMER_TOPIC

__all__ = ["start"]


async def test_records_that_are_no_timed_messages_stop_nothing(start: Starter) -> None:
    rig = await start()
    soon = now_ms() // 1_000 * 1_000
    for properties in (
        "",
        "TIMER_OUT_MS\x01x\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
        f"TIMER_OUT_MS\x01{soon}\x02",
        f"TIMER_OUT_MS\x01{soon}\x02REAL_TOPIC\x01../../x\x02REAL_QID\x010\x02",
        f"TIMER_OUT_MS\x01{soon}\x02REAL_TOPIC\x01RMQ_SYS_TRANS_OP_HALF_TOPIC\x02REAL_QID\x010\x02",
        f"TIMER_OUT_MS\x01{soon}\x02REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02",
        f"TIMER_OUT_MS\x01{1 << 62}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
        f"TIMER_OUT_MS\x01-{1 << 62}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
    ):
        await rig.send(topic=TIMER_TOPIC, properties=properties)
    await rig.send(b"good", properties=timed(TIMER_DELAY_MS=1_000))
    await until(rig, 2)  # the one due long ago, and the good one
    assert b"good" in [message.body for message in await rig.messages()]
    assert rig.broker.part(TimerPart).state.queue_offset == 9
    half = rig.broker.broker.store.queue_bounds("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
    assert half.max_offset == 0


@pytest.mark.parametrize("damage", [bytes(600), b"\xff" * 600], ids=["zeros", "ones"])
async def test_a_damaged_record_stops_no_other(start: Starter, tmp_path: Path, damage: bytes) -> None:
    rig = await start()
    for number in range(9):
        body = b"%d" % number + bytes(600)
        await rig.send(body, properties=timed(f"k{number}", TIMER_DELAY_MS=6_000))
    unit = rig.broker.broker.store._queues.by_key[TIMER_TOPIC, 0].unit(4)
    assert unit is not None
    await stop(rig)
    with (tmp_path / "store/commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(unit[0])
        file.write(damage)
    shutil.rmtree(tmp_path / "store/timerlog")  # so all messages have to enter the wheel again
    (tmp_path / "store/timerwheel").unlink()
    (tmp_path / "store/config/timercheck").unlink()
    rig = await start()
    found = await until(rig, 8)
    assert [message.body[:1] for message in found] == [b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"8"]
