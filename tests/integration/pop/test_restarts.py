"""What is outstanding survives restarts, kills, failures and bad records."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from tests.integration.broker.rig import program, v2, write_conf
from tests.integration.pop.rig import Rig, Starter

from batonmq.broker.pop import reviver
from batonmq.net import RemotingClient
from batonmq.protocol.codes import MessageSysFlag, ResponseCode
from batonmq.protocol.message.record import MessageExt


async def test_outstanding_messages_come_back_after_a_restart_and_acknowledged_ones_do_not(
    start: Starter,
) -> None:
    rig = await start()
    await rig.send(*(b"%d" % n for n in range(10)))
    popped = await rig.pop(invisible_time=1_500)
    await rig.ack(*popped[:4])
    await rig.restart()
    assert await rig.bodies() == []
    found: list[bytes] = []
    while len(found) < 6:
        again = await rig.pop(poll_time=5_000)
        assert again
        found += [each.body for each in again]
        await rig.ack(*again)
    assert sorted(found) == [b"%d" % n for n in range(4, 10)]
    assert await rig.bodies(poll_time=1_000) == []


async def test_a_killed_broker_forgets_neither_what_is_outstanding_nor_what_is_acknowledged(
    tmp_path: Path,
) -> None:
    conf = write_conf(tmp_path / "b.conf", storePathRootDir=tmp_path / "store")

    def begin() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            program(conf), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        with process.stdout:
            line = process.stdout.readline()
        return process, line.partition(", ")[2].partition("]")[0]

    rig = Rig(tmp_path, {})
    process, rig.address = await asyncio.to_thread(begin)
    try:
        await rig.create()
        await rig.send(*(b"%d" % n for n in range(20)))
        popped = await rig.pop(invisible_time=4_000, max_msg_nums=12)
        await rig.ack(*popped[:5])
        ordered = await rig.pop(group="o", order=True, max_msg_nums=2, invisible_time=60_000)
        await rig.ack(ordered[0], group="o")
        process.kill()
        process.wait()
        await rig.client.close()
        rig.client = RemotingClient()
        process, rig.address = await asyncio.to_thread(begin)
        rest = await rig.pop()
        assert [each.body for each in rest] == [b"%d" % n for n in range(12, 20)]
        assert await rig.bodies(group="o", order=True) == []
        await rig.ack(ordered[1], group="o")
        assert (await rig.bodies(group="o", order=True))[0] == b"2"
        back: list[bytes] = []
        while len(back) < 7:
            again = await rig.pop(poll_time=8_000)
            assert again
            back += [each.body for each in again]
            await rig.ack(*again)
        assert sorted(back, key=int) == [b"%d" % n for n in range(5, 12)]
    finally:
        await rig.client.close()
        process.kill()
        process.wait()


async def test_reading_what_is_outstanding_is_repeated_after_an_unexpected_failure(
    start: Starter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reviver, "BEGIN_RETRY_S", 0.05)
    rig = await start()
    await rig.send(b"a", b"b")
    first, _ = await rig.pop(invisible_time=1_500)
    await rig.ack(first)
    learn, failures = reviver.Reviver._learn, 0

    def fail(self: reviver.Reviver, record: MessageExt) -> None:
        nonlocal failures
        learn(self, record)
        if failures < 3:
            failures += 1
            raise ZeroDivisionError("a bug")

    monkeypatch.setattr(reviver.Reviver, "_learn", fail)
    caplog.clear()
    await rig.restart()
    assert await rig.bodies(poll_time=10_000) == [b"b"]
    assert failures == 3
    assert len([each for each in caplog.records if each.exc_info is not None]) == 1


@pytest.mark.parametrize("topic", ["T", "rmq_sys_REVIVE_LOG_DefaultCluster"])
async def test_a_body_that_does_not_inflate_does_not_end_all_pops(start: Starter, topic: str) -> None:
    rig = await start()
    await rig.send(b"a")
    await rig.call(v2(topic, sys_flag=MessageSysFlag.COMPRESSED, properties="TAGS\1ck\2"), b"not compressed")
    await rig.ask(invisible_time=2_000)
    await rig.restart()
    await rig.create("U")
    await rig.send(b"b", topic="U")
    assert await rig.bodies(topic="U") == [b"b"]
    assert (await rig.ask(poll_time=5_000)).code == ResponseCode.SUCCESS
