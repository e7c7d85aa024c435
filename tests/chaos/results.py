"""What came of a scenario, as it is shown and written."""

from __future__ import annotations

from dataclasses import dataclass

from batonmq.spark.jobs.chaos_results import BUCKET_S, RoundResult, ScenarioResult
from tests.chaos.check import Kind, Verdict
from tests.chaos.scenarios import NO_PAUSE_S, Scenario

__all__ = ["BUCKET_S", "Result", "RoundResult"]


@dataclass(slots=True)
class Result(ScenarioResult):
    """One scenario on one cluster, as the run fills it in."""

    def take(self, verdict: Verdict) -> None:
        """What a check found."""
        self.violations = {kind.name.lower(): count for kind, count in verdict.counts.items()}
        self.examples = {kind.name.lower(): texts for kind, texts in verdict.examples.items()}
        self.sent, self.acked, self.stored = verdict.sent, verdict.acked, verdict.stored
        self.duplicated, self.redelivered = verdict.duplicated, verdict.redelivered

    def violated(self, kind: Kind, what: str) -> None:
        """What came out after the check."""
        name = kind.name.lower()
        self.violations[name] = self.violations.get(name, 0) + 1
        self.examples.setdefault(name, []).append(what)

    def describe(self, scenario: Scenario) -> None:
        """For readers of results.json, who do not have the scenarios."""
        self.title = scenario.title
        # Aims are for two replicas and plain sends.
        if self.load == "plain" and self.replicas in (0, 2):
            self.aim_s = None if scenario.aim_s is None else scenario.aim_s or NO_PAUSE_S
            self.read_aim_s = None if scenario.read_aim_s is None else scenario.read_aim_s or NO_PAUSE_S
