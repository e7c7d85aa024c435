"""Slaves that act as masters beside RocketMQ: its name server, its slaves and its masters."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batonmq.client.errors import ClientError
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from tests.integration.acting.group import QUEUES, TOPIC, Pairs, until
from tests.integration.acting.stories import delayed_messages
from tests.interop.conftest import JavaProcess, Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]

JAVA_S = 90.0
COPIED_S = 75.0
"""A Java slave copies topics every 60 s."""


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Pairs]:
    """Two broker sets of ours that are not started; neither is the name server."""
    pairs = Pairs(
        tmp_path, {"skipPreOnline": "true", "slaveReadEnable": "true", "messageDelayLevel": "2s 5s 8s"}
    )
    yield pairs
    await pairs.close()


def java_settings(pairs: Pairs, name: str, broker_id: int) -> dict[str, object]:
    """The settings of one of our brokers, for RocketMQ's."""
    ours = dict(pairs.brokers[name, broker_id].settings)
    for key in ("bindAddress", "mappedFileSizeTimerLog", "maxHashSlotNum", "maxIndexNum"):
        ours.pop(key)
    return {
        **ours,
        "storePathCommitLog": f"{ours['storePathRootDir']}/commitlog",
        "mapedFileSizeCommitLog": ours["mappedFileSizeCommitLog"],
        "haListenPort": int(str(ours["listenPort"])) + 1,
        "timerWheelEnable": "true",
        "timerPrecisionMs": 1000,
        "slaveReadEnable": "true",
    }


async def members(pairs: Pairs, name: str, *wanted: int) -> None:
    async def there() -> bool:
        return set(await pairs.members(name)) == set(wanted)

    await until(there, f"members {wanted} of {name}", JAVA_S)


async def sends(pairs: Pairs, name: str) -> None:
    """Until the set takes messages."""

    async def taken() -> bool:
        try:
            return len(await pairs.send(name, 1)) == 1
        except (ClientError, MQError, NetError):
            return False

    await until(taken, f"{name} takes messages", JAVA_S)


async def come(pairs: Pairs, bodies: list[str], place: tuple[str, int], timeout_s: float = 30) -> None:
    async def there() -> bool:
        try:
            return set(bodies) <= set(await pairs.bodies(place))
        except (MQError, NetError):
            return False

    await until(there, f"{bodies[0]} and others come", timeout_s)


async def test_our_slaves_act_under_a_java_name_server(peer: Peer, pairs: Pairs) -> None:
    await peer.start(
        "namesrv",
        {
            "listenPort": pairs.namesrv.settings["listenPort"],
            "supportActingMaster": "true",
            "notifyMinBrokerIdChanged": "true",
            "scanNotActiveBrokerInterval": 1_000,
        },
    )
    await asyncio.gather(*(asyncio.to_thread(program.start) for program in pairs.brokers.values()))
    await pairs.ready()
    began = time.monotonic()
    await delayed_messages(pairs)
    print(f"delayed messages after {time.monotonic() - began:.1f} s")
    await pairs.restart("a", 0)
    await pairs.acting("a", ends=True)
    await pairs.whole("a")
    pairs.kill("a", 0)
    print(f"acts {await pairs.acting('a'):.3f} s after the kill")
    await pairs.restart("a", 0)
    await pairs.acting("a", ends=True)
    await pairs.whole("a")
    # Messages of the first story are still there.
    assert len(await pairs.bodies(("b", 0))) == 10


async def test_our_slave_acts_for_a_java_master_and_another_java_master_takes_its_messages(
    peer: Peer, pairs: Pairs
) -> None:
    await asyncio.to_thread(pairs.namesrv.start)
    javas: dict[str, JavaProcess] = {}
    for name in "ab":
        javas[name] = await peer.start("broker", java_settings(pairs, name, 0))
    await asyncio.to_thread(pairs.brokers["a", 1].start)
    await members(pairs, "a", 0, 1)
    await members(pairs, "b", 0)
    for name in "ab":
        await pairs.create_topic(name)
        await sends(pairs, name)
    plain = await pairs.send("a", 4)
    await come(pairs, plain, ("a", 1), COPIED_S)
    delayed = await pairs.send("a", 10, delay_level=3)
    timed = await pairs.send("a", 10, deliver_at=time.time() + 8)
    await asyncio.sleep(1.5)
    javas["a"].kill()
    print(f"acts {await pairs.acting('a'):.3f} s after the kill")
    await come(pairs, delayed + timed, ("b", 0))
    counts = await pairs.bodies(("b", 0))
    assert {counts[body] for body in delayed + timed} == {1}
    await come(pairs, plain, ("a", 1))
    await peer.start("broker", javas["a"].config)
    await pairs.acting("a", ends=True)


async def test_a_java_slave_acts_for_our_master_and_another_master_of_ours_takes_its_messages(
    peer: Peer, pairs: Pairs
) -> None:
    await asyncio.to_thread(pairs.namesrv.start)
    for place in (("a", 0), ("b", 0)):
        await asyncio.to_thread(pairs.brokers[place].start)
    slave = await peer.start("broker", java_settings(pairs, "a", 1))
    await members(pairs, "a", 0, 1)
    await members(pairs, "b", 0)
    for name in "ab":
        await pairs.create_topic(name)
        await sends(pairs, name)
    plain = await pairs.send("a", 4)
    await come(pairs, plain, ("a", 1), COPIED_S)
    delayed = await pairs.send("a", 10, delay_level=3)
    await asyncio.sleep(1.5)
    began = time.monotonic()
    pairs.kill("a", 0)
    await come(pairs, delayed, ("b", 0), JAVA_S)
    print(f"a Java slave's delayed messages came {time.monotonic() - began:.1f} s after the kill")
    assert slave.process.poll() is None
    (acting,) = [each for each in (await pairs.route()).broker_datas if each.broker_name == "a"]
    assert acting.broker_addrs == {0: slave.address}


@pytest.mark.parametrize("program", ["ThroughKill", "TransactionsThroughKill"])
async def test_java_clients_lose_nothing_through_an_acting_master(
    peer: Peer, tmp_path: Path, program: str
) -> None:
    keys = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionOpBatchInterval": 500}
    pairs, stop = Pairs(tmp_path, keys), tmp_path / "stop"
    java: asyncio.Task[str] | None = None
    try:
        await pairs.up()
        source = Path(__file__).parent / "java" / f"{program}.java"
        java = asyncio.ensure_future(
            peer.java(source, pairs.namesrv_address, TOPIC, str(QUEUES), str(stop), timeout_s=200)
        )

        async def written() -> bool:
            assert java is not None and not java.done()
            return len(await pairs.messages("a", 0)) > 100

        await until(written, "the Java clients send", 90)
        for _ in range(2):
            pairs.kill("a", 0)
            await pairs.acting("a")
            await asyncio.sleep(6)
            await pairs.restart("a", 0)
            await pairs.acting("a", ends=True)
            await pairs.whole("a")
            await asyncio.sleep(3)
        stop.touch()
        output = await java
        print(output)
        found = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", output)}
        assert found["lost"] == 0 and found.get("wrong", 0) == 0, output
        assert found["failed_attempts"] > 0, "nobody noticed the kill: it proves nothing"
        if program == "TransactionsThroughKill":
            assert found["stored_twice"] < 20, output
    finally:
        stop.touch()
        if java is not None and not java.done():
            await java
        await pairs.close()
    assert "Traceback" not in pairs.logs()
