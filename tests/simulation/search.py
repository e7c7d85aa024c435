"""The commands `shrink` and `guided` (`shrink.py`, `guided.py`)."""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
from rich.progress import Progress

from tests.simulation.guided import Plan, Search
from tests.simulation.many import Stop, begin_worker
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenario import run
from tests.simulation.shrink import Broken, broken, shrink
from tests.simulation.story import Shape, State, Story, Violation, shape_of
from tests.simulation.tally import counting, tally_option


def options_of(seed: int, shape: Shape) -> str:
    """What repeats this story on the command line of `python -m tests.simulation`."""
    words = [f"--first {seed} --verbose --replicas {shape.replicas} --controllers {shape.controllers}"]
    if shape.sync_flush != shape_of(seed).sync_flush:
        words.append("--sync-flush" if shape.sync_flush else "--async-flush")
    if shape.replace_controllers:
        words.append("--replace-controllers")
    if shape.hand_back:
        words.append("--hand-back")
    if shape.plot:
        words.append(f"--plot '{shape.plot}'")
    if shape.branches:
        words.append("--branches " + ",".join(f"{number}:{other}" for number, other in shape.branches))
    if shape.kept is not None:
        words.append(f"--kept '{','.join(sorted(shape.kept))}'")
    return " ".join(words)


def kept_of(text: str | None) -> frozenset[str] | None:
    """The option --kept: keys of faults, separated by commas."""
    return None if text is None else frozenset(key for key in text.split(",") if key)


def branches_of(text: str) -> tuple[tuple[int, int], ...]:
    """The option --branches: ``number:seed``, separated by commas."""
    pairs = (pair.partition(":") for pair in text.split(",") if pair)
    return tuple((int(number), int(seed)) for number, _, seed in pairs)


def show_shrunk(seed: int, found: Broken) -> Broken:
    """Shrink a story with progress on stderr, and print what is left of it."""
    click.echo(f"seed {seed} breaks: {found.kind}; {len(found.faults)} faults", err=True)
    smallest = shrink(seed, found, lambda text: click.echo(f"  smaller: {text}", err=True))
    click.echo(smallest.text)
    click.echo(
        f"{len(smallest.faults)} of {len(found.faults)} faults are enough: "
        f"python -m tests.simulation {options_of(seed, smallest.shape)}"
    )
    return smallest


@click.command("shrink")
@click.argument("seed", type=int)
@click.option("--replicas", type=click.IntRange(2, 5), help="As in the run that failed.")
@click.option("--replace-controllers", is_flag=True, help="As in the run that failed.")
@click.option("--hand-back", is_flag=True, help="As in the run that failed.")
@click.option("--branches", default="", metavar="N:SEED,…", help="As `guided` printed them.")
@click.option("--mutation", type=click.Choice(list(MUTATIONS)), help="Without this guard of the programs.")
def shrink_command(
    seed: int,
    replicas: int | None,
    replace_controllers: bool,
    hand_back: bool,
    branches: str,
    mutation: str | None,
) -> None:
    """Find the smallest story that breaks the same invariant as SEED; exit code 1 if SEED breaks none."""
    logging.disable(logging.CRITICAL)
    of = MUTATIONS[mutation].shape if mutation is not None else None
    shape = of(seed) if of is not None else shape_of(seed, replicas)
    shape = replace(
        shape,
        replace_controllers=replace_controllers or shape.replace_controllers,
        hand_back=hand_back,
        branches=branches_of(branches),
    )
    with MUTATIONS[mutation].in_force() if mutation is not None else nullcontext():
        found = broken(seed, shape)
        if found is None:
            click.echo(f"seed {seed} breaks no invariant", err=True)
            sys.exit(1)
        show_shrunk(seed, found)


class Outcome(NamedTuple):
    """What comes back from the process that ran a story."""

    plan: Plan
    faults: list[str]
    states: set[State]
    error: str | None


def execute(plan: Plan) -> Outcome:
    """Run one story in another process; a failure is part of the outcome."""
    logging.disable(logging.CRITICAL)
    story, error = Story(plan.seed), None
    try:
        run(plan.seed, plan.shape, story=story)
    except Violation as violation:
        error = str(violation)
    return Outcome(plan, story.faults, story.states, error)


@click.command("guided")
@click.option("--stories", default=1000, show_default=True, help="How many.")
@click.option("--first", default=0, show_default=True, help="First new seed, and the seed of the search.")
@click.option("--jobs", default=2, show_default=True, help="Processes. Only 1 repeats a search exactly.")
@click.option("--plain", is_flag=True, help="Fresh seeds only, to compare.")
@tally_option
def guided_command(stories: int, first: int, jobs: int, plain: bool, tally: Path | None) -> None:
    """Run stories that branch off where others reached new states; exit code 1 if an invariant broke. Stories
    that broke one are shrunk at the end."""
    search, began = Search(first, guided=not plain, first=first), time.monotonic()
    failed: list[Outcome] = []
    quarters: list[int] = []
    stop = Stop()
    with (
        counting(tally, "guided", first, jobs) as line,
        ProcessPoolExecutor(jobs, initializer=begin_worker) as pool,
        Progress(disable=not sys.stderr.isatty()) as progress,
        stop.on_signals(),
    ):
        bar = progress.add_task("stories", total=stories)
        running: set[Future[Outcome]] = set()
        started = 0
        while True:
            while not stop.asked and started < stories and len(running) < jobs:
                running.add(pool.submit(execute, search.plan()))
                started += 1
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = future.result()
                search.learn(outcome.plan, outcome.faults, outcome.states)
                line.seeds += 1
                progress.advance(bar)
                if line.seeds * 4 % stories < 4:
                    quarters.append(len(search.seen))
                if outcome.error is not None:
                    failed.append(outcome)
                    line.failed.append(outcome.plan.seed)
    rare = sum(1 for count in search.seen.values() if count == 1)
    click.echo(
        f"{line.seeds} stories, {len(search.seen):,} states ({rare:,} of them in one story only); "
        f"after each quarter: {', '.join(f'{count:,}' for count in quarters)}; "
        f"{len(failed)} broke an invariant; {time.monotonic() - began:.0f} s"
    )
    logging.disable(logging.CRITICAL)
    for outcome in failed:
        click.echo(f"python -m tests.simulation {options_of(outcome.plan.seed, outcome.plan.shape)}")
        found = broken(outcome.plan.seed, outcome.plan.shape)
        if found is None:
            raise RuntimeError(f"seed {outcome.plan.seed} does not repeat: {outcome.error}")
        show_shrunk(outcome.plan.seed, found)
    sys.exit(1 if failed else 0)
