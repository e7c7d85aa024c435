"""Our client against the real Apache RocketMQ: send, consume, retry, order, and what Java reads of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from batonmq import (
    Admin,
    CompressionType,
    ConsumeFromWhere,
    Consumer,
    Message,
    MessageExt,
    MessageQueue,
    MQError,
    Producer,
    QueueReader,
    RetryLater,
)
from batonmq.demo.cluster import LocalCluster
from batonmq.protocol.errors import TopicNotExistError
from batonmq.protocol.message.record import decode_records
from tests.interop.conftest import Peer
from tests.unit.protocol.test_bodies import EXPECTED

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
JAVA = Path(__file__).parent / "java"


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.05)


async def start_cluster(peer: Peer) -> str:
    namesrv = await peer.start("namesrv")
    broker = await peer.start("broker", {"namesrvAddr": namesrv.address, "brokerName": "java-a"})
    await peer.admin_until(broker.address, "clusterList", "-n", namesrv.address)
    return namesrv.address


async def _queues(reader: QueueReader, topic: str) -> list[MessageQueue]:
    """A broker that created a topic for a send registers it soon, not before it answers."""
    async with asyncio.timeout(10):
        while True:
            try:
                return list(await reader.queues(topic))
            except TopicNotExistError:
                await asyncio.sleep(0.1)


async def read_all(namesrv: str, topic: str) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with QueueReader(namesrv) as reader:
        for queue in await _queues(reader, topic):
            offset, end = await reader.min_offset(queue), await reader.max_offset(queue)
            while offset < end:
                pulled = await reader.pull(queue, offset)
                found += decode_records(pulled.records)
                assert pulled.next_offset > offset
                offset = pulled.next_offset
    return found


async def test_quick_everything_a_client_does(peer: Peer) -> None:
    namesrv = await start_cluster(peer)
    async with Admin(namesrv) as admin:
        await admin.create_topic("orders", 4)
        await admin.create_topic("ordered", 2)
        assert "orders" in await admin.topics()
        assert list(await admin.masters()) == ["java-a"]

    bodies = await send_of_every_kind(namesrv)
    stored = await read_all(namesrv, "orders")
    assert Counter(message.body for message in stored) == Counter(bodies)
    by_body = {message.body: message for message in stored}
    assert by_body[b"single 3"].tags == "b"
    assert by_body[b"single 3"].keys == ["key3", "all"]
    assert by_body[b"single 3"].properties["name"] == "grün€"
    assert len({message.message_id for message in stored}) == len(stored)

    await consume_by_tag(namesrv)
    await consume_again_after_restart(namesrv, len(bodies))
    await retry_failed_messages(namesrv)
    await keep_the_order(namesrv)
    await refuse_what_is_wrong(namesrv)
    output = await peer.java(JAVA / "ReadBack.java", namesrv, "orders", str(len(bodies) + 1))
    lines = [line for line in output.splitlines() if line.startswith("MESSAGE ")]
    assert len(lines) == len(bodies) + 1, output[-3000:]
    read = {tuple(line.split(" ", 3)[1:]) for line in lines}
    for message in stored:
        assert (message.message_id, message.tags or "-", message.body.hex()) in read


async def send_of_every_kind(namesrv: str) -> list[bytes]:
    rng = random.Random(1)
    bodies: list[bytes] = []
    async with Producer("producers", namesrv) as producer:
        for number in range(20):
            body = b"single %d" % number
            result = await producer.send(
                Message(
                    "orders",
                    body,
                    tags="ab"[number % 2],
                    keys=[f"key{number}", "all"],
                    properties={"name": "grün€"},
                )
            )
            assert result.queue.topic == "orders" and len(result.offset_message_id) == 32
            bodies.append(body)
        batch = [Message("orders", b"batch %d" % number, tags="c") for number in range(7)]
        result = await producer.send(batch)
        assert len(result.message_id.split(",")) == len(result.offset_message_id.split(",")) == 7
        bodies += [bytes(message.body) for message in batch]
        queue = MessageQueue("orders", "java-a", 2)
        result = await producer.send(Message("orders", b"to queue 2"), queue=queue)
        assert result.queue == queue
        bodies.append(b"to queue 2")
        await producer.send_oneway(Message("orders", b"one way"))
        bodies.append(b"one way")
    for kind in CompressionType:
        async with Producer("producers", namesrv, compression=kind) as producer:
            body = kind.name.encode() + bytes(rng.choices(b"abcd", k=20_000))
            await producer.send(Message("orders", body, tags="z"))
            bodies.append(body)
    async with Producer("producers", namesrv) as producer:
        await producer.send(Message("made-on-send", b"created"))
    await asyncio.sleep(0.3)  # the one-way message has nobody to wait for
    return bodies


async def consume_by_tag(namesrv: str) -> None:
    seen: list[MessageExt] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message)

    consumer = Consumer("by-tag", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders", "a || z", handle)
    async with consumer:
        await until(lambda: len(seen) >= 13, "13 messages tagged a or z")
        assert len(consumer.assigned) >= 4
        await asyncio.sleep(0.3)
    assert Counter(message.tags for message in seen) == {"a": 10, "z": 3}
    assert {len(message.body) for message in seen if message.tags == "z"} == {20_003, 20_004}


async def consume_again_after_restart(namesrv: str, count: int) -> None:
    seen: list[bytes] = []

    def handle(messages: list[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    async def run(until_count: int) -> None:
        consumer = Consumer("restarted", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("orders", "*", handle, batch_size=8)
        async with consumer:
            await until(lambda: len(seen) >= until_count, f"{until_count} messages")
            await asyncio.sleep(0.3)

    await run(count)
    assert len(seen) == count
    async with Producer("producers", namesrv) as producer:
        await producer.send(Message("orders", b"after the restart"))
    await run(count + 1)
    assert seen[count:] == [b"after the restart"]


async def retry_failed_messages(namesrv: str) -> None:
    seen: list[tuple[bytes, int, str]] = []

    async def handle(message: MessageExt) -> None:
        seen.append((message.body, message.reconsume_times, message.topic))
        if message.reconsume_times == 0:
            raise RetryLater(1)

    async with Admin(namesrv) as admin:
        await admin.create_topic("failing", 1)
    consumer = Consumer("retrying", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("failing", "*", handle)
    async with consumer, Producer("producers", namesrv) as producer:
        await producer.send(Message("failing", b"twice"))
        await until(lambda: len(seen) >= 2, "the second delivery")
    assert seen == [(b"twice", 0, "failing"), (b"twice", 1, "failing")]


async def keep_the_order(namesrv: str) -> None:
    seen: dict[int, list[int]] = {0: [], 1: []}
    failed: set[int] = set()

    async def handle(message: MessageExt) -> None:
        number = int(message.body)
        if number % 10 == 3 and number not in failed:
            failed.add(number)
            raise RetryLater
        await asyncio.sleep(0)
        seen[message.queue_id].append(number)

    async with Producer("producers", namesrv) as producer:
        for number in range(40):
            queue = MessageQueue("ordered", "java-a", number % 2)
            await producer.send(Message("ordered", str(number).encode()), queue=queue)
    consumer = Consumer(
        "ordered-group", namesrv, orderly=True, suspend_ms=100, from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe("ordered", "*", handle)
    async with consumer:
        await until(lambda: sum(map(len, seen.values())) >= 40, "40 messages in order")
    assert seen == {0: list(range(0, 40, 2)), 1: list(range(1, 40, 2))}
    assert failed == {3, 13, 23, 33}


async def refuse_what_is_wrong(namesrv: str) -> None:
    async with Producer("producers", namesrv) as producer:
        with pytest.raises(MQError, match="over the limit"):
            await producer.send(Message("orders", bytes(5 * 1024 * 1024)))
    async with Producer("producers", namesrv, max_message_size=64 << 20, compress_over=0) as producer:
        with pytest.raises(MQError, match="MESSAGE_ILLEGAL"):
            await producer.send(Message("orders", bytes(5 * 1024 * 1024)))


async def test_queues_are_shared_in_a_group(peer: Peer) -> None:
    namesrv = await start_cluster(peer)
    async with Admin(namesrv) as admin:
        await admin.create_topic("shared", 6)
    seen: Counter[bytes] = Counter()

    async def handle(message: MessageExt) -> None:
        seen[message.body] += 1

    def member() -> Consumer:
        consumer = Consumer("sharing", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("shared", "*", handle)
        return consumer

    def share(consumer: Consumer) -> int:
        return sum(queue.topic == "shared" for queue in consumer.assigned)

    first, second = member(), member()
    async with first:
        await until(lambda: share(first) == 6, "all queues at the first")
        async with second:
            await until(lambda: (share(first), share(second)) == (3, 3), "three queues each")
            output = await peer.admin("consumerProgress", "-n", namesrv, "-g", "sharing")
            assert output.count("shared") >= 6
            output = await peer.admin("consumerConnection", "-n", namesrv, "-g", "sharing")
            assert first.client_id in output and second.client_id in output
            async with Producer("producers", namesrv) as producer:
                for number in range(60):
                    await producer.send(Message("shared", str(number).encode()))
            await until(lambda: len(seen) == 60, "60 messages")
        await until(lambda: share(first) == 6, "all queues back at the first")
    assert set(seen.values()) == {1}


async def test_java_reads_our_bodies(peer: Peer, tmp_path: Path) -> None:
    from batonmq.protocol.json import decode, encode

    for name, value in EXPECTED.items():
        (tmp_path / f"{name}.json").write_bytes(encode(value))
    await peer.java(JAVA / "Golden.java", "read", str(tmp_path))
    for name, value in EXPECTED.items():
        back = decode((tmp_path / f"{name}.out").read_bytes(), type(value))
        assert back == value, f"{name}: {json.dumps(str(back))}"


async def test_the_messages_of_a_batch_get_the_properties_that_rocketmq_gives_them(
    peer: Peer, tmp_path: Path
) -> None:
    """The same batch to a broker of RocketMQ and to one of ours: their records have the same properties."""
    theirs = await start_cluster(peer)
    batch = [Message("orders", b"a", tags="t"), Message("orders", b"b", keys="k")]
    stored = []
    with LocalCluster(tmp_path / "ours", replicas=1) as cluster:
        for namesrv in (theirs, cluster.namesrv_address):
            async with Producer("batches", namesrv, retries=10) as producer:
                await producer.send(batch, timeout_ms=20_000)
            messages = await read_all(namesrv, "orders")
            stored.append(
                [
                    (m.body, {**m.properties, "UNIQ_KEY": ""}, list(m.properties))
                    for m in sorted(messages, key=lambda m: m.body)
                ]
            )
    assert stored[0] == stored[1]
