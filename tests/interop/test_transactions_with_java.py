"""Transactions beside RocketMQ: the same answers and records, stores that change hands, Java's producer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from batonmq import MessageQueue, QueueReader
from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.ha.config import HAConfig
from batonmq.net import RemotingClient
from batonmq.protocol.bodies.controller import decode_sync_state_set
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import GetReplicaInfo, GetReplicaInfoReply
from batonmq.protocol.message.record import MessageExt
from batonmq.protocol.names import TRANS_HALF_TOPIC
from batonmq.store.config import StoreConfig
from tests.integration.group import Group, read
from tests.integration.transactions import COMMIT, ROLLBACK, RawProducer, raw_producer
from tests.interop.conftest import JavaProcess, Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]
JAVA = Path(__file__).parent / "java"
TOPIC = "TransactionsThroughKill"
LOG_FILE, QUEUE_FILE = 16 << 20, 20 * 1000
KEYS = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000, "transactionOpBatchInterval": 500}


async def until(condition: Callable[[], Awaitable[object]], what: str, timeout_s: float = 40) -> None:
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.05)


async def java_broker(peer: Peer, store: Path, **keys: object) -> JavaProcess:
    namesrv = await peer.start("namesrv")
    values = {
        "namesrvAddr": namesrv.address,
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "mappedFileSizeCommitLog": LOG_FILE,
        "mappedFileSizeConsumeQueue": QUEUE_FILE,
    }
    return await peer.start("broker", {**values, **KEYS, **keys})


def our_broker(store: Path, **keys: Any) -> BrokerService:
    quick = {
        "transaction_time_out": 1_000,
        "transaction_check_interval": 1_000,
        "transaction_op_batch_interval": 500,
    }
    ours = {"broker_name": "java-broker", "broker_ip1": "127.0.0.1", "listen_port": 0}
    return BrokerService(
        BrokerConfig(**{**ours, **quick, **keys}),
        StoreConfig(
            store_path_root_dir=str(store),
            store_path_commit_log=str(store / "commitlog"),
            mapped_file_size_commit_log=LOG_FILE,
            mapped_file_size_consume_queue=QUEUE_FILE,
            max_index_num=100_000,
            max_hash_slot_num=20_000,
        ),
        HAConfig(),
    )


def described(record: MessageExt) -> dict[str, object]:
    """What two brokers must agree on."""
    varying = {"TRACE_ON", "MSG_REGION", "CLUSTER", "WAIT"}  # RocketMQ adds WAIT to what it stores again
    if record.topic != TRANS_HALF_TOPIC and record.sys_flag & COMMIT:
        # RocketMQ removes the first three after it has encoded the properties, so it stores them.
        # At each check it stores the message again, with the number of checks, and loses its flag.
        varying |= {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"}
        varying |= {"TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"}
    return {
        "topic": record.topic,
        "queue": (record.queue_id, record.queue_offset),
        "body": record.body,
        "flags": (record.flag, record.sys_flag, record.reconsume_times),
        "properties": {k: v for k, v in record.properties.items() if k not in varying},
    }


async def story(producer: RawProducer) -> dict[str, object]:
    """The same requests to any broker; what it answers, asks and delivers."""
    seen: dict[str, object] = {}

    async def end(name: str, *arguments: Any, **fields: Any) -> None:
        try:
            await producer.end(*arguments, **fields)
            seen[name] = 0
        except MQError as error:
            seen[name] = (int(error.code), error.remark)

    await producer.connect()
    committed = await producer.prepare("A", TAGS="t", KEYS="k")
    seen["prepared"] = (
        committed.answer.queue_id,
        committed.answer.transaction_id,
        committed.physical_offset >= 0,
    )
    await end("other group", committed, COMMIT, producer_group="q")
    await end("other offset", committed, COMMIT, tran_state_table_offset=1_000)
    await end("no message there", committed, COMMIT, commit_log_offset=1 << 40)
    await end("commit", committed, COMMIT)
    rolled_back = await producer.prepare("B")
    await end("rollback", rolled_back, ROLLBACK)
    immune = await producer.prepare("C", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    await asyncio.sleep(1.2)
    await end("too late", immune, COMMIT)
    producer.decisions |= {"C": COMMIT, "D": COMMIT, "E": ROLLBACK}
    await producer.prepare("D", TAGS="u")
    await producer.prepare("E")

    async def read() -> bool:
        return len(await producer.messages()) == 3

    await until(read, "three messages")
    records = [described(message) for message in await producer.messages()]
    seen["delivered"] = sorted((str(each["body"]), each["properties"]) for each in records)
    seen["asked"] = sorted({header.msg_id or "" for header, _ in producer.checks} - {"A", "B"})
    header, record = next(each for each in producer.checks if each[0].msg_id == "D")
    seen["check"] = (header.topic, header.msg_id, header.transaction_id, header.broker_name)
    seen["checked record"] = {k: v for k, v in described(record).items() if k != "queue"}
    return seen


async def test_the_same_requests_have_the_same_effect(peer: Peer, tmp_path: Path) -> None:
    java = await java_broker(peer, tmp_path / "java")
    service = our_broker(tmp_path / "ours")
    await service.start()
    ours, theirs = raw_producer(f"127.0.0.1:{service.port}"), raw_producer(java.address)
    try:
        our_story, their_story = await story(ours), await story(theirs)
    finally:
        await ours.client.close()
        await theirs.client.close()
        await service.stop()
    for name, seen in their_story.items():
        assert our_story[name] == seen, name
    assert our_story.keys() == their_story.keys()


async def test_a_store_with_open_transactions_changes_hands(peer: Peer, tmp_path: Path) -> None:
    """From RocketMQ to BatonMQ and back; each broker asks for what the one before left undecided."""
    store = tmp_path / "store"
    java = await java_broker(peer, store)
    first = raw_producer(java.address)
    for key, kind in (("A", COMMIT), ("B", ROLLBACK)):
        await first.end(await first.prepare(key), kind)
    await first.prepare("C")
    await first.prepare("D")
    await asyncio.sleep(2.5)  # the op messages are written, and RocketMQ has put C and D back at least once
    await first.client.close()
    java.terminate()

    service = our_broker(store)
    await service.start()
    second = raw_producer(f"127.0.0.1:{service.port}")
    second.decisions["C"] = COMMIT
    await second.connect()
    await until(lambda: delivered(second, ["A", "C"]), "C is committed")
    await second.end(await second.prepare("E"), COMMIT)
    await second.prepare("F")
    await asyncio.sleep(1.5)
    assert {header.msg_id for header, _ in second.checks} <= {"C", "D", "F"}
    assert [header.msg_id for header, _ in second.checks].count("C") == 1
    await second.client.close()
    await service.stop()

    java = await java_broker(peer, store)
    third = raw_producer(java.address)
    third.decisions |= {"D": ROLLBACK, "F": COMMIT}
    await third.connect()
    await until(lambda: delivered(third, ["A", "C", "E", "F"]), "F is committed")

    async def asked() -> bool:
        return {header.msg_id for header, _ in third.checks} >= {"D", "F"}

    await until(asked, "a check of D")
    await asyncio.sleep(2.5)
    assert {header.msg_id for header, _ in third.checks} == {"D", "F"}
    assert await third.bodies() == ["A", "C", "E", "F"]
    await third.client.close()


async def delivered(producer: RawProducer, bodies: list[str]) -> bool:
    return await producer.bodies() == bodies


@pytest.mark.parametrize("kills", [pytest.param(1, id="quick"), pytest.param(3, id="thrice")])
async def test_java_transactions_survive_a_kill_of_the_master(peer: Peer, tmp_path: Path, kills: int) -> None:
    group = Group(
        tmp_path / "group",
        replicas=2,
        settings={**KEYS, "transactionCheckMax": 1000, "defaultTopicQueueNums": 4},
    )
    cluster, stop = group.cluster, tmp_path / "stop"
    client, reader = RemotingClient(), QueueReader(cluster.namesrv_address)

    async def grown(by: int) -> None:
        """Wait until so many more messages are committed."""

        async def written() -> int:
            return sum(
                [await reader.max_offset(MessageQueue(TOPIC, cluster.broker_name, i)) for i in range(4)]
            )

        goal = await written() + by

        async def reached() -> bool:
            return await written() >= goal

        await until(reached, f"{goal} messages", 90)

    async def made() -> bool:
        return TOPIC in read(cluster.store_path(0) / "config/topics.json")

    async def replicas() -> tuple[str, set[int]]:
        answer = await client.call(cluster.controller_addresses[0], GetReplicaInfo(cluster.broker_name))
        assert isinstance(answer.header, GetReplicaInfoReply)
        return answer.header.master_address or "", set(
            decode_sync_state_set(bytes(answer.body)).sync_state_set
        )

    async def whole() -> bool:
        return (await replicas())[1] == {1, 2}

    java: asyncio.Task[str] | None = None
    try:
        group.start()
        await group.serving()
        await until(whole, "both replicas in sync")
        java = asyncio.ensure_future(
            peer.java(
                JAVA / "TransactionsThroughKill.java",
                cluster.namesrv_address,
                TOPIC,
                "4",
                str(stop),
                timeout_s=300,
            )
        )
        await until(made, "the Java producer has begun", 90)
        await grown(300)
        for _ in range(kills):
            killed = cluster.broker_at((await replicas())[0])
            killed.kill()
            heir = next(broker for broker in cluster.brokers if broker is not killed)

            async def taken_over(heir: str = heir.address) -> bool:
                return (await replicas())[0] == heir

            await until(taken_over, "the slave is master")
            await grown(300)
            killed.start(wait=False)
            await until(whole, "the killed broker is back in sync", 90)
            await grown(100)
        stop.touch()
        output = await java
        print(output)
        found = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", output)}
        assert found["lost"] == 0 and found["wrong"] == 0, output
        assert found["failed_attempts"] > 0, "nobody noticed the kill: it proves nothing"
        assert found["checks"] > 0 and found["consumed"] >= 600, output
        assert found["stored_twice"] <= kills * 4, output
        assert "Traceback" not in group.logs()
        assert set(cluster.stop().values()) == {0}
    finally:
        stop.touch()
        if java is not None and not java.done():
            await java
        await reader.close()
        await client.close()
        cluster.stop()
