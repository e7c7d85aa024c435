"""Which controllers get a broker's heartbeats, and by which way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.replica import heartbeats
from batonmq.broker.replica.heartbeats import Heartbeats
from batonmq.net.errors import CallTimeout
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import NotLeaderError
from batonmq.protocol.headers.namesrv import BrokerHeartbeat, BrokerHeartbeatReply

LEADER, OTHERS = "a:1", ("b:1", "c:1")


class World:
    """Three controllers; `answer_s` is how long the leader takes, and `sent` what left the broker."""

    def __init__(self) -> None:
        self.answer_s = 0.0
        self.resigned: str | None = None
        """A former leader."""
        self.sent: list[tuple[str, str]] = []
        self.headers: list[BrokerHeartbeat] = []
        self.suspected = self.unanswered = self.epoch = 0
        self.controllers = SimpleNamespace(
            leader_answers=True,
            addresses=[LEADER, *OTHERS],
            leader=LEADER,
            may_forward=lambda address: address != "c:1",
            call_through=self._through,
            suspect=self._suspect,
            unanswered=self._count_unanswered,
            answered=lambda address: None,
            seek=self._seek,
        )
        broker = SimpleNamespace(
            settings=SimpleNamespace(broker=BrokerConfig(controller_addr=";".join((LEADER, *OTHERS)))),
            address="h:1",
            store=SimpleNamespace(max_offset=1, confirm_offset=1, failure=None),
            client=SimpleNamespace(call=self._call, oneway=self._oneway),
        )
        self.ha = SimpleNamespace(last_epoch=3, silent_master=None)
        self.heartbeats = Heartbeats(
            cast("Any", broker),
            cast("Any", self.ha),
            cast("Any", SimpleNamespace(broker_id=2, may_heartbeat=True)),
            cast("Any", self.controllers),
            on_epoch=self._on_epoch,
        )

    async def _call(self, address: str, header: BrokerHeartbeat, *, timeout_ms: float) -> None:
        self.sent.append(("direct", address))
        self.headers.append(header)
        if address == self.resigned:
            raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, "ask b")
        await asyncio.sleep(min(self.answer_s, timeout_ms / 1000))
        if self.answer_s >= timeout_ms / 1000:
            raise CallTimeout(address, "no answer in time")

    async def _oneway(self, address: str, header: BrokerHeartbeat) -> None:
        self.sent.append(("oneway", address))

    async def _through(self, address: str, header: BrokerHeartbeat, *, timeout_ms: float) -> Any:
        self.sent.append(("through", address))
        assert header.forwarded
        return SimpleNamespace(header=BrokerHeartbeatReply(7))

    def _suspect(self, address: str) -> bool:
        self.suspected += 1
        return False

    def _count_unanswered(self, address: str) -> None:
        self.unanswered += 1

    async def _seek(self) -> None:
        self.controllers.leader, self.controllers.leader_answers = OTHERS[0], False

    def _on_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "LATE_S", 0.03)
    monkeypatch.setattr(heartbeats, "ANSWER_MS", 90)


async def after(world: World, seconds: float) -> list[tuple[str, str]]:
    world.heartbeats.send()
    await asyncio.sleep(seconds)
    sent = sorted(world.sent)
    await world.heartbeats.stop()
    return sent


STRAIGHT = [("direct", LEADER), *(("oneway", each) for each in OTHERS)]


async def test_a_leader_that_answers_is_the_only_way_to_it() -> None:
    world = World()
    assert await after(world, 0.06) == STRAIGHT
    assert world.suspected == world.unanswered == 0
    assert world.headers[0].silent_master_epoch is None


async def test_a_late_answer_sends_the_heartbeat_through_others_but_suspects_nobody() -> None:
    world = World()
    world.answer_s = 0.07
    assert await after(world, 0.08) == [*STRAIGHT, ("through", "b:1")], "c does not forward"
    assert world.suspected == 0
    assert world.epoch == 7, "the answer names the master's epoch"


async def test_a_leader_that_does_not_answer_is_suspected() -> None:
    world = World()
    world.answer_s = 1.0
    await after(world, 0.12)
    assert world.suspected == world.unanswered == 1


async def test_a_new_leader_gets_a_heartbeat_as_soon_as_it_is_known() -> None:
    world = World()
    world.resigned = LEADER
    world.controllers.may_forward = lambda address: True
    again = [("direct", "b:1"), ("oneway", LEADER), ("through", LEADER), ("through", "c:1")]
    assert await after(world, 0.01) == sorted([*STRAIGHT, *again])


async def test_a_suspected_leader_gets_heartbeats_both_ways_at_once() -> None:
    world = World()
    world.answer_s, world.controllers.leader_answers = 1.0, False
    assert await after(world, 0.01) == [*STRAIGHT, ("through", "b:1")]


async def test_a_heartbeat_names_the_epoch_of_a_silent_master() -> None:
    world = World()
    world.ha.silent_master = 5
    await after(world, 0.01)
    (header,) = world.headers
    assert header.silent_master_epoch == 5
    assert BrokerHeartbeat.from_ext(header.to_ext()) == header
