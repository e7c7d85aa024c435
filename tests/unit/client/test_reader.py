"""The queue reader, the admin calls and the synchronous facade."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import Callable

import pytest

import batonmq
from batonmq import sync
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.client.reader import QueueReader
from batonmq.net.dispatch import Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from batonmq.protocol.compression import CompressionError, CompressionType
from batonmq.protocol.errors import MQError, TopicNotExistError, error_for
from batonmq.protocol.headers.broker.pull import PullMessageResponse
from batonmq.protocol.message.record import StoredMessage, decode_records

from .fakes import FakeBroker, FakeCluster, Log

QUEUE = MessageQueue("t", "a", 0)


async def fill(cluster: FakeCluster, count: int) -> None:
    async with Producer("p", cluster.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("t", b"%d" % number), queue=QUEUE)


async def test_bounds_and_records() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=2)
        await fill(cluster, 50)
        async with QueueReader(cluster.namesrv) as reader:
            assert await reader.queues("t") == [QUEUE, MessageQueue("t", "a", 1)]
            assert (await reader.min_offset(QUEUE), await reader.max_offset(QUEUE)) == (0, 50)
            assert await reader.offset_at(QUEUE, 1_500) == 2
            pulled = await reader.pull(QUEUE, 10, 5)
            assert [record.body for record in decode_records(pulled.records)] == [
                b"10",
                b"11",
                b"12",
                b"13",
                b"14",
            ]
            assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (15, 0, 50)
            began = time.monotonic()
            assert await reader.pull(QUEUE, 50) == (b"", 50, 0, 50)
            assert await reader.pull(QUEUE, 60) == (b"", 50, 0, 50)
            assert time.monotonic() - began < 0.15


async def bodies(reader: QueueReader, offset: int) -> list[bytes]:
    return [bytes(r.body) for r in decode_records((await reader.pull(QUEUE, offset, 5)).records)]


async def test_slaves_are_read_to_spare_masters() -> None:
    async with FakeCluster() as cluster:
        master, first, second = [await cluster.broker("a", number) for number in range(3)]
        cluster.topic("t", a=2)
        await fill(cluster, 20)
        async with QueueReader(cluster.namesrv, slaves=True) as reader:
            assert await reader.max_offset(QUEUE) == 20
            assert await bodies(reader, 10) == [b"%d" % n for n in range(10, 15)]
            await reader.pull(MessageQueue("t", "a", 1), 0)
        assert (first.pulls, second.pulls) == (1, 1)
        assert master.pulls == 1, "the second queue has no message: its slave may be behind"
        async with QueueReader(cluster.namesrv) as reader:
            assert await bodies(reader, 10)
        assert (master.pulls, first.pulls, second.pulls) == (2, 1, 1)


async def test_a_pull_names_what_the_broker_is_to_select() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 3)
        async with QueueReader(cluster.namesrv) as reader:
            await reader.pull(QUEUE, 0)
            await reader.pull(QUEUE, 0, expression="a || b")
            await reader.pull(QUEUE, 0, expression=batonmq.sql("n > 3"))
        assert broker.selected == [("*", "TAG"), ("a || b", "TAG"), ("n > 3", "SQL92")]


class Leading(FakeBroker):
    """Leads readers on: over a hole in a queue, over expired messages, to where an operator moved a group."""

    code = ResponseCode.PULL_NOT_FOUND
    remark = ""

    def more(self) -> dict[int, Callable[[Request], object]]:
        def pull(_: Request) -> Reply:
            return Reply(PullMessageResponse(0, 500, 0, 900), code=self.code, remark=self.remark)

        return {RequestCode.PULL_MESSAGE: pull}


@pytest.mark.parametrize(
    ("code", "remark", "following"),
    [
        (ResponseCode.PULL_NOT_FOUND, "", 100),
        (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", 100),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "MESSAGE_WAS_REMOVING", 100),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", 500),
    ],
)
async def test_only_messages_that_a_broker_did_not_select_are_passed_over(
    code: ResponseCode, remark: str, following: int
) -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker_of(Leading, "a")
        broker.code, broker.remark = code, remark
        cluster.topic("t", a=1)
        async with QueueReader(cluster.namesrv) as reader:
            for expression in ("a", batonmq.sql("n > 3")):
                assert (await reader.pull(QUEUE, 100, expression=expression)).next_offset == following


async def test_what_a_slave_does_not_have_its_master_gives() -> None:
    async with FakeCluster() as cluster:
        master, slave = [await cluster.broker("a", number) for number in range(2)]
        cluster.topic("t", a=1)
        await fill(cluster, 20)
        slave.log = Log()
        async with QueueReader(cluster.namesrv, slaves=True) as reader:
            assert await bodies(reader, 10) == [b"%d" % n for n in range(10, 15)]
            slave.log = master.log
            assert await bodies(reader, 5) == [b"%d" % n for n in range(5, 10)]
        assert (master.pulls, slave.pulls) == (1, 2)


@pytest.mark.parametrize("fault", ["refuses", "is gone", "hangs"])
async def test_a_slave_that_does_not_answer_is_left_alone_for_a_while(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("batonmq.client.reader.SLAVE_TIMEOUT_MS", 200)
    monkeypatch.setattr("batonmq.client.reader.SLAVE_AVOIDED_S", 2.0)
    async with FakeCluster() as cluster:
        master, slave = [await cluster.broker("a", number) for number in range(2)]
        cluster.topic("t", a=1)
        await fill(cluster, 20)
        refusal = error_for(ResponseCode.SYSTEM_BUSY, "slaveReadEnable=false")
        if fault == "refuses":
            slave.answer = lambda code: refusal
        elif fault == "hangs":
            slave.silent = True
        else:
            await slave.server.stop()
        async with QueueReader(cluster.namesrv, slaves=True) as reader:
            for offset in (0, 5, 10):
                assert await bodies(reader, offset) == [b"%d" % n for n in range(offset, offset + 5)]
            assert (master.pulls, slave.pulls) == (3, 0)
            warnings = [text for text in caplog.messages if "is read from its master" in text]
            assert len(warnings) == 1 and slave.address in warnings[0]
            if fault == "is gone":
                return
            slave.silent, slave.answer = False, lambda code: None
            await asyncio.sleep(2.0)
            assert await bodies(reader, 15) == [b"%d" % n for n in range(15, 20)]
            assert (master.pulls, slave.pulls) == (3, 1)


async def test_the_end_of_a_queue_does_not_go_back_when_a_former_master_answers() -> None:
    async with FakeCluster() as cluster:
        former = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 50)
        async with QueueReader(cluster.namesrv) as reader:
            assert await reader.max_offset(QUEUE) == 50
            master = await cluster.broker("a", 1)
            cluster.addresses["a"] = {0: master.address}
            former.log = Log()
            assert await reader.max_offset(QUEUE) == 50
            master.log = Log()
            assert await reader.max_offset(QUEUE) == 0, "the topic was created again"


async def test_a_dead_letter_that_does_not_inflate_does_not_hide_those_behind_it() -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("%DLQ%g", a=1)
        for body, sys_flag in (
            (b"no zlib", CompressionType.ZLIB.sys_flag),
            (zlib.compress(b"1"), CompressionType.ZLIB.sys_flag),
            (b"2", 0),
        ):
            stored = StoredMessage(topic="%DLQ%g", queue_id=0, body=body, sys_flag=sys_flag)
            cluster.logs["a"].append("%DLQ%g", "a", stored)
        async with QueueReader(cluster.namesrv) as reader:
            found = [message async for message in reader.dead_letters("g")]
        assert [message.body for message in found] == [b"no zlib", b"1", b"2"]
        assert [bool(message.sys_flag & MessageSysFlag.COMPRESSED) for message in found] == [
            True,
            False,
            False,
        ]
        with pytest.raises(CompressionError):
            Message.from_record(found[0])
        assert Message.from_record(found[1], "t").body == b"1"


async def test_a_read_follows_the_master() -> None:
    async with FakeCluster() as cluster:
        master = await cluster.broker("a")
        slave = await cluster.broker("a", 1)
        cluster.topic("t", a=1)
        await fill(cluster, 4)
        async with QueueReader(cluster.namesrv) as reader:
            await reader.pull(QUEUE, 0, 2)
            stop = asyncio.ensure_future(master.server.stop())
            master.kill()
            cluster.addresses["a"] = {1: slave.address}
            reading = asyncio.ensure_future(reader.pull(QUEUE, 2))
            asking = asyncio.ensure_future(reader.max_offset(QUEUE))
            await asyncio.sleep(0.15)
            assert not reading.done() and slave.pulls == 0  # a slave may be behind: wait for a master
            cluster.addresses["a"] = {0: slave.address}
            assert len(decode_records((await reading).records)) == 2
            assert await asking == 4
            await stop


async def test_nobody_there_and_unknown_topics() -> None:
    nobody = QueueReader("127.0.0.1:1", retry_timeout_ms=100)
    with pytest.raises(NetError):
        await nobody.queues("t")
    with pytest.raises(NetError):
        await nobody.pull(QUEUE, 0)
    await nobody.close()
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        async with QueueReader(cluster.namesrv, retry_timeout_ms=200) as reader:
            with pytest.raises(TopicNotExistError):
                await reader.queues("t")
            cluster.topic("t", a=1)
            with pytest.raises(NetError, match="no master"):
                await reader.max_offset(MessageQueue("t", "gone", 0))
            broker.answer = lambda code: error_for(ResponseCode.INVALID_PARAMETER, "no such queue")
            with pytest.raises(MQError, match="no such queue"):
                await reader.pull(QUEUE, 0)


def test_synchronous_clients() -> None:
    """The cluster runs in another thread, as it would elsewhere."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    async def made() -> FakeCluster:
        return FakeCluster()

    cluster = run(made())
    run(cluster.__aenter__())
    try:
        run(cluster.broker("a"))
        cluster.topic("t", a=1)
        with sync.Producer("p", cluster.namesrv) as producer:
            assert producer.send(Message("t", b"one")).queue == QUEUE
            assert producer.send_async([Message("t", b"two")]).result(5).queue_offset == 1
            producer.send_oneway(Message("t", b"three"))
            assert producer.queues("t") == [QUEUE]
        with pytest.raises(RuntimeError, match="closed"):
            producer.send(Message("t", b"late"))
        seen: list[bytes] = []
        consumer = sync.Consumer("g", cluster.namesrv, from_where=batonmq.ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        with consumer:
            deadline = time.monotonic() + 5
            while len(seen) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
        assert sorted(seen) == [b"one", b"three", b"two"]
        with sync.QueueReader(cluster.namesrv) as reader:
            assert reader.queues("t") == [QUEUE]
            assert (reader.min_offset(QUEUE), reader.max_offset(QUEUE), reader.offset_at(QUEUE, 1000)) == (
                0,
                3,
                1,
            )
            assert len(decode_records(reader.pull(QUEUE, 0, expression="a || b").records)) == 3
    finally:
        run(cluster.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_public_names() -> None:
    for name in batonmq.__all__:
        assert getattr(batonmq, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        batonmq.Nothing  # noqa: B018
