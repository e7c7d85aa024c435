"""Slaves that fail together with their master are not elected."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.controller import roll_call
from batonmq.controller.events import NO_BROKER, ChannelClosed, Event
from batonmq.controller.heartbeats import LiveBroker
from batonmq.controller.replicas import BrokerSet
from batonmq.controller.sessions import Sessions
from batonmq.net.client import RemotingClient
from batonmq.net.errors import CallTimeout, ConnectFailed
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from tests.unit.controller.test_leadership import Clock, Proposals, leadership

MASTER = 1


class Brokers:
    """What the replicas answer: None, or an error. Addresses are ``h<broker id>:1``."""

    def __init__(self, answers: dict[int, Exception | None]) -> None:
        self.answers = {f"h{broker_id}:1": answer for broker_id, answer in answers.items()}
        self.asked: list[str] = []
        self.dropped: list[str] = []
        self.open = asyncio.Event()
        self.open.set()

    async def call(self, address: str, *_: Any, timeout_ms: float) -> None:
        assert timeout_ms == roll_call.ANSWER_MS
        self.asked.append(address)
        await self.open.wait()
        error = self.answers[address]
        if error is not None:
            raise error

    def drop(self, address: str) -> None:
        self.dropped.append(address)


def replicas(count: int, in_sync: tuple[int, ...]) -> BrokerSet:
    """A set whose master is 1; the session of each heartbeat is ten times the id."""
    broker_set = BrokerSet("c", "s")
    for broker_id in range(1, count + 1):
        broker_set.add_replica(broker_id, f"h{broker_id}:1", f"h{broker_id}:1;1")
        broker_set.live[broker_id] = LiveBroker(0, 3_000, 10 * broker_id, 1, 0, 0, 0)
    broker_set.set_master(MASTER)
    broker_set.set_sync_state_set(in_sync)
    return broker_set


SILENT = CallTimeout("h2:1", "no answer in time")


@pytest.mark.parametrize(
    ("answers", "absent"),
    [
        ({2: None, 3: None}, []),
        ({2: SILENT, 3: None}, [(2, 20)]),
        ({2: ConnectFailed("h2:1", "refused"), 3: MQError(ResponseCode.SYSTEM_BUSY, "busy")}, [(2, 20)]),
        ({2: SILENT, 3: SILENT}, []),
    ],
    ids=["all answer", "one is silent", "an error is an answer", "none answers"],
)
async def test_slaves_that_do_not_answer_are_absent_if_another_one_answers(
    answers: dict[int, Exception | None], absent: list[tuple[int, int]]
) -> None:
    brokers = Brokers(answers)
    broker_set = replicas(4, (1, 2, 3))
    found = await roll_call.absent(cast("RemotingClient", brokers), [broker_set], NO_BROKER, lambda: 1_000)
    assert found == [(broker_set, *each) for each in absent]
    assert brokers.asked == ["h2:1", "h3:1"], "neither the master nor the replica that is not in sync"
    assert brokers.dropped == [f"h{broker_id}:1" for broker_id, _ in absent]


@pytest.mark.parametrize(
    ("now_ms", "absent"), [(1_400, []), (1_501, [2]), (2_700, [])], ids=["all came", "one came", "none came"]
)
async def test_if_none_answers_recent_heartbeats_decide(now_ms: int, absent: list[int]) -> None:
    """The leader may reach none of them, while another controller passes their heartbeats on."""
    broker_set = replicas(3, (1, 2, 3))
    broker_set.live[3].updated_ms = 1_100
    brokers = cast("RemotingClient", Brokers({2: SILENT, 3: SILENT}))
    found = await roll_call.absent(brokers, [broker_set], NO_BROKER, lambda: now_ms)
    assert [broker_id for _, broker_id, _ in found] == absent


async def test_a_slave_that_reported_its_master_need_not_answer() -> None:
    """The leader may not reach it: its report came through another controller."""
    brokers = Brokers({2: SILENT, 3: SILENT})
    found = await roll_call.absent(
        cast("RemotingClient", brokers), [replicas(3, (1, 2, 3))], 3, lambda: 2_700
    )
    assert [broker_id for _, broker_id, _ in found] == [2]
    assert brokers.asked == ["h2:1"]


def test_no_roll_call_without_a_choice() -> None:
    assert not roll_call.needed(replicas(2, (1, 2)))
    assert not roll_call.needed(replicas(3, (1, 2)))
    down = replicas(3, (1, 2, 3))
    assert roll_call.needed(down)
    del down.live[3]
    assert not roll_call.needed(down)


def closing(broker_set: BrokerSet, brokers: Brokers) -> tuple[Any, list[Event]]:
    """A leader whose connection with the master's heartbeats has just closed, and its proposals."""
    sessions = Sessions[str]()
    made = leadership(Clock(), {"s": broker_set}, sessions)
    made._client, made._term, made.leading = cast("Any", brokers), 2, True
    sessions.of("connection").brokers = {("s", MASTER): 0}
    made._sessions.closed = lambda connection: sessions.of("connection")  # type: ignore[method-assign]
    made.connection_closed(cast("Any", SimpleNamespace(peer="h1:1")))
    return made, cast("Proposals", made._proposer)


async def test_absent_slaves_are_down_before_the_next_master_is_elected() -> None:
    made, proposals = closing(replicas(3, (1, 2, 3)), Brokers({2: SILENT, 3: None}))
    assert not proposals
    await asyncio.gather(*made._tasks)
    assert proposals == [
        ChannelClosed(20, (("s", 2),), False, "silent"),
        ChannelClosed(1, (("s", MASTER),), False),
    ]


async def test_without_a_choice_the_master_is_replaced_at_once() -> None:
    _, proposals = closing(replicas(2, (1, 2)), Brokers({}))
    assert proposals == [ChannelClosed(1, (("s", MASTER),), False)]


async def test_a_controller_that_lost_the_leadership_in_the_roll_call_decides_nothing() -> None:
    brokers = Brokers({2: SILENT, 3: None})
    brokers.open.clear()
    made, proposals = closing(replicas(3, (1, 2, 3)), brokers)
    await asyncio.sleep(0)
    made.end()
    brokers.open.set()
    await asyncio.gather(*made._tasks)
    assert not proposals
