"""``python -m tests.simulation --seeds 1000``: any number of seeded stories, two at a time."""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

import click
from rich.progress import Progress

from tests.simulation.scenario import Shape, run


def shape_of(seed: int, replicas: int | None = None) -> Shape:
    """Seeds cover all shapes in turn: 2 or 3 replicas, acknowledged in memory or on disk."""
    return Shape(
        replicas=replicas if replicas is not None else (2, 2, 3)[seed % 3],
        sync_flush=seed // 3 % 2 == 1,
    )


def tell(seed: int, replicas: int | None) -> tuple[int, str | None, int, int]:
    """Seed, the violation if there was one, acknowledged sends, master epochs."""
    logging.disable(logging.CRITICAL)
    try:
        story = run(seed, shape_of(seed, replicas))
    except Exception as error:
        return seed, f"{type(error).__name__}: {error}", 0, 0
    return seed, None, len(story.acked), story.switches


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="How many.")
@click.option("--first", default=0, show_default=True, help="First seed.")
@click.option("--replicas", type=click.IntRange(2, 5), help="Always so many; default: 2 and 3 in turn.")
@click.option("--jobs", default=2, show_default=True, help="Processes.")
@click.option("--verbose", is_flag=True, help="One seed with its log on stderr.")
def main(seeds: int, first: int, replicas: int | None, jobs: int, verbose: bool) -> None:
    """Run seeded simulations of controllers, replicas and a client; exit code 1 if an invariant broke."""
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
        story = run(first, shape_of(first, replicas))
        click.echo("\n".join(story.events))
        return
    began, failed, acked, epochs = time.monotonic(), [], 0, 0
    with ProcessPoolExecutor(jobs) as pool, Progress(disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("seeds", total=seeds)
        for future in as_completed(
            [pool.submit(tell, seed, replicas) for seed in range(first, first + seeds)]
        ):
            seed, violation, count, switches = future.result()
            acked, epochs = acked + count, epochs + switches
            progress.advance(bar)
            if violation is not None:
                failed.append(seed)
                progress.console.print(violation, markup=False, highlight=False)
    click.echo(
        f"{seeds - len(failed)} seeds held, {len(failed)} failed {sorted(failed)}; "
        f"{acked:,} acknowledged sends, {epochs:,} master epochs, {time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
