"""The consumer against brokers in memory: sharing, failing, ordering, switching masters."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.push import handling, pulling
from batonmq.client.push.retries import RetryLater
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.clients import (
    ConsumeFromWhere,
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    MessageModel,
    ResetOffsetBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.compression import CompressionType
from batonmq.protocol.errors import MQError, error_for
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
    ResetConsumerClientOffset,
)
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.ids import pack_host
from batonmq.protocol.message.layout import BODY_POSITION_V4
from batonmq.protocol.message.record import MessageExt, StoredMessage, encode_record

from .fakes import FakeCluster

FIRST = ConsumeFromWhere.FIRST_OFFSET


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)


async def fill(
    cluster: FakeCluster, count: int, topic: str = "t", queue: MessageQueue | None = None, **options: object
) -> None:
    async with Producer("p", cluster.namesrv) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, **options), queue=queue)  # type: ignore[arg-type]


async def test_all_messages_once_and_their_offsets_committed() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=3)
        await fill(cluster, 30)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 30)
            assert len(consumer.assigned) == 3
        assert sorted(map(int, seen)) == list(range(30))
        assert sum(broker.log.offsets["g", MessageQueue("t", "a", number)] for number in range(3)) == 30
        assert broker.left[-1] == consumer.client_id and broker.clients["g"] == []
        beat = broker.heartbeats[-2].consumer_data_set or broker.heartbeats[-1].consumer_data_set
        assert {data.topic for data in beat[0].subscription_data_set} == {"t", "%RETRY%g"}


async def test_only_the_tags_that_were_asked_for() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        for tag in "abc":
            await fill(cluster, 2, tags=tag)
        seen: list[str | None] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "a || c", lambda message: seen.append(message.tags))
        async with consumer:
            await until(lambda: len(seen) == 4)
        assert sorted(map(str, seen)) == ["a", "a", "c", "c"]


WHERE = [
    (ConsumeFromWhere.FIRST_OFFSET, 0, 5),
    (ConsumeFromWhere.TIMESTAMP, 2000, 3),
    (ConsumeFromWhere.LAST_OFFSET, 0, 0),
]


@pytest.mark.parametrize(("where", "timestamp", "count"), WHERE)
async def test_where_a_new_group_begins(where: ConsumeFromWhere, timestamp: int, count: int) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 5)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=where, from_timestamp_ms=timestamp)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: broker.pulls >= 2)
            await until(lambda: len(seen) >= count)
        assert len(seen) == count


async def test_a_committed_offset_goes_before() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 5)
        broker.log.offsets["g", MessageQueue("t", "a", 0)] = 3
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 2)
        assert sorted(seen) == [b"3", b"4"]


async def test_a_failed_message_is_sent_back_and_the_rest_goes_on() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 4)
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            if message.body == b"1":
                raise RetryLater(3)
            if message.body == b"2":
                raise RuntimeError("bug")
            seen.append(message.body)

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, max_reconsume_times=5)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(seen) == 2 and len(broker.log.sent_back) == 2)
        levels = {header.origin_topic: header.max_reconsume_times for header in broker.log.sent_back}
        assert sorted(header.delay_level for header in broker.log.sent_back) == [0, 3]
        assert levels == {"t": 5}
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 4


async def test_when_sending_back_fails_it_is_retried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "LOCAL_RETRY_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        broker.answer = lambda code: (
            error_for(ResponseCode.MESSAGE_ILLEGAL, "no")
            if code == RequestCode.CONSUMER_SEND_MSG_BACK
            else None
        )
        attempts: list[int] = []

        async def handle(message: MessageExt) -> None:
            attempts.append(message.reconsume_times)
            if len(attempts) < 3:
                raise RetryLater

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(attempts) == 3)
        assert attempts == [0, 1, 2]
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 1


async def test_a_retried_message_comes_to_the_handler_of_its_topic() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        cluster.topic("%RETRY%g", a=1)
        from batonmq.protocol.message.properties import encode_properties
        from batonmq.protocol.message.record import StoredMessage

        broker.log.append(
            "%RETRY%g",
            "a",
            StoredMessage(
                topic="%RETRY%g",
                queue_id=0,
                body=b"again",
                properties=encode_properties({"RETRY_TOPIC": "t"}),
                reconsume_times=1,
            ),
        )
        seen: list[tuple[str, int]] = []
        consumer = Consumer("g", cluster.namesrv)
        consumer.subscribe("t", "*", lambda message: seen.append((message.topic, message.reconsume_times)))
        async with consumer:
            await until(lambda: bool(seen))
        assert seen == [("t", 1)]


async def test_batches_of_messages() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 20)
        sizes: list[int] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda messages: sizes.append(len(messages)), batch_size=8)
        async with consumer:
            await until(lambda: sum(sizes) == 20)
        assert max(sizes) == 8


async def test_order_is_kept_and_a_failure_holds_its_queue_only() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=2)
        for queue in (0, 1):
            await fill(cluster, 10, queue=MessageQueue("t", "a", queue))
        seen: dict[int, list[int]] = {0: [], 1: []}
        failures = 0

        async def handle(message: MessageExt) -> None:
            nonlocal failures
            if message.queue_id == 0 and message.body == b"4" and failures < 3:
                failures += 1
                raise RetryLater
            await asyncio.sleep(0)
            seen[message.queue_id].append(int(message.body))

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=20)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: sum(map(len, seen.values())) == 20)
            assert set(broker.locks.values()) == {consumer.client_id}
        assert seen == {0: list(range(10)), 1: list(range(10))}
        assert broker.locks == {} and failures == 3 and broker.log.sent_back == []


async def test_ordered_messages_over_the_limit_become_dead_letters() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 3)
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            if message.body == b"1":
                raise RetryLater
            seen.append(message.body)

        consumer = Consumer(
            "g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=10, max_reconsume_times=2
        )
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(seen) == 2)
        assert seen == [b"0", b"2"]
        assert [header.delay_level for header in broker.log.sent_back] == [-1]


async def test_a_queue_locked_by_another_is_left_alone() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        queue = MessageQueue("t", "a", 0)
        broker.locks[queue] = "another"
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=20)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await asyncio.sleep(0.15)
            assert seen == []
            del broker.locks[queue]
            await until(lambda: seen == [b"0"])


async def test_two_members_share_the_queues() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=4)
        seen: list[bytes] = []

        def member() -> Consumer:
            consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
            consumer.subscribe("t", "*", lambda message: seen.append(message.body))
            return consumer

        first, second = member(), member()
        async with first:
            await until(lambda: len(first.assigned) == 4)
            async with second:
                await until(lambda: (len(first.assigned), len(second.assigned)) == (2, 2))
                assert not set(first.assigned) & set(second.assigned)
                await fill(cluster, 20)
                await until(lambda: len(seen) == 20)
            await until(lambda: len(first.assigned) == 4)
        assert sorted(map(int, seen)) == list(range(20))


async def test_broadcasting_gives_everything_to_everybody_and_remembers(tmp_path: Path) -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=2)
        await fill(cluster, 6)
        for expected in (6, 0):
            seen: list[bytes] = []
            consumer = Consumer(
                "g",
                cluster.namesrv,
                from_where=FIRST,
                model=MessageModel.BROADCASTING,
                offsets_dir=str(tmp_path),
            )
            consumer.subscribe("t", "*", lambda message, seen=seen: seen.append(message.body))  # type: ignore[misc]
            async with consumer:
                assert len(consumer.assigned) == 2
                await until(lambda seen=seen, expected=expected: len(seen) >= expected)  # type: ignore[misc]
                await asyncio.sleep(0.1)
            assert len(seen) == expected
        (tmp_path / "g.json").write_text("{broken")
        consumer = Consumer("g", cluster.namesrv, model=MessageModel.BROADCASTING, offsets_dir=str(tmp_path))
        with pytest.raises(OSError, match=r"g\.json"):
            await consumer._offsets.read(MessageQueue("t", "a", 0))
        await consumer._session.close()


async def test_pulling_goes_on_from_the_new_master() -> None:
    async with FakeCluster() as cluster:
        master = await cluster.broker("a")
        slave = await cluster.broker("a", 1)
        cluster.topic("t", a=2)
        await fill(cluster, 10)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 10)
            stop = asyncio.ensure_future(master.server.stop())
            master.kill()
            await asyncio.sleep(0.05)
            cluster.addresses["a"] = {0: slave.address}
            async with Producer("p", cluster.namesrv) as producer:
                for number in range(10, 20):
                    await producer.send(Message("t", b"%d" % number))
            await until(lambda: len(seen) == 20)
            await stop
        assert sorted(map(int, seen)) == list(range(20))
        assert slave.log.offsets["g", MessageQueue("t", "a", 0)] == 10


async def test_a_new_master_that_is_behind_for_a_moment_does_not_turn_us_back() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        queue = MessageQueue("t", "a", 0)
        await fill(cluster, 5)
        kept = broker.log.records[queue][:]
        del broker.log.records[queue][2:]
        broker.log.offsets["g", queue] = 5
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: broker.pulls >= 2)
            broker.log.records[queue][:] = kept
            await fill(cluster, 1)
            await until(lambda: len(seen) == 1)
        assert broker.log.offsets["g", queue] == 6


async def test_an_offset_beyond_the_end_is_given_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "MOVED_BACK_PATIENCE_S", 0.3)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        queue = MessageQueue("t", "a", 0)
        await fill(cluster, 2)
        broker.log.offsets["g", queue] = 50
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await asyncio.sleep(1.0)
            await fill(cluster, 1)
            await until(lambda: len(seen) == 1)
        assert broker.log.offsets["g", queue] == 3


def add(cluster: FakeCluster, body: bytes, sys_flag: int = 0) -> None:
    """Store a message as its sender compressed it, or claims to have."""
    cluster.logs["a"].append("t", "a", StoredMessage(topic="t", queue_id=0, body=body, sys_flag=sys_flag))


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_that_does_not_inflate_becomes_a_dead_letter_and_the_queue_goes_on(
    orderly: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pulling, "GIVE_UP_RETRY_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        add(cluster, b"0")
        add(cluster, b"no zlib", CompressionType.ZLIB.sys_flag)
        add(cluster, zlib.compress(b"2"), CompressionType.ZLIB.sys_flag)
        add(cluster, b"of a kind that nobody knows", MessageSysFlag.COMPRESSED | 7 << 8)
        add(cluster, b"4")
        refusals = [0]

        def refuse(code: int) -> Exception | None:
            if code == RequestCode.CONSUMER_SEND_MSG_BACK and refusals[0] < 2:
                refusals[0] += 1
                return MQError(ResponseCode.SYSTEM_BUSY, "not now")
            return None

        broker.answer = refuse
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=orderly)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 3 and len(broker.log.sent_back) == 2)
        assert sorted(seen) == [b"0", b"2", b"4"] and refusals[0] == 2
        assert {(each.delay_level, each.origin_topic) for each in broker.log.sent_back} == {(-1, "t")}
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 5
        errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(errors) == 2 and all("dead-letter topic" in each for each in errors)


async def test_a_broadcasting_consumer_leaves_out_what_does_not_inflate(tmp_path: Path) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        add(cluster, b"no zlib", CompressionType.ZLIB.sys_flag)
        add(cluster, b"1")
        seen: list[bytes] = []
        consumer = Consumer(
            "g",
            cluster.namesrv,
            from_where=FIRST,
            model=MessageModel.BROADCASTING,
            offsets_dir=str(tmp_path),
        )
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: seen == [b"1"])
        assert broker.log.sent_back == []


@pytest.mark.parametrize("cut", [True, False])
async def test_records_that_cannot_be_decoded_are_left_out_after_some_attempts(
    cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "UNREADABLE_RETRY_S", 0.02)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 3)
        records = broker.log.records[MessageQueue("t", "a", 0)]
        if cut:
            records[2] = records[2][:-1]
        else:
            damaged = bytearray(records[1])
            damaged[BODY_POSITION_V4 - 4 : BODY_POSITION_V4] = b"\xff\xff\xff\xff"
            records[1] = bytes(damaged)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 2)
            pulls = broker.pulls
            await fill(cluster, 1)
            await until(lambda: len(seen) == 3)
        assert sorted(seen[:2]) == ([b"0", b"1"] if cut else [b"0", b"2"])
        assert pulls >= pulling.UNREADABLE_ATTEMPTS


async def test_flow_control_stops_pulling() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 100)
        gate = asyncio.Event()
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            await gate.wait()
            seen.append(message.body)

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, max_cached_messages=40, concurrency=4)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await asyncio.sleep(0.3)
            assert broker.pulls <= 2 + 1
            gate.set()
            await until(lambda: len(seen) == 100)


async def test_flow_control_counts_inflated_bodies() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        for _ in range(8):
            add(cluster, zlib.compress(bytes(100_000)), CompressionType.ZLIB.sys_flag)
        gate = asyncio.Event()
        seen: list[int] = []

        async def handle(message: MessageExt) -> None:
            await gate.wait()
            seen.append(len(message.body))

        consumer = Consumer(
            "g", cluster.namesrv, from_where=FIRST, max_cached_bytes=150_000, pull_batch_size=1
        )
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await asyncio.sleep(0.2)
            assert broker.pulls == 2
            gate.set()
            await until(lambda: seen == [100_000] * 8)


async def test_stop_waits_for_handlers_and_commits_what_they_did() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        began = asyncio.Event()
        ended = False

        async def handle(message: MessageExt) -> None:
            nonlocal ended
            began.set()
            await asyncio.sleep(0.1)
            ended = True

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        await consumer.start()
        await began.wait()
        await consumer.stop()
        assert ended and broker.log.offsets["g", MessageQueue("t", "a", 0)] == 1
        await consumer.stop()


async def test_a_handler_that_never_ends_is_cut_off_uncommitted() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        began = asyncio.Event()

        async def handle(message: MessageExt) -> None:
            began.set()
            await asyncio.sleep(60)

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, stop_timeout_s=0.1)
        consumer.subscribe("t", "*", handle)
        await consumer.start()
        await began.wait()
        await consumer.stop()
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 0


async def test_brokers_may_ask_and_reset() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 4)
        queue = MessageQueue("t", "a", 0)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 4)
            await until(lambda: bool(broker.server.connections))
            (connection,) = broker.server.connections
            answer = await connection.call(GetConsumerRunningInfo("g", consumer.client_id))
            info = decode(answer.body, ConsumerRunningInfo)
            assert info.mq_table[queue].commit_offset == 4 and info.jstack is None
            answer = await connection.call(GetConsumerRunningInfo("g", consumer.client_id, True))
            stacks = decode(answer.body, ConsumerRunningInfo).jstack
            assert stacks is not None and "pulling.py" in stacks and "thread MainThread" in stacks
            body = encode(ResetOffsetBody({queue: 2}))
            connection.oneway(ResetConsumerClientOffset("t", "g"), body)
            await until(lambda: len(seen) == 6)
        assert sorted(seen[4:]) == [b"2", b"3"]


async def test_a_tool_has_messages_consumed_directly_and_asks_for_offsets() -> None:
    def handle(message: MessageExt) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("no flight")
        if message.body == b"later":
            raise RetryLater(2)

    def record(body: bytes, topic: str = "t") -> bytes:
        stored = StoredMessage(topic=topic, queue_id=0, body=body, store_host=pack_host("10.0.0.1", 1))
        return encode_record(stored, queue_offset=9, physical_offset=9, store_timestamp=1)

    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        queue = MessageQueue("t", "a", 0)
        await fill(cluster, 2)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(seen) == 2)
            (connection,) = broker.server.connections

            async def result(data: bytes) -> tuple[object, str | None]:
                answer = await connection.call(ConsumeMessageDirectly("g", consumer.client_id), data)
                shown = decode(answer.body, ConsumeMessageDirectlyResult)
                return shown.consume_result, shown.remark

            kinds = ConsumeResult
            assert await result(record(b"fine")) == (kinds.SUCCESS, None)
            assert await result(record(b"bad")) == (kinds.THROW_EXCEPTION, "ValueError: no flight")
            assert await result(record(b"later")) == (kinds.LATER, "delay level 2")
            other = await result(record(b"x", "other"))
            assert other == (kinds.THROW_EXCEPTION, "LookupError: no handler for other")
            assert seen[2:] == [b"fine", b"bad", b"later"] and broker.log.sent_back == []
            answer = await connection.call(GetConsumerStatusFromClient("t", "g"))
            status = decode(answer.body, GetConsumerStatusBody)
            assert status.message_queue_table == {queue: 2}


async def test_what_cannot_be_subscribed() -> None:
    consumer = Consumer("g", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="subscribe"):
        await consumer.start()
    consumer.subscribe("t", "*", lambda message: None)
    with pytest.raises(ValueError, match="already"):
        consumer.subscribe("t", "*", lambda message: None)
    with pytest.raises(MQError, match="illegal"):
        consumer.subscribe("a b", "*", lambda message: None)
    with pytest.raises(ValueError, match="batch_size is 0"):
        consumer.subscribe("u", "*", lambda messages: None, batch_size=0)
    with pytest.raises(NetError):
        await consumer.start()
    with pytest.raises(MQError, match="illegal"):
        Consumer("a b", "127.0.0.1:1")


async def test_a_topic_that_does_not_exist_is_waited_for() -> None:
    """As with RocketMQ's consumer: the other topics are consumed, and this one once it is created."""
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("there", a=1)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, poll_interval_ms=50)
        consumer.subscribe("missing", "*", lambda message: seen.append(message.body))
        consumer.subscribe("there", "*", lambda message: seen.append(message.body))
        async with consumer, Producer("p", cluster.namesrv) as producer:
            await producer.send(Message("there", b"1"))
            await until(lambda: seen == [b"1"])
            cluster.topic("missing", a=1)
            await producer.send(Message("missing", b"2"))
            await until(lambda: seen == [b"1", b"2"])


async def test_a_consumer_whose_only_topic_comes_later_joins_its_group_then() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, poll_interval_ms=50)
        consumer.subscribe("missing", "*", lambda message: seen.append(message.body))
        async with consumer, Producer("p", cluster.namesrv) as producer:
            cluster.topic("missing", a=1)
            await producer.send(Message("missing", b"1"))
            await until(lambda: seen == [b"1"])
            assert consumer.client_id in broker.clients["g"]
