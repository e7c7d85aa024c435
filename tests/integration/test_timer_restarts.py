"""Timed messages survive restarts, kills, lost timer files and a change of masters."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import Rig
from tests.integration.timer_rig import Starter, now_ms, start, stop, timed, until

from batonmq import Message, Producer, QueueReader
from batonmq.broker.timer.part import TimerPart
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.protocol.message.record import MessageExt, decode_records

__all__ = ["start"]


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
