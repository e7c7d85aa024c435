"""chaos: how long clients waited in each scenario of `make chaos`, over all rounds and seeds.

The gap of a round is the longest time between two acknowledgements that touches the time from its fault to
the next one, or to the end of the load. It is computed from the producers' histories, and compared with the
gap that the run wrote into results.json. A round without a history has only the latter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from batonmq.common.plural import counted
from batonmq.spark.jobs import chaos_histories
from batonmq.spark.jobs.chaos_results import BUCKET_S, LOSS, Results, ScenarioResult, Unreadable, history_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

TOLERANCE_S: Final = 0.02
"""The histories are on the wall clock, results.json is on one that never jumps: they may differ by this."""
OPEN_TOLERANCE_S: Final = BUCKET_S
"""The same of a gap that lasts to the end of the load, if the run did not write when that was."""
KEY: Final = ("groups", "replicas", "load", "scenario", "system")
"""What one row of the report is about."""
_KEY_SCHEMA: Final = "groups string, replicas int, load string, scenario string, system string"
_ROUND_SCHEMA: Final = (
    f"place int, number int, {_KEY_SCHEMA}, seed bigint, fault string, began_us bigint, "
    "start_us bigint, end_us bigint, written_gap_s double, read_gap_s double, whole_s double"
)
_RESULT_SCHEMA: Final = (
    f"place int, {_KEY_SCHEMA}, title string, aim_s double, read_aim_s double, acked bigint, sent bigint, "
    "violations map<string,bigint>, errors map<string,bigint>"
)


@dataclass(frozen=True, slots=True)
class Run:
    """The output of one `make chaos`."""

    directory: Path
    results: Results


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the rounds. `p90` is the nearest rank: a time that was measured."""

    median: float
    p90: float
    max: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round, as its history and as results.json have it."""

    directory: str
    groups: str
    replicas: int
    load: str
    scenario: str
    system: str
    seed: int
    number: int
    fault: str
    gap_s: float | None
    """Computed from the history; None if there is none."""
    acked: int | None
    """Acknowledged from the fault to the next one, in the history."""
    tolerance_s: float
    written_gap_s: float
    """`longest_gap_s` of results.json."""
    read_gap_s: float | None
    whole_s: float | None

    @property
    def longest_gap_s(self) -> float:
        return self.written_gap_s if self.gap_s is None else self.gap_s

    @property
    def differs(self) -> bool:
        """The history and results.json do not agree."""
        return self.gap_s is not None and abs(self.gap_s - self.written_gap_s) > self.tolerance_s

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"differs": self.differs}


@dataclass(frozen=True, slots=True)
class Summary:
    """One scenario on one kind of cluster of one system, over all runs."""

    groups: str
    replicas: int
    load: str
    scenario: str
    system: str
    title: str
    seeds: tuple[int, ...]
    rounds: int
    acked: int
    sent: int
    aim_s: float | None
    read_aim_s: float | None
    gap: Spread | None
    """None: no round."""
    reads: Spread | None
    """None: nobody looked."""
    whole: Spread | None
    """Of the rounds after which everything was whole again."""
    never_whole: int
    """Rounds after which it was not."""
    violations: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Acknowledged, and not kept as promised."""
        return sum(count for kind, count in self.violations.items() if kind in LOSS)

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"lost": self.lost}


@dataclass(frozen=True, slots=True)
class Measured:
    """What the report shows."""

    summaries: list[Summary]
    rounds: list[Round]
    notes: list[str]
    """Histories that are missing, belong to another run, or have other counts than results.json."""

    @property
    def different(self) -> list[Round]:
        return [each for each in self.rounds if each.differs]


def histories_of(runs: Sequence[Run]) -> dict[Path, int]:
    """Files of producers' histories that are there -> place of their result among those of all runs. Raises
    `Unreadable` if one is not a history."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[Path, int] = {}
    for place, (run, result) in enumerate(_results(runs)):
        path = history_of(run.directory, result)
        if path is None or not path.exists():
            continue
        try:
            names = set(pq.read_schema(path).names)
        except (OSError, pa.ArrowException) as error:
            raise Unreadable(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None
        missing = [name for name in ("sent_us", "acked_us") if name not in names]
        if missing:
            raise Unreadable(f"{path} is not a history: it has no column {' and no '.join(missing)}")
        found[path.resolve()] = place
    return found


def measure(session: SparkSession, runs: Sequence[Run]) -> Measured:
    """Raises `Unreadable`."""
    files = histories_of(runs)
    results = list(_results(runs))
    rounds = session.createDataFrame(list(_rounds(results)), _ROUND_SCHEMA)
    computed = rounds.join(
        chaos_histories.gaps_of(session, rounds, files), ["place", "number"], "left"
    ).cache()
    try:
        rows = computed.orderBy("place", "number").collect()
        found = [_round(row, *results[row["place"]]) for row in rows]
        summaries = _summaries(session, computed, results)
    finally:
        computed.unpersist()
    return Measured(summaries, found, list(_notes(rows, results, files)))


def _results(runs: Sequence[Run]) -> Iterator[tuple[Run, ScenarioResult]]:
    """All results; `place` is the index of one here."""
    return ((run, result) for run in runs for result in run.results.results)


def _key(result: ScenarioResult) -> tuple[str, int, str, str, str]:
    return result.groups, result.replicas, result.load, result.scenario, result.system


def _rounds(results: Sequence[tuple[Run, ScenarioResult]]) -> Iterator[tuple[object, ...]]:
    for place, (_, result) in enumerate(results):
        starts = [each.wall_ms * 1000 for each in result.rounds]
        for number, (each, start_us) in enumerate(zip(result.rounds, starts, strict=True)):
            left_s = result.ended_s - each.struck_s
            last = number + 1 == len(starts)
            yield (
                place,
                number + 1,
                *_key(result),
                result.seed,
                each.fault,
                start_us - round(each.struck_s * 1e6),
                start_us,
                start_us + round(left_s * 1e6) if last else starts[number + 1],
                float(each.longest_gap_s),
                None if each.longest_read_gap_s is None else float(each.longest_read_gap_s),
                None if each.whole_s is None else float(each.whole_s),
            )


# -- rounds and results together


def _spread(name: str) -> Column:
    """Of a column; null if it has no value."""
    from pyspark.sql import functions as F

    return F.when(
        F.count(name) > 0,
        F.struct(
            F.percentile(name, 0.5).alias("median"),
            F.expr(f"percentile_disc(0.9) WITHIN GROUP (ORDER BY {name})").alias("p90"),
            F.max(name).alias("max"),
        ),
    )


def _summaries(
    session: SparkSession, rounds: DataFrame, results: Sequence[tuple[Run, ScenarioResult]]
) -> list[Summary]:
    from pyspark.sql import functions as F

    whole = session.createDataFrame(
        [
            (
                place,
                *_key(result),
                result.title,
                None if result.aim_s is None else float(result.aim_s),
                None if result.read_aim_s is None else float(result.read_aim_s),
                *(result.acked, result.sent, result.violations, result.errors),
            )
            for place, (_, result) in enumerate(results)
        ],
        _RESULT_SCHEMA,
    ).cache()
    times = (
        rounds.withColumn("longest_gap_s", F.coalesce("gap_s", "written_gap_s"))
        .groupBy(*KEY)
        .agg(
            F.count("*").alias("rounds"),
            F.count_if(F.col("whole_s").isNull()).alias("never_whole"),
            _spread("longest_gap_s").alias("gap"),
            _spread("read_gap_s").alias("reads"),
            _spread("whole_s").alias("whole"),
            F.array_sort(F.collect_set("seed")).alias("seeds"),
        )
    )
    counts = whole.groupBy(*KEY).agg(
        F.min("place").alias("place"),
        *(F.max_by(name, "place").alias(name) for name in ("title", "aim_s", "read_aim_s")),
        *(F.sum(name).alias(name) for name in ("acked", "sent")),
    )
    try:
        rows = counts.join(times, list(KEY), "left").collect()
        tallies = _tallies(whole, "violations", "errors")
    finally:
        whole.unpersist()
    # The order of the run; systems beside each other.
    order: dict[tuple[object, ...], int] = {}
    for row in rows:
        shared = tuple(row[name] for name in KEY[:-1])
        order[shared] = min(order.get(shared, row["place"]), row["place"])
    rows.sort(key=lambda row: (order[tuple(row[name] for name in KEY[:-1])], row["system"] != "ours"))
    return [_summary(row, tallies["violations"], tallies["errors"]) for row in rows]


def _tallies(results: DataFrame, *columns: str) -> dict[str, dict[Any, dict[str, int]]]:
    """Of each column of maps: the sums of their values, by what a row of the report is about."""
    from pyspark.sql import functions as F

    parts = [
        results.select(*KEY, F.lit(name).alias("of"), F.explode(name).alias("kind", "times"))
        for name in columns
    ]
    together = reduce(type(results).unionByName, parts).groupBy(*KEY, "of", "kind")
    found: dict[str, dict[Any, dict[str, int]]] = {name: {} for name in columns}
    rows = together.agg(F.sum("times").alias("times")).collect()
    for row in sorted(rows, key=lambda row: (-row["times"], row["kind"])):
        by_kind = found[row["of"]].setdefault(tuple(row[name] for name in KEY), {})
        by_kind[row["kind"]] = row["times"]
    return found


def _summary(
    row: Row, violations: Mapping[Any, dict[str, int]], errors: Mapping[Any, dict[str, int]]
) -> Summary:
    key = tuple(row[name] for name in KEY)

    def spread(name: str) -> Spread | None:
        return None if row[name] is None else Spread(*row[name])

    return Summary(
        **_named(row, KEY),
        title=row["title"] or row["scenario"],
        seeds=tuple(row["seeds"] or ()),
        rounds=row["rounds"] or 0,
        acked=row["acked"],
        sent=row["sent"],
        aim_s=row["aim_s"],
        read_aim_s=row["read_aim_s"],
        gap=spread("gap"),
        reads=spread("reads"),
        whole=spread("whole"),
        never_whole=row["never_whole"] or 0,
        violations=violations.get(key, {}),
        errors=errors.get(key, {}),
    )


def _round(row: Row, run: Run, result: ScenarioResult) -> Round:
    return Round(
        directory=str(run.directory),
        tolerance_s=OPEN_TOLERANCE_S if row["open"] and not result.load_s else TOLERANCE_S,
        **_named(row, KEY),
        **_named(
            row, ("seed", "number", "fault", "gap_s", "acked", "written_gap_s", "read_gap_s", "whole_s")
        ),
    )


def _named(row: Row, names: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _notes(
    rows: Sequence[Row], results: Sequence[tuple[Run, ScenarioResult]], files: Mapping[Path, int]
) -> Iterator[str]:
    there = set(files.values())
    computed = {row["place"]: row["all_acked"] for row in rows if row["gap_s"] is not None}
    for place, (run, result) in enumerate(results):
        path = history_of(run.directory, result)
        if path is None or not result.rounds:
            continue
        if place not in there:
            yield f"{path} is missing: its gaps are those of results.json"
        elif place not in computed:
            yield f"{path} is of another time than results.json, whose gaps are shown"
        elif result.load == "plain" and computed[place] != result.acked:
            found = counted(computed[place], "acknowledgement")
            yield f"{path} has {found}, results.json has {result.acked:,}"
