"""Scenarios on controllers alone, under a load of decisions, and the check after each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.check import Kind, Verdict
from tests.chaos.decision_check import Decision, check_decisions
from tests.chaos.decision_history import check_history
from tests.chaos.decisions import DecisionLoad, logged_decisions, own_elections
from tests.chaos.ground import WHOLE_TIMEOUT_S, Ground, take_times
from tests.chaos.load import now_us
from tests.chaos.results import Result
from tests.chaos.scenarios import Scenario


class ControllerRun:
    """Scenario after scenario on one group of controllers."""

    def __init__(self, system: str, ground: Ground, seed: int, *, quick: bool) -> None:
        self._system = system
        self._ground = ground
        self._seed = seed
        self._quick = quick
        self._silent = ""
        """Why no controller reported its state at the end."""

    async def scenarios(self, scenarios: Sequence[Scenario], done: Callable[[Result], None]) -> Verdict:
        """All scenarios on new controllers, each result as it comes. Ends early when they do not heal, or
        take no new broker set afterwards."""
        last: Result | None = None
        try:
            await self._ground.start()
            for scenario in scenarios:
                rng = random.Random(f"{self._seed}/{scenario.name}")
                load = DecisionLoad(scenario.name, self._ground.cluster.controller_addresses, rng)
                try:
                    await load.start()
                except TimeoutError as error:
                    if last is None:
                        raise
                    last.violated(Kind.UNHEALED, f"later: {error}")
                    break
                last = await self._scenario(scenario, load, rng)
                done(last)
                if last.whole_s is None:
                    break
            return Verdict()
        finally:
            await self._ground.stop()

    async def _scenario(self, scenario: Scenario, load: DecisionLoad, rng: random.Random) -> Result:
        result = Result(self._system, 0, scenario.name, self._seed, self._quick)
        result.describe(scenario)
        try:
            began_us = now_us()
            result.rounds = await self._ground.rounds(scenario, rng, began_us, quick=self._quick)
            ended_us = now_us()
            final = await self._finish(load, result)
        except BaseException:
            await load.abandon()
            raise
        logged = list(logged_decisions(self._stores()))
        verdict = check_decisions(load.history, final, logged)
        if self._system == "ours":  # what a peer's controllers decide by themselves is in no log that we read
            own = list(own_elections(self._stores()))
            verdict.merge(check_history(load.initial, load.operations, own))
        if result.whole_s is None:
            silent = self._silent or f"the controllers did not agree within {WHOLE_TIMEOUT_S:g} s"
            verdict.violated(Kind.UNHEALED, silent)
        result.take(verdict)
        result.errors = dict(load.failures)
        granted = sorted(decision.answered_us for decision in load.history if decision.is_write)
        take_times(result, granted, began_us, ended_us)
        return result

    async def _finish(self, load: DecisionLoad, result: Result) -> list[Decision] | None:
        """The last state of every set; None, and not healed, if the controllers do not tell it."""
        try:
            return await load.finish()
        except TimeoutError as error:
            await load.abandon()
            result.rounds[-1].whole_s = None
            self._silent = str(error)
            return None

    def _stores(self) -> list[Path]:
        """Where the controllers keep their event logs; Java's have none."""
        return [
            Path(str(program.settings["controllerStorePath"]))
            for program in self._ground.cluster.controller_programs
        ]
