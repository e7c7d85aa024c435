"""``make chaos``, ``python -m tests.chaos``: the scenarios on real processes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import click
import uvloop
from rich.console import Console

from batonmq.common import log
from batonmq.demo.cluster import ProcessFailed
from batonmq.spark.jobs.chaos_results import RESULTS, SYSTEMS, cluster_directory, cluster_title
from tests.chaos import report
from tests.chaos.busy import BusyLoops
from tests.chaos.check import Verdict
from tests.chaos.cluster import host_names, make_cluster
from tests.chaos.decision_run import ControllerRun
from tests.chaos.feature_loads import LOADS
from tests.chaos.ground import Ground
from tests.chaos.isolate import CannotIsolate, is_inside, run_inside, settle_in
from tests.chaos.network import Network
from tests.chaos.page import write_page
from tests.chaos.results import Result
from tests.chaos.run import GroupRun
from tests.chaos.scenarios import CONTROLLERS_ALONE, GROUP, GROUPS, NAMES, Scenario

DOCS = Path(__file__).parents[2] / "docs"
TABLE_WIDTH = 130
"""Columns when the output is not a terminal."""
INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, as of a shell."""


class Seed:
    """All scenarios with one seed."""

    def __init__(
        self, seed: int, quick: bool, load: str, out: Path, console: Console, earlier: Sequence[Result]
    ) -> None:
        """`earlier`: results to keep unless this run repeats them."""
        self._seed, self._quick, self._load = seed, quick, load
        self._out, self._console, self._earlier = out, console, earlier
        self._results: list[Result] = []
        self._at_the_end = Verdict()
        self._began = time.monotonic()

    def run(self, work: Iterable[tuple[str, str, int, list[Scenario]]]) -> None:
        """On a new cluster each. Raises `CannotIsolate`, `ProcessFailed`, `TimeoutError`."""
        for system, kind, size, scenarios in work:
            left = scenarios
            while left:
                before = len(self._results)
                self._at_the_end.merge(self._run_cluster(system, kind, size, left))
                left = left[len(self._results) - before :]

    def _run_cluster(self, system: str, groups: str, replicas: int, scenarios: Sequence[Scenario]) -> Verdict:
        """Scenarios on one new cluster until one does not heal. No replicas: controllers alone. Returns
        what the stores were found to hold at the end."""
        directory = self._out / cluster_directory(system, replicas, groups)
        shutil.rmtree(directory, ignore_errors=True)
        network = Network(host_names(replicas, groups))
        network.open()
        title = f"{SYSTEMS[system]}, {cluster_title(replicas, groups)}"
        try:
            with self._console.status(title) as status:
                cluster = make_cluster(system, directory, network, replicas, groups, LOADS[self._load][1])
                ground = Ground(
                    cluster,
                    network,
                    lambda text: status.update(f"{title}: {text}"),
                )
                run: GroupRun | ControllerRun
                if replicas:
                    run = GroupRun(system, ground, self._seed, quick=self._quick, load=self._load)
                else:
                    run = ControllerRun(system, ground, self._seed, quick=self._quick)
                verdict = uvloop.run(run.scenarios(scenarios, self._done))
        finally:
            network.close()
        if verdict.ok:
            for store in directory.glob("store-*"):
                shutil.rmtree(store)
        return verdict

    def _done(self, result: Result) -> None:
        self._results.append(result)
        self._keep()  # a run takes an hour, and may be broken off
        self._console.print(report.line(result))

    def _keep(self) -> list[Result]:
        everything = report.join(self._earlier, self._results)
        report.write(self._out / RESULTS, everything)
        return everything

    @property
    def failed(self) -> bool:
        return not self._at_the_end.ok or not all(result.ok for result in self._results)

    def report(self) -> list[Result]:
        """Show the results; returns them with the earlier ones."""
        everything = self._keep()
        self._console.print(report.table(self._results))
        for text in report.violations(self._results, self._at_the_end):
            self._console.print(text, style="red", markup=False)
        took_s = time.monotonic() - self._began
        self._console.print(
            f"{len(self._results)} scenarios in {took_s:.0f} s; details in {self._out / RESULTS}"
        )
        return everything


def plan(
    systems: Sequence[str], kinds: Sequence[str], sizes: Sequence[int], names: Sequence[str], *, alone: bool
) -> Iterator[tuple[str, str, int, list[Scenario]]]:
    """Which scenarios run on which cluster: (system, kind, replicas, scenarios). The peer has one size.

    `names`: of scenarios; none: all. `alone`: controllers without brokers too.
    """
    for system, groups in product(systems, kinds):
        wanted = [each for each in GROUPS[groups] if not names or each.name in names]
        if groups != "controllers":
            if wanted:
                yield system, groups, 2, wanted
            continue
        group = [scenario for scenario in wanted if scenario in GROUP]
        for size in sizes if system == "ours" else sizes[:1]:
            if group:
                yield system, groups, size, group
        leaders = [scenario for scenario in wanted if scenario in CONTROLLERS_ALONE]
        if leaders and (alone or names):
            yield system, groups, 0, leaders


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("scenarios", nargs=-1, type=click.Choice(sorted(NAMES)), metavar="[SCENARIO]...")
@click.option("--quick", is_flag=True, help="Short faults, two replicas: some three minutes.")
@click.option("--replicas", "-r", multiple=True, type=click.IntRange(2, 5), help="Default: 2 and 3.")
@click.option(
    "--groups",
    "-g",
    multiple=True,
    type=click.Choice(list(GROUPS)),
    default=("controllers",),
    show_default=True,
    help="Groups with controllers, a pair without, or two containers crosswise; may be repeated.",
)
@click.option("--peer", type=click.Choice(["java"]), help="Apache RocketMQ under the same scenarios too.")
@click.option("--only", type=click.Choice(list(SYSTEMS)), help="One of the two alone.")
@click.option(
    "--load",
    type=click.Choice(list(LOADS)),
    default="plain",
    show_default=True,
    help="What clients do: sends and pulls, transactions, pops, or messages with a time of delivery.",
)
@click.option("--busy", default=0, help="So many other programs compute all the time.")
@click.option("--seed", default=1, show_default=True, help="Draws victims, order and sides.")
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="So many seeds one after the other, from --seed on; each has a directory seed-N in --out.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("chaos-out"),
    show_default=True,
    help="Directory for the programs' logs and results.json.",
)
@click.option("--add", is_flag=True, help="Keep the results of earlier runs that this one does not repeat.")
@click.option("--page", is_flag=True, help="Put the results into docs/reports/chaos.md.")
@click.option(
    "--report/--no-report",
    "with_report",
    default=True,
    show_default=True,
    help="Have 'batonmq spark chaos-report' write report.html at the end, where there is Spark.",
)
def main(
    scenarios: tuple[str, ...],
    quick: bool,
    replicas: tuple[int, ...],
    groups: tuple[str, ...],
    peer: str | None,
    only: str | None,
    load: str,
    busy: int,
    seed: int,
    seeds: int,
    out: Path,
    add: bool,
    page: bool,
    with_report: bool,
) -> None:
    """Faults on a running cluster in network namespaces, under load; then every acknowledged message is
    looked for. Exit code 1 if one was lost, overwritten, reordered or taken back, or if a group did not heal.

    Needs Linux, root (or the right to make namespaces), iproute2 and nftables.
    """
    if not is_inside():
        try:
            code = run_inside(sys.argv[1:])
        except CannotIsolate as error:
            raise click.ClickException(str(error)) from None
        if with_report and code != INTERRUPTED:  # who interrupts it does not want to wait for Spark
            click.echo(report.write_html(out))
        sys.exit(code)
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    out.mkdir(parents=True, exist_ok=True)
    log.set_up(file=out / "clients.log")
    sizes = replicas or ((2,) if quick else (2, 3))
    systems = [only] if only else ["ours", *([peer] if peer else [])]
    work = list(plan(systems, groups, sizes, scenarios, alone=load == "plain"))
    everything: list[Result] = []
    failed = interrupted = False
    failure: Exception | None = None
    others = BusyLoops()
    try:
        settle_in()
        others.start(busy)
        for number in range(seed, seed + seeds):
            if seeds > 1:
                console.rule(f"seed {number}")
            place = out if seeds == 1 else out / report.seed_directory(number)
            place.mkdir(exist_ok=True)
            earlier = report.read(place / RESULTS) if add else []
            done = Seed(number, quick, load, place, console, earlier)
            try:
                done.run(work)
            finally:
                # What came before a failure is worth showing.
                everything += done.report()
                failed = failed or done.failed
    except (CannotIsolate, ProcessFailed, TimeoutError) as error:
        failure = error
    except KeyboardInterrupt:
        interrupted = True
    others.stop()
    if seeds > 1:
        console.print(report.summary(everything))
    if page:
        write_page(DOCS / "reports" / "chaos.md", DOCS / "images", everything)
    if interrupted:
        click.echo("Error: interrupted; nothing is left running", err=True)
        sys.exit(INTERRUPTED)
    if failure is not None:
        raise click.ClickException(str(failure) or f"{type(failure).__name__} broke off the run")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
