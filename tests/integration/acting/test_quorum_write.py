"""Sends of a master whose slaves are lost and come back: enableAutoInSyncReplicas, and without it."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from tests.integration.acting.group import TOPIC, Pairs, until

from batonmq import Message, MessageQueue, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import ProcessFailed
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import GetBrokerHAStatus
from batonmq.protocol.json import decode


async def outcome(pairs: Pairs) -> tuple[str, float]:
    """What one send of a producer that does not retry gets, and after how many seconds."""
    began = time.monotonic()
    async with Producer("p", pairs.namesrv_address, send_timeout_ms=6_000, retries=0) as producer:
        try:
            result = await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "a", 0))
        except (NetError, MQError, ClientError) as error:
            return str(error), time.monotonic() - began
        return result.status.name, time.monotonic() - began


async def _counted(pairs: Pairs) -> bool:
    """The master asks the name servers for the members once a second."""
    members = [line for line in pairs.log("a", 0).splitlines() if "live members of the broker set" in line]
    return bool(members) and all(f"{broker_id}: " in members[-1] for broker_id in range(1 + pairs.slaves))


async def _in_sync(pairs: Pairs) -> bool:
    """The slaves count for sends: each has confirmed what it was sent on its link."""
    answer = await pairs.client.call(pairs.address("a", 0), GetBrokerHAStatus())
    return decode(bytes(answer.body), HARuntimeInfo).in_sync_slave_nums == pairs.slaves


async def _ok(pairs: Pairs) -> bool:
    return (await outcome(pairs))[0] == "SEND_OK"


async def test_sends_wait_for_as_many_as_are_there_and_not_for_fewer_than_the_least(tmp_path: Path) -> None:
    settings = {"inSyncReplicas": 3, "minInSyncReplicas": 2, "slaveTimeout": 3_000}
    pairs = Pairs(tmp_path, settings, sets="a", slaves=2)
    try:
        await pairs.up()
        await until(lambda: _counted(pairs), "the master counts three as alive")
        await until(lambda: _ok(pairs), "sends")
        pairs.kill("a", 2)
        status, seconds = await outcome(pairs)
        assert status == "SEND_OK" and seconds < 1, "the link of a killed process is closed at once"
        pairs.kill("a", 1)
        await asyncio.sleep(0.1)
        status, seconds = await outcome(pairs)
        assert "in-sync replicas not enough" in status and seconds < 1
        await pairs.restart("a", 1)
        await until(lambda: _ok(pairs), "two are enough again")
        await pairs.restart("a", 2)
        await pairs.whole("a")

        async def as_configured() -> bool:
            return await _ok(pairs) and "in sync again" in pairs.log("a", 0)

        await until(as_configured, "sends wait for three again")
    finally:
        await pairs.close()
    text = pairs.log("a", 0)
    for line in ("wait for 2 copies, not 3", "sends that wait for replicas are refused"):
        assert line in text, text[-3000:]


async def test_without_automatic_degrade_sends_are_refused_at_once(tmp_path: Path) -> None:
    pairs = Pairs(tmp_path, {"enableAutoInSyncReplicas": "false"}, sets="a", slaves=1)
    try:
        await pairs.up()
        pairs.kill("a", 1)
        await asyncio.sleep(0.1)
        status, seconds = await outcome(pairs)
        assert "in-sync replicas not enough" in status and seconds < 1
        await pairs.restart("a", 1)
        await until(lambda: _ok(pairs), "the slave is back")
    finally:
        await pairs.close()


async def test_a_slave_that_hangs_delays_sends_until_it_is_no_longer_alive(tmp_path: Path) -> None:
    settings = {"minInSyncReplicas": 1, "slaveTimeout": 500, "brokerNotActiveTimeoutMillis": 2_000}
    pairs = Pairs(tmp_path, settings, sets="a", slaves=1)
    pairs.namesrv.settings = {**pairs.namesrv.settings, "scanNotActiveBrokerInterval": 200}
    try:
        await pairs.up()
        await until(lambda: _counted(pairs), "the master counts the slave as alive")
        await until(lambda: _ok(pairs), "sends")
        await until(lambda: _in_sync(pairs), "the slave counts as in sync")
        pairs.brokers["a", 1].signal(signal.SIGSTOP)
        status, seconds = await outcome(pairs)
        assert "FLUSH_SLAVE_TIMEOUT" in status and 0.4 < seconds < 2
        began = time.monotonic()
        await until(lambda: _ok(pairs), "the name server counts it as dead")
        assert time.monotonic() - began < 6
        pairs.brokers["a", 1].signal(signal.SIGCONT)
        await pairs.whole("a")
    finally:
        await pairs.close()


@pytest.mark.parametrize("key", ["inSyncReplicas=3", "minInSyncReplicas=3"])
async def test_impossible_numbers_are_refused_at_the_start(tmp_path: Path, key: str) -> None:
    name, _, value = key.partition("=")
    pairs = Pairs(tmp_path, {name: value}, sets="a", slaves=1)
    try:
        await asyncio.to_thread(pairs.namesrv.start)
        with pytest.raises(ProcessFailed, match=name):
            await asyncio.to_thread(pairs.brokers["a", 0].start)
    finally:
        await pairs.close()
