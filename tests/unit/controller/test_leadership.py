"""What a leading controller logs, and what it knows when it begins."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from batonmq.common.running_time import RunningTime
from batonmq.controller.config import ControllerConfig
from batonmq.controller.effects import Election, Outcome, ReplicaUp
from batonmq.controller.events import Event, LeaderStarted, encode
from batonmq.controller.heartbeats import LiveBroker
from batonmq.controller.leadership import FAILED_AGAIN_MS, Leadership
from batonmq.controller.proposer import MAX_ENTRY_BYTES
from batonmq.controller.replicas import BrokerSet
from batonmq.controller.sessions import Sessions
from batonmq.raft.state import Role

FAILED = Election("c", "s", "broker", "no-master", 1, None, 3, 4, (1,), (2,), 2, False)
ELECTED = Election("c", "s", "broker", "new-master", 1, 2, 4, 5, (1, 2), (2,), 2, False)


class Clock:
    now = 0

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


class Proposals(list[Event]):
    def submit(self, event: Event, *_: Any, **__: Any) -> None:
        self.append(event)


def leadership(
    clock: Clock, broker_sets: dict[str, BrokerSet] | None = None, sessions: Sessions[Any] | None = None
) -> Leadership:
    made = Leadership(
        ControllerConfig(),
        "n0",
        cast("Any", clock),
        RunningTime(cast("Any", clock)),
        cast("Any", SimpleNamespace(broker_sets=broker_sets or {})),
        sessions or Sessions(),
        lambda election: None,
    )
    stopping = cast("Any", SimpleNamespace(stop=lambda: asyncio.sleep(0)))
    sink = SimpleNamespace(write=lambda *_: None)
    made.start(cast("Any", Proposals()), stopping, stopping, cast("Any", None), cast("Any", sink))
    return made


def test_a_set_that_cannot_elect_is_a_warning_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    made = leadership(clock)
    caplog.set_level(logging.INFO)

    def lines(*elections: Election) -> int:
        caplog.clear()
        made.decided(Outcome(effects=elections))
        return len(caplog.records)

    assert [lines(FAILED), lines(FAILED), lines(FAILED, FAILED)] == [1, 0, 0]
    assert lines(msgspec.structs.replace(FAILED, broker_name="t")) == 1, "another broker set"
    changed = msgspec.structs.replace(FAILED, alive=(2, 3))
    assert [lines(changed), lines(changed)] == [1, 0], "another replica lives"
    clock.now = FAILED_AGAIN_MS
    assert lines(changed) == 1
    assert lines(ELECTED, FAILED) == 2, "a success, then the next failure"


@pytest.mark.parametrize(("silent_ms", "counts"), [(500, 500), (1_700, 1_700), (1_900, 1_800)])
async def test_a_broker_has_time_to_reach_a_new_leader(silent_ms: int, counts: int) -> None:
    """It may have been silent for this controller only. Its timeout is 3 s, and 1.2 s are left to it."""
    broker_set = BrokerSet("c", "s")
    broker_set.add_replica(1, "h:1", "h:1;1")
    broker_set.live[1] = LiveBroker(0, 3_000, 1, 1, 0, 0, 0)
    clock, sessions = Clock(), Sessions[str]()
    session = sessions.of("connection")
    session.brokers = {("s", 1): 0, ("unknown", 1): 0}
    made = leadership(clock, {"s": broker_set}, sessions)
    for clock.now in range(0, silent_ms + 1, 100):
        made.now_ms()  # running time counts no long pauses
    made.role_changed(Role.LEADER, 2)
    (started,) = cast("Proposals", made._proposer)
    assert isinstance(started, LeaderStarted)
    assert started.silent == (("s", 1, counts), ("unknown", 1, silent_ms))


@pytest.mark.parametrize("length", [20, 250])
async def test_any_number_of_brokers_leaves_a_leader_an_entry_to_begin_with(length: int) -> None:
    """One that was too large for the log was refused again and again, and no controller could lead."""
    clock, sessions = Clock(), Sessions[str]()
    for number in range(16_384):
        sessions.of(f"connection {number}").brokers = {(f"{number:0{length}}", 1): 0}
    made = leadership(clock, {}, sessions)
    made.role_changed(Role.LEADER, 2)
    (started,) = cast("Proposals", made._proposer)
    assert isinstance(started, LeaderStarted)
    assert len(encode(0, (started,))) <= MAX_ENTRY_BYTES
    known = sessions.known()
    assert started.sessions == known[: len(started.sessions)]
    assert (len(started.sessions) == len(known)) is (length == 20)
    assert len(started.sessions) == len(started.silent) > 3_000


async def test_what_is_decided_after_the_callers_gave_up_is_announced_all_the_same() -> None:
    clock, broker_set = Clock(), BrokerSet("c", "s")
    broker_set.add_replica(1, "h1:1", "h1:1;1")
    announced: list[str] = []
    made = leadership(clock, {"s": broker_set})
    made._notices = cast("Any", SimpleNamespace(announce=lambda each: announced.append(each.broker_name)))
    made._term = 1
    made.decided_late([Outcome(), Outcome(effects=(ELECTED,))])
    made.decided_late(None)  # an entry that is none of the state machine's
    assert announced == ["s"]


async def test_a_replica_of_a_removed_set_is_not_reminded_and_the_other_effects_count() -> None:
    announced: list[str] = []
    broker_set = BrokerSet("c", "s")
    made = leadership(Clock(), {"s": broker_set})
    made._notices = cast("Any", SimpleNamespace(announce=lambda each: announced.append(each.broker_name)))
    made._term, made.leading = 1, True
    made.decided(Outcome(effects=(ReplicaUp("removed", 1, 0, 0), ELECTED)))
    assert announced == ["s"]
