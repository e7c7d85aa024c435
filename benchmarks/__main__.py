"""``python -m benchmarks``: BatonMQ beside Apache RocketMQ in one run, with the same clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from batonmq.demo.cluster import ProcessFailed
from benchmarks import report
from benchmarks.clusters import JAVA, OURS, SYSTEMS, running
from benchmarks.failover import FAULTS, ROUNDS, ROUNDS_JAVA, measure_failover
from benchmarks.load import QUICK, DriverFailed, Durations, Throughput, measure_load
from benchmarks.startup import measure_startup

PARTS = ("send", "batch", "consume", *FAULTS, "startup")
LOAD = {"send", "batch", "consume"}
STARTS = {JAVA: 3, OURS: 5}
TABLE_WIDTH = 130
"""Columns when the output is no terminal."""
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def run_system(
    system: str, parts: set[str], *, quick: bool, figures: report.Figures, say: Callable[[str], None]
) -> None:
    """Measure one system; what was measured before in this run is added to."""
    if LOAD & parts:
        with running(system) as cluster:
            measured = measure_load(cluster, LOAD & parts, QUICK if quick else Durations(), say)
        before = figures.throughput.setdefault(system, {})
        for name, result in measured.items():
            before[name] = merge(before.get(name), result)
    for part in FAULTS:
        measured_failovers = figures.failover.setdefault(part, {})
        if part in parts and system not in measured_failovers:
            rounds = 2 if quick else ROUNDS_JAVA if system == JAVA else ROUNDS[part]
            with running(system) as cluster:
                measured_failovers[system] = asyncio.run(measure_failover(cluster, part, rounds, say))
    if "startup" in parts and system not in figures.startup:
        figures.startup[system] = measure_startup(system, 1 if quick else STARTS[system], say)


def show(status: Status, system: str, text: str) -> None:
    status.update(f"{system}: {text}")


def merge(first: Throughput | None, second: Throughput) -> Throughput:
    """Rates of two passes side by side; the worse latency and cost."""
    if first is None:
        return second
    cpu_us = None
    if first.cpu_us and second.cpu_us:
        cpu_us = {name: max(cost, second.cpu_us[name]) for name, cost in first.cpu_us.items()}
    return Throughput(
        first.rates + second.rates,
        None if first.p50_ms is None or second.p50_ms is None else max(first.p50_ms, second.p50_ms),
        None if first.p99_ms is None or second.p99_ms is None else max(first.p99_ms, second.p99_ms),
        first.failed + second.failed,
        cpu_us,
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, "all"]), metavar="[PART]...")
@click.option("--quick", is_flag=True, help="Short and cold: does everything run? Not for figures.")
@click.option("--passes", default=1, show_default=True, help="Load passes; each turns the order around.")
@click.option("--only", type=click.Choice(["java", "ours"]), help="Measure one of the two.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the figures to this file.")
@click.option("--page", is_flag=True, help="Put the figures into docs/performance.md.")
def main(
    parts: tuple[str, ...], quick: bool, passes: int, only: str | None, json_path: Path | None, page: bool
) -> None:
    """Measure BatonMQ beside Apache RocketMQ: same machine, same run, same clients.

    PART is send, batch, consume (Java clients against two all-ack replicas), failover (kill -9), hang
    (SIGSTOP), switch (electMaster), startup or all (the default, some ten minutes). Apache RocketMQ is
    fetched from Maven Central when it is not there yet; Java and Maven are needed.
    """
    wanted = set(PARTS) if not parts or "all" in parts else set(parts)
    systems = [{"java": JAVA, "ours": OURS}[only]] if only else list(SYSTEMS)
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    figures = report.Figures()
    began = time.monotonic()
    failure: Exception | None = None
    try:
        for number in range(passes):
            for system in systems if number % 2 == 0 else reversed(systems):
                with console.status(system) as status:
                    say = partial(show, status, system)
                    run_system(system, wanted, quick=quick, figures=figures, say=say)
                console.print(f"{time.monotonic() - began:4.0f} s  {system} measured")
    except (ProcessFailed, DriverFailed, TimeoutError) as error:
        failure = error  # what was measured before is worth showing
    figures.took_s = time.monotonic() - began
    console.print(report.table(figures))
    if json_path is not None:
        json_path.write_text(json.dumps(figures.as_json(), indent=2) + "\n")
    if failure is not None:
        raise click.ClickException(str(failure))
    if page:
        report.write_page(PAGE, figures)


if __name__ == "__main__":
    main()
