"""Any number of seeds, two at a time.

python -m tests.simulation --seeds 1000            stories of whole clusters
python -m tests.simulation guided --stories 1000   the same, branching off where others reached new states
python -m tests.simulation shrink 17               the smallest story that breaks what seed 17 breaks
python -m tests.simulation raft --seeds 1000       schedules of Raft groups alone
python -m tests.simulation replication --seeds 1000  replicas of a broker set alone, logs in memory
python -m tests.simulation controller --seeds 1000 stories of controllers and their clients
python -m tests.simulation pop --seeds 1000        stories of whole clusters with pop consumers
python -m tests.simulation availability            which cut links stop sends, in theory and in the simulation
python -m tests.simulation acting --seeds 1000     stories of slaves that act as master
python -m tests.simulation containers --seeds 1000 stories of two containers crosswise
python -m tests.simulation returning --seeds 1000  stories of strict locks and of masters that return
python -m tests.simulation static --seeds 1000     stories of static topics whose queues move
python -m tests.simulation tally FILE...           how many stories were run, from the files of --tally
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import click
from rich.progress import Progress

from tests.simulation import (
    acting,
    availability_page,
    containers,
    controller_sim,
    lonely,
    pop_story,
    raft_sim,
    replication,
    returning,
    statics,
)
from tests.simulation.availability import Case, all_cases, measure, some_cases
from tests.simulation.availability_page import Result
from tests.simulation.compiled import run_compiled
from tests.simulation.controller_group import Shape as GroupShape
from tests.simulation.many import run_each
from tests.simulation.scenario import run
from tests.simulation.search import branches_of, guided_command, kept_of, shrink_command
from tests.simulation.story import shape_of
from tests.simulation.tally import counting, tally_command, tally_option

F = TypeVar("F", bound=Callable[..., None])
Counted: TypeAlias = tuple[str | None, Counter[str]]
"""What broke in a story, if anything did; what else is counted."""


class Outcome(NamedTuple):
    """What is left of a story in another process."""

    violation: str | None
    acked: int = 0
    epochs: int = 0
    healed_s: float = 0.0


def what_broke(seed: int, error: Exception) -> str:
    """An invariant says what broke; what is raised for another reason needs the place it was raised at."""
    if isinstance(error, AssertionError):
        return f"seed {seed}: {type(error).__name__}: {error}"
    return f"seed {seed}: {''.join(traceback.format_exception(error))}"


def run_one(seed: int, replicas: int | None, replace_controllers: bool, hand_back: bool) -> Outcome:
    """Run one story; never raises."""
    logging.disable(logging.CRITICAL)
    try:
        shape = replace(
            shape_of(seed, replicas), replace_controllers=replace_controllers, hand_back=hand_back
        )
        story = run(seed, shape)
    except Exception as error:
        return Outcome(what_broke(seed, error))
    return Outcome(None, len(story.acked), len(story.masters), story.healed_s)


def search_options(command: F) -> F:
    """What every search of many seeds takes: --seeds, --first, --jobs, --tally."""
    for option in (
        tally_option,
        click.option("--jobs", default=2, show_default=True, help="Processes."),
        click.option("--first", default=0, show_default=True, help="First seed."),
        click.option("--seeds", default=1000, show_default=True, help="How many."),
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@search_options
@click.option("--replicas", type=click.IntRange(2, 5), help="Always so many; default: 2, 3 and 5 in turn.")
@click.option("--replace-controllers", is_flag=True, help="Operators replace controllers, too.")
@click.option("--hand-back", is_flag=True, help="The master role goes back to the first replica.")
@click.option("--verbose", is_flag=True, help="One seed with its log on stderr.")
@click.option("--controllers", type=click.IntRange(1, 5), default=3, help="With --verbose: so many.")
@click.option("--sync-flush/--async-flush", default=None, help="With --verbose: default by seed.")
@click.option("--plot", default="", help="With --verbose: this plot again and again.")
@click.option("--branches", default="", metavar="N:SEED,…", help="With --verbose: as `guided` printed them.")
@click.option("--kept", metavar="N,N,…", help="With --verbose: only these faults, as `shrink` printed them.")
@click.pass_context
def main(
    context: click.Context,
    seeds: int,
    first: int,
    replicas: int | None,
    replace_controllers: bool,
    hand_back: bool,
    jobs: int,
    verbose: bool,
    controllers: int,
    sync_flush: bool | None,
    plot: str,
    branches: str,
    kept: str | None,
    tally: Path | None,
) -> None:
    """Run seeded simulations of controllers, replicas and a client; exit code 1 if an invariant broke."""
    if context.invoked_subcommand is not None:
        return
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
        shape = shape_of(first, replicas)
        shape = replace(
            shape,
            controllers=controllers,
            sync_flush=shape.sync_flush if sync_flush is None else sync_flush,
            replace_controllers=replace_controllers,
            hand_back=hand_back,
            plot=plot,
            branches=branches_of(branches),
            kept=kept_of(kept),
        )
        story = run(first, shape)
        click.echo("\n".join(story.events))
        return
    began, stories = time.monotonic(), []
    one = functools.partial(
        run_one, replicas=replicas, replace_controllers=replace_controllers, hand_back=hand_back
    )
    with counting(tally, "clusters", first, jobs) as line:
        for seed, outcome in run_each(one, range(first, first + seeds), jobs):
            stories.append(outcome)
            line.seeds += 1
            if outcome.violation is not None:
                line.failed.append(seed)
                click.echo(outcome.violation)
    healed = sorted(outcome.healed_s for outcome in stories if outcome.violation is None) or [0.0]
    click.echo(
        f"{line.seeds - len(line.failed)} seeds held, {len(line.failed)} failed {line.failed}; "
        f"{sum(outcome.acked for outcome in stories):,} acknowledged messages, "
        f"{sum(outcome.epochs for outcome in stories):,} master epochs, "
        f"whole again after {healed[len(healed) // 2]:.1f} s (median), {healed[-1]:.1f} s (longest); "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if line.failed else 0)


def run_many(
    kind: str,
    one: Callable[[int], Counted],
    seeds: range,
    jobs: int,
    tally: Path | None,
    *,
    chunk: int = 1,
) -> None:
    """Run `one` for each seed, say what came of them and exit."""
    began, counted = time.monotonic(), Counter[str]()
    with counting(tally, kind, seeds.start, jobs) as line:
        for seed, (violation, counts) in run_each(one, seeds, jobs, chunk=chunk):
            counted += counts
            line.seeds += 1
            if violation is not None:
                line.failed.append(seed)
                click.echo(violation)
    totals = ", ".join(f"{count:,} {what}" for what, count in counted.items())
    click.echo(
        f"{line.seeds - len(line.failed)} seeds held, {len(line.failed)} failed {line.failed}; {totals}, "
        f"{time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if line.failed else 0)


def run_raft(seed: int, nodes: int | None) -> Counted:
    log = io.StringIO()
    try:
        with contextlib.redirect_stderr(log):
            group = raft_sim.run_seed(seed, raft_sim.Shape(nodes=nodes))
    except Exception as error:
        return f"{what_broke(seed, error)}\n{log.getvalue()}", Counter()
    checks = group.checks
    counts = Counter(
        proposals=len(checks.acknowledged),
        reads=checks.reads_answered,
        elections=checks.elections,
        crashes=group.crashes,
    )
    return None, counts


@main.command()
@search_options
@click.option("--nodes", type=click.IntRange(1, 9), help="Size of the group; default: 3, 5 or 7.")
@click.option("--compiled", is_flag=True, help="With compiled modules, several times as fast.")
def raft(seeds: int, first: int, nodes: int | None, jobs: int, tally: Path | None, compiled: bool) -> None:
    """Raft groups alone: cores and storage under faults; exit code 1 if a promise of Raft was broken."""
    if compiled:
        given = {"--seeds": seeds, "--first": first, "--nodes": nodes, "--jobs": jobs, "--tally": tally}
        options = [f"{name}={value}" for name, value in given.items() if value is not None]
        run_compiled(["raft", *options])
    seed_range = range(first, first + seeds)
    run_many("raft", functools.partial(run_raft, nodes=nodes), seed_range, jobs, tally, chunk=20)


def run_replication(seed: int, replicas: int | None) -> Counted:
    logging.disable(logging.CRITICAL)
    shape = replication.shape_of(seed)
    try:
        return None, replication.run(seed, replace(shape, replicas=replicas or shape.replicas)).counts
    except Exception as error:
        return what_broke(seed, error), Counter()


@main.command("replication")
@search_options
@click.option("--replicas", type=click.IntRange(2, 5), help="Always so many; default: 2, 3 and 5 in turn.")
def replicas_alone(seeds: int, first: int, replicas: int | None, jobs: int, tally: Path | None) -> None:
    """Replicas alone, with logs and controllers in memory; exit code 1 if a confirmed message was lost."""
    run_many(
        "replication",
        functools.partial(run_replication, replicas=replicas),
        range(first, first + seeds),
        jobs,
        tally,
        chunk=20,
    )


def run_controllers(seed: int, controllers: int | None) -> Counted:
    logging.disable(logging.CRITICAL)
    try:
        return None, controller_sim.run(seed, GroupShape(controllers=controllers)).counts
    except Exception as error:
        return what_broke(seed, error), Counter()


@main.command()
@search_options
@click.option("--controllers", type=click.IntRange(1, 9), help="Size of the group; default: 3 or 5.")
def controller(seeds: int, first: int, controllers: int | None, jobs: int, tally: Path | None) -> None:
    """Controllers and clients under faults and wrong clocks; exit code 1 if a history is not linearizable."""
    run_many(
        "controller",
        functools.partial(run_controllers, controllers=controllers),
        range(first, first + seeds),
        jobs,
        tally,
    )


def run_pops(seed: int, plot: str) -> Counted:
    logging.disable(logging.CRITICAL)
    try:
        story = pop_story.run(seed, replace(shape_of(seed), plot=plot))
    except Exception as error:
        return what_broke(seed, error), Counter()
    return None, Counter({"acknowledged messages": len(story.acked), "master epochs": len(story.masters)})


@main.command()
@search_options
@click.option("--plot", default="", help="This plot again and again (offsets, alone, switch, …).")
def pop(seeds: int, first: int, plot: str, jobs: int, tally: Path | None) -> None:
    """Whole clusters with pop consumers under faults; exit code 1 if a promise of pop was broken."""
    run_many("pop", functools.partial(run_pops, plot=plot), range(first, first + seeds), jobs, tally)


def run_case(cut: Case, replicas: int, seed: int) -> Result:
    return Result(cut, measure(cut, seed, replicas=replicas), replicas)


@main.command()
@click.option(
    "--cases", type=int, help="So many cases, chosen at random; default: all 4,096 (some 25 minutes)."
)
@click.option("--three", default=0, show_default=True, help="Also so many cases of three replicas.")
@click.option("--seed", default=0, show_default=True, help="Other moments of the cut, and other schedules.")
@click.option("--page", "write", is_flag=True, help="Write docs/reports/availability.md and its picture.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
def availability(cases: int | None, three: int, seed: int, write: bool, jobs: int) -> None:
    """Cut links: what could be served, and what was; exit code 1 if they differ."""
    chosen = list(all_cases())
    if cases is not None:
        chosen = random.Random(cases).sample(chosen, cases)
    more = some_cases(three, seed=three)
    replicas = [2] * len(chosen) + [3] * len(more)
    with ProcessPoolExecutor(jobs) as pool, Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("cases", total=len(replicas))
        results = []
        for result in pool.map(
            functools.partial(run_case, seed=seed), [*chosen, *more], replicas, chunksize=8
        ):
            results.append(result)
            progress.advance(bar)
    if write:
        docs = Path(__file__).parents[2] / "docs"
        (docs / "reports/availability.md").write_text(availability_page.page(results))
        availability_page.plot(results, docs / "images" / availability_page.IMAGE)
    wrong = [result for result in results if not result.agrees or result.late]
    for result in wrong:
        click.echo(
            f"{result.replicas} replicas, expected {result.expected}, was {result.measured}: "
            f"{sorted(result.cut)}"
        )
    click.echo(f"{len(results) - len(wrong)} cases agree, {len(wrong)} differ")
    sys.exit(1 if wrong else 0)


def run_returns(seed: int) -> Counted:
    logging.disable(logging.CRITICAL)
    try:
        story = returning.run(seed)
    except Exception as error:
        return what_broke(seed, error), Counter()
    counts = Counter(locks=story.granted, acting=story.acting, returns=story.returned, commits=story.commits)
    return None, counts


@main.command("returning")
@search_options
def returns(seeds: int, first: int, jobs: int, tally: Path | None) -> None:
    """Broker sets without controllers, with strict locks; exit code 1 if a queue had two owners, or a master
    that returned lost what its slave had accepted."""
    run_many("returning", run_returns, range(first, first + seeds), jobs, tally)


def run_acting(seed: int, with_lonely: bool) -> Counted:
    logging.disable(logging.CRITICAL)
    try:
        story = lonely.run_lonely(seed) if with_lonely else acting.run(seed)
    except Exception as error:
        return what_broke(seed, error), Counter()
    counts = Counter(
        acked=len(story.acked),
        acting=story.acted,
        escaped=story.escaped,
        repeated=story.repeated,
        waited=story.waited,
    )
    return None, counts


@main.command("acting")
@search_options
@click.option("--lonely", "with_lonely", is_flag=True, help="With a topic that the other set does not have.")
def acting_masters(seeds: int, first: int, with_lonely: bool, jobs: int, tally: Path | None) -> None:
    """Two broker sets without controllers, of which one loses its master again and again; exit code 1 if a
    message was lost."""
    run_many(
        "acting",
        functools.partial(run_acting, with_lonely=with_lonely),
        range(first, first + seeds),
        jobs,
        tally,
    )


def run_containers(seed: int) -> Counted:
    logging.disable(logging.CRITICAL)
    try:
        story = containers.run(seed)
    except Exception as error:
        return what_broke(seed, error), Counter()
    counts = Counter(
        acked=len(story.acked) + len(story.placed),
        acting=story.acted,
        escaped=story.escaped,
        removed=story.removed,
        added=story.added,
    )
    return None, counts


@main.command("containers")
@search_options
def crosswise(seeds: int, first: int, jobs: int, tally: Path | None) -> None:
    """Two containers crosswise, whose brokers are also removed and added; exit code 1 if a message was lost,
    or a broker was not where it belongs."""
    run_many("containers", run_containers, range(first, first + seeds), jobs, tally)


def run_statics(seed: int) -> Counted:
    logging.disable(logging.CRITICAL)
    try:
        story = statics.run(seed)
    except Exception as error:
        return what_broke(seed, error), Counter()
    return None, Counter(acked=len(story.acked), moves=story.moves, again=story.again)


@main.command("static")
@search_options
def moving_queues(seeds: int, first: int, jobs: int, tally: Path | None) -> None:
    """Two broker sets between which the queues of a static topic move; exit code 1 if a message was lost, not
    where it was acknowledged, or out of order."""
    run_many("static", run_statics, range(first, first + seeds), jobs, tally)


main.add_command(shrink_command)
main.add_command(guided_command)
main.add_command(tally_command)

if __name__ == "__main__":
    main()
