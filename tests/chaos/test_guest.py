"""A guest of a run compares what it has while the cluster still serves, and is stopped in any case."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from tests.chaos.check import Verdict
from tests.chaos.ground import Ground
from tests.chaos.load import Load
from tests.chaos.results import Result, RoundResult
from tests.chaos.run import GroupRun
from tests.chaos.scenarios import GROUP, Scenario


class Recorder:
    """Ground and guest; `events` is what was asked of them."""

    def __init__(self, events: list[str], who: str) -> None:
        self.events = events
        self.who = who
        self.cluster = SimpleNamespace(replicas=2)

    async def start(self) -> None:
        self.events.append(f"{self.who} starts")

    async def check(self, loads: Sequence[Load]) -> None:
        self.events.append(f"{self.who} checks")

    async def stop(self) -> None:
        self.events.append(f"{self.who} stops")


class Run(GroupRun):
    """Scenarios that end at once. The second one may not heal, or break the run off."""

    events: list[str]
    second: str

    async def _scenario(self, scenario: Scenario) -> Result:
        self.events.append(scenario.name)
        last = scenario.name == "hang"
        if last and self.second == "fails":
            raise TimeoutError
        whole_s = None if last and self.second == "does not heal" else 0.5
        return Result("ours", 2, scenario.name, 1, True, [RoundResult("", 0, 1, 0, whole_s)])

    async def _finish(self) -> Verdict:
        self.events.append("stores")
        return Verdict()


async def events_of(second: str) -> list[str]:
    events: list[str] = []
    ground = cast(Ground, Recorder(events, "cluster"))
    run = Run("ours", ground, 1, quick=True, guest=Recorder(events, "guest"))
    run.events, run.second = events, second
    # An iterator, which can be used once.
    scenarios = (scenario for scenario in GROUP if scenario.name in ("kill", "hang"))
    if second == "fails":
        with pytest.raises(TimeoutError):
            await run.scenarios(scenarios, lambda result: None)
    else:
        await run.scenarios(scenarios, lambda result: None)
    return events


BEGIN, END = ["cluster starts", "guest starts", "kill", "hang"], ["guest stops", "cluster stops"]


async def test_a_guest_checks_before_the_cluster_stops() -> None:
    assert await events_of("heals") == [*BEGIN, "guest checks", "stores", *END]


async def test_a_guest_of_a_cluster_that_does_not_heal_cannot_check() -> None:
    assert await events_of("does not heal") == [*BEGIN, "stores", *END]


async def test_a_guest_is_stopped_when_the_run_is_broken_off() -> None:
    assert await events_of("fails") == [*BEGIN, *END]
