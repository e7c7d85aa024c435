"""results.json of `make chaos`: its shape, and the words that reports have for what is in it. No Spark.

The run writes it (tests/chaos), `batonmq spark chaos-report` reads it, and both describe it with this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from batonmq.common.plural import counted

RESULTS: Final = "results.json"
BUCKET_S: Final = 0.1
"""Of the acknowledgements in the timeline."""
SYSTEMS: Final[Mapping[str, str]] = {"ours": "BatonMQ", "java": "Apache RocketMQ 5.5.0"}
CONTROLLERS: Final = "controllers"
"""The kind of cluster that has them; its replicas are counted."""

WRONG: Final[Mapping[str, Sequence[str]]] = {
    "lost, overwritten or moved": ("lost", "overwritten", "moved"),
    "out of order": ("reordered",),
    "corrupt, invented, or copied without an attempt": ("corrupt", "invented", "multiplied", "hole"),
    "read by a consumer and taken back": ("taken_back",),
    "acknowledged and never delivered": ("undelivered",),
    "transactions, pop, timers: rolled back and delivered, acknowledged and again, early": (
        *("resurrected", "again", "early"),
    ),
    "rounds after which the replicas' logs differed": ("replicas_differ",),
    "rounds after which nothing became whole": ("unhealed",),
    "masters deposed although all programs ran and reached each other": ("deposed",),
    "controllers: one epoch with two sets or masters": ("two_sets", "two_masters"),
    "controllers: decisions forgotten, granted twice or backwards": ("forgotten", "won_twice", "backwards"),
    "controllers: stale answers": ("stale",),
    "controllers: answers that no order of the requests explains": ("not_linearizable", "undecided"),
}
"""Rows of the table of what must not be: the kinds of violations that are counted in each."""
LOSS: Final = frozenset(
    {
        *("lost", "overwritten", "moved", "reordered", "corrupt", "hole"),
        *("taken_back", "undelivered", "forgotten", "backwards"),
    }
)
"""Kinds of violations that break what an acknowledgement promised."""


class Unreadable(ValueError):
    """A file that cannot be used; the text names it and says why."""


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
class ScenarioResult:
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
    load_s: float = 0.0
    """How long the load lasted; 0: an older run did not write it."""
    load: str = "plain"
    """What clients did meanwhile (tests/chaos/feature_loads.py)."""
    groups: str = CONTROLLERS
    """What kind of cluster it was (tests/chaos/scenarios.py, GROUPS)."""
    title: str = ""
    """The scenario for readers; older runs did not write it."""
    aim_s: float | None = None
    """Longest time without an acknowledgement that is aimed at; None: no aim."""
    read_aim_s: float | None = None
    """The same of reads."""

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

    @property
    def ended_s(self) -> float:
        """When the load ended. Of an older run at most a bucket too early, as time after it is not a gap."""
        return self.load_s or max(0, len(self.acks) - 1) * BUCKET_S

    def as_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Raises `msgspec.ValidationError`."""
        return msgspec.convert(data, cls)


@dataclass(slots=True)
class Results:
    """The whole file."""

    results: list[ScenarioResult]
    where: str = ""
    """When and on what it was measured."""


def read(directory: Path) -> Results:
    """Of the run whose output is in `directory`. Raises `Unreadable`."""
    path = directory / RESULTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except OSError as error:
        raise Unreadable(
            f"{path}: {error.strerror}; --dir takes the directory that 'make chaos' wrote"
        ) from None
    except msgspec.MsgspecError as error:
        raise Unreadable(f"{path} is not a results.json of 'make chaos': {error}") from None


def history_of(directory: Path, result: ScenarioResult) -> Path | None:
    """Where the run put what producers saw; None: controllers alone have no producers."""
    if not result.replicas:
        return None
    cluster = cluster_directory(result.system, result.replicas, result.groups)
    return directory / cluster / history_name(result.scenario)


def cluster_directory(system: str, replicas: int, groups: str) -> str:
    """Where a run keeps the files of a cluster, below its output directory."""
    return f"{system}-{replicas if groups == CONTROLLERS else groups}"


def history_name(scenario: str) -> str:
    """What producers saw of it, below the cluster's directory."""
    return f"history-{scenario}.parquet"


# -- words


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def system_title(system: str) -> str:
    return SYSTEMS.get(system, system)


def cluster_title(replicas: int, groups: str = CONTROLLERS) -> str:
    """What kind of cluster it is."""
    if groups != CONTROLLERS:
        titles = {"classic": "a pair without controllers", "containers": "two containers crosswise"}
        return titles.get(groups, groups)
    return counted(replicas, "replica") if replicas else "controllers alone"


def wrong(violations: Iterable[tuple[str, int]]) -> dict[str, int]:
    """How often each row of `WRONG` was violated; kinds that no row has are rows themselves."""
    labels = {kind: label for label, kinds in WRONG.items() for kind in kinds}
    found: dict[str, int] = dict.fromkeys(WRONG, 0)
    for kind, count in violations:
        label = labels.get(kind, kind)
        found[label] = found.get(label, 0) + count
    return found
