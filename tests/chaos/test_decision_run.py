"""Controllers that stop deciding between two scenarios are not a reason to break the run off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos import decision_run
from tests.chaos.decision_run import ControllerRun
from tests.chaos.ground import Ground
from tests.chaos.results import Result, RoundResult
from tests.chaos.scenarios import CONTROLLERS_ALONE


class FakeGround:
    """Controllers of which nothing but the address is asked."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(controller_addresses=["127.0.0.1:1"], controller_programs=[])
        self.stopped = False

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stopped = True

    def say(self, text: str) -> None:
        pass

    async def rounds(self, *_: object, **__: object) -> list[RoundResult]:
        return [RoundResult("kill -9 controller-0", 0.0, 0.1, 0, whole_s=0.2)]


class FakeLoad:
    """Brings its sets up so many times; then the controllers grant nothing."""

    grants = 0
    deaf = False
    """When it ends, nobody says who is master."""

    def __init__(self, *_: object) -> None:
        self.history: list[Any] = []
        self.operations: list[Any] = []
        self.initial: dict[str, Any] = {}
        self.failures: dict[str, int] = {}

    async def start(self) -> None:
        if FakeLoad.grants == 0:
            raise TimeoutError("ApplyBrokerId was not granted")
        FakeLoad.grants -= 1

    async def finish(self) -> list[Any]:
        if self.deaf:
            raise TimeoutError("nobody could say")
        return []

    async def abandon(self) -> None:
        pass


def run(grants: int, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeGround, ControllerRun]:
    monkeypatch.setattr(decision_run, "DecisionLoad", FakeLoad)
    monkeypatch.setattr(FakeLoad, "grants", grants)
    ground = FakeGround()
    return ground, ControllerRun("java", cast(Ground, ground), 1, quick=False)


async def test_the_scenario_before_is_the_one_that_they_did_not_heal_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground, controllers = run(2, monkeypatch)
    results: list[Result] = []
    await controllers.scenarios(CONTROLLERS_ALONE[:4], results.append)
    assert [result.ok for result in results] == [True, False]
    assert results[1].examples == {"unhealed": ["later: ApplyBrokerId was not granted"]}
    assert ground.stopped


async def test_controllers_that_tell_no_state_at_the_end_did_not_heal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ground, controllers = run(5, monkeypatch)
    monkeypatch.setattr(FakeLoad, "deaf", True)
    results: list[Result] = []
    await controllers.scenarios(CONTROLLERS_ALONE, results.append)
    assert [(result.whole_s, result.examples) for result in results] == [
        (None, {"unhealed": ["nobody could say"]})
    ]
    assert ground.stopped


async def test_controllers_that_never_decided_anything_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ground, controllers = run(0, monkeypatch)
    with pytest.raises(TimeoutError, match="ApplyBrokerId"):
        await controllers.scenarios(CONTROLLERS_ALONE, lambda _: None)
    assert ground.stopped
