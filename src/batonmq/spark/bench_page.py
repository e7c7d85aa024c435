"""The page of `batonmq spark bench-report`: tables and plots."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from batonmq.common.plots import BLUE, GREEN, GREY, RED
from batonmq.common.plural import counted
from batonmq.spark import report
from batonmq.spark.jobs.bench import is_ours, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

    from batonmq.spark.jobs.bench import Measurement, Ratio, Reached

OURS_COLORS, PEER_COLORS = (BLUE, GREEN), (GREY, RED)
LABEL_LENGTH = 60
"""Characters beside a plot."""


def by_benchmark(reached: Sequence[Reached]) -> dict[str, list[Reached]]:
    found: dict[str, list[Reached]] = {}
    for each in reached:
        found.setdefault(each.benchmark, []).append(each)
    return found


def verdict(reached: Sequence[Reached], files: int) -> str:
    figures = len({(each.benchmark, each.figure, each.unit) for each in reached})
    ratios = [ratio for each in reached for ratio in each.ratios]
    paired = sum(ratio.paired for ratio in ratios)
    beside = f"{len(ratios)} beside a peer, {paired} of them pass by pass" if ratios else "none beside a peer"
    return f"{counted(figures, 'figure')} of {counted(files, 'file')}, {beside}."


def tables(reached: Sequence[Reached]) -> list[report.Table]:
    columns = ("figure", "system", "runs", "passes", "median (least … greatest)", "times the peer's")
    return [
        report.Table(
            benchmark,
            columns,
            [
                (
                    *(each.figure, each.system, str(each.runs), str(each.values.count)),
                    text(each.values.median, each.values.least, each.values.greatest) + f" {each.unit}",
                    "; ".join(_ratio(ratio, alone=len(each.ratios) == 1) for ratio in each.ratios),
                )
                for each in mine
            ],
        )
        for benchmark, mine in by_benchmark(reached).items()
    ]


def _ratio(ratio: Ratio, *, alone: bool) -> str:
    values = ratio.values
    shown = (
        text(values.median, values.least, values.greatest, ".2f")
        if values.count > 1
        else (f"{values.median:.2f}")
    )
    return ("" if alone else f"{ratio.peer}: ") + shown + ("" if ratio.paired else ", of medians")


def plots(measurements: Sequence[Measurement], reached: Sequence[Reached]) -> list[Plot]:
    """For each benchmark every pass of every figure, as times the peer's median: one scale fits all units."""
    values: dict[tuple[str, ...], list[float]] = {}
    for each in measurements:
        figure = each.figure
        key = figure.benchmark, figure.figure, figure.unit, figure.system
        values.setdefault(key, []).extend(figure.passes)
    found = [_plot(name, mine, values) for name, mine in by_benchmark(reached).items()]
    return [plot for plot in found if plot is not None]


def _plot(
    benchmark: str, reached: Sequence[Reached], values: Mapping[tuple[str, ...], Sequence[float]]
) -> Plot | None:
    rows: dict[tuple[str, str], list[Reached]] = {}
    for each in reached:
        rows.setdefault((each.figure, each.unit), []).append(each)
    references = {key: _reference(mine) for key, mine in rows.items()}
    shown = [key for key in rows if references[key]]
    if not shown:
        return None
    systems = list(dict.fromkeys(each.system for each in reached))
    colors = {
        system: colors[number % len(colors)]
        for ours, colors in ((True, OURS_COLORS), (False, PEER_COLORS))
        for number, system in enumerate(system for system in systems if is_ours(system) is ours)
    }
    plot = report.new_figure(1.2 + 0.34 * len(shown))
    axes = plot.subplots()
    for number, system in enumerate(systems):
        shift = (number - (len(systems) - 1) / 2) * 0.6 / len(systems)
        points = [
            (value / references[figure, unit], row + shift)
            for row, (figure, unit) in enumerate(shown)
            for value in values.get((benchmark, figure, unit, system), ())
            if value > 0
        ]
        axes.scatter(
            [point[0] for point in points],
            [point[1] for point in points],
            s=14,
            alpha=0.7,
            linewidths=0,
            color=colors[system],
            label=system,
        )
    axes.axvline(1, color=GREY, linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(shown)), [_label(f"{figure}, {unit}") for figure, unit in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.4)
    axes.set_title(f"{benchmark}: every pass")
    axes.set_xlabel("times the peer's median; where no peer was measured, times the median")
    plot.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return plot


def _reference(mine: Sequence[Reached]) -> float:
    """The peers' median, or ours if there is no peer; 0 if there is nothing to compare with."""
    peers = [each.values.median for each in mine if not is_ours(each.system)]
    return statistics.median(peers or [each.values.median for each in mine])


def _label(name: str) -> str:
    return name if len(name) <= LABEL_LENGTH else f"{name[: LABEL_LENGTH - 1]}…"
