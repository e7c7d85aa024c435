"""The results of a run: lines and a table for the terminal, results.json, and the job that reports them."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from batonmq.spark.jobs.chaos_results import RESULTS, SYSTEMS, cluster_title, seconds
from tests.chaos.check import Verdict
from tests.chaos.results import Result
from tests.chaos.scenarios import NO_PAUSE_S, WHOLE_AIM_S, Scenario, find

REPORT_TIMEOUT_S = 600
"""For Spark on a busy machine."""


def scenario_of(result: Result) -> Scenario:
    return find(result.groups, result.scenario)


def line(result: Result) -> str:
    """One scenario as it ends."""
    mark = "[green]ok[/]  " if result.ok else "[bold red]FAIL[/]"
    read_s = result.longest_read_gap_s
    reads = "" if read_s is None else f"without a read {seconds(read_s)}, "
    return (
        f"{mark} {SYSTEMS[result.system]}, {cluster_title(result.replicas, result.groups)}: {title(result)}: "
        f"without acknowledgement {seconds(result.longest_gap_s)}, {reads}"
        f"whole after {seconds(result.whole_s)}, "
        f"{result.acked:,} acknowledged"
    )


def title(result: Result) -> str:
    shown = scenario_of(result).title
    return shown if result.load == "plain" else f"{result.load}, {shown}"


def aim_met(result: Result) -> bool | None:
    """Whether all aims were met; None where there is none (other replica counts, the peer)."""
    scenario = scenario_of(result)
    aims = [(scenario.aim_s, result.longest_gap_s), (scenario.read_aim_s, result.longest_read_gap_s)]
    measured = [(aim_s or NO_PAUSE_S, found) for aim_s, found in aims if aim_s is not None]
    if not measured or result.replicas not in (0, 2) or result.system != "ours" or result.load != "plain":
        return None
    whole_s = result.whole_s
    quick = all(found is not None and found <= aim_s for aim_s, found in measured)
    return quick and whole_s is not None and whole_s <= WHOLE_AIM_S


def table(results: Sequence[Result]) -> Table:
    shown = Table(title="longest time without an acknowledged send, and until whole again after healing")
    reads = any(result.longest_read_gap_s is not None for result in results)
    for name in ("scenario", "system", "cluster"):
        shown.add_column(name)
    for name in (
        "aim",
        "longest",
        *(("reads",) if reads else ()),
        "whole",
        "acked",
        "unknown",
        "twice",
        "wrong",
    ):
        shown.add_column(name, justify="right", no_wrap=True)
    for result in results:
        aim_s = scenario_of(result).aim_s if result.load == "plain" else None
        met = aim_met(result)
        style = "" if met is None else "green" if met else "yellow"
        wrong = sum(result.violations.values())
        shown.add_row(
            title(result),
            SYSTEMS[result.system],
            str(result.replicas or "–") if result.groups == "controllers" else result.groups,
            f"{aim_s:g} s" if aim_s is not None else "–",
            f"[{style}]{seconds(result.longest_gap_s)}[/]" if style else seconds(result.longest_gap_s),
            *((_reads(result),) if reads else ()),
            seconds(result.whole_s),
            f"{result.acked:,}",
            f"{result.sent - result.acked:,}",
            f"{result.duplicated:,}",
            f"[bold red]{wrong:,}[/]" if wrong else "0",
        )
    return shown


def _reads(result: Result) -> str:
    return "–" if result.longest_read_gap_s is None else seconds(result.longest_read_gap_s)


def violations(results: Sequence[Result], at_the_end: Verdict) -> Iterator[str]:
    """Everything that must not be, with examples."""
    for result in results:
        for kind, count in result.violations.items():
            examples = "; ".join(result.examples.get(kind, []))
            cluster = result.replicas if result.groups == "controllers" else result.groups
            yield f"{result.key[-1]} ({result.system}, {cluster}): {kind} × {count}: {examples}"
    for kind, count in at_the_end.counts.items():
        yield f"stores at the end: {kind.name.lower()} × {count}: {'; '.join(at_the_end.examples[kind])}"


def worst(results: Iterable[Result]) -> dict[tuple[str, str, int, str], Result]:
    """Of several seeds the result with the longest time without an acknowledgement, by `key`."""
    found: dict[tuple[str, str, int, str], Result] = {}
    for result in results:
        known = found.get(result.key)
        if known is None or result.longest_gap_s > known.longest_gap_s:
            found[result.key] = result
    return found


def summary(results: Sequence[Result]) -> Table:
    """Several seeds: median and longest times, and how many seeds met the aims."""
    shown = Table(title="all seeds: longest time without an acknowledged send, and until whole again")
    for name in ("scenario", "system", "cluster"):
        shown.add_column(name)
    for name in ("aim", "median", "longest", "whole", "within", "wrong"):
        shown.add_column(name, justify="right", no_wrap=True)
    for key, longest in worst(results).items():
        mine = [result for result in results if result.key == key]
        aim_s = scenario_of(longest).aim_s if longest.load == "plain" else None
        met = [aim_met(result) for result in mine]
        wrong = sum(sum(result.violations.values()) for result in mine)
        shown.add_row(
            title(longest),
            SYSTEMS[longest.system],
            str(longest.replicas or "–") if longest.groups == "controllers" else longest.groups,
            f"{aim_s:g} s" if aim_s is not None else "–",
            seconds(statistics.median(result.longest_gap_s for result in mine)),
            seconds(longest.longest_gap_s),
            seconds(slowest(mine)),
            "–" if None in met else f"{sum(map(bool, met))} of {len(met)}",
            f"[bold red]{wrong:,}[/]" if wrong else "0",
        )
    return shown


def slowest(results: Iterable[Result]) -> float | None:
    """The longest time until everything was whole again; None if one never was."""
    times = [result.whole_s for result in results]
    return None if None in times else max((each for each in times if each is not None), default=0.0)


# -- files


def seed_directory(seed: int) -> str:
    """Where a run of several seeds keeps the results of one."""
    return f"seed-{seed}"


def where() -> str:
    """What a run was measured on."""
    model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return (
        f"{datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} × {model[1] if model else platform.machine()}, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )


def read(path: Path) -> list[Result]:
    """Results of earlier runs; none if there is no file."""
    if not path.exists():
        return []
    return [Result.from_json(entry) for entry in json.loads(path.read_text())["results"]]


def write(path: Path, results: Sequence[Result]) -> None:
    data = {"where": where(), "results": [result.as_json() for result in results]}
    path.write_text(json.dumps(data, indent=1) + "\n")


def join(earlier: Sequence[Result], later: Sequence[Result]) -> list[Result]:
    """Later results take the place of earlier ones of the same scenario and cluster."""
    return list({result.key: result for result in (*earlier, *later)}.values())


def write_html(out: Path) -> str:
    """Have the job write the page of all results in `out`; returns what to say about it. Without Spark there
    is no page, and nothing else is missing."""
    page = out / "report.html"
    places = [
        path.parent for path in (out / RESULTS, *sorted(out.glob(f"seed-*/{RESULTS}"))) if path.exists()
    ]
    if not places:
        return "no report.html: there are no results"
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        return "no report.html: Spark needs a Java runtime, version 17 or newer"
    command = [sys.executable, "-m", "batonmq", "spark", "chaos-report", "--to", str(page)]
    command += [word for place in places for word in ("--dir", str(place))]
    began_ns = time.time_ns()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=REPORT_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"no report.html: the job took longer than {REPORT_TIMEOUT_S} s"
    # The job's exit code says whether messages were lost, and the run has said so before.
    if page.exists() and page.stat().st_mtime_ns >= began_ns:
        return f"the report is {page}"
    said = [line for line in done.stderr.splitlines() if line.startswith("Error:")]
    return f"no report.html: {said[-1] if said else done.stderr[-500:]}"
