"""When a consumer lets go of a queue: not while a handler works on it in order, and not twice."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from batonmq.client.consumer import Consumer
from batonmq.client.push import locks, pulling
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.message.record import MessageExt

from .fakes import FakeBroker, FakeCluster
from .helpers import FIRST, fill, until


class Worker:
    """An orderly consumer whose handler waits until it is let go."""

    def __init__(self, cluster: FakeCluster, **options: float) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.gate = asyncio.Event()
        self.consumer = Consumer(
            "g", cluster.namesrv, from_where=FIRST, orderly=True, suspend_ms=20, **options
        )  # type: ignore[arg-type]
        self.consumer.subscribe("t", "*", self.handle)

    async def handle(self, message: MessageExt) -> None:
        self.begun.append(message.body)
        await self.gate.wait()
        self.ended.append(message.body)


def lock_requests(broker: FakeBroker) -> Counter[int]:
    """Counts requests from now on, by code."""
    counts: Counter[int] = Counter()

    def count(code: int) -> None:
        counts[code] += 1

    broker.answer = count
    return counts


async def test_an_ordered_queue_is_given_up_when_its_handler_has_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "LOCK_INTERVAL_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=2)
        for number in (0, 1):
            await fill(cluster, 2, queue=MessageQueue("t", "a", number))
        workers = {worker.consumer.client_id: worker for worker in (Worker(cluster), Worker(cluster))}
        # The second in the order of ids takes the second half of the queues.
        second, first = (workers[client_id] for client_id in sorted(workers))
        second.gate.set()
        async with first.consumer:
            await until(lambda: len(first.begun) == 2)
            async with second.consumer:
                await until(lambda: len(second.consumer.assigned) == len(first.consumer.assigned) == 1)
                (queue,) = second.consumer.assigned
                counts = lock_requests(broker)
                await asyncio.sleep(0.3)
                assert broker.locks[queue] == first.consumer.client_id and second.begun == []
                assert counts[RequestCode.LOCK_BATCH_MQ] > 5, "both renew, and one tries"
                first.gate.set()
                await until(lambda: second.ended == [b"1"])
                assert broker.log.offsets["g", queue] == 1
                assert sorted(first.ended) == [b"0", b"0", b"1"]


async def test_a_queue_that_comes_back_while_its_handler_works_is_not_worked_on_twice() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 2)
        worker = Worker(cluster)
        async with worker.consumer as consumer:
            await until(lambda: worker.begun == [b"0"])
            broker.clients["g"].insert(0, " another, which sorts before all")
            await consumer._assignment.rebalance()
            assert consumer.assigned == []
            del broker.clients["g"][0]
            await consumer._assignment.rebalance()
            await asyncio.sleep(0.1)
            assert worker.begun == [b"0"] and consumer.assigned == []
            worker.gate.set()
            await until(lambda: worker.ended == [b"0", b"1"])


async def test_a_lock_is_renewed_while_stop_waits_for_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCK_INTERVAL_S", 0.05)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        worker = Worker(cluster)
        await worker.consumer.start()
        await until(lambda: worker.begun == [b"0"])
        stopping = asyncio.create_task(worker.consumer.stop())
        await asyncio.sleep(0.1)
        counts = lock_requests(broker)
        await asyncio.sleep(0.3)
        assert counts[RequestCode.LOCK_BATCH_MQ] >= 2
        worker.gate.set()
        await stopping
        assert broker.locks == {} and broker.log.offsets["g", MessageQueue("t", "a", 0)] == 1


async def test_stop_also_gives_up_a_queue_that_another_waits_for() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 1)
        worker = Worker(cluster)
        async with worker.consumer as consumer:
            await until(lambda: worker.begun == [b"0"])
            broker.clients["g"].insert(0, " another, which sorts before all")
            await consumer._assignment.rebalance()
            asyncio.get_running_loop().call_later(0.1, worker.gate.set)
        assert broker.locks == {} and broker.log.offsets["g", MessageQueue("t", "a", 0)] == 1


async def test_a_reset_waits_for_the_call_that_works_in_order() -> None:
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 3)
        worker = Worker(cluster)
        async with worker.consumer as consumer:
            await until(lambda: worker.begun == [b"0"])
            consumer._assignment.reset({MessageQueue("t", "a", 0): 2})
            await asyncio.sleep(0.1)
            assert worker.begun == [b"0"]
            worker.gate.set()
            await until(lambda: worker.ended == [b"0", b"2"])
        assert broker.log.offsets["g", MessageQueue("t", "a", 0)] == 3


@pytest.mark.parametrize("first", [4, 2])
async def test_a_queue_that_moved_back_commits_nothing_that_is_unfinished(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``first``: the first message that is not done when the queue moves back from 8 to 4."""
    monkeypatch.setattr(pulling, "MOVED_BACK_PATIENCE_S", 0.3)
    async with FakeCluster() as cluster:
        broker = await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 8)
        queue = MessageQueue("t", "a", 0)
        gates = {True: asyncio.Event(), False: asyncio.Event()}
        begun: list[tuple[bytes, bool]] = []
        lost = True

        async def handle(message: MessageExt) -> None:
            of_lost = lost
            begun.append((message.body, of_lost))
            if not (of_lost and int(message.body) < first):
                await gates[of_lost].wait()

        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, commit_interval_ms=20, stop_timeout_s=1)
        consumer.subscribe("t", "*", handle)
        async with consumer:
            await until(lambda: len(begun) == 8)
            lost = False
            del broker.log.records[queue][4:]  # a failover lost them
            held = consumer._assignment.queues[queue]
            await until(lambda: held.dropped, timeout_s=10)
            await fill(cluster, 4)
            await until(lambda: len(begun) == 16 - first)
            gates[True].set()  # messages that were lost are done; those with their offsets are not
            await asyncio.sleep(0.2)
            assert broker.log.offsets["g", queue] == first
            gates[False].set()
            await until(lambda: broker.log.offsets["g", queue] == 8)


async def test_a_rebalance_does_not_undo_a_reset_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeCluster() as cluster:
        await cluster.broker("a")
        cluster.topic("t", a=1)
        await fill(cluster, 4)
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        async with consumer:
            await until(lambda: len(seen) == 4)
            commit, gate = consumer._offsets.commit, asyncio.Event()

            async def late(queue: MessageQueue, offset: int) -> None:
                await gate.wait()
                await commit(queue, offset)

            monkeypatch.setattr(consumer._offsets, "commit", late)
            consumer._assignment.reset({MessageQueue("t", "a", 0): 2})
            await asyncio.sleep(0.05)
            await consumer._assignment.rebalance()
            gate.set()
            await until(lambda: len(seen) == 6)
            assert sorted(seen[4:]) == [b"2", b"3"]


async def test_a_broker_that_does_not_answer_keeps_no_queue_of_another_locked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And its own 70 queues take one timeout, and one line in the log."""
    async with FakeCluster() as cluster:
        silent, other = await cluster.broker("a"), await cluster.broker("b")
        cluster.topic("t", a=70, b=2)
        for number in range(70):
            await fill(cluster, 1, queue=MessageQueue("t", "a", number))
        for number in range(2):
            await fill(cluster, 1, queue=MessageQueue("t", "b", number))
        seen: list[bytes] = []
        consumer = Consumer("g", cluster.namesrv, from_where=FIRST, orderly=True, commit_interval_ms=60_000)
        consumer.subscribe("t", "*", lambda message: seen.append(message.body))
        await consumer.start()
        await until(lambda: len(seen) == 72, timeout_s=10)
        assert len(other.locks) == 2 and len(silent.locks) == 70
        silent.silent = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        stopping = asyncio.create_task(consumer.stop())
        await until(lambda: not other.locks, timeout_s=1)
        assert other.log.offsets == {("g", MessageQueue("t", "b", number)): 1 for number in range(2)}
        await stopping
        assert loop.time() - began < 6
    (line,) = [each.message for each in caplog.records if "locked until" in each.message]
    assert line.partition(": ")[0].endswith(" and 69 more queues of its broker")
