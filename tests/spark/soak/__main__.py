"""``python -m tests.spark.soak --minutes 30``: a Spark stream under the scenarios of `make chaos`.

A structured stream copies the topics of a cluster with controllers into Parquet, while chaos strikes brokers
and controllers, scenario after scenario, and again with another seed until the time is up. Now and then the
driver is killed or stopped, and goes on from its checkpoint. In the end the table must have every message
once, as it was sent. It needs what `make chaos` needs, and a Java runtime.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import uvloop

from batonmq.common import log
from batonmq.demo.cluster import ProcessFailed
from tests.chaos.check import Verdict
from tests.chaos.cluster import host_names, make_cluster
from tests.chaos.ground import Ground
from tests.chaos.isolate import CannotIsolate, is_inside, run_inside, settle_in
from tests.chaos.network import Network
from tests.chaos.results import Result
from tests.chaos.run import GroupRun
from tests.chaos.scenarios import GROUP, Scenario
from tests.spark.soak.compare import Kind
from tests.spark.soak.stream import Stream

PAUSE_S, QUICK_PAUSE_S = (40.0, 120.0), (15.0, 45.0)
"""From a driver's first micro-batch to its end."""
NAMES = [scenario.name for scenario in GROUP]


@dataclass
class Soak:
    """One run and what it has seen."""

    seed: int
    chosen: Sequence[Scenario]
    until: float
    """`time.monotonic`: no scenario begins after that."""
    directory: Path
    quick: bool
    replicas: int
    began: float = field(default_factory=time.monotonic)
    results: list[Result] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    stores: Verdict = field(default_factory=Verdict)
    """What the stores were found to hold at the end."""

    def scenarios(self) -> Iterator[Scenario]:
        """Again from the beginning until the time is up. The seed is part of the name, and so of the topic,
        of the keys, and of what decides about victims."""
        seed = self.seed
        while True:
            for scenario in self.chosen:
                if self.results and time.monotonic() > self.until:
                    return
                yield replace(scenario, name=f"{scenario.name}-{seed}")
            seed += 1

    def run(self) -> Stream:
        """Raises what broke it off."""
        network = Network(host_names(self.replicas))
        network.open()
        try:
            cluster = make_cluster("ours", self.directory / "cluster", network, self.replicas)
            stream = Stream(
                cluster.namesrv_address,
                self.directory,
                random.Random(f"{self.seed}/driver"),
                QUICK_PAUSE_S if self.quick else PAUSE_S,
                self.say,
            )
            ground = Ground(cluster, network, lambda text: None)
            run = GroupRun("ours", ground, self.seed, quick=self.quick, guest=stream)
            self.stores = uvloop.run(run.scenarios(self.scenarios(), self._done(stream)))
            return stream
        finally:
            network.close()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", flush=True)

    def _done(self, stream: Stream) -> Callable[[Result], None]:
        def done(result: Result) -> None:
            self.results.append(result)
            self.faults[result.scenario.rpartition("-")[0]] += len(result.rounds)
            mark = "ok  " if result.ok else "FAIL"
            self.say(
                f"{mark} {result.scenario}: {'; '.join(each.fault for each in result.rounds)}; "
                f"{result.acked:,} acknowledged, {result.longest_gap_s:.2f} s without; "
                f"{stream.read:,} rows, {stream.restarts.total()} restarts"
            )

        return done

    def wrong(self, stream: Stream) -> list[str]:
        """All that is not as it must be, each in a sentence."""
        found = [*stream.failures]
        if stream.table is None:
            found.append("the table was not compared: the cluster did not become whole again")
        for result in self.results:
            for kind, count in result.violations.items():
                found.append(f"{result.scenario}: {count} {kind}: {'; '.join(result.examples[kind])}")
        for where, verdict in (("table", stream.verdict), ("stores", self.stores)):
            for what, count in verdict.counts.items():
                found.append(f"{where}: {count} {what}: {'; '.join(verdict.examples[what])}")
        return found

    def summary(self, stream: Stream) -> str:
        """The run in one line."""

        def listed(counts: Counter[str]) -> str:
            each = ", ".join(f"{count} {what}" for what, count in counts.items())
            return f"{counts.total()} ({each or 'none'})"

        sums, table = stream.verdict, stream.table
        parts = [
            f"{(time.monotonic() - self.began) / 60:.1f} min",
            f"scenarios: {len(self.results)}",
            f"faults: {listed(self.faults)}",
            f"messages: {sums.sent:,} sent, {sums.acked:,} acknowledged, {sums.stored:,} in the topics",
            f"restarts of the driver: {listed(stream.restarts)}, {len(stream.failures)} failures",
        ]
        if table is not None:
            p50, p99, most = (table.delay_ms(share) / 1000 for share in (0.5, 0.99, 1.0))
            wrong = {kind.name.lower(): sums.counts[kind] for kind in Kind}
            others = sums.counts.total() - sum(wrong.values())
            parts += [
                f"rows: {table.rows:,} in {table.batches:,} micro-batches and {table.files:,} files",
                f"{', '.join(f'{count} {name}' for name, count in wrong.items())}, {others} by the histories",
                f"from store to visible row: p50 {p50:.2f} s, p99 {p99:.2f} s, max {most:.2f} s",
            ]
        return "; ".join(parts)


def chosen(context: click.Context, option: click.Parameter, value: str | None) -> list[Scenario]:
    """The scenarios of a list of names."""
    names = value.split(",") if value else NAMES
    if unknown := set(names) - set(NAMES):
        raise click.BadParameter(f"no {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    return [scenario for scenario in GROUP if scenario.name in names]


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
@click.option("--minutes", default=30.0, show_default=True, help="No scenario begins after that time.")
@click.option(
    "--seed", default=1, show_default=True, help="Draws victims and restarts; the next pass has the next."
)
@click.option("--scenarios", callback=chosen, metavar="NAME,...", help="Default: all with brokers.")
@click.option("--quick", is_flag=True, help="Short faults, more restarts.")
@click.option("--replicas", default=2, show_default=True, type=click.IntRange(2, 5))
@click.option("--keep", is_flag=True, help="Keep the directory with logs, stores and table.")
def main(
    minutes: float, seed: int, scenarios: list[Scenario], quick: bool, replicas: int, keep: bool
) -> None:
    if not is_inside():
        try:
            sys.exit(run_inside(sys.argv[1:], "tests.spark.soak"))
        except CannotIsolate as error:
            raise click.ClickException(str(error)) from None
    if shutil.which("java") is None:
        raise click.ClickException("Spark needs a JRE >= 17, and there is no java on PATH")
    directory = Path(tempfile.mkdtemp(prefix="spark-soak-"))
    log.set_up(file=directory / "clients.log")
    print(f"logs: {directory}", flush=True)
    soak = Soak(seed, scenarios, time.monotonic() + 60 * minutes, directory, quick, replicas)
    try:
        settle_in()
        stream = soak.run()
    except (CannotIsolate, ProcessFailed, TimeoutError) as error:
        raise click.ClickException(f"{error or type(error).__name__}; logs: {directory}") from None
    except KeyboardInterrupt:
        raise click.ClickException(f"interrupted; nothing is left running; logs: {directory}") from None
    wrong = soak.wrong(stream)
    for text in wrong:
        print(f"WRONG: {text}")
    print(f"{'WRONG' if wrong else 'ok'}: {soak.summary(stream)}")
    if not wrong and not keep:
        shutil.rmtree(directory)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
