"""`batonmq spark chaos-report`: how long clients waited under each fault of `make chaos`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from batonmq.common.plural import counted
from batonmq.spark import chaos_page, report
from batonmq.spark.command import DIRECTORY, session_for, spark_options


@click.command("chaos-report")
@click.option(
    "--dir",
    "directories",
    multiple=True,
    required=True,
    type=DIRECTORY,
    help="Output directory of 'make chaos'; repeat it for several seeds.",
)
@click.option("--to", "target", type=report.PAGE, help="Also write a page with plots to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@spark_options
def chaos_report(
    directories: tuple[Path, ...],
    target: Path | None,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Show how long clients waited under each fault.

    \b
      make chaos ARGS="--peer java --seed 1 --out chaos-1"
      make chaos ARGS="--peer java --seed 2 --out chaos-2"
      batonmq spark chaos-report --dir chaos-1 --dir chaos-2 --to chaos.html

    Reads results.json and the producers' histories (history-*.parquet) of each run, and shows for each
    scenario on each kind of cluster:

    \b
      - the longest time without an acknowledged send: median, p90 and max over all rounds
      - the same for reads, and the time until the cluster was complete again
      - what was lost or out of order, and why sends failed

    The gaps are computed from the histories. Rounds for which results.json has another gap are listed. The
    exit code is 1 if anything acknowledged was lost, overwritten, reordered or taken back, by any system.
    """
    from batonmq.spark.jobs import chaos
    from batonmq.spark.jobs.chaos_results import Unreadable, read

    try:
        runs = [chaos.Run(path, read(path)) for path in _once(directories)]
        histories = len(chaos.histories_of(runs))
    except Unreadable as error:
        raise click.ClickException(str(error)) from None
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; install Spark with: pip install 'batonmq[spark]'") from None
    if target is not None:
        report.new_figure()  # it fails now if the libraries for plots are missing
    results = sum(len(run.results.results) for run in runs)
    click.echo(
        f"reading {counted(histories, 'history', 'histories')} of {counted(results, 'scenario')}", err=True
    )
    session = session_for("chaos-report", master, conf)
    measured = chaos.measure(session, runs)
    lost = sum(each.lost for each in measured.summaries)
    verdict = chaos_page.verdict(measured, len(runs))
    if as_json:
        click.echo(
            json.dumps(
                {
                    "runs": [{"directory": str(run.directory), "where": run.results.where} for run in runs],
                    "scenarios": [each.as_dict() for each in measured.summaries],
                    "rounds": [each.as_dict() for each in measured.rounds],
                    "different": [asdict(each) for each in measured.different],
                    "notes": measured.notes,
                    "lost": lost,
                    "verdict": verdict,
                }
            )
        )
    tables = chaos_page.tables(measured)
    if not as_json:
        report.show(tables)
        click.echo(verdict)
    for note in measured.notes:
        click.echo(f"note: {note}", err=True)
    if target is not None:
        page = report.Page(
            "Clients under faults",
            verdict,
            not lost,
            tables,
            chaos_page.plots(measured),
            chaos_page.footer(measured, runs),
        )
        click.echo(f"the report is {report.write_to(page, target)}", err=True)
    if lost:
        raise SystemExit(1)


def _once(directories: tuple[Path, ...]) -> list[Path]:
    """A directory that is named twice counts once."""
    return list({path.resolve(): path for path in directories}.values())
