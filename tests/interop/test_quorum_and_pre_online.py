"""Quorum write and returning masters of groups without controllers, beside RocketMQ's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batonmq import Message, MessageQueue, Producer
from batonmq.client.errors import ClientError
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import QueryConsumerOffset, UpdateConsumerOffset
from batonmq.protocol.headers.broker.topics import UpdateSubscriptionGroup
from batonmq.protocol.json import encode
from tests.integration.acting.group import TOPIC, Pairs, until
from tests.integration.acting.test_lock_quorum import lock, unlock
from tests.interop.conftest import JavaProcess, Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]

JAVA_S = 90.0


@pytest.fixture
async def pairs(tmp_path: Path) -> AsyncIterator[Pairs]:
    """Our name server; the brokers are started by the test, ours or Java's."""
    pairs = Pairs(tmp_path, {"slaveTimeout": 1_000, "flushConsumerOffsetInterval": 1_000}, sets="a", slaves=1)
    await asyncio.to_thread(pairs.namesrv.start)
    yield pairs
    await pairs.close()


def java_settings(pairs: Pairs, broker_id: int, **keys: object) -> dict[str, object]:
    ours = dict(pairs.brokers["a", broker_id].settings)
    for key in (
        "bindAddress",
        "mappedFileSizeTimerLog",
        "maxHashSlotNum",
        "maxIndexNum",
        "messageDelayLevel",
    ):
        ours.pop(key)
    root = ours["storePathRootDir"]
    return {
        **ours,
        "storePathCommitLog": f"{root}/commitlog",
        "mapedFileSizeCommitLog": ours["mappedFileSizeCommitLog"],
        "haListenPort": int(str(ours["listenPort"])) + 1,
        "slaveReadEnable": "true",
        **keys,
    }


async def outcome(pairs: Pairs) -> str:
    """What one send of a producer that does not retry gets."""
    async with Producer("p", pairs.namesrv_address, send_timeout_ms=6_000, retries=0) as producer:
        try:
            result = await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, "a", 0))
        except MQError as error:
            return f"{error.code}"
        except (NetError, ClientError) as error:
            return "FLUSH_SLAVE_TIMEOUT" if "FLUSH_SLAVE_TIMEOUT" in str(error) else str(error)
        return result.status.name


async def steps(pairs: Pairs, *, auto: bool) -> list[str]:
    """With its slave, without, and with it again."""
    slave = pairs.brokers["a", 1]

    async def accepted() -> bool:
        return await outcome(pairs) == "SEND_OK"

    await asyncio.to_thread(slave.start)
    await until(lambda: _linked(pairs), "the slave is a member", JAVA_S)
    await pairs.create_topic("a")
    await until(accepted, "sends are accepted", JAVA_S)
    seen = [await outcome(pairs)]
    await asyncio.to_thread(slave.kill)
    await asyncio.sleep(3)  # the name server and the master have noticed
    seen.append(await outcome(pairs))
    await asyncio.to_thread(slave.start)
    await until(lambda: _linked(pairs), "the slave is back", JAVA_S)
    await until(accepted, "sends are accepted again", JAVA_S)
    seen.append(await outcome(pairs))
    return seen


async def _linked(pairs: Pairs) -> bool:
    return set(await pairs.members("a")) == {0, 1}


@pytest.mark.parametrize("auto", [False, True], ids=["fixed", "auto"])
async def test_a_java_master_and_ours_give_the_same_answers(peer: Peer, tmp_path: Path, auto: bool) -> None:
    found = {}
    for who in ("java", "ours"):
        keys = {"enableAutoInSyncReplicas": str(auto).lower(), "slaveTimeout": 1_000}
        pairs = Pairs(tmp_path / who, keys, sets="a", slaves=1)
        pairs.directory.mkdir()
        master: JavaProcess | None = None
        try:
            await asyncio.to_thread(pairs.namesrv.start)
            if who == "java":
                master = await peer.start("broker", java_settings(pairs, 0))
            else:
                await asyncio.to_thread(pairs.brokers["a", 0].start)
            found[who] = await steps(pairs, auto=auto)
        finally:
            if master is not None:
                master.kill()
            await pairs.close()
    assert found["ours"] == found["java"] == ["SEND_OK", "SEND_OK" if auto else "1", "SEND_OK"]


async def _group(pairs: Pairs) -> None:
    body = encode(SubscriptionGroupConfig(group_name="g"))
    await pairs.client.call(pairs.address("a", 0), UpdateSubscriptionGroup(), body)


async def _commit(pairs: Pairs, broker_id: int, offset: int) -> None:
    header = UpdateConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0, commit_offset=offset)
    await pairs.client.call(pairs.address("a", broker_id), header)


async def _accepts(pairs: Pairs, broker_id: int, offset: int) -> bool:
    try:
        await _commit(pairs, broker_id, offset)
    except MQError:
        return False
    return True


async def _committed(pairs: Pairs, broker_id: int) -> int:
    header = QueryConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0)
    try:
        answer = await pairs.client.call(pairs.address("a", broker_id), header)
    except (MQError, NetError):
        return -1
    return int(answer.header.offset)  # type: ignore[union-attr]


async def _is(pairs: Pairs, broker_id: int, offset: int) -> bool:
    return await _committed(pairs, broker_id) == offset


async def _registered(pairs: Pairs, ids: set[int]) -> bool:
    return set(await pairs.members("a")) == ids


async def test_our_master_returns_to_a_java_slave_and_takes_its_offsets(peer: Peer, pairs: Pairs) -> None:
    await asyncio.to_thread(pairs.brokers["a", 0].start)
    slave = await peer.start("broker", java_settings(pairs, 1))
    await until(lambda: _linked(pairs), "both are members", JAVA_S)
    await pairs.create_topic("a")
    await pairs.whole("a")
    await _group(pairs)
    await pairs.send("a", 20)
    await _commit(pairs, 0, 5)
    await until(lambda: _is(pairs, 1, 5), "the Java slave has copied the offset", JAVA_S)
    await until(lambda: _accepts(pairs, 1, 5), "the Java slave has copied the group", JAVA_S)
    pairs.kill("a", 0)
    await until(lambda: _registered(pairs, {1}), "the master is gone")
    await asyncio.sleep(2)
    await _commit(pairs, 1, 9)
    began = time.monotonic()
    await pairs.restart("a", 0)
    await until(
        lambda: _registered(pairs, {0, 1}), "our master is back:\n" + pairs.log("a", 0)[-3000:], JAVA_S
    )
    print(f"our master came back to a Java slave in {time.monotonic() - began:.1f} s")
    assert await _committed(pairs, 0) == 9
    await pairs.whole("a")
    await pairs.send("a", 1)
    slave.kill()


async def test_a_java_master_returns_to_our_acting_slave(peer: Peer, pairs: Pairs) -> None:
    """With a slave of RocketMQ it never does: it cannot read that slave's offsets."""
    config = java_settings(pairs, 0)
    master = await peer.start("broker", config)
    await asyncio.to_thread(pairs.brokers["a", 1].start)
    await until(lambda: _linked(pairs), "both are members", JAVA_S)
    await pairs.create_topic("a")
    await until(lambda: pairs._whole("a"), "our slave follows", JAVA_S)
    await _group(pairs)
    await pairs.send("a", 20)
    await _commit(pairs, 0, 5)
    await until(lambda: _is(pairs, 1, 5), "our slave has copied the offset", JAVA_S)
    master.kill()
    await pairs.acting("a")
    await _commit(pairs, 1, 9)
    began = time.monotonic()
    master = await peer.start("broker", config)
    await until(lambda: _registered(pairs, {0, 1}), "the Java master is back", JAVA_S)
    print(f"a Java master came back to our slave in {time.monotonic() - began:.1f} s")
    await pairs.acting("a", ends=True)
    await until(lambda: _is(pairs, 0, 9), "it has the offset of our slave", JAVA_S)
    await until(lambda: pairs._whole("a"), "our slave follows again", JAVA_S)
    await pairs.send("a", 1)
    master.kill()


@pytest.mark.parametrize("who", ["our master", "java master"])
async def test_strict_locks_of_a_mixed_set(peer: Peer, tmp_path: Path, who: str) -> None:
    """Each make asks the other for its vote."""
    java_id = int(who == "our master")
    pairs = Pairs(tmp_path, {"lockInStrictMode": "true"}, sets="a", slaves=1)
    try:
        await asyncio.to_thread(pairs.namesrv.start)
        if java_id:
            await asyncio.to_thread(pairs.brokers["a", 0].start)
        java = await peer.start("broker", java_settings(pairs, java_id))
        if not java_id:
            await asyncio.to_thread(pairs.brokers["a", 1].start)
        await until(lambda: _linked(pairs), "both are members", JAVA_S)

        async def granted(client_id: str) -> bool:
            return await lock(pairs, 0, client_id) == [0, 1]

        await until(lambda: granted("c1"), "both agree", JAVA_S)
        for broker_id in (0, 1):
            assert await lock(pairs, broker_id, "c2") == []
        await unlock(pairs, 0, "c1")
        await until(lambda: granted("c2"), "given back at both", JAVA_S)
        java.kill()

        # One of two is not a majority, for its owner neither.
        async def none() -> bool:
            return await lock(pairs, 1 - java_id, "c2") == []

        await until(none, "the other one alone grants nothing")
    finally:
        await pairs.close()
