"""docs/reports/chaos.md: the figures between two marks, and the plots beside them. The text around is written
by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from batonmq.common.plots import BLUE, GREY, RED, STYLE
from batonmq.spark.jobs.chaos_results import SYSTEMS, WRONG, cluster_title, seconds, wrong
from tests.chaos.report import scenario_of, slowest, where, worst
from tests.chaos.results import BUCKET_S, Result
from tests.chaos.scenarios import CLASSIC, CONTAINERS, CONTROLLERS_ALONE, GROUP, Scenario

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
FIXED_BEGIN, FIXED_END = "<!-- figures without controllers -->", "<!-- /figures without controllers -->"
IMAGES = "../images"
"""Where the plots are, as seen from the page."""
DPI = 110
PLOT_BUCKETS = 2
"""Buckets of a result that make one of the plot."""
TITLE_WIDTH = 62
"""Characters over a plot."""

Column = tuple[str, int]
"""System and replicas."""


class Part(NamedTuple):
    """One table and one plot."""

    name: str
    groups: str
    columns: list[Column]
    scenarios: list[Scenario]

    def head(self, column: Column) -> str:
        return f"{SYSTEMS[column[0]]}, {cluster_title(column[1], self.groups)}"

    @property
    def reads(self) -> bool:
        return self.groups != "controllers"


def write_page(page: Path, images: Path, results: Sequence[Result]) -> None:
    """Replace the figures in `page` and draw its plots; those of kinds of clusters without results stay.

    Raises `ValueError` if it has no place for them."""
    plain = [result for result in results if result.load == "plain"]
    for first, last, fixed in ((BEGIN, END, False), (FIXED_BEGIN, FIXED_END, True)):
        mine = [result for result in plain if (result.groups != "controllers") is fixed]
        if not mine:
            continue
        before, begin, rest = page.read_text().partition(first)
        _, end, after = rest.partition(last)
        if not (begin and end):
            raise ValueError(f"{page} has no lines {first} and {last}")
        page.write_text(f"{before}{first}\n{markdown(mine)}{last}{after}")
        for part in parts(mine):
            draw(mine, part).savefig(images / f"chaos-{part.name}.png", dpi=DPI)


def parts(results: Sequence[Result]) -> list[Part]:
    """Groups with controllers, controllers alone, and groups without controllers."""
    found = []
    for name, groups, scenarios in (
        ("groups", "controllers", GROUP),
        ("controllers", "controllers", CONTROLLERS_ALONE),
        ("classic", "classic", CLASSIC),
        ("containers", "containers", CONTAINERS),
    ):
        names = {scenario.name for scenario in scenarios}
        mine = [result for result in results if result.groups == groups and result.scenario in names]
        columns = {(result.system, result.replicas) for result in mine}
        ran = {result.scenario for result in mine}
        if columns:
            ordered = sorted(columns, key=lambda column: (column[1], column[0] != "ours"))
            found.append(Part(name, groups, ordered, [each for each in scenarios if each.name in ran]))
    return found


def markdown(results: Sequence[Result]) -> str:
    """Of several seeds the cells have the longest times."""
    lines: list[str] = []
    for part in parts(results):
        heads = " | ".join(map(part.head, part.columns))
        lines += [f"| | aim | {heads} |", f"| --- | ---: |{' ---: |' * len(part.columns)}"]
        for scenario in part.scenarios:
            aims = [scenario.aim_s, *([scenario.read_aim_s] if part.reads else [])]
            aim = " / ".join("–" if each is None else f"{each:g} s" for each in aims)
            cells = " | ".join(
                cell([each for each in results if each.key == (part.groups, *column, scenario.name)])
                for column in part.columns
            )
            lines.append(f"| {scenario.title} | {aim} | {cells} |")
        lines += ["", f"![acknowledgements over time]({IMAGES}/chaos-{part.name}.png)", ""]
    systems = [system for system in SYSTEMS if any(result.system == system for result in results)]
    lines += [f"| | {' | '.join(SYSTEMS[system] for system in systems)} |"]
    lines += [f"| --- |{' ---: |' * len(systems)}"]
    for label, counts in tallies(results, systems):
        if "controllers" in label and not any(result.groups == "controllers" for result in results):
            continue
        lines.append(f"| {label} | {' | '.join(f'{count:,}' for count in counts)} |")
    seeds = ", ".join(map(str, sorted({result.seed for result in results})))
    lines += ["", f"Seed {seeds}; measured on {where()}."]
    return "\n".join(lines) + "\n"


def cell(results: Sequence[Result]) -> str:
    """Longest time without acknowledgement, without a read if somebody looked, and time until whole again."""
    if not results:
        return "–"
    gap_s = max(result.longest_gap_s for result in results)
    read_gaps = [each.longest_read_gap_s for each in results if each.longest_read_gap_s is not None]
    reads = f"{seconds(max(read_gaps))} / " if read_gaps else ""
    return f"{seconds(gap_s)} / {reads}{seconds(slowest(results))}"


def tallies(results: Sequence[Result], systems: Sequence[str]) -> list[tuple[str, list[int]]]:
    """What was checked and what was wrong, by system."""

    def total(value: str, *, alone: bool) -> list[int]:
        return [
            sum(getattr(r, value) for r in results if r.system == system and (r.replicas == 0) == alone)
            for system in systems
        ]

    rows = [
        ("messages acknowledged and checked", total("acked", alone=False)),
        ("stored twice by sends that were repeated (allowed)", total("duplicated", alone=False)),
        ("changes that controllers granted", total("acked", alone=True)),
    ]
    found = [
        wrong(each for r in results if r.system == system for each in r.violations.items())
        for system in systems
    ]
    labels = dict.fromkeys([*WRONG, *(label for counts in found for label in counts)])
    rows += [(f"**{label}**", [counts.get(label, 0) for counts in found]) for label in labels]
    return rows


def draw(results: Sequence[Result], part: Part) -> Figure:
    """A row for each scenario, a column for each cluster: acknowledgements over time, faults in red. Of
    several seeds the one with the longest time without an acknowledgement."""
    by_key = worst(results)
    columns, scenarios = part.columns, part.scenarios
    with mpl.rc_context({**STYLE, "font.size": 7, "axes.titlesize": 7}):
        figure = Figure(figsize=(3.6 * len(columns), 0.95 * len(scenarios)), layout="constrained")
        grid = figure.subplots(len(scenarios), len(columns), squeeze=False)
        for row, scenario in zip(grid, scenarios, strict=True):
            for axes, column in zip(row, columns, strict=True):
                result = by_key.get((part.groups, *column, scenario.name))
                if result is None:
                    axes.set_axis_off()
                else:
                    timeline(axes, result)
        for axes, column in zip(grid[0], columns, strict=True):
            axes.set_title(f"{part.head(column)}\n{axes.get_title(loc='left')}", loc="left")
        for axes in grid[-1]:
            axes.set_xlabel("seconds")
    return figure


def timeline(axes: Axes, result: Result) -> None:
    counts = np.array(result.acks)
    counts = counts[: len(counts) // PLOT_BUCKETS * PLOT_BUCKETS].reshape(-1, PLOT_BUCKETS).sum(axis=1)
    width_s = BUCKET_S * PLOT_BUCKETS
    edges = np.arange(len(counts)) * width_s
    axes.fill_between(edges, counts / width_s, step="post", color=BLUE, alpha=0.75, linewidth=0)
    for entry in result.rounds:
        axes.axvspan(entry.struck_s, entry.healed_s, color=RED, alpha=0.15, linewidth=0)
        if entry.whole_s:
            axes.axvspan(entry.healed_s, entry.healed_s + entry.whole_s, color=GREY, alpha=0.2, linewidth=0)
    title = scenario_of(result).title
    text = textwrap.fill(f"{title}: {seconds(result.longest_gap_s)}", TITLE_WIDTH)
    axes.set_title(text, fontweight="normal")
    axes.set_xlim(0, len(counts) * width_s)
    axes.set_ylim(0)
    axes.set_yticks([])
