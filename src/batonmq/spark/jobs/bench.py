"""bench: several runs of benchmarks together: what each system reached, and pass by pass beside its peer.

Benchmarks write figures (`Figure`), either as JSON lines or as the list ``figures`` of one JSON object, which
may hold more. Passes of one run are compared with each other: a machine's speed changes between runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

OURS: Final = "BatonMQ"
"""Systems whose names begin with it are ours; the others are peers."""
_SCHEMA: Final = (
    "place int, benchmark string, figure string, unit string, system string, run string, number int, "
    "value double"
)
_GROUP: Final = ("benchmark", "figure", "unit")


class Unreadable(ValueError):
    """A file that cannot be used; the text names it and says why."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What one system reached in one run of a benchmark."""

    benchmark: str
    """With what must be the same for runs to be comparable, such as the number of replicas."""
    figure: str
    """What was measured."""
    unit: str
    system: str
    passes: Annotated[list[float], msgspec.Meta(min_length=1)]
    """One value of each pass or round, in their order."""


class _File(msgspec.Struct):
    figures: Annotated[list[Figure], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A figure, and the run that it is from."""

    run: str
    """The file; a file to which several runs were appended has several."""
    figure: Figure


@dataclass(frozen=True, slots=True)
class Spread:
    """Of all passes of all runs, or of ratios."""

    count: int
    median: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the peer's figure ours is."""

    peer: str
    values: Spread
    paired: bool
    """Pass by pass. Otherwise of medians: of runs in which the systems had different numbers of passes, or of
    all passes if no run has both."""


@dataclass(frozen=True, slots=True)
class Reached:
    """One figure of one system."""

    benchmark: str
    figure: str
    unit: str
    system: str
    runs: int
    values: Spread
    ratios: tuple[Ratio, ...] = ()
    """To each peer; none of a peer itself."""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


# -- files


def read(paths: Sequence[Path]) -> list[Measurement]:
    """Raises `Unreadable`."""
    found = []
    for path in paths:
        seen: Counter[tuple[str, ...]] = Counter()
        for figure in _figures(path):
            key = figure.benchmark, figure.figure, figure.unit, figure.system
            seen[key] += 1
            found.append(Measurement(str(path) if seen[key] == 1 else f"{path} #{seen[key]}", figure))
    return found


def _figures(path: Path) -> list[Figure]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}") from None
    if not data.strip():
        raise Unreadable(f"{path} is empty")
    try:
        whole: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) < 2 or not lines[0].endswith(b"}"):
            raise Unreadable(f"{path} is not JSON: {error}") from None
        return [_line(path, number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
    try:
        if isinstance(whole, dict) and "figures" in whole:
            return msgspec.convert(whole, _File).figures
        if isinstance(whole, dict) and "figure" in whole:
            return [msgspec.convert(whole, Figure)]
    except msgspec.ValidationError as error:
        raise Unreadable(f"{path} has no figures of a benchmark: {error}") from None
    raise Unreadable(f"{path} has no figures of a benchmark: write it again with this version's benchmark")


def _line(path: Path, number: int, line: bytes) -> Figure:
    try:
        return msgspec.json.decode(line, type=Figure)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}, line {number}, is not a figure of a benchmark: {error}") from None


def as_json(figures: Sequence[Figure]) -> dict[str, object]:
    """What a benchmark adds to the JSON object that it writes."""
    return {"figures": msgspec.to_builtins(figures)}


def as_line(figure: Figure) -> str:
    """What a benchmark that writes JSON lines prints."""
    return msgspec.json.encode(figure).decode()


# -- words


def text(median: float, least: float, greatest: float, form: str | None = None) -> str:
    """Median (least … greatest). `form`: of each number; None: as many digits as the median needs."""
    form = form or form_of(median)
    return f"{median:{form}} ({least:{form}} … {greatest:{form}})"


def form_of(value: float) -> str:
    """Three digits, or all before the point."""
    size = abs(value)
    return ",.0f" if size >= 100 or size == 0 else ".1f" if size >= 10 else ".2f" if size >= 1 else ".3f"


# -- with Spark


def measure(session: SparkSession, measurements: Sequence[Measurement]) -> list[Reached]:
    """By benchmark and figure, in the order of the files; peers first."""
    samples = session.createDataFrame(list(_rows(measurements)), _SCHEMA).cache()
    try:
        reached = _reached(samples).collect()
        ratios = _ratios(samples).collect()
    finally:
        samples.unpersist()
    by_system: dict[tuple[object, ...], list[Ratio]] = {}
    for row in sorted(ratios, key=lambda row: row["peer"]):
        spread = _spread(row)
        key = tuple(row[name] for name in (*_GROUP, "system"))
        by_system.setdefault(key, []).append(Ratio(row["peer"], spread, row["paired"]))
    order: dict[tuple[str, ...], int] = {}
    for number, each in enumerate(measurements):
        order.setdefault((each.figure.benchmark, each.figure.figure, each.figure.unit), number)
    found = [
        Reached(
            **{name: row[name] for name in (*_GROUP, "system", "runs")},
            values=_spread(row),
            ratios=tuple(by_system.get(tuple(row[name] for name in (*_GROUP, "system")), ())),
        )
        for row in reached
    ]
    found.sort(key=lambda e: (order[e.benchmark, e.figure, e.unit], is_ours(e.system), e.system))
    return [_with_medians(each, found) for each in found]


def _with_medians(ours: Reached, all_reached: Sequence[Reached]) -> Reached:
    """With the ratio of the medians to each peer that was measured only in other runs."""
    if not is_ours(ours.system):
        return ours
    known = {ratio.peer for ratio in ours.ratios}
    more = []
    for its in all_reached:
        same = (its.benchmark, its.figure, its.unit) == (ours.benchmark, ours.figure, ours.unit)
        if same and not is_ours(its.system) and its.system not in known and its.values.median:
            ratio = ours.values.median / its.values.median
            more.append(Ratio(its.system, Spread(1, ratio, ratio, ratio), paired=False))
    return replace(ours, ratios=(*ours.ratios, *more))


def is_ours(system: str) -> bool:
    return system.startswith(OURS)


def _rows(measurements: Sequence[Measurement]) -> Iterator[tuple[object, ...]]:
    for place, each in enumerate(measurements):
        figure = each.figure
        for number, value in enumerate(figure.passes):
            yield (
                place,
                *(figure.benchmark, figure.figure, figure.unit, figure.system),
                *(each.run, number, float(value)),
            )


def _spread(row: Row) -> Spread:
    return Spread(row["count"], row["median"], row["least"], row["greatest"])


def _reached(samples: DataFrame) -> DataFrame:
    """Each figure of each system over all runs."""
    from pyspark.sql import functions as F

    return samples.groupBy(*_GROUP, "system").agg(
        F.count_distinct("run").alias("runs"),
        F.count("value").alias("count"),
        F.percentile("value", 0.5).alias("median"),
        F.min("value").alias("least"),
        F.max("value").alias("greatest"),
    )


def _ratios(samples: DataFrame) -> DataFrame:
    """``…, system, peer, paired, count, median, least, greatest``: of ours to each peer.

    Passes of the same run and number are a pair if both systems had as many. Otherwise the medians of a run
    are one. A figure with pairs of passes in some runs has only these."""
    from pyspark.sql import functions as F

    runs = samples.groupBy(*_GROUP, "run", "system").agg(
        F.count("*").alias("passes"), F.percentile("value", 0.5).alias("middle")
    )
    passes = samples.join(runs, [*_GROUP, "run", "system"]).select(
        *_GROUP, "run", "system", "passes", "number", "value"
    )
    ours = F.col("system").startswith(OURS)

    def peers(frame: DataFrame, *values: str) -> DataFrame:
        renamed = {"system": "peer", **{name: f"its_{name}" for name in values}}
        return frame.where(~ours).withColumnsRenamed(renamed)

    both = [*_GROUP, "run"]
    in_passes = (
        passes.where(ours)
        .join(peers(passes, "value"), [*both, "passes", "number"])
        .select(*_GROUP, "system", "peer", F.lit(True).alias("paired"), *_ratio("value"))
    )
    in_runs = (
        runs.where(ours)
        .join(peers(runs, "passes", "middle"), both)
        .where("passes <> its_passes")
        .select(*_GROUP, "system", "peer", F.lit(False).alias("paired"), *_ratio("middle"))
    )
    found = (
        in_passes.unionByName(in_runs)
        .where(F.col("ratio").isNotNull())
        .groupBy(*_GROUP, "system", "peer", "paired")
        .agg(
            F.count("ratio").alias("count"),
            F.percentile("ratio", 0.5).alias("median"),
            F.min("ratio").alias("least"),
            F.max("ratio").alias("greatest"),
        )
    )
    columns = ("paired", "count", "median", "least", "greatest")
    best = found.groupBy(*_GROUP, "system", "peer").agg(F.max_by(F.struct(*columns), "paired").alias("best"))
    return best.select(*_GROUP, "system", "peer", "best.*")


def _ratio(name: str) -> list[Any]:
    """Null if the peer's value is 0."""
    from pyspark.sql import functions as F

    return [F.try_divide(F.col(name), F.col(f"its_{name}")).alias("ratio")]
