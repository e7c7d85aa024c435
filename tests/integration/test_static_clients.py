"""Clients and admin commands with static topics of our brokers, through several moves."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from tests.integration.broker.rig import v2
from tests.integration.static_cluster import cluster

from batonmq import (
    ConsumeFromWhere,
    Consumer,
    Message,
    MessageExt,
    Producer,
    RetryLater,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from batonmq.admin.operations import groups, messages, offsets, static_topics
from batonmq.admin.session import Admin, AdminError
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.topics import CreateStaticTopic, CreateTopic, DeleteTopic

TOPIC = "Moving"
FIRST = ConsumeFromWhere.FIRST_OFFSET


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


async def send_always(producer: TransactionProducer, sent: list[SendResult]) -> None:
    while True:
        number = len(sent)
        message = Message(TOPIC, b"%d" % number, sharding_key=str(number % 20))  # all queues
        sent.append(await producer.send(message))
        await asyncio.sleep(0.003)


@pytest.mark.timeout(180)
async def test_nothing_is_lost_doubled_or_out_of_order_through_moves(tmp_path: Path) -> None:
    in_order: dict[int, list[MessageExt]] = defaultdict(list)
    shared: list[MessageExt] = []
    levels = {b"5": 1, b"6": -1}

    def share(message: MessageExt) -> None:
        if message.body in levels:
            raise RetryLater(levels.pop(message.body))
        shared.append(message)

    async with cluster(tmp_path) as brokers:
        namesrv = f"127.0.0.1:{brokers.name_server.port}"
        ordered = Consumer("ordered", namesrv, orderly=True, from_where=FIRST, commit_interval_ms=100)
        ordered.subscribe(TOPIC, "*", lambda message: in_order[message.queue_id].append(message))
        concurrent = Consumer("shared", namesrv, from_where=FIRST, commit_interval_ms=100)
        concurrent.subscribe(TOPIC, "*", share)
        producer = TransactionProducer("p", namesrv, check=lambda _: TransactionState.UNKNOWN)
        sent: list[SendResult] = []
        async with Admin(namesrv) as admin:
            _, plan = await static_topics.plan_queues(admin, TOPIC, 4, ["a"])
            await static_topics.update(admin, plan)
            async with ordered, concurrent, producer:
                sending = asyncio.create_task(send_always(producer, sent))
                for targets in (["b"], ["a", "c"], ["a"], ["b", "c"]):
                    before = len(sent)
                    await until(lambda n=before: len(sent) > n + 60, "messages are sent")  # type: ignore[misc]
                    _, plan = await static_topics.plan_remapping(admin, TOPIC, targets)
                    await static_topics.remap(admin, plan)
                moved = len(sent)
                await until(lambda: len(sent) > moved + 60, "messages are sent after the last move")
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                async with producer.transaction(Message(TOPIC, b"committed")):
                    pass
                bodies = {b"%d" % number for number in range(len(sent))} | {b"committed"}
                await until(
                    lambda: {m.body for each in in_order.values() for m in each} >= bodies, "ordered has all"
                )
                await until(lambda: {m.body for m in shared} >= bodies - {b"6"}, "shared has all")
                await asyncio.sleep(0.5)
            assert all(row.behind == 0 for row in await groups.progress(admin, "ordered", TOPIC))
            assert {m.body for m in await messages.read(admin, TOPIC, 10_000)} >= bodies

            await offsets.reset_committed(admin, "ordered", TOPIC, 0)
            again: list[bytes] = []
            late = Consumer("ordered", namesrv)
            late.subscribe(TOPIC, "*", lambda message: again.append(message.body))
            async with late:
                await until(lambda: {*again} >= bodies, "the group begins again")
    for each in in_order.values():
        places = [message.queue_offset for message in each]
        assert places == sorted(set(places)) and places[0] == 0 and places[-1] >= 10_000
        numbers = [int(message.body) for message in each if message.body != b"committed"]
        assert numbers == sorted(numbers)
    first = [message.body for message in shared if not message.reconsume_times]
    assert len(first) == len(set(first)), "only what failed comes again"


async def send_some(producer: Producer, first: int) -> int:
    """Send 25 messages, numbered from `first` on; returns the next number."""
    for number in range(first, first + 25):
        await producer.send(Message(TOPIC, b"%d" % number, sharding_key=str(number % 20)))
    return first + 25


@pytest.mark.timeout(180)
async def test_retries_dead_letters_and_times_outlive_moves(tmp_path: Path) -> None:
    got: list[MessageExt] = []
    dead: list[int] = []

    def fail_every_fifth(message: MessageExt) -> None:
        got.append(message)
        if not int(message.body) % 5:
            raise RetryLater(1)

    async with cluster(tmp_path) as brokers, AsyncExitStack() as stack:
        namesrv = f"127.0.0.1:{brokers.name_server.port}"
        admin = await stack.enter_async_context(Admin(namesrv))
        producer = await stack.enter_async_context(Producer("p", namesrv))
        _, plan = await static_topics.plan_queues(admin, TOPIC, 4, ["a"])
        await static_topics.update(admin, plan)
        consumer = Consumer("g", namesrv, from_where=FIRST, max_reconsume_times=2, commit_interval_ms=100)
        consumer.subscribe(TOPIC, "*", fail_every_fifth)
        await stack.enter_async_context(consumer)
        sent = 0
        moments: list[tuple[int, int]] = []
        for targets in (["b"], ["c"], ["a", "b"]):
            sent = await send_some(producer, sent)
            await asyncio.sleep(0.2)
            moments.append((int(time.time() * 1000), sent))
            await asyncio.sleep(0.2)
            _, plan = await static_topics.plan_remapping(admin, TOPIC, targets)
            await static_topics.remap(admin, plan)
        sent = await send_some(producer, sent)

        failing = list(range(0, sent, 5))
        reader = Consumer("reader", namesrv, from_where=FIRST)
        reader.subscribe("%DLQ%g", "*", lambda message: dead.append(int(message.body)))
        await until(
            lambda: sum(m.reconsume_times == 2 for m in got) == len(failing), "all failed three times"
        )
        await stack.enter_async_context(reader)
        await until(lambda: len(dead) >= len(failing), "all are dead letters")
        assert sorted(dead) == failing
        attempts = sorted((int(message.body), message.reconsume_times) for message in got)
        assert attempts == [(n, k) for n in range(sent) for k in range(1 if n % 5 else 3)]

        for at_ms, first in moments:
            later: list[int] = []
            late = Consumer(
                f"from-{first}", namesrv, from_where=ConsumeFromWhere.TIMESTAMP, from_timestamp_ms=at_ms
            )
            late.subscribe(TOPIC, "*", lambda message, later=later: later.append(int(message.body)))  # type: ignore[misc]
            async with late:
                await until(lambda: len(later) >= sent - first, "all since then")  # noqa: B023
            assert sorted(later) == list(range(first, sent))


class Stopped(Exception):
    """The tool has died."""


@contextmanager
def stopping_after(monkeypatch: pytest.MonkeyPatch, admin: Admin, steps: int) -> Iterator[None]:
    """The command stops after so many mappings that it has sent."""
    ask, left = admin.ask, steps

    async def some(address: str, header: Any, *args: Any, **options: Any) -> Any:
        nonlocal left
        if isinstance(header, CreateStaticTopic):
            if not left:
                raise Stopped
            left -= 1
        return await ask(address, header, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(admin, "ask", some)
        if steps < 5:
            with pytest.raises(Stopped):
                yield
        else:
            yield


@pytest.mark.parametrize("steps", range(6))
async def test_a_plan_that_stopped_at_any_step_is_finished_by_the_next_run(
    steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queues move from a to b and c, by five requests: new leaders, old leader, new leaders."""

    async with cluster(tmp_path) as brokers, Admin(f"127.0.0.1:{brokers.name_server.port}") as admin:
        _, plan = await static_topics.plan_queues(admin, "T", 3, ["a"])
        await static_topics.update(admin, plan)
        for queue in range(3):
            await brokers.call("a", v2("T", queue), b"before")
        _, plan = await static_topics.plan_remapping(admin, "T", ["a", "b", "c"])
        with stopping_after(monkeypatch, admin, steps):
            await static_topics.remap(admin, plan)
        await static_topics.remap(admin, plan)
        await static_topics.remap(admin, plan)
        parts = await static_topics.logical_parts(admin, "T")
        assert parts is not None
        assert sorted(items[-1].logic_offset for items in parts.values()) == [0, 10_000, 10_000]
        await static_topics.plan_remapping(admin, "T", ["a"])


async def test_the_master_that_refuses_messages_says_where_its_part_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is elected in the same moment may show a lower end."""
    async with cluster(tmp_path) as brokers, Admin(f"127.0.0.1:{brokers.name_server.port}") as admin:
        _, plan = await static_topics.plan_queues(admin, "T", 1, ["a"])
        await static_topics.update(admin, plan)
        _, plan = await static_topics.plan_remapping(admin, "T", ["b"])
        ask, masters = admin.ask, await admin.masters()
        elected = {**masters, "a": "127.0.0.1:1"}

        async def then_elect(address: str, header: Any, *args: Any, **options: Any) -> Any:
            answer = await ask(address, header, *args, **options)
            if isinstance(header, CreateStaticTopic) and address == masters["a"]:
                monkeypatch.setattr(admin, "masters", AsyncMock(return_value=elected))
            return answer

        monkeypatch.setattr(admin, "ask", then_elect)
        await static_topics.remap(admin, plan)
        await brokers.call("b", v2("T", 0), b"after")


async def test_two_moves_at_once_end_in_the_one_that_is_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as brokers, Admin(f"127.0.0.1:{brokers.name_server.port}") as admin:
        _, plan = await static_topics.plan_queues(admin, "T", 1, ["a"])
        await static_topics.update(admin, plan)
        await brokers.call("a", v2("T", 0), b"before")
        await asyncio.sleep(1.1)  # epochs are times, but at least 1000 after the one before
        _, first = await static_topics.plan_remapping(admin, "T", ["b"])
        await asyncio.sleep(0.002)
        _, second = await static_topics.plan_remapping(admin, "T", ["c"])
        assert second.epoch > first.epoch
        with stopping_after(monkeypatch, admin, 2):
            await static_topics.remap(admin, first)
        with pytest.raises(MQError, match="Part 1 is at"):
            await static_topics.remap(admin, second)
        assert (await brokers.config("b")).mapping_detail.epoch == first.epoch  # type: ignore[union-attr]
        with pytest.raises(AdminError, match="another plan was made after this one"):
            await static_topics.remap(admin, first)
        with pytest.raises(AdminError):
            await static_topics.plan_remapping(admin, "T", ["a"])
        await static_topics.remap(admin, first, force=True)
        _, plan = await static_topics.plan_remapping(admin, "T", ["a"])
        await static_topics.remap(admin, plan)
        await brokers.call("a", v2("T", 0), b"after")
        brokers.parts = plan.broker_config_map["a"].mapping_detail.hosted_queues[0]  # type: ignore[union-attr]
        assert [body for _, body in await brokers.read_all()] == [b"before", b"after"]


async def test_a_new_broker_set_of_a_static_topic_gets_its_attributes(tmp_path: Path) -> None:
    """RocketMQ's would take any message for an ordered topic that moved there."""
    async with cluster(tmp_path) as brokers, Admin(f"127.0.0.1:{brokers.name_server.port}") as admin:

        async def change(name: str, attributes: str) -> None:
            await brokers.call(name, CreateTopic("T", "TBW102", 1, 1, 6, "SINGLE_TAG", attributes=attributes))

        async def move(name: str) -> dict[str, dict[str, str]]:
            _, plan = await static_topics.plan_remapping(admin, "T", [name])
            await static_topics.remap(admin, plan)
            return {each: (await brokers.config(each)).attributes for each in "abc"}

        _, plan = await static_topics.plan_queues(admin, "T", 1, ["a"])
        await static_topics.update(admin, plan)
        await change("a", "+message.type=FIFO")
        for name in "bc":  # as if they were new in the cluster
            await brokers.call(name, DeleteTopic("T"))
        fifo = {"message.type": "FIFO"}
        assert await move("b") == {"a": fifo, "b": fifo, "c": fifo}
        await change("b", "-message.type")
        assert await move("a") == {"a": fifo, "b": {}, "c": fifo}, "what a broker has is not changed"
        with pytest.raises(MQError, match="unsupported key"):
            await brokers.call("b", DeleteTopic("T"))
            await brokers.create_static("b", attributes="+no.such=1")
        assert brokers.brokers["b"].broker.tables.mappings.get("T") is None, "refused as a whole"


async def test_the_lag_of_a_group_that_was_away_during_a_move_includes_the_new_part(tmp_path: Path) -> None:
    """The new leader knows nothing of the group, and so does not speak of the topic by itself."""
    async with cluster(tmp_path) as brokers, Admin(f"127.0.0.1:{brokers.name_server.port}") as admin:
        await brokers.create("a")
        await brokers.send(b"0", b"1")
        await brokers.pull(0)
        await brokers.commit(2)
        for name in ("b", "c"):
            await brokers.remap(name)
            await brokers.send(name.encode())
        for topic in (None, "T"):
            (row,) = await groups.progress(admin, "g", topic)
            assert (row.broker_offset, row.consumer_offset) == (20_001, 2)
