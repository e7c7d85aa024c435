"""`batonmq spark bench-report`: several runs of benchmarks, ours beside the peer's."""

from __future__ import annotations

import json
from pathlib import Path

import click

from batonmq.common.plural import counted
from batonmq.spark import bench_page, report
from batonmq.spark.command import session_for, spark_options


@click.command("bench-report")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--to", "target", type=report.PAGE, help="Also write a page with plots to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@spark_options
def bench_report(
    files: tuple[Path, ...], target: Path | None, as_json: bool, master: str | None, conf: tuple[str, ...]
) -> None:
    """Show several runs of benchmarks together.

    \b
      python -m benchmarks send batch --json monday.json
      python -m benchmarks send batch --json tuesday.json
      batonmq spark bench-report monday.json tuesday.json --to bench.html

    Reads what benchmarks write with --json, or print as JSON lines. For each figure and system: the median,
    least and greatest of all passes. For each figure of BatonMQ also the ratio to the peer's, pass by pass
    within each run: a machine's speed changes between runs. Where the two had different numbers of passes, it
    is the ratio of their medians. The exit code is 1 if a file cannot be used.
    """
    from batonmq.spark.jobs import bench

    paths = list({path.resolve(): path for path in files}.values())
    try:
        measurements = bench.read(paths)
    except bench.Unreadable as error:
        raise click.ClickException(str(error)) from None
    if target is not None:
        report.new_figure()  # it fails now if the libraries for plots are missing
    click.echo(f"reading {counted(len(measurements), 'figure')} of {counted(len(paths), 'file')}", err=True)
    session = session_for("bench-report", master, conf)
    reached = bench.measure(session, measurements)
    verdict = bench_page.verdict(reached, len(paths))
    if as_json:
        click.echo(json.dumps({"files": list(map(str, paths)), "figures": [e.as_dict() for e in reached]}))
    tables = bench_page.tables(reached)
    if not as_json:
        report.show(tables)
        click.echo(verdict)
    if target is not None:
        page = report.Page(
            "Benchmarks",
            verdict,
            True,
            tables,
            bench_page.plots(measurements, reached),
            f"Runs: {', '.join(dict.fromkeys(each.run for each in measurements))}.",
        )
        click.echo(f"the report is {report.write_to(page, target)}", err=True)
