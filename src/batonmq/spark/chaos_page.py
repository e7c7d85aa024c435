"""The page of `batonmq spark chaos-report`: verdict, tables and plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from batonmq.common.plots import BLUE, GREEN, GREY
from batonmq.common.plural import counted
from batonmq.spark import report
from batonmq.spark.jobs.chaos_results import WRONG, cluster_title, seconds, system_title, wrong

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from batonmq.spark.jobs.chaos import Measured, Round, Run, Spread, Summary

Kind = tuple[str, int, str]
"""Kind of cluster, replicas, and what clients did."""
LEAST_S: Final = 0.001
"""Shorter times are drawn here: the axis is logarithmic."""
REASONS: Final = 3
"""Most reasons of errors in a table."""
OURS: Final = "ours"


def kinds(summaries: Sequence[Summary]) -> dict[Kind, list[Summary]]:
    found: dict[Kind, list[Summary]] = {}
    for each in summaries:
        found.setdefault((each.groups, each.replicas, each.load), []).append(each)
    return found


def head(kind: Kind) -> str:
    groups, replicas, load = kind
    return cluster_title(replicas, groups) + ("" if load == "plain" else f", {load}")


def verdict(measured: Measured, runs: int) -> str:
    bad = [each for each in measured.summaries if each.lost]
    acked = sum(each.acked for each in measured.summaries if each.replicas)
    agree = sum(each.gap_s is not None and not each.differs for each in measured.rounds)
    rounds = f"{counted(len(measured.rounds), 'round')} in {counted(runs, 'run')}"
    if bad:
        cases = "; ".join(f"{_name(each)}: {_kinds(each)}" for each in bad)
        text = f"What was acknowledged was not kept. {cases}."
    else:
        text = f"Nothing acknowledged was lost: {counted(acked, 'message')}, {rounds}."
    others = sum(sum(each.violations.values()) - each.lost for each in measured.summaries)
    if others:
        text += f" Other things that must not be: {others}."
    computed = sum(each.gap_s is not None for each in measured.rounds)
    if computed:
        text += " The gaps computed from histories agree with results.json in "
        text += f"{agree:,} of {counted(computed, 'round')}."
    return text


def _name(each: Summary) -> str:
    return f"{system_title(each.system)}, {head((each.groups, each.replicas, each.load))}, {each.title}"


def _kinds(each: Summary) -> str:
    return ", ".join(f"{kind.replace('_', ' ')} × {count}" for kind, count in each.violations.items())


# -- tables


def tables(measured: Measured) -> list[report.Table]:
    found = [
        table
        for kind, summaries in kinds(measured.summaries).items()
        for table in (_sends(kind, summaries), _others(kind, summaries), _checked(kind, summaries))
    ]
    return [*found, *_wrong(measured), *_different(measured)]


def _system(each: Summary | Round) -> str:
    return system_title(each.system).removeprefix("Apache ")


def _cells(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return "–", "–", "–"
    return seconds(spread.median), seconds(spread.p90), seconds(spread.max)


def _sends(kind: Kind, summaries: Sequence[Summary]) -> report.Table:
    rows = [
        (
            *(each.title, _system(each), str(each.rounds), *_cells(each.gap)),
            "–" if each.aim_s is None else f"{each.aim_s:g} s",
        )
        for each in summaries
    ]
    columns = ("scenario", "system", "rounds", "median", "p90", "max", "aim")
    return report.Table(f"{head(kind)}: longest time without an acknowledged send", columns, rows)


def _others(kind: Kind, summaries: Sequence[Summary]) -> report.Table:
    looked = any(each.reads for each in summaries)
    columns = (
        *("scenario", "system"),
        *(("reads median", "p90", "max") if looked else ()),
        *("whole median", "p90", "max"),
    )
    rows = []
    for each in summaries:
        median, p90, longest = _cells(each.whole)
        if each.never_whole:
            longest = f"never × {each.never_whole}"
        reads = _cells(each.reads) if looked else ()
        rows.append((each.title, _system(each), *reads, median, p90, longest))
    what = "longest time without a read; " if looked else ""
    return report.Table(f"{head(kind)}: {what}time from the repair until all was whole", columns, rows)


def _checked(kind: Kind, summaries: Sequence[Summary]) -> report.Table:
    rows = []
    for each in summaries:
        reasons = [f"{reason} × {count:,}" for reason, count in list(each.errors.items())[:REASONS]]
        more = ["…"] if len(each.errors) > REASONS else []
        rows.append(
            (
                *(each.title, _system(each), ", ".join(map(str, each.seeds))),
                *(f"{each.acked:,}", f"{each.sent - each.acked:,}"),
                _kinds(each) or "–",
                ", ".join([*reasons, *more]) or "–",
            )
        )
    columns = ("scenario", "system", "seeds", "acknowledged", "not", "violations", "errors")
    return report.Table(f"{head(kind)}: what was sent and checked", columns, rows)


def _wrong(measured: Measured) -> Iterator[report.Table]:
    systems = sorted({each.system for each in measured.summaries}, key=lambda system: system != OURS)
    if not systems:
        return
    by_system = [
        wrong(
            violation
            for each in measured.summaries
            if each.system == system
            for violation in each.violations.items()
        )
        for system in systems
    ]
    labels = dict.fromkeys([*WRONG, *(label for counts in by_system for label in counts)])
    rows = [(label, *(f"{counts.get(label, 0):,}" for counts in by_system)) for label in labels]
    yield report.Table("What must not be", ("", *map(system_title, systems)), rows)


def _different(measured: Measured) -> Iterator[report.Table]:
    if not measured.different:
        return
    rows = [
        (
            *(each.directory, head((each.groups, each.replicas, each.load)), _system(each)),
            *(each.scenario, f"{each.number}: {each.fault}"),
            *(seconds(each.gap_s), seconds(each.written_gap_s)),
        )
        for each in measured.different
    ]
    columns = ("run", "cluster", "system", "scenario", "round", "history", "results.json")
    yield report.Table("Rounds whose history and results.json differ", columns, rows)


def footer(measured: Measured, runs: Sequence[Run]) -> str:
    """What a reader of the page must know beside it."""
    without = sum(each.gap_s is None for each in measured.rounds)
    parts = [
        "Median, p90 (nearest rank) and max are over the rounds of all runs.",
        *(
            [
                counted(
                    without,
                    "round has no history: its gap is that",
                    "rounds have no history: their gaps are those",
                )
                + " of results.json."
            ]
            if without
            else []
        ),
        *(f"{note}." for note in measured.notes),
        *(f"{run.directory}: {run.results.where}." for run in runs),
    ]
    return " ".join(parts)


# -- plots


def plots(measured: Measured) -> list[Figure]:
    """For each kind of cluster the gaps of sends, and of reads if somebody looked: one dot a round."""
    found = []
    for kind, summaries in kinds(measured.summaries).items():
        mine = [each for each in measured.rounds if (each.groups, each.replicas, each.load) == kind]
        what = "longest time without an acknowledged send"
        found.append(_dots(f"{head(kind)}: {what}", summaries, mine, reads=False))
        if any(each.read_gap_s is not None for each in mine):
            title = f"{head(kind)}: longest time without a read"
            found.append(_dots(title, summaries, mine, reads=True))
    return found


def _dots(title: str, summaries: Sequence[Summary], rounds: Sequence[Round], *, reads: bool) -> Figure:
    rows = list(dict.fromkeys(each.scenario for each in summaries))
    titles = {each.scenario: each.title for each in summaries}
    systems = sorted({each.system for each in summaries}, key=lambda system: system != OURS)
    figure = report.new_figure(1.0 + 0.38 * len(rows))
    axes = figure.subplots()
    for number, system in enumerate(systems):
        shift = (number - (len(systems) - 1) / 2) * 0.3
        points = [
            (max(LEAST_S, gap_s), rows.index(each.scenario) + shift)
            for each in rounds
            if each.system == system
            for gap_s in [each.read_gap_s if reads else each.longest_gap_s]
            if gap_s is not None
        ]
        axes.scatter(
            [point[0] for point in points],
            [point[1] for point in points],
            s=18,
            alpha=0.75,
            linewidths=0,
            color=BLUE if system == OURS else GREY,
            label=system_title(system),
        )
    _aims(axes, rows, summaries, reads=reads)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g} s")
    axes.set_yticks(range(len(rows)), [titles[row] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.4)
    axes.set_title(title)
    figure.legend(
        loc="outside lower center", ncols=3, fontsize=8, frameon=False, title="a dot for each round"
    )
    return figure


def _aims(axes: Axes, rows: Sequence[str], summaries: Sequence[Summary], *, reads: bool) -> None:
    aims = {each.scenario: each.read_aim_s if reads else each.aim_s for each in summaries}
    marked = [(max(LEAST_S, aim_s), rows.index(name)) for name, aim_s in aims.items() if aim_s is not None]
    if marked:
        axes.vlines(
            [aim_s for aim_s, _ in marked],
            [row - 0.4 for _, row in marked],
            [row + 0.4 for _, row in marked],
            color=GREEN,
            linewidth=1.5,
            label="aim",
        )
