"""Static topics (logical queues, RIP-21) between this project and the real Apache RocketMQ."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batonmq import (
    Admin,
    ConsumeFromWhere,
    Consumer,
    Message,
    MessageExt,
    MQError,
    PopConsumer,
    Producer,
    QueueReader,
    RetryLater,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from batonmq.admin.main import admin as commands
from batonmq.admin.operations import static_topics
from batonmq.protocol.bodies.routes import TopicRouteData
from batonmq.protocol.json import decode
from tests.interop.conftest import Peer
from tests.interop.test_client_against_java import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
TOPIC = "Static"
QUEUES = 4
MOCK = "__syslo__global__"
JAVA = Path(__file__).parent / "java"


async def java_cluster(peer: Peer, *names: str) -> str:
    """A name server and brokers of RocketMQ in one cluster; the name server's address."""
    namesrv = await peer.start("namesrv")
    shared = {"namesrvAddr": namesrv.address, "timerWheelEnable": "true"}
    for name in names:
        await peer.start("broker", {**shared, "brokerName": name})
    async with Admin(namesrv.address) as admin, asyncio.timeout(60):
        while len(await admin.masters()) < len(names):
            await asyncio.sleep(0.2)
    return namesrv.address


async def mqadmin(peer: Peer, namesrv: str, command: str, *arguments: str) -> str:
    output = await peer.admin(command, "-n", namesrv, *arguments)
    assert "failed" not in output and "Exception" not in output, output
    return output


@asynccontextmanager
async def sending(producer: Producer, results: list[SendResult]) -> AsyncIterator[None]:
    """Messages of four keys, one after the other, until the block ends."""

    async def send() -> None:
        while True:
            number = len(results)
            message = Message(TOPIC, b"%d" % number, sharding_key=f"key-{number % 4}")
            results.append(await producer.send(message))
            await asyncio.sleep(0.005)

    task = asyncio.create_task(send())
    try:
        yield
    finally:
        # A cancelled send may be stored all the same: the last number is then sent but not counted.
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_quick_clients_continue_through_a_remapping(peer: Peer) -> None:
    namesrv = await java_cluster(peer, "a", "b")
    await mqadmin(peer, namesrv, "updateStaticTopic", "-t", TOPIC, "-qn", str(QUEUES), "-b", "a")
    ordered: dict[int, list[MessageExt]] = defaultdict(list)
    shared: list[MessageExt] = []
    failed: set[bytes] = set()

    def in_order(message: MessageExt) -> None:
        ordered[message.queue_id].append(message)

    def share(message: MessageExt) -> None:
        if message.body in (b"5", b"6") and message.body not in failed:
            failed.add(message.body)
            raise RetryLater(1 if message.body == b"5" else -1)
        shared.append(message)

    results: list[SendResult] = []
    first = ConsumeFromWhere.FIRST_OFFSET
    consumers = [
        Consumer("g-ordered", namesrv, orderly=True, from_where=first),
        *(Consumer("g-shared", namesrv, from_where=first) for _ in range(2)),
    ]
    consumers[0].subscribe(TOPIC, "*", in_order)
    for consumer in consumers[1:]:
        consumer.subscribe(TOPIC, "*", share)
    async with Producer("p", namesrv) as producer:
        for consumer in consumers:
            await consumer.start()
        async with sending(producer, results):
            await until(lambda: len(results) > 100, "100 messages are sent")
            await mqadmin(peer, namesrv, "remappingStaticTopic", "-t", TOPIC, "-b", "b")
            moved = len(results)
            await until(lambda: len(results) > moved + 200, "sends after the remapping")
        sent = [b"%d" % number for number in range(len(results))]
        await until(lambda: {m.body for m in shared} >= {*sent} - {b"6"}, "the group has all")
        await until(lambda: sum(map(len, ordered.values())) >= len(sent), "the ordered group has all")

        assert {result.queue.broker_name for result in results} == {MOCK}
        assert [r.broker_name for r in results] == sorted(r.broker_name for r in results)
        assert {results[0].broker_name, results[-1].broker_name} == {"a", "b"}
        for queue_id, messages in ordered.items():
            offsets = [message.queue_offset for message in messages]
            assert offsets == sorted(set(offsets)), f"queue {queue_id}: doubled or out of order"
            keys = [int(m.body) for m in messages]
            assert keys == sorted(keys)
            acknowledged = {r.queue_offset for r in results if r.queue.queue_id == queue_id}
            # The answer to a send during the remapping has no offset yet.
            assert {offset for offset in acknowledged if offset >= 0} <= set(offsets)
            assert offsets[0] == 0 and offsets[-1] >= 10_000
        assert set(ordered) == {r.queue.queue_id for r in results}
        for consumer in consumers:
            await consumer.stop()

        # What was committed is found at the new leader: nothing comes again.
        for group in ("g-ordered", "g-shared"):
            again: list[MessageExt] = []
            late = Consumer(group, namesrv, from_where=first)
            late.subscribe(TOPIC, "*", again.append)
            async with late:
                last = await producer.send(Message(TOPIC, b"last for " + group.encode()))
                await until(lambda: bool(again), f"{group} goes on")  # noqa: B023
                await asyncio.sleep(2)
            assert {m.body for m in again} <= {b"last for g-ordered", b"last for g-shared"}, len(again)

    async with QueueReader(namesrv) as reader:
        queues = await reader.queues(TOPIC)
        assert [queue.queue_id for queue in queues] == list(range(QUEUES))
        assert await reader.max_offset(last.queue) == last.queue_offset + 1
        assert await reader.min_offset(last.queue) == 0
        assert await reader.offset_at(last.queue, 0) == 0
        stored = [message async for message in reader.messages(TOPIC)]
        assert {m.body for m in stored} >= set(sent)
        assert {(m.queue_id, m.queue_offset) for m in stored} >= {
            (queue_id, m.queue_offset) for queue_id, messages in ordered.items() for m in messages
        }
        dead = [message.body async for message in reader.dead_letters("g-shared")]
    assert dead == [b"6"]


# -- batonmq admin


async def admin(namesrv: str, *arguments: str) -> list[dict[str, Any]]:
    """The rows that one of our admin commands prints."""

    def run() -> Result:
        return CliRunner().invoke(commands, [*arguments, "-n", namesrv, "--json"])

    result = await asyncio.to_thread(run)
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def leaders(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["queueId"]: row["broker"] for row in rows}


async def leaders_by_mqadmin(peer: Peer, namesrv: str) -> dict[int, str]:
    """What mqadmin reads out of the name server."""
    text = await peer.admin("topicRoute", "-n", namesrv, "-t", TOPIC)
    mapping = decode(text[text.index("{") : text.rindex("}") + 1].encode(), TopicRouteData)
    assert mapping.topic_queue_mapping_by_broker is not None, text
    return {
        queue_id: name
        for name, info in mapping.topic_queue_mapping_by_broker.items()
        for queue_id in info.curr_id_map
    }


def rows_of(text: str, *first: str) -> list[list[str]]:
    """The lines of a table of mqadmin that begin with these words."""
    return [line.split() for line in text.splitlines() if line.split()[: len(first)] == [*first]]


async def test_our_commands_create_grow_and_move_topics_of_javas_brokers(peer: Peer, tmp_path: Path) -> None:
    namesrv = await java_cluster(peer, "a", "b", "c")
    made = await admin(namesrv, "updateStaticTopic", "-t", TOPIC, "-qn", "2", "-b", "a")
    assert leaders(made) == await leaders_by_mqadmin(peer, namesrv) == {0: "a", 1: "a"}
    grown = await admin(namesrv, "updateStaticTopic", "-t", TOPIC, "-qn", "6", "-b", "b")
    assert sorted(leaders(grown).values()) == ["a", "a", "b", "b", "c", "c"], "c knew the topic"
    assert leaders(grown) == await leaders_by_mqadmin(peer, namesrv)

    got: list[MessageExt] = []
    consumer = Consumer("g", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, commit_interval_ms=200)
    consumer.subscribe(TOPIC, "*", got.append)
    async with Producer("p", namesrv) as producer, consumer:
        queues = await producer.queues(TOPIC)
        assert len(queues) == 6
        for queue in queues * 3:
            await producer.send(Message(TOPIC, b"x"), queue=queue)
        await until(lambda: len(got) == 18, "the first part is consumed")
        moved = await admin(namesrv, "remappingStaticTopic", "-t", TOPIC, "-b", "b,c")
        assert leaders(moved) == await leaders_by_mqadmin(peer, namesrv)
        assert Counter(leaders(moved).values()) == {"b": 3, "c": 3}
        for queue in queues:
            await producer.send(Message(TOPIC, b"y"), queue=queue, timeout_ms=5_000)
        await until(lambda: len(got) == 24, "the second part is consumed")
        await asyncio.sleep(1)

        # The same offsets here and there; mqadmin also moves what our command has moved.
        ours = {
            (r["broker"], r["queueId"]): (r["minOffset"], r["maxOffset"])
            for r in await admin(namesrv, "topicStatus", "-t", TOPIC)
        }
        theirs = await peer.admin("topicStatus", "-n", namesrv, "-t", TOPIC)
        for row in (row for name in ("a", "b", "c", MOCK) for row in rows_of(theirs, name)):
            assert ours.pop((row[0], int(row[1]))) == (int(row[2]), int(row[3])), theirs
        assert not ours
        progress = await admin(namesrv, "consumerProgress", "-g", "g", "-t", TOPIC)
        assert [(r["broker"], r["queueId"]) for r in progress] == [(MOCK, number) for number in range(6)]
        assert all(r["diff"] == 0 and r["brokerOffset"] == r["consumerOffset"] for r in progress), progress
        assert {r["brokerOffset"] for r in progress} == {4, 10_001}
        for row in rows_of(await peer.admin("consumerProgress", "-n", namesrv, "-g", "g"), TOPIC, MOCK):
            assert progress[int(row[2])]["brokerOffset"] == int(row[3])

        shown = await admin(namesrv, "queryMsgByOffset", "-t", TOPIC, "-b", MOCK, "-i", "0", "-o", "10000")
        assert [(each["queueId"], each["queueOffset"]) for each in shown] == [(0, 10_000)]
        listed = await admin(namesrv, "printMsg", "-t", TOPIC)
        assert len({(each["queueId"], each["queueOffset"]) for each in listed}) == 24
        timed = await admin(namesrv, "checkMsgSendRT", "-t", TOPIC, "-a", "6")
        assert {(each["broker"], each["result"]) for each in timed} == {(MOCK, "SEND_OK")}
        await until(lambda: len(got) == 30, "what the command sent is consumed")

        before = set(Path(tempfile.gettempdir()).glob(f"{TOPIC}-*.after"))
        await mqadmin(peer, namesrv, "remappingStaticTopic", "-t", TOPIC, "-b", "a")
        assert set((await leaders_by_mqadmin(peer, namesrv)).values()) == {"a"}
        [file] = set(Path(tempfile.gettempdir()).glob(f"{TOPIC}-*.after")) - before
        for queue in queues:
            result = await producer.send(Message(TOPIC, b"z"), queue=queue, timeout_ms=5_000)
            assert result.broker_name == "a"
        await until(lambda: len(got) == 36, "the third part is consumed")
    again = await asyncio.to_thread(static_topics.read_map, file, TOPIC)
    assert set(static_topics.leaders(again).values()) == {"a"}
    assert len({(m.queue_id, m.queue_offset) for m in got}) == len(got) == 36


async def test_other_features_of_our_clients_with_javas_static_topics(peer: Peer) -> None:
    namesrv = await java_cluster(peer, "a", "b")
    await mqadmin(peer, namesrv, "updateStaticTopic", "-t", TOPIC, "-qn", "2", "-b", "a,b")
    got: list[MessageExt] = []
    consumer = Consumer("g", namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(TOPIC, "*", got.append)
    async with consumer, Producer("p", namesrv) as producer:
        queues = await producer.queues(TOPIC)
        batch = [Message(TOPIC, b"batch %d" % number) for number in range(5)]
        for queue in queues:
            assert (await producer.send(batch, queue=queue)).queue == queue
        await producer.send_oneway(Message(TOPIC, b"oneway"), queue=queues[1])
        async with (
            TransactionProducer("tp", namesrv, check=lambda _: TransactionState.COMMIT) as transactions,
            transactions.transaction(Message(TOPIC, b"committed")),
        ):
            pass
        await producer.send(Message(TOPIC, b"late", delay=1))
        await until(lambda: len(got) == 13, "everything is consumed")
        offsets = sorted((m.queue_id, m.queue_offset) for m in got)
        assert len(set(offsets)) == 13 and {queue_id for queue_id, _ in offsets} == {0, 1}
    popping = PopConsumer("pop", namesrv)
    popping.subscribe(TOPIC, "*", got.append)
    with pytest.raises(MQError, match="cannot be popped"):
        await popping.start()


async def test_java_and_python_consumers_of_a_group_share_logical_queues(peer: Peer) -> None:
    namesrv = await java_cluster(peer, "a", "b")
    await mqadmin(peer, namesrv, "updateStaticTopic", "-t", TOPIC, "-qn", str(QUEUES), "-b", "a,b")
    got: list[MessageExt] = []
    consumer = Consumer("g", namesrv, orderly=True, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(TOPIC, "*", got.append)

    def share() -> set[int]:
        return {queue.queue_id for queue in consumer.assigned if queue.topic == TOPIC}

    async with Producer("p", namesrv) as producer, consumer:
        java = asyncio.create_task(peer.java(JAVA / "SharesQueues.java", namesrv, TOPIC, "g", "45"))
        await until(lambda: len(share()) == QUEUES // 2, "the other consumer has its share")
        await asyncio.sleep(3)
        sent = [await producer.send(Message(TOPIC, b"%d" % number)) for number in range(40)]
        await mqadmin(peer, namesrv, "remappingStaticTopic", "-t", TOPIC, "-b", "b")
        sent += [await producer.send(Message(TOPIC, b"%d" % number)) for number in range(40, 80)]
        mine = share()
        await until(lambda: len(got) == sum(r.queue.queue_id in mine for r in sent), "our share is consumed")
        lines = [line[4:].split(":") for line in (await java).splitlines() if line.startswith("got=")]
    theirs = [(int(queue_id), int(offset)) for queue_id, offset, _ in lines]
    ours = [(message.queue_id, message.queue_offset) for message in got]
    assert {queue_id for queue_id, _ in ours} == mine
    assert {queue_id for queue_id, _ in theirs} == {*range(QUEUES)} - mine
    assert sorted(theirs + ours) == sorted((r.queue.queue_id, r.queue_offset) for r in sent)
