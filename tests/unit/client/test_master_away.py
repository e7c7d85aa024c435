"""A consumer while the master of a broker set is away: reads, offsets, log lines, route requests."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.push import outages
from batonmq.client.push.outages import Outages
from batonmq.net.dispatch import Reply, Request
from batonmq.net.errors import ConnectFailed
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import PullSysFlag, RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import PullMessage, PullMessageResponse
from batonmq.protocol.message.record import MessageExt, StoredMessage
from batonmq.routing.routes import TopicRoute

from .fakes import FakeBroker, FakeCluster, Log
from .helpers import until

QUEUE = MessageQueue("t", "a", 0)
LOGGER = "batonmq.client.consumer"


class Replica(FakeBroker):
    """A replica with separate offsets. A slave sends pulls of what it does not have to its master."""

    is_slave = False

    def __init__(self, name: str, log: Log) -> None:
        super().__init__(name, Log(records=log.records))
        self.commits: list[int] = []
        self.flags: list[int] = []

    async def _pull(self, request: Request) -> Reply:
        header = PullMessage.from_ext(request.command.ext)
        self.flags.append(header.sys_flag)
        end = len(self.log.records[MessageQueue(header.topic, self.name, header.queue_id)])
        if self.is_slave and header.queue_offset == end:
            self.pulls += 1
            return Reply(PullMessageResponse(0, end, 0, end), code=ResponseCode.PULL_RETRY_IMMEDIATELY)
        return await super()._pull(request)

    def _update_offset(self, request: Request) -> Reply:
        self.commits.append(int(request.command.ext["commitOffset"]))
        return super()._update_offset(request)


class Slave(Replica):
    is_slave = True


class Pair:
    """A slave whose master is not registered, and the master that returns."""

    def __init__(self, cluster: FakeCluster, slave: Slave) -> None:
        self.cluster = cluster
        self.slave = slave

    async def master(self, committed: int | None) -> Replica:
        master = await self.cluster.broker_of(Replica, "a", 0)
        if committed is not None:
            master.log.offsets["g", QUEUE] = committed
        return master


async def pair(cluster: FakeCluster, messages: int, committed: int | None) -> Pair:
    slave = await cluster.broker_of(Slave, "a", 1)
    cluster.topic("t", a=1)
    for number in range(messages):
        slave.log.append("t", "a", StoredMessage(topic="t", queue_id=0, body=b"%d" % number))
    if committed is not None:
        slave.log.offsets["g", QUEUE] = committed
    return Pair(cluster, slave)


def consumer_of(cluster: FakeCluster, seen: list[bytes], **options: object) -> Consumer:
    options = {"commit_interval_ms": 50, "from_where": ConsumeFromWhere.FIRST_OFFSET, **options}
    consumer = Consumer("g", cluster.namesrv, **options)  # type: ignore[arg-type]

    def handle(message: MessageExt) -> None:
        seen.append(bytes(message.body))

    consumer.subscribe("t", "*", handle)
    return consumer


async def test_a_group_with_a_lag_continues_at_the_slave_and_commits_there() -> None:
    async with FakeCluster() as cluster:
        slave = (await pair(cluster, messages=5, committed=3)).slave
        seen: list[bytes] = []
        async with consumer_of(cluster, seen):
            await until(lambda: seen == [b"3", b"4"])
            await until(lambda: slave.log.offsets["g", QUEUE] == 5)
        assert not any(flags & PullSysFlag.COMMIT_OFFSET for flags in slave.flags), "as Java's clients"


@pytest.mark.parametrize(
    ("where", "expected"), [(ConsumeFromWhere.FIRST_OFFSET, [b"0", b"1"]), (ConsumeFromWhere.LAST_OFFSET, [])]
)
async def test_a_new_group_begins_at_the_slave(where: ConsumeFromWhere, expected: list[bytes]) -> None:
    async with FakeCluster() as cluster:
        slave = (await pair(cluster, messages=2, committed=None)).slave
        seen: list[bytes] = []
        async with consumer_of(cluster, seen, from_where=where):
            await until(lambda: slave.log.offsets.get(("g", QUEUE)) == 2)
        assert seen == expected


async def test_the_slave_with_the_smallest_id_is_read() -> None:
    route = TopicRoute((), (), {"a": {3: "c", 1: "a", 2: "b"}})
    assert route.replica("a") == "a" and route.replica("a", 2) == "b" and route.master("a") is None


async def test_a_slave_that_has_nothing_is_not_asked_in_a_loop() -> None:
    """It answers at once that the master should be asked, and there is none."""
    async with FakeCluster() as cluster:
        slave = (await pair(cluster, messages=1, committed=1)).slave
        async with consumer_of(cluster, []):
            await asyncio.sleep(1.0)
        assert slave.pulls <= 3


async def test_offsets_that_the_slave_got_go_to_the_master_when_it_is_back() -> None:
    async with FakeCluster() as cluster:
        both = await pair(cluster, messages=5, committed=3)
        seen: list[bytes] = []
        async with consumer_of(cluster, seen):
            await until(lambda: both.slave.log.offsets["g", QUEUE] == 5)
            master = await both.master(committed=3)
            await until(lambda: master.log.offsets["g", QUEUE] == 5)
        assert seen == [b"3", b"4"]


async def test_a_master_that_knows_a_later_offset_keeps_it() -> None:
    """A slave copies the group's offsets now and then: what it says may be old."""
    async with FakeCluster() as cluster:
        both = await pair(cluster, messages=5, committed=1)
        both.slave.answer = lambda code: MQError(2, "busy") if code == RequestCode.PULL_MESSAGE else None
        seen: list[bytes] = []
        async with consumer_of(cluster, seen):
            await until(lambda: both.slave.log.offsets["g", QUEUE] == 1)
            master = await both.master(committed=4)
            await until(lambda: master.log.offsets["g", QUEUE] == 5)
        assert seen == [b"4"] and min(master.commits) >= 4


async def test_what_was_read_again_moves_no_offset_back() -> None:
    async with FakeCluster() as cluster:
        both = await pair(cluster, messages=3, committed=1)
        seen: list[bytes] = []
        async with consumer_of(cluster, seen):
            await until(lambda: seen == [b"1", b"2"])
            for number in (3, 4, 5):
                both.slave.log.append("t", "a", StoredMessage(topic="t", queue_id=0, body=b"%d" % number))
            both.slave.answer = lambda code: MQError(2, "busy") if code == RequestCode.PULL_MESSAGE else None
            master = await both.master(committed=5)
            await until(lambda: master.log.offsets["g", QUEUE] == 6)
        assert min(master.commits) >= 5 and b"5" in seen


async def test_a_broker_that_restarted_gets_the_offset_again() -> None:
    """It writes offsets every few seconds: a kill takes it back behind what it confirmed."""
    async with FakeCluster() as cluster:
        master = await cluster.broker_of(Replica, "a", 0)
        cluster.topic("t", a=1)
        for number in range(3):
            master.log.append("t", "a", StoredMessage(topic="t", queue_id=0, body=b"%d" % number))
        async with consumer_of(cluster, []):
            await until(lambda: master.log.offsets.get(("g", QUEUE)) == 3)
            await asyncio.sleep(0.3)
            sent = len(master.commits)
            await asyncio.sleep(0.3)
            assert len(master.commits) == sent, "what did not change is not sent"
            master.log.offsets["g", QUEUE] = 1
            master.kill()
            await until(lambda: master.log.offsets["g", QUEUE] == 3)


async def test_stopping_beside_a_dead_master_takes_one_timeout_for_all_its_queues() -> None:
    async with FakeCluster() as cluster:
        master = await cluster.broker("a")
        cluster.topic("t", a=12)
        consumer = consumer_of(cluster, [], commit_interval_ms=60_000)
        await consumer.start()
        await until(lambda: len(consumer.assigned) == 12 and master.pulls >= 12)
        await master.server.stop()
        begin = time.monotonic()
        await consumer.stop()
        assert time.monotonic() - begin < 8, "12 timeouts of 3 s"


async def test_the_log_has_a_line_for_a_dead_broker_and_not_for_each_try_of_each_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster() as cluster:
        master = await cluster.broker("a")
        cluster.topic("t", a=8)
        with caplog.at_level(logging.INFO, LOGGER):
            async with consumer_of(cluster, [], commit_interval_ms=60_000) as consumer:
                await until(lambda: len(consumer.assigned) == 8 and master.pulls >= 8)
                await master.server.stop()  # answers that it stops, and then not at all
                await asyncio.sleep(2.5)
                lines = [record.getMessage() for record in caplog.records if "pulls" in record.getMessage()]
    refused = [line for line in lines if line.startswith("pulls of t from a are refused: SYSTEM_BUSY")]
    failed = [line for line in lines if line.startswith("pulls from a fail: 127.0.0.1:")]
    assert len(failed) == 1 and len(refused) <= 1 and len(lines) == len(failed) + len(refused), lines


def test_a_failure_that_lasts_is_a_warning_that_says_how_often(caplog: pytest.LogCaptureFixture) -> None:
    known, error = Outages(), ConnectFailed("h:1", "refused")

    def fail(now: float) -> None:
        known.failed("a", now)
        known.tell("a", "pulls from a fail", error, now, logging.INFO)

    with caplog.at_level(logging.INFO, LOGGER):
        for step in range(int(2 * outages.LOG_INTERVAL_S) + 1):
            fail(float(step))
        assert known.lasts("a")
        known.worked("a", 21.0)
        assert not known.lasts("a")
        fail(100.0)
        known.worked("a", 100.5)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "pulls from a fail: h:1: refused"),
        ("WARNING", "pulls from a fail: h:1: refused (9 more since the last such line)"),
        ("WARNING", "pulls from a fail: h:1: refused (9 more since the last such line)"),
        ("INFO", "broker a serves again after 21 s"),
        ("INFO", "pulls from a fail: h:1: refused"),
    ]


async def test_a_broker_set_that_the_name_server_forgot_is_found_before_the_next_poll() -> None:
    """Its queues were given up, so that no pull asks for the route; one request a second does."""
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        await cluster.broker("b")
        cluster.topic("t", a=1, b=1)
        consumer = consumer_of(cluster, [], poll_interval_ms=400)
        async with consumer:
            await until(lambda: len(consumer.assigned) == 2)
            addresses = cluster.addresses.pop("a")
            await until(lambda: [queue.broker_name for queue in consumer.assigned] == ["b"])
            consumer._session._poll_interval_s = 60  # from the next turn on
            await asyncio.sleep(3.5)  # so long its offset is tried
            before = cluster.asked
            await asyncio.sleep(2.0)
            assert 1 <= cluster.asked - before <= 3
            cluster.addresses["a"] = addresses
            await until(lambda: len(consumer.assigned) == 2, timeout_s=3.0)


async def test_a_master_that_is_back_is_found_while_its_slave_is_read() -> None:
    async with FakeCluster() as cluster:
        both = await pair(cluster, messages=1, committed=0)
        seen: list[bytes] = []
        async with consumer_of(cluster, seen):
            await until(lambda: seen == [b"0"])
            master = await both.master(committed=1)
            before = cluster.asked
            await until(lambda: master.pulls > 0, timeout_s=4.0)
            assert cluster.asked - before <= 4
