"""docs/reports/controller-performance.md: the figures between two marks, and the plots beside them.

The text around is written by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from batonmq.common.plots import BLUE, GREY, RED, STYLE
from benchmarks import report
from benchmarks.controller.group import BARE, DLEDGER, JRAFT, KINDS, OURS, OURS_LEASE
from benchmarks.failover import percentile

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "reports" / "controller-performance.md"
IMAGES = DOCS / "images"
DPI = 110
PHASES = {
    "alter": "AlterSyncStateSet",
    "read": "getReplicaInfo",
    "heartbeat": "heartbeats, answered",
    "oneway": "heartbeats, oneway",
    "bring-up": "broker sets brought up",
}
AIMS = {"alter": 8_000, "read": 15_000, "heartbeat": 20_000, "oneway": 20_000, "bring-up": 500}
"""Requests a second, 64 sets, three controllers."""

Found = Mapping[str, Any]
"""What `python -m benchmarks.controller --json` writes: part -> figures."""


def write(found: Found) -> None:
    """Replace the figures of the page and draw its plots. Raises `ValueError` if it has no place for them."""
    lines: list[str] = []
    for part, (describe, draw) in SECTIONS.items():
        if part in found:
            draw(found[part]).savefig(IMAGES / f"controller-{part}.png", dpi=DPI)
            lines += [*describe(found[part]), "", f"![{part}](../images/controller-{part}.png)", ""]
    report.put(PAGE, "\n".join([*lines, report.measured_on()]) + "\n")


def _figure(width: float = 7.0, height: float = 2.6) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


# -- the same load for all -----------------------------------------------------------------------------------


def _kinds(load: Found) -> list[str]:
    return [kind for kind in KINDS if kind in load]


def _phases(load: Found) -> dict[str, str]:
    """Those that all kinds have: figures of different runs do not go side by side."""
    return {
        phase: label for phase, label in PHASES.items() if all(phase in load[kind] for kind in _kinds(load))
    }


def _load_table(load: Found) -> list[str]:
    kinds = _kinds(load)
    lines = [f"| requests a second | {' | '.join(kinds)} | aim |", "| --- |" + " ---: |" * (len(kinds) + 1)]
    for phase, label in _phases(load).items():
        cells = [f"{load[kind][phase]['per_s']:,.0f}" for kind in kinds]
        lines.append(f"| {label} | {' | '.join(cells)} | {AIMS[phase]:,} |")
        latencies = [
            f"{load[kind][phase]['p50_ms']:.1f} / {load[kind][phase]['p99_ms']:.1f}" for kind in kinds
        ]
        lines.append(f"| · p50 / p99, ms | {' | '.join(latencies)} | |")
    return lines


COLOURS = {OURS: BLUE, OURS_LEASE: "#90cdf4", DLEDGER: GREY, JRAFT: "#cbd5e0", BARE: "white"}


def _draw_load(load: Found) -> Figure:
    with mpl.rc_context(STYLE):
        figure = _figure()
        axes = figure.subplots()
        kinds = _kinds(load)
        width = 0.8 / len(kinds)
        for place, kind in enumerate(kinds):
            phases = _phases(load)
            at = np.arange(len(phases)) + (place - (len(kinds) - 1) / 2) * width
            rates = [load[kind][phase]["per_s"] for phase in phases]
            bars = axes.bar(at, rates, width, color=COLOURS[kind], edgecolor=GREY, label=kind)
            axes.bar_label(bars, fmt="{:,.0f}", fontsize=6)
        axes.set_yscale("log")
        axes.set_xticks(
            range(len(phases)), [textwrap.fill(each, 14, break_long_words=False) for each in phases.values()]
        )
        axes.set(title="64 broker sets, three controllers", ylabel="a second")
        axes.legend(frameon=False)
    return figure


# -- scale ---------------------------------------------------------------------------------------------------


def _curve_table(points: list[Found]) -> list[str]:
    lines = [
        "| broker sets | heartbeats a second to each controller | leader | followers | load generator "
        "| leader's memory | replicas lost |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in points:
        followers = " + ".join(f"{percent:.0f}" for percent in point["follower_percent"])
        lines.append(
            f"| {point['sets']:,} | {point['beats_per_s']:,.0f} | {point['leader_percent']:.0f} % "
            f"| {followers} % | {point['brokers_percent']:.0f} % | {point['leader_mb']:.0f} MB "
            f"| {point['silent']} |"
        )
    return lines


def _draw_curve(points: list[Found]) -> Figure:
    with mpl.rc_context(STYLE):
        figure = _figure()
        axes = figure.subplots()
        sets = [point["sets"] for point in points]
        axes.plot(sets, [point["leader_percent"] for point in points], "o-", color=BLUE, label="leader")
        followers = [np.mean(point["follower_percent"]) for point in points]
        axes.plot(sets, followers, "o-", color=GREY, label="a follower (mean)")
        axes.set(
            title="Processor time by number of broker sets", xlabel="broker sets of two", ylabel="% of a core"
        )
        axes.set_xlim(0)
        axes.set_ylim(0)
        axes.legend(frameon=False)
    return figure


def _cumulated(values: list[float], title: str, label: str, limit: float) -> Figure:
    with mpl.rc_context(STYLE):
        figure = _figure()
        axes = figure.subplots()
        ordered = sorted(values)
        axes.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered) * 100, where="post", color=BLUE)
        axes.axvline(limit, color=RED, linewidth=1, linestyle="--")
        axes.annotate("aim", (limit, 5), color=RED, fontsize=8)
        axes.set(title=title, xlabel=label, ylabel="%")
        axes.set_xlim(0)
    return figure


def _spread(values: list[float]) -> str:
    p50, p99 = percentile(values, 50), percentile(values, 99)
    return f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, most {max(values):,.0f} ms"


DEATHS_AIM_MS = 2_000


def _deaths_table(deaths: Found) -> list[str]:
    return [
        f"{len(deaths['ms']):,} masters of {deaths['sets']:,} broker sets die in one moment, from `kill -9` "
        f"until the slave is notified that it is master: {_spread(deaths['ms'])}; "
        f"{deaths['not_notified']} were not notified."
    ]


def _draw_deaths(deaths: Found) -> Figure:
    title = "Slaves notified that they are master"
    return _cumulated(deaths["ms"], title, "ms after the kill", DEATHS_AIM_MS)


def _loss_table(what: str) -> Callable[[Found], list[str]]:
    def describe(loss: Found) -> list[str]:
        return [
            f"{what}, to the next write that another one decided, {len(loss['ms'])} rounds with an election "
            f"timeout of {loss['election_timeout_ms']:,} ms: {_spread(loss['ms'])}."
        ]

    return describe


def _draw_loss(loss: Found) -> Figure:
    return _cumulated(
        loss["ms"],
        f"{loss['signal']} of the leader → next write",
        "ms",
        1.5 * loss["election_timeout_ms"],
    )


RESTART_AIM_S = 2.0


def _restart_table(restart: Found) -> list[str]:
    one, everyone, megabytes = restart["one_s"], restart["all_s"], restart["snapshot_bytes"] / 1e6
    return [
        f"{restart['sets']:,} broker sets, snapshot {megabytes:.1f} MB; a follower serves {max(one):.2f} "
        f"s after exec at most; after `kill -9` of all, the first write is decided {max(everyone):.2f} s "
        f"after exec of the first at most ({len(everyone)} rounds)."
    ]


def _draw_restart(restart: Found) -> Figure:
    with mpl.rc_context(STYLE):
        figure = _figure(height=2.0)
        axes = figure.subplots()
        for place, key in enumerate(("one_s", "all_s")):
            axes.plot(restart[key], [place] * len(restart[key]), "o", color=BLUE, alpha=0.5)
        axes.axvline(RESTART_AIM_S, color=RED, linewidth=1, linestyle="--")
        axes.set_yticks((0, 1), ("one controller", "all three"))
        axes.set_ylim(-0.5, 1.5)
        axes.set(title="Back from a snapshot", xlabel="s")
        axes.set_xlim(0)
    return figure


SECTIONS: dict[str, tuple[Callable[[Any], list[str]], Callable[[Any], Figure]]] = {
    "load": (_load_table, _draw_load),
    "curve": (_curve_table, _draw_curve),
    "deaths": (_deaths_table, _draw_deaths),
    "kill": (_loss_table("`kill -9` of the leader"), _draw_loss),
    "hang": (_loss_table("SIGSTOP of the leader"), _draw_loss),
    "restart": (_restart_table, _draw_restart),
}
