"""``python -m benchmarks``: BatonMQ beside Apache RocketMQ in one run, with the same clients."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from batonmq.demo.cluster import ProcessFailed
from batonmq.spark.jobs.bench import as_json
from benchmarks import report
from benchmarks.catchup import measure_catchup
from benchmarks.clusters import JAVA, OURS, SYSTEMS, running
from benchmarks.failover import FAULTS, ROUNDS, ROUNDS_JAVA, measure_failover
from benchmarks.figures import figures_of
from benchmarks.kinds import CONSUMED, SENDS, Timers, Work, measure_kinds
from benchmarks.kinds import QUICK as QUICK_WORK
from benchmarks.load import QUICK, DriverFailed, Durations, Throughput, measure_load
from benchmarks.memory import page_cache
from benchmarks.startup import measure_startup

KINDS = (*SENDS, *CONSUMED, "timer")
PARTS = ("send", "batch", "consume", *KINDS, *FAULTS, "startup", "catchup")
LOAD = {"send", "batch", "consume"}
STARTS = {JAVA: 3, OURS: 5}
CATCHUPS = 2
TABLE_WIDTH = 130
"""Columns when the output is not a terminal."""
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


@dataclass(frozen=True)
class Plan:
    """What a run is to measure."""

    parts: set[str]
    systems: list[str]
    quick: bool
    replicas: int
    passes: int
    rounds: int
    """0: what each part has as its own number."""
    rounds_java: int
    size_mb: int


def run(plan: Plan, figures: report.Figures, say: Callable[[str], None]) -> None:
    """Measure; `figures` grow part by part, so that a failure leaves what was measured before."""
    if plan.parts & {*LOAD, *KINDS}:
        run_load(plan, figures, say)
    for part in (part for part in FAULTS if part in plan.parts):
        for system in plan.systems:
            rounds = plan.rounds_java if system == JAVA else plan.rounds or ROUNDS[part]
            if plan.quick:
                rounds = min(rounds, 2)
            with running(system, replicas=plan.replicas) as cluster:
                found = asyncio.run(measure_failover(cluster, part, rounds, partial(of, system, say)))
            figures.failover.setdefault(part, {})[system] = found
    for system in plan.systems:
        if "startup" in plan.parts:
            starts = 1 if plan.quick else STARTS[system]
            figures.startup[system] = measure_startup(system, starts, partial(of, system, say))
        if "catchup" in plan.parts:
            rounds = plan.rounds or (1 if plan.quick else CATCHUPS)
            caught = measure_catchup(system, plan.size_mb, rounds, partial(of, system, say))
            figures.catchup[system] = caught


def run_load(plan: Plan, figures: report.Figures, say: Callable[[str], None]) -> None:
    """Sends and consumption, pass by pass; what a finished pass has found is kept if a later one fails."""
    durations, work = (QUICK, QUICK_WORK) if plan.quick else (Durations(), Work())
    if plan.rounds:
        durations, work = replace(durations, rounds=plan.rounds), replace(work, rounds=plan.rounds)
    load, kinds = LOAD & plan.parts, plan.parts.intersection(KINDS)
    sent: dict[str, dict[str, Throughput]] = {}
    timers: dict[str, dict[str, Timers]] = {}
    for number in range(1 if plan.quick else plan.passes):
        for system in plan.systems if number % 2 == 0 else plan.systems[::-1]:
            report_to = partial(of, system, say)
            with page_cache(report_to) as memory, running(system, replicas=plan.replicas) as cluster:
                memory.fill()
                measured = measure_load(cluster, load, durations, report_to)
                others, timed = measure_kinds(cluster, kinds, work, report_to, warm=bool(load))
            for part, result in {**measured, **others}.items():
                earlier = sent.setdefault(part, {}).get(system)
                sent[part][system] = result if earlier is None else earlier.joined(result)
            for part, found in timed.items():
                before = timers.setdefault(part, {}).get(system)
                timers[part][system] = found if before is None else before.joined(found)
            figures.throughput |= sent
            figures.timers |= timers


def of(system: str, say: Callable[[str], None], text: str) -> None:
    say(f"{system}: {text}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, "all"]), metavar="[PART]...")
@click.option("--quick", is_flag=True, help="Short and cold: does everything run? Not for figures.")
@click.option(
    "--replicas", type=click.IntRange(2, 3), default=2, show_default=True, help="Brokers of the group."
)
@click.option("--passes", default=2, show_default=True, help="Of load, each in the opposite order.")
@click.option(
    "--rounds", default=0, help="Of load (3 a pass), failover (50), hang (10), switch (30) or catchup (2)."
)
@click.option("--rounds-java", default=ROUNDS_JAVA, show_default=True, help="Java's failover, hang, switch.")
@click.option("--size", "size_mb", default=2000, show_default=True, help="MB of log, for catchup.")
@click.option("--only", type=click.Choice(["java", "ours"]), help="Measure one of the two.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Keep the figures in this file; parts that it has and this run does not stay.",
)
@click.option("--page", is_flag=True, help="Put the figures into docs/performance.md.")
def main(
    parts: tuple[str, ...],
    quick: bool,
    replicas: int,
    passes: int,
    rounds: int,
    rounds_java: int,
    size_mb: int,
    only: str | None,
    json_path: Path | None,
    page: bool,
) -> None:
    """Measure BatonMQ beside Apache RocketMQ: same machine, same run, same clients.

    PART is send, batch, consume, transaction, trace (sends with message trace), ordered, pop, sql (a filter
    that one message in a hundred passes), timer (all with Java clients against all-ack replicas), failover
    (kill -9), hang (SIGSTOP), switch (electMaster), startup, catchup (a replica that was away) or all (the
    default, some eighty minutes). Apache RocketMQ is fetched from Maven Central when it is not there yet;
    Java and Maven are needed.
    """
    wanted = set(PARTS) if not parts or "all" in parts else set(parts)
    systems = [{"java": JAVA, "ours": OURS}[only]] if only else list(SYSTEMS)
    plan = Plan(wanted, systems, quick, replicas, passes, rounds, rounds_java, size_mb)
    logging.basicConfig(level=logging.ERROR)  # lost connections are the point of some parts
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    try:
        figures = report.Figures.load(json_path, replicas) if json_path else report.Figures(replicas)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    began = time.monotonic()
    failure: Exception | None = None

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began:4.0f} s  {text}", highlight=False)

    try:
        run(plan, figures, say)
    except (ProcessFailed, DriverFailed, TimeoutError) as error:
        failure = error  # what was measured before is worth showing
    figures.took_s += time.monotonic() - began
    console.print(report.table(figures))
    if json_path is not None:
        written = {**figures.as_json(), **as_json(figures_of(figures))}
        json_path.write_text(json.dumps(written, indent=2) + "\n")
    if failure is not None:
        raise click.ClickException(str(failure))
    if page:
        report.write_page(PAGE, figures)


if __name__ == "__main__":
    main()
