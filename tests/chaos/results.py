"""What came of a scenario, as it is shown and written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.check import Kind, Verdict

BUCKET_S = 0.1
"""Of the acknowledgements in the timeline."""


@dataclass(slots=True)
class RoundResult:
    """Times in s since the load began."""

    fault: str
    struck_s: float
    healed_s: float
    wall_ms: int
    """When it struck, ms since the epoch: to find it in the programs' logs."""
    whole_s: float | None = None
    """From healing until everything was whole for good; None: never."""
    longest_gap_s: float = 0.0
    """Longest time without an acknowledgement from the fault to the next one."""
    longest_read_gap_s: float | None = None
    """The same of reads, of the broker set that had the longest; None: nobody looked."""
    deposed: str = ""
    """Former and new master, if the master changed although the fault harms nobody."""


@dataclass(slots=True)
class Result:
    """One scenario on one cluster."""

    system: str
    replicas: int
    """0: controllers alone."""
    scenario: str
    seed: int
    quick: bool
    rounds: list[RoundResult] = field(default_factory=list)
    sent: int = 0
    acked: int = 0
    """Messages acknowledged; controllers alone: changes granted."""
    stored: int = 0
    duplicated: int = 0
    redelivered: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Sends or requests without acknowledgement, by reason."""
    violations: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    acks: list[int] = field(default_factory=list)
    """Acknowledgements in each `BUCKET_S` since the load began."""
    load: str = "plain"
    """What clients did meanwhile (`feature_loads.py`)."""
    groups: str = "controllers"
    """What kind of cluster it was (`scenarios.GROUPS`)."""

    @property
    def key(self) -> tuple[str, str, int, str]:
        """A later result with the same key takes the place of this one."""
        scenario = self.scenario if self.load == "plain" else f"{self.load}: {self.scenario}"
        return self.groups, self.system, self.replicas, scenario

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def longest_gap_s(self) -> float:
        return max((entry.longest_gap_s for entry in self.rounds), default=0.0)

    @property
    def longest_read_gap_s(self) -> float | None:
        return max(
            (each.longest_read_gap_s for each in self.rounds if each.longest_read_gap_s is not None),
            default=None,
        )

    @property
    def whole_s(self) -> float | None:
        """The slowest round's; None if one never ended."""
        times = [entry.whole_s for entry in self.rounds]
        known = [value for value in times if value is not None]
        return max(known, default=0.0) if len(known) == len(times) else None

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

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        rounds = [RoundResult(**entry) for entry in data["rounds"]]
        return cls(**{**data, "rounds": rounds})
