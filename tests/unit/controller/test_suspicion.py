"""The leading controller asks a master that its slave calls silent, before it counts it as down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from batonmq.controller import suspicion
from batonmq.controller.heartbeats import LiveBroker
from batonmq.controller.liveness import suspect
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.replicas import BrokerSet
from batonmq.controller.suspicion import Suspicion
from batonmq.net.client import RemotingClient
from batonmq.net.errors import CallTimeout, ConnectFailed
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

TIMEOUT_MS = 3_000
MASTER, SLAVE, LEARNER = 1, 2, 3


class Master:
    """The other end of the leader's connection."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.asked = 0
        self.dropped: list[str] = []

    async def call(self, address: str, *_: Any, timeout_ms: float) -> None:
        self.asked += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error

    def drop(self, address: str) -> None:
        self.dropped.append(address)


class Set:
    """A broker set whose master has sent its last heartbeat at 0, and a leader whose time the test moves."""

    def __init__(self) -> None:
        self.machine, self.master, self.now_ms = ControllerMachine(), Master(), 0
        self.broker_set = self.machine.broker_sets["s"] = BrokerSet("c", "s")
        for broker_id in (MASTER, SLAVE, LEARNER):
            self.broker_set.add_replica(broker_id, f"h{broker_id}:1", f"h{broker_id}:1;1")
            self.heartbeat(broker_id)
        self.broker_set.set_master(MASTER)
        self.broker_set.set_sync_state_set((MASTER, SLAVE))
        self.down: list[tuple[str, int, int, int]] = []
        self.led_since_ms = -TIMEOUT_MS
        self.suspicion = Suspicion(
            self.machine,
            cast("RemotingClient", self.master),
            lambda: self.now_ms,
            lambda: self.now_ms - self.led_since_ms,
            lambda *found: self.down.append(found),
        )

    def heartbeat(self, broker_id: int, session: int = 7) -> None:
        self.broker_set.live[broker_id] = LiveBroker(self.now_ms, TIMEOUT_MS, session, 1, 0, 0, 0)

    async def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        await asyncio.sleep(0.02)

    def report(self, reporter: int = SLAVE, epoch: int = 1) -> None:
        self.suspicion.reported("s", reporter, epoch)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspicion, "LOOK_S", 0.001)


pytestmark = pytest.mark.usefixtures("quick")


async def test_a_master_that_does_not_answer_is_down_once_its_silence_is_long_enough() -> None:
    world = Set()
    world.master.hangs = True
    await world.at(1_100)
    world.report()
    await world.at(1_499)
    assert (world.master.asked, world.down) == (1, [])
    await world.at(1_590)
    assert not world.down, "it has half a second to answer"
    await world.at(1_600)
    assert world.down == [("s", MASTER, 7, SLAVE)]
    assert world.master.dropped == ["h1:1"]
    assert not world.suspicion.pending


async def test_a_new_leader_leaves_a_master_time_to_reach_it() -> None:
    """The heartbeats before came to the former leader, or through a controller that this leader reaches."""
    world = Set()
    world.master.hangs = True
    world.led_since_ms = 2_000
    await world.at(2_100)
    world.report()
    await world.at(3_199)
    assert not world.down
    await world.at(3_200)
    assert world.down


async def test_a_late_heartbeat_alone_is_not_enough() -> None:
    world = Set()
    world.master.hangs = True
    await world.at(600)
    world.report()
    await world.at(1_499)
    assert not world.down, "no heartbeat is missing yet"
    await world.at(1_500)
    assert world.down


@pytest.mark.parametrize("answer", [None, MQError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "what?")])
async def test_any_answer_shows_that_the_master_lives(answer: Exception | None) -> None:
    world = Set()
    world.master.error = answer
    await world.at(1_500)
    world.report()
    await world.at(2_900)
    assert world.master.asked == 1
    assert not world.down and not world.suspicion.pending


@pytest.mark.parametrize("error", [ConnectFailed("h1:1", "refused"), CallTimeout("h1:1", "late")])
async def test_a_failed_call_ends_no_patience(error: Exception) -> None:
    world = Set()
    world.master.error = error
    await world.at(1_300)
    world.report()
    await world.at(1_700)
    assert not world.down
    await world.at(1_800)
    assert world.down


async def heartbeat_of_the_master(world: Set) -> None:
    world.heartbeat(MASTER)


async def heartbeat_over_another_connection(world: Set) -> None:
    world.heartbeat(MASTER, session=8)


async def another_master(world: Set) -> None:
    world.broker_set.set_master(SLAVE)


async def end_of_the_set(world: Set) -> None:
    del world.machine.broker_sets["s"]


async def end_of_the_leadership(world: Set) -> None:
    await world.suspicion.stop()


async def slave_leaves_the_set(world: Set) -> None:
    world.broker_set.set_sync_state_set((MASTER,))


@pytest.mark.parametrize(
    "happens",
    [
        heartbeat_of_the_master,
        heartbeat_over_another_connection,
        another_master,
        end_of_the_set,
        end_of_the_leadership,
        slave_leaves_the_set,
    ],
)
async def test_what_happens_meanwhile_ends_the_suspicion(happens: Callable[[Set], Any]) -> None:
    world = Set()
    world.master.hangs = True
    await world.at(1_300)
    world.report()
    await world.at(1_400)
    assert world.suspicion.pending == 1
    await happens(world)
    await world.at(1_900)
    assert not world.down and not world.suspicion.pending


async def test_a_forwarded_heartbeat_is_a_sign_of_life_also_before_the_report() -> None:
    world = Set()
    world.master.hangs = True
    await world.at(800)
    world.suspicion.heartbeat_came("s", MASTER, forwarded=True)
    await world.at(1_100)
    world.report()
    await world.at(2_200)
    assert not world.down, "the log has had no heartbeat for 2.2 s, the leader for 1.4 s"
    await world.at(2_300)
    assert world.down


async def test_a_heartbeat_counts_before_it_is_in_the_log() -> None:
    world = Set()
    world.master.hangs = True
    await world.at(1_300)
    world.report()
    await world.at(1_400)
    world.suspicion.heartbeat_came("s", MASTER, forwarded=False)
    await world.at(1_900)
    assert not world.down and not world.suspicion.pending


async def test_heartbeats_of_others_say_nothing_about_the_master() -> None:
    world = Set()
    world.master.hangs = True
    await world.at(1_300)
    world.report()
    for name, broker_id in (("s", SLAVE), ("s", 99), ("unknown", MASTER)):
        world.suspicion.heartbeat_came(name, broker_id, forwarded=True)
    await world.at(1_800)
    assert world.down


async def test_reports_share_one_probe() -> None:
    world = Set()
    world.master.hangs = True
    await world.at(1_300)
    for _ in range(5):
        world.report()
    await world.at(1_310)
    assert world.master.asked == world.suspicion.pending == 1
    await world.suspicion.stop()


@pytest.mark.parametrize(
    ("reporter", "epoch"),
    [
        (MASTER, 1),
        (LEARNER, 1),
        (99, 1),
        (-1, 1),
        (SLAVE, 0),
        (SLAVE, 2),
        (SLAVE, -(2**31)),
        (SLAVE, 2**31 - 1),
    ],
)
async def test_reports_of_others_or_about_other_masters_change_nothing(reporter: int, epoch: int) -> None:
    world = Set()
    await world.at(1_500)
    world.report(reporter, epoch)
    world.suspicion.reported("unknown", reporter, epoch)
    await world.at(1_600)
    assert not world.master.asked and not world.suspicion.pending
    assert suspect(world.broker_set, reporter, epoch) is None


async def test_a_master_with_a_recent_heartbeat_is_not_asked() -> None:
    world = Set()
    await world.at(400)
    world.report()
    await world.at(450)
    assert not world.master.asked


async def test_without_a_living_master_there_is_nobody_to_ask() -> None:
    world = Set()
    del world.broker_set.live[MASTER]
    await world.at(1_500)
    world.report()
    await world.at(1_600)
    assert not world.master.asked
