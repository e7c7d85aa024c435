"""Timed messages on a whole broker: when they come, which are refused, what survives."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Rig, configs

from batonmq import Message, Producer, QueueReader
from batonmq.broker.admin.runtime_info import runtime_info
from batonmq.broker.service import BrokerService
from batonmq.broker.timer.enqueuer import BATCH
from batonmq.broker.timer.layout import Checkpoint, decode_checkpoint
from batonmq.broker.timer.metrics import SNAPSHOT, TIMING
from batonmq.broker.timer.part import TimerPart
from batonmq.common.metrics import read
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetTimerCheckPoint, GetTimerMetrics
from batonmq.protocol.headers.broker.send import RecallMessage, RecallMessageResponse
from batonmq.protocol.message.recall import encode_recall_handle
from batonmq.protocol.message.record import MessageExt, decode_records
from batonmq.protocol.names import TIMER_TOPIC

Starter = Callable[..., Awaitable[Rig]]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def timed(key: str = "k", **properties: object) -> str:
    return "".join(f"{name}\1{value}\2" for name, value in {"UNIQ_KEY": key, **properties}.items())


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    running: list[Rig] = []

    async def starter(**keys: Any) -> Rig:
        keys = {"vip_channel_enabled": False, "mapped_file_size_timer_log": 4096, **keys}
        service = BrokerService(*configs(tmp_path / "store", **keys))
        await service.start()
        rig = Rig(service, RemotingClient())
        running.append(rig)
        return rig

    yield starter
    for rig in running:
        await rig.client.close()
        if not rig.broker.broker.role.stopping:
            await rig.broker.stop()


async def stop(rig: Rig) -> None:
    await rig.client.close()
    await rig.broker.stop()


async def until(rig: Rig, count: int, timeout_s: float = 20, **queue: Any) -> list[MessageExt]:
    """The messages of T once there are so many."""
    end = time.monotonic() + timeout_s
    while len(found := await rig.messages(**queue)) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} came"
        await asyncio.sleep(0.05)
    return found


async def refused(rig: Rig, code: ResponseCode, **properties: object) -> str:
    with pytest.raises(MQError) as raised:
        await rig.send(properties=timed(**properties))
    assert raised.value.code == code
    return str(raised.value.remark)


# -- when they come


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


# -- what is refused


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


async def test_what_is_no_time_or_too_late_is_illegal(start: Starter) -> None:
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


# -- recall


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


# -- hostile records


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


# -- what administrators see


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


# -- what survives


async def test_messages_wait_through_restarts(start: Starter) -> None:
    rig = await start()
    due = now_ms() + 3_500
    await rig.send(b"early", properties=timed("early", TIMER_DELAY_MS=300))
    await until(rig, 1)
    for number in range(100):  # several files of the timer log
        await rig.send(b"%d" % number, properties=timed(f"{number}", TIMER_DELIVER_MS=due))
    await stop(rig)
    rig = await start()
    assert rig.broker.part(TimerPart).state.timers.waiting == 100
    await stop(rig)
    await asyncio.sleep(max(0, due - now_ms()) / 1_000)
    rig = await start()
    found: list[MessageExt] = []
    while len(found) < 101:
        found += await rig.messages(len(found))
        await asyncio.sleep(0.02)
    assert [message.body for message in found] == [b"early", *(b"%d" % n for n in range(100))]


async def test_lost_timer_files_are_rebuilt_from_the_log(start: Starter, tmp_path: Path) -> None:
    rig = await start()
    due = now_ms() + 4_000
    await rig.send(b"soon", properties=timed("soon", TIMER_DELAY_MS=200))
    await rig.send(b"later", properties=timed("later", TIMER_DELIVER_MS=due))
    await until(rig, 1)
    await asyncio.sleep(2.5)
    await stop(rig)
    for path in (tmp_path / "store" / "timerlog").iterdir():
        path.unlink()
    (tmp_path / "store" / "timerwheel").unlink()
    rig = await start()
    await until(rig, 2)
    await asyncio.sleep(1)
    assert [message.body for message in await rig.messages()] == [b"soon", b"later"]


CONF = """
brokerName=b
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort={port}
vipChannelEnabled=false
storePathRootDir={root}
storePathCommitLog={root}/commitlog
mappedFileSizeCommitLog=16777216
mappedFileSizeTimerLog=4096
timerPrecisionMs=100
maxHashSlotNum=1000
maxIndexNum=5000
"""


class Process:
    """A broker that can be killed."""

    def __init__(self, root: Path) -> None:
        (self.port,) = free_ports(1)
        self.file = root / "broker.conf"
        self.file.write_text(CONF.format(port=self.port, root=root / "store"))
        self.program: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "batonmq", "broker", "-c", str(self.file)]
        self.program = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.program.stdout is not None
        while line := self.program.stdout.readline():
            if b"boot success" in line:
                return
        pytest.fail("the broker did not start")

    def kill(self) -> None:
        assert self.program is not None
        self.program.send_signal(signal.SIGKILL)
        self.program.wait()
        assert self.program.stdout is not None
        self.program.stdout.close()


async def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    process = Process(tmp_path)
    rig = Rig(process, RemotingClient())  # type: ignore[arg-type]
    due: dict[str, int] = {}
    try:
        for life in range(4):
            await asyncio.to_thread(process.start)
            end = time.monotonic() + 1.7 + 0.31 * life
            while time.monotonic() < end:
                key = f"{len(due)}"
                delay_ms = (130, 700, 1_500, 2_600)[len(due) % 4]
                before = now_ms()
                with contextlib.suppress(NetError):
                    await rig.send(key.encode(), properties=timed(key, TIMER_DELAY_MS=delay_ms))
                    due[key] = before + delay_ms
            process.kill()
        await asyncio.to_thread(process.start)
        found: list[MessageExt] = []
        end = time.monotonic() + 40
        while not due.keys() <= {message.message_id for message in found}:
            assert time.monotonic() < end, f"{len(found)} of {len(due)} came"
            with contextlib.suppress(NetError):
                found += await rig.messages(len(found))
            await asyncio.sleep(0.01)
    finally:
        process.kill()
        await rig.client.close()
    assert len(due) > 100
    for message in found:
        if message.message_id in due:
            assert int(message.properties["TIMER_DEQUEUE_MS"]) >= due[message.message_id]
    times = Counter(message.message_id for message in found)
    assert [key for key, count in times.items() if count > 1] == []


async def test_a_slave_that_becomes_master_delivers_what_waits(tmp_path: Path) -> None:
    settings = {"mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeTimerLog": 4096}
    cluster = LocalCluster(tmp_path, broker_settings=settings)
    await asyncio.to_thread(cluster.start)
    group = Group(cluster.controller_addresses, cluster.broker_name)
    try:
        before = await group.wait_for(lambda s: len(s.sync_state_set) == 2, 15, "second replica in sync")
        assert before.master_address is not None
        sent: set[str] = set()
        async with (
            Producer("p", cluster.namesrv_address, retries=10) as producer,
            QueueReader(cluster.namesrv_address) as reader,
        ):
            for number in range(200):
                delay_ms = (500, 2_000, 6_000, 9_000)[number % 4]
                await producer.send(
                    Message("T", b"x", keys=f"{number}", properties={"TIMER_DELAY_MS": f"{delay_ms}"})
                )
                sent.add(f"{number}")
            await asyncio.sleep(1.5)
            cluster.broker_at(before.master_address).kill()
            found: Counter[str] = Counter()
            offsets: dict[Any, int] = {}
            end = time.monotonic() + 40
            while found.keys() != sent:
                assert time.monotonic() < end, f"{len(found)} of {len(sent)} came"
                with contextlib.suppress(NetError, MQError):
                    for queue in await reader.queues("T"):
                        pulled = await reader.pull(queue, offsets.get(queue, 0))
                        for record in decode_records(pulled.records):
                            found[record.properties["KEYS"]] += 1
                            late = int(record.properties["TIMER_OUT_MS"]) + 1_000
                            assert int(record.properties["TIMER_DEQUEUE_MS"]) >= late
                        offsets[queue] = pulled.next_offset
                await asyncio.sleep(0.05)
            assert max(found.values()) == 1
    finally:
        await group.close()
        await asyncio.to_thread(cluster.stop)
