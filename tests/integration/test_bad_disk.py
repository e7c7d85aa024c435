"""Full and damaged disks: acknowledged messages stay, consumers can read, and the broker recovers afterwards.
A controller, which must not lose state, exits with a line that names the failed path.

The file systems are small tmpfs mounts, so these tests need root and are skipped without.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.group import read

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse
from batonmq.protocol.headers.broker.send import SendMessageV2
from batonmq.protocol.headers.controller import ApplyBrokerId
from batonmq.protocol.message.record import decode_records
from batonmq.store.verify import verify

MIB = 1 << 20
FULL = {
    ResponseCode.SYSTEM_ERROR: "create mapped file failed",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker's disk is full",
}
"""What RocketMQ answers when a file cannot be created or written, and above the disk's warning level."""


class Broker:
    """One broker process on its own, and what it acknowledged."""

    def __init__(self, directory: Path, store: Path, **settings: Any) -> None:
        port = free_ports(1)[0]
        values = {
            "brokerName": "b",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": port,
            "storePathRootDir": store,
            "mappedFileSizeCommitLog": MIB,
            "mappedFileSizeConsumeQueue": 20 * 1000,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
        }
        self.program = Program("broker", "broker", directory, {**values, **settings})
        self.store = store
        self.address = f"127.0.0.1:{port}"
        self.acked: list[bytes] = []
        self.client = RemotingClient()

    async def send(self, size: int = 1000) -> tuple[int, str]:
        """One message; code and remark of the answer."""
        body = b"%d " % len(self.acked) + os.urandom(size)
        header = SendMessageV2(
            producer_group="p",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=1_700_000_000_000,
            flag=0,
        )
        command = Command(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
        answer = await self.client.invoke(self.address, command, timeout_ms=8000)
        if answer.code == ResponseCode.SUCCESS:
            self.acked.append(body)
        return answer.code, answer.remark or ""

    async def fill(self, most: int) -> tuple[int, str]:
        """Send until one is refused; the refusal. A disk that is slow, not full, is none."""
        for _ in range(most):
            code, remark = await self.send()
            if code not in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT):
                return code, remark
        raise AssertionError(f"{most} messages fit on the disk")

    async def stored(self) -> list[bytes]:
        bodies: list[bytes] = []
        offset = 0
        while True:
            header = PullMessage(
                consumer_group="g",
                topic="T",
                queue_id=0,
                queue_offset=offset,
                max_msg_nums=32,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
            empty = (0, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED)
            answer = await self.client.call(self.address, header, accept=empty)
            assert isinstance(answer.header, PullMessageResponse)
            if answer.code:
                return bodies
            bodies += [message.body for message in decode_records(answer.body, check_crc=True)]
            offset = answer.header.next_begin_offset

    async def check(self) -> None:
        """Everything acknowledged is there, once and in order; unacknowledged messages may be."""
        stored = await self.stored()
        assert [body for body in stored if body in set(self.acked)] == self.acked
        assert "Traceback" not in read(self.program.log_path)
        assert self.program.running

    def start(self) -> None:
        self.program.start()
        self.client.drop(self.address)  # a connection to the process before it

    def stop(self, *, kill: bool = False) -> None:
        if kill:
            self.program.kill()
        else:
            assert self.program.stop() == 0, read(self.program.log_path)[-3000:]

    async def close(self) -> None:
        await self.client.close()
        self.program.stop()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a small file system can only be mounted by root")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_a_full_disk_refuses_and_loses_nothing(
    tmp_path: Path, disk: Path, flush: str, kill: bool
) -> None:
    broker = Broker(tmp_path, disk / "store", flushDiskType=flush)
    ballast = disk / "ballast"
    try:
        broker.start()
        for _ in range(300):
            assert (await broker.send())[0] == 0
        # Another program fills the disk between two checks of its usage: the append itself fails.
        space = os.statvfs(disk)
        ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - 64 * 1024))
        code, remark = await broker.fill(2000)
        assert code in FULL and FULL[ResponseCode(code)] in remark, (code, remark)
        for _ in range(20):
            code, remark = await broker.send(5000)
            assert code in FULL, (code, remark)
        await broker.check()  # consumers still read
        ballast.unlink()
        for _ in range(300):  # the next check of the disk's usage is at most ten seconds away
            if (await broker.send())[0] == 0:
                break
            await asyncio.sleep(0.1)
        for _ in range(50):
            assert await broker.send() == (0, "")
        await broker.check()
        broker.stop(kill=kill)
        broker.start()
        await broker.check()
        assert (await broker.send())[0] == 0
        broker.stop()
        assert verify(disk / "store").ok
    finally:
        await broker.close()


async def test_a_broker_starts_on_a_full_disk_and_serves_what_it_has(tmp_path: Path, disk: Path) -> None:
    broker = Broker(tmp_path, disk / "store")
    ballast = disk / "ballast"
    try:
        broker.start()
        for _ in range(100):
            assert (await broker.send())[0] == 0
        broker.stop(kill=True)
        space = os.statvfs(disk)
        ballast.write_bytes(bytes(space.f_bavail * space.f_frsize))
        broker.start()
        await broker.check()
        code, remark = await broker.fill(3000)
        assert code in FULL, (code, remark)
        ballast.unlink()
        broker.stop()
        broker.start()
        assert (await broker.send())[0] == 0
        await broker.check()
    finally:
        await broker.close()


async def test_a_disk_above_the_warning_level_takes_nothing_until_it_is_below(
    tmp_path: Path, disk: Path
) -> None:
    broker = Broker(tmp_path, disk / "store", cleanResourceInterval=200, diskSpaceWarningLevelRatio=60)
    ballast = disk / "ballast"
    try:
        broker.start()
        assert (await broker.send())[0] == 0
        ballast.write_bytes(bytes(6 * MIB))
        await asyncio.sleep(0.8)
        code, remark = await broker.send()
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE and "the broker's disk is full" in remark
        await broker.check()
        ballast.unlink()
        await asyncio.sleep(0.8)
        assert (await broker.send())[0] == 0
        await broker.check()
    finally:
        await broker.close()


# -- files that were damaged while the broker was down


@pytest.fixture
async def filled(tmp_path: Path) -> Any:
    """A broker with three log files of messages, stopped."""
    broker = Broker(tmp_path, tmp_path / "store")
    try:
        broker.start()
        for _ in range(2500):
            assert (await broker.send())[0] == 0
        yield broker
    finally:
        await broker.close()


def last_used(path: Path) -> int:
    """Bytes of a file up to its last that is not zero."""
    return len(path.read_bytes().rstrip(b"\0"))


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("tail", [b"\xff" * 300, b"\0\0\1\0" + b"\xda\xa3\x20\xa7" + b"\1" * 100])
async def test_garbage_behind_the_log_is_cut_off(filled: Broker, kill: bool, tail: bytes) -> None:
    filled.stop(kill=kill)
    newest = max((filled.store / "commitlog").iterdir())
    with newest.open("r+b") as file:
        file.seek(last_used(newest))
        file.write(tail)
    filled.start()
    await filled.check()
    assert (await filled.send())[0] == 0
    await filled.check()
    filled.stop()
    assert verify(filled.store).ok


async def test_a_torn_last_record_is_cut_and_only_that(filled: Broker) -> None:
    filled.stop(kill=True)
    newest = max((filled.store / "commitlog").iterdir())
    end = last_used(newest)
    with newest.open("r+b") as file:
        file.seek(end - 500)
        file.write(bytes(500))
    last = filled.acked.pop()
    filled.start()
    await filled.check()
    assert last not in await filled.stored()
    assert (await filled.send())[0] == 0
    await filled.check()
    filled.stop()
    assert verify(filled.store).ok


async def test_a_record_damaged_in_the_middle_costs_nobody_the_rest(filled: Broker) -> None:
    filled.stop()
    oldest = min((filled.store / "commitlog").iterdir())
    with oldest.open("r+b") as file:
        data = file.read()
        at = data.index(filled.acked[100])
        file.seek(at + 50)
        file.write(b"\xff" * 40)
    report = verify(filled.store)
    assert not report.ok
    filled.start()
    damaged = filled.acked.pop(100)
    bodies: list[bytes] = []
    offset = 0
    while offset < 2500:
        header = PullMessage(
            consumer_group="g",
            topic="T",
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
        )
        answer = await filled.client.call(filled.address, header)
        (message,) = decode_records(answer.body, check_crc=False)
        bodies.append(message.body)
        offset += 1
    assert bodies.pop(100) != damaged
    assert bodies == filled.acked
    assert (await filled.send())[0] == 0


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe\0", b"[]", b"null", bytes(4096)])
async def test_a_broken_topics_file_falls_back_to_its_backup(filled: Broker, damage: bytes) -> None:
    filled.stop()
    path = filled.store / "config/topics.json"
    backup = filled.store / "config/topics.json.bak"
    assert b'"T"' in backup.read_bytes()
    path.write_bytes(damage)
    filled.start()
    assert f"using {backup}" in read(filled.program.log_path)
    await filled.check()
    assert (await filled.send())[0] == 0
    filled.stop()
    assert b'"T"' in path.read_bytes()


async def test_without_a_whole_topics_file_it_says_so_and_does_not_start(filled: Broker) -> None:
    filled.stop()
    path = filled.store / "config/topics.json"
    backup = filled.store / "config/topics.json.bak"
    good = path.read_bytes()
    path.write_bytes(b"{")
    backup.write_bytes(b"")
    before = read(filled.program.log_path)
    filled.program.start(wait=False)
    assert filled.program.process is not None
    assert await asyncio.to_thread(filled.program.process.wait, 20) == 1
    lines = [line for line in read(filled.program.log_path)[len(before) :].splitlines() if "broker: " in line]
    assert len(lines) == 1 and str(path) in lines[0] and str(backup) in lines[0], lines
    path.write_bytes(good)
    filled.start()
    await filled.check()


# -- a controller


def controller(directory: Path, store: Path) -> Program:
    (port,) = free_ports(1)
    settings = {
        "controllerDLegerGroup": "g",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": store,
        "bindAddress": "127.0.0.1",
    }
    return Program("controller", "controller", directory, settings, port=port)


def fill(ballast: Path) -> None:
    """Fill the disk, even if other programs write to it at the same time."""
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


async def register_until_it_ends(program: Program) -> None:
    """Registers broker sets with long check codes until the process is gone."""
    client = RemotingClient()
    try:
        for number in range(2_000):
            claim = ApplyBrokerId(f"set {number}", 1, f"h:1;{'long' * 1_000}", "c")
            try:
                await client.call(program.address, claim, timeout_ms=2_000)
            except MQError:
                await asyncio.sleep(0.01)  # it does not lead yet, or the outcome is not known
            except NetError:
                assert program.process is not None
                await asyncio.to_thread(program.process.wait, 20)
                return
        raise AssertionError("it goes on")
    finally:
        await client.close()


def reported_in_one_line(program: Program, path: Path, error: str) -> None:
    """Exit code 1, and a last line with the path and the system's words; no traceback."""
    assert program.process is not None and program.process.returncode == 1
    text = read(program.log_path)
    assert "Traceback" not in text, text[-5_000:]
    last = text.splitlines()[-1]
    assert last == f"controller: stopped itself: {path}: {error}", text[-5_000:]
    assert text.count(f"{path}: {error}") == 2  # in the log, and on stderr


async def test_a_controller_whose_disk_is_full_ends_in_a_line(tmp_path: Path, disk: Path) -> None:
    program = controller(tmp_path, disk / "controller")
    try:
        program.start()
        fill(disk / "ballast")
        await register_until_it_ends(program)
        (path,) = (disk / "controller/raft-n0").glob("log-*")
        reported_in_one_line(program, path, "No space left on device")
        (disk / "ballast").unlink()
        program.start()
        assert program.stop() == 0
    finally:
        program.kill()


async def test_a_controller_that_may_not_write_any_more_ends_in_a_line(tmp_path: Path) -> None:
    program = controller(tmp_path, tmp_path / "store")
    try:
        program.start()
        limit = 300_000
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (limit, limit))
        await register_until_it_ends(program)
        (path,) = (tmp_path / "store/raft-n0").glob("log-*")
        reported_in_one_line(program, path, "File too large")
    finally:
        program.kill()


async def test_a_controller_does_not_start_on_a_disk_that_is_full(tmp_path: Path, disk: Path) -> None:
    program = controller(tmp_path, disk / "controller")
    fill(disk / "ballast")
    try:
        program.start(wait=False)
        assert program.process is not None
        assert await asyncio.to_thread(program.process.wait, 20) == 1
        text = read(program.log_path)
        assert "Traceback" not in text, text
        assert text.splitlines()[-1].startswith(f"controller: {disk / 'controller/raft-n0'}")
        assert text.endswith(": No space left on device\n")
    finally:
        program.kill()
