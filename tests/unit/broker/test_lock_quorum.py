"""Queue locks that a majority of three brokers must grant: brokers without sockets, and a network that the
test cuts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.fakes import ask, json_of, make_broker

from batonmq.broker.context import Broker
from batonmq.broker.locks.core import LockRound, quorum_of
from batonmq.broker.locks.part import LOCKS, LocksPart
from batonmq.broker.tables.persistence import Persistence
from batonmq.common.clock import ManualClock
from batonmq.common.config import ConfigError
from batonmq.net.dispatch import Dispatcher
from batonmq.net.errors import CallTimeout, ConnectFailed
from batonmq.protocol.bodies.clients import (
    LockAttemptBody,
    LockBatchRequestBody,
    UnlockAttemptBody,
    UnlockBatchRequestBody,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import clients as wire
from batonmq.protocol.registry import Header

WIRE = Path(__file__).parents[2] / "data" / "broker" / "wire"
Q0, Q1 = (MessageQueue("TopicJ", "broker-a", number) for number in (0, 1))


class Network:
    """Carries the calls of brokers to each other."""

    def __init__(self) -> None:
        self.dispatchers: dict[str, Dispatcher] = {}
        self.down: set[str] = set()
        self.hung: set[str] = set()
        self.hangs_s = 0.05
        self.deaf: set[str] = set()
        """These carry out requests, but their answers get lost."""
        self.calls: list[tuple[str, str]] = []

    async def call(self, address: str, header: Header, body: bytes = b"", *, timeout_ms: float) -> Any:
        self.calls.append((address, type(header).__name__))
        if address in self.hung:
            await asyncio.sleep(self.hangs_s)
            raise CallTimeout(address, timeout_ms)
        if address in self.down:
            raise ConnectFailed(address, "refused")
        reply = await ask(self.dispatchers[address], header, body)
        if address in self.deaf:
            raise CallTimeout(address, timeout_ms)
        return reply

    async def oneway(self, address: str, header: Header, body: bytes = b"") -> None:
        if address not in self.hung:
            await self.call(address, header, body, timeout_ms=0)


class Replica:
    def __init__(self, group: Group, broker_id: int, root: Path) -> None:
        self.group, self.root = group, root
        self.address = f"10.0.0.{broker_id}:10911"
        self.broker_id = broker_id
        self.start()

    def start(self) -> None:
        """Start, or start again with what is on disk."""
        group = self.group
        self.broker: Broker = make_broker(
            broker_id=self.broker_id,
            clock=group.clock,
            total_replicas=3,
            enable_slave_acting_master=True,
            lock_in_strict_mode=group.strict,
        )
        broker = self.broker
        broker.address = self.address
        broker.client = group.network  # type: ignore[assignment]
        broker.tables.persistence = Persistence(self.root / "config")
        broker.rng.seed(self.broker_id)
        if self.broker_id:
            broker.role.set_slave(
                broker_id=self.broker_id, epoch=0, master_address=None, master_ha_address=None
            )
        broker.members.update({id: f"10.0.0.{id}:10911" for id in range(3)})
        self.part = LocksPart(broker)
        broker.tables.persistence.restore(self.part.tables())
        dispatcher = group.network.dispatchers[self.address] = Dispatcher()
        self.part.handlers(dispatcher)

    async def lock(self, client_id: str, *queues: MessageQueue) -> list[MessageQueue]:
        body = LockBatchRequestBody("GroupJ", client_id, False, list(queues or [Q0]))
        reply = await ask(self.group.network.dispatchers[self.address], wire.LockBatchMq(), body)
        return [
            MessageQueue(q["topic"], q["brokerName"], q["queueId"]) for q in json_of(reply)["lockOKMQSet"]
        ]

    async def unlock(self, client_id: str, *queues: MessageQueue) -> None:
        body = UnlockBatchRequestBody("GroupJ", client_id, False, list(queues or [Q0]))
        await ask(self.group.network.dispatchers[self.address], wire.UnlockBatchMq(), body)

    def owner(self, queue: MessageQueue = Q0) -> str | None:
        return self.broker.tables.locks.owner("GroupJ", queue, self.group.clock.monotonic_ms())


class Group:
    def __init__(self, root: Path, strict: bool = True) -> None:
        self.clock, self.network, self.strict = ManualClock(), Network(), strict
        self.master, self.first, self.second = (Replica(self, id, root / str(id)) for id in range(3))
        self.replicas = (self.master, self.first, self.second)

    def owners(self, queue: MessageQueue = Q0) -> list[str | None]:
        return [replica.owner(queue) for replica in self.replicas]

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


async def test_answers_as_recorded_without_strict_locks(tmp_path: Path) -> None:
    group = Group(tmp_path, strict=False)
    dispatcher = group.network.dispatchers[group.master.address]
    body = LockBatchRequestBody(consumer_group="GroupJ", client_id="c1", mq_set=[Q0])
    reply = await ask(dispatcher, wire.LockBatchMq(), body)
    assert json_of(reply) == json.loads((WIRE / "lock.json").read_bytes())
    assert await group.master.lock("c2") == []
    # Any replica grants locks for itself: RocketMQ's default prefers consumption to exclusive consumption.
    assert await group.first.lock("c2") == [Q0]
    await group.master.unlock("c1")
    assert await group.master.lock("c2") == [Q0]
    assert group.network.calls == []


async def test_whoever_is_asked_a_queue_has_one_owner(group: Group) -> None:
    assert await group.master.lock("c1", Q0, Q1) == [Q0, Q1]
    await group.settled()
    assert group.owners() == ["c1"] * 3
    assert await group.first.lock("c2", Q0, Q1) == []
    assert await group.first.lock("c1", Q0) == [Q0]
    await group.first.unlock("c1", Q0)
    assert await group.second.lock("c2", Q0, Q1) == [Q0]


async def test_a_minority_that_is_lost_changes_nothing(group: Group) -> None:
    assert await group.master.lock("c1") == [Q0]
    await group.settled()
    group.network.down.add(group.master.address)
    assert await group.first.lock("c2") == []
    assert await group.first.lock("c1") == [Q0]
    await group.first.unlock("c1")
    assert await group.first.lock("c2") == [Q0]


async def test_a_hung_minority_delays_nothing(group: Group) -> None:
    group.network.hung.add(group.second.address)
    group.network.hangs_s = 60.0
    assert await asyncio.wait_for(group.master.lock("c1"), 30) == [Q0]
    assert group.owners() == ["c1", "c1", None]


async def test_a_lost_majority_grants_nothing_and_leaves_no_lock(group: Group) -> None:
    group.network.down |= {group.first.address, group.second.address}
    assert await group.master.lock("c1") == []
    group.network.down.clear()
    assert group.owners() == [None] * 3
    assert await group.first.lock("c2") == [Q0]


async def test_a_failed_renewal_keeps_the_lock_for_the_time_it_was_granted(group: Group) -> None:
    assert await group.master.lock("c1") == [Q0]
    await group.settled()
    group.clock.advance(20_000)
    group.network.down |= {group.first.address, group.second.address}
    assert await group.master.lock("c1") == []
    group.network.down.clear()
    group.clock.advance(40_000)
    assert await group.first.lock("c2") == []
    group.clock.advance(1)
    assert await group.first.lock("c2") == [Q0]


async def test_what_some_refuse_is_taken_back_at_the_others(group: Group) -> None:
    # Two clients compete through two replicas, and a third one is down: neither has a majority.
    group.first.broker.tables.locks.try_lock("GroupJ", [Q0], "c2", group.clock.monotonic_ms())
    group.network.down.add(group.second.address)
    assert await group.master.lock("c1", Q0, Q1) == [Q1]
    await group.settled()
    assert group.owners(Q0) == [None, "c2", None]
    assert group.owners(Q1) == ["c1", "c1", None]


async def test_a_vote_whose_answer_gets_lost_is_taken_back(group: Group) -> None:
    group.network.deaf.add(group.first.address)
    group.network.down.add(group.second.address)
    assert await group.master.lock("c1") == []
    group.network.deaf.clear()
    await group.settled()
    assert group.owners() == [None] * 3


async def test_a_restarted_replica_remembers_what_it_granted(group: Group) -> None:
    group.network.down.add(group.second.address)
    assert await group.master.lock("c1") == [Q0]
    # The master is cut off, and its client believes in the lock. Its second vote restarts.
    group.network.down = {group.master.address}
    group.first.start()
    assert await group.second.lock("c2") == []
    assert await group.first.lock("c2") == []
    group.clock.advance(60_001)
    assert await group.second.lock("c2") == [Q0]


async def test_a_replica_that_was_away_does_not_keep_the_others_from_granting(group: Group) -> None:
    assert await group.master.lock("c1") == [Q0]
    await group.settled()
    group.network.down.add(group.master.address)
    await group.first.unlock("c1")
    assert await group.first.lock("c2") == [Q0]
    group.network.down.clear()
    group.master.start()
    assert group.owners() == ["c1", "c2", "c2"]
    assert await group.master.lock("c1") == []
    assert await group.master.lock("c2") == [Q0]


async def test_a_vote_counts_only_when_it_is_on_disk(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    file = group.first.broker.tables.persistence._files[LOCKS]
    monkeypatch.setattr(file, "write", _no_space)
    group.network.down.add(group.second.address)
    assert await group.master.lock("c1") == []
    await group.settled()
    assert group.owners() == [None] * 3
    own = group.master.broker.tables.persistence._files[LOCKS]
    monkeypatch.setattr(own, "write", _no_space)
    with pytest.raises(MQError, match="cannot be stored") as error:
        await group.master.lock("c1")
    assert error.value.code == ResponseCode.SYSTEM_ERROR
    assert group.owners() == [None] * 3


def _no_space(data: bytes) -> None:
    raise OSError(28, "No space left on device")


async def test_renewals_are_not_written(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    await group.master.lock("c1")
    await group.settled()
    for replica in group.replicas:
        monkeypatch.setattr(replica.broker.tables.persistence._files[LOCKS], "write", _no_space)
    assert await group.master.lock("c1") == [Q0]


async def test_an_unlock_that_arrives_late_releases_nothing_newer(group: Group) -> None:
    await group.master.lock("c1")
    await group.settled()
    old = group.first.broker.tables.locks.attempts("GroupJ", [Q0], "c1")
    await group.master.unlock("c1")
    assert group.owners() == [None] * 3
    assert await group.first.lock("c1") == [Q0]
    await group.settled()
    late = UnlockAttemptBody("GroupJ", "c1", True, [Q0], next(iter(old)))
    await ask(group.network.dispatchers[group.second.address], wire.UnlockBatchMq(), late)
    assert group.owners() == ["c1"] * 3


async def test_a_queue_that_is_asked_for_twice_gets_one_vote_of_each_replica(group: Group) -> None:
    group.network.down.add(group.second.address)
    assert await group.master.lock("c1") == [Q0]
    # Only the second replica is free to vote for another client.
    group.network.down.clear()
    group.network.hung.add(group.first.address)
    assert await group.master.lock("c2", Q0, Q0) == []
    await asyncio.sleep(0.06)
    assert group.owners() == ["c1", "c1", None]


async def test_a_replica_that_is_listed_under_two_ids_has_one_vote(group: Group) -> None:
    """It has changed its id, and a name server has not forgotten the former one."""
    group.network.down.add(group.second.address)
    assert await group.master.lock("c1") == [Q0]
    group.network.down = {group.master.address, group.first.address}
    second = group.second.broker
    second.members.update({1: group.second.address, 2: group.second.address, 3: group.first.address})
    assert await group.second.lock("c2") == []
    await group.settled()
    assert group.owners() == ["c1", "c1", None]


async def test_too_few_known_replicas_refuse_at_once(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group.master.broker.members.update({0: group.master.address})
    assert await group.master.lock("c1") == []
    assert group.network.calls == [] and group.owners() == [None] * 3
    assert "2 replicas must agree, and only 1 are alive" in caplog.text


async def test_requests_of_rocketmqs_brokers_are_votes(group: Group) -> None:
    """They carry no attempt, and RocketMQ's do not undo."""
    vote = LockBatchRequestBody("GroupJ", "c1", True, [Q0])
    dispatcher = group.network.dispatchers[group.first.address]
    assert len(json_of(await ask(dispatcher, wire.LockBatchMq(), vote))["lockOKMQSet"]) == 1
    assert group.network.calls == []
    await ask(dispatcher, wire.UndoQueueLocks(), LockAttemptBody("GroupJ", "c1", True, [Q0], ""))
    assert group.first.owner() == "c1"
    await ask(dispatcher, wire.UnlockBatchMq(), UnlockBatchRequestBody("GroupJ", "c1", True, [Q0]))
    assert group.first.owner() is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"mqSet":[{"topic":1}]}', b'{"attempt":{}}'])
async def test_bad_bodies_are_refused(group: Group, body: bytes) -> None:
    dispatcher = group.network.dispatchers[group.master.address]
    for header in (wire.LockBatchMq(), wire.UnlockBatchMq(), wire.UndoQueueLocks()):
        with pytest.raises(MQError) as error:
            await ask(dispatcher, header, body)
        assert error.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("name", ["consumer_group", "client_id", "attempt", "topic", "broker_name"])
async def test_names_that_nobody_has_are_not_kept_with_locks(group: Group, name: str) -> None:
    queue = {"topic": "T", "broker_name": "b", "queue_id": 0}
    asked = {"consumer_group": "g", "client_id": "c", "attempt": "1"}
    (queue if name in queue else asked)[name] = "x" * 1_025
    body = LockAttemptBody(**asked, mq_set=[MessageQueue(**queue)])  # type: ignore[arg-type]
    with pytest.raises(MQError) as error:
        await ask(group.network.dispatchers[group.master.address], wire.LockBatchMq(), body)
    assert error.value.code == ResponseCode.INVALID_PARAMETER


def test_strict_locks_need_what_they_ask() -> None:
    with pytest.raises(ConfigError, match="lockInStrictMode=true: with totalReplicas=3 it needs"):
        make_broker(lock_in_strict_mode=True, total_replicas=3)
    make_broker(lock_in_strict_mode=True)


@pytest.mark.parametrize(
    ("total", "known", "quorum"), [(1, 1, 1), (2, 2, 2), (3, 1, 2), (5, 3, 3), (3, 5, 3)]
)
def test_more_than_half(total: int, known: int, quorum: int) -> None:
    assert quorum_of(total, known) == quorum


@given(
    st.sets(st.integers(0, 5)),
    st.sets(st.integers(0, 5)),
    st.integers(1, 5),
    st.lists(st.sets(st.integers(0, 7)), max_size=4),
)
def test_a_decided_round_stays_as_it_is(
    queues: set[int], own: set[int], quorum: int, answers: list[set[int]]
) -> None:
    round_ = LockRound(queues, own, quorum, len(answers))
    decided: set[int] | None = round_.granted if round_.decided else None
    for answer in answers:
        round_.answered(answer)
        if decided is None and round_.decided:
            decided = round_.granted
    votes = {queue: sum(queue in each for each in (own, *answers)) for queue in queues}
    assert decided == round_.granted == {queue for queue in queues if votes[queue] >= quorum}
