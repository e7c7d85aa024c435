"""`batonmq spark lag`: who is behind, since when, and with what."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batonmq.common.plots import BLUE
from batonmq.common.plural import counted
from batonmq.spark import report
from batonmq.spark.access import Access
from batonmq.spark.cluster_options import cluster_options
from batonmq.spark.command import DIRECTORY, Number, check_topic, one_line, session_for, spark_options
from batonmq.spark.report import duration, moment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from batonmq.spark.jobs.lag import QueueLag, Rates, ReaderLag

WORST = 20
"""Queues in the table."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The lag of all readers at one moment."""

    at_ms: int
    queues: list[QueueLag]


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too much; None: no limit."""

    behind: int | None
    age_s: float | None

    def broken_by(self, lag: ReaderLag, now_ms: int) -> list[str]:
        """What is wrong with a reader, each in a few words."""
        name, found = f"{lag.reader} in {lag.topic}", []
        if self.behind is not None and lag.behind > self.behind:
            found.append(f"{name}: {counted(lag.behind, 'message')} behind")
        age = None if lag.oldest_ms is None else (now_ms - lag.oldest_ms) / 1000
        if self.age_s is not None and age is not None and age > self.age_s:
            found.append(f"{name}: {duration(age)} behind")
        if lag.expired:
            found.append(
                f"{name}: "
                + counted(lag.expired, "message expired before it was", "messages expired before they were")
                + " consumed"
            )
        return found


@click.command()
@cluster_options()
@click.option("-g", "--group", "groups", multiple=True, help="Consumer group; may be repeated.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    help="Topic; without --group: all groups that consume it. May be repeated.",
)
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=DIRECTORY,
    help="Checkpoint of a stream; may be repeated.",
)
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Number of samples.")
@click.option(
    "--every", type=Number(0.1), default=5.0, show_default=True, help="Seconds between two samples."
)
@click.option(
    "--contents",
    is_flag=True,
    help="Also count the messages that are not consumed, by tag; Spark reads them.",
)
@click.option(
    "--max-behind",
    type=click.IntRange(0),
    help="Exit code 1 if a reader is behind by more messages than this.",
)
@click.option(
    "--max-age",
    type=Number(0),
    help="Exit code 1 if the oldest message that a reader has not consumed is older than this, in seconds.",
)
@click.option("--out", type=DIRECTORY, help="Directory for a page with plots, report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@spark_options
def lag(
    namesrv: str,
    access: Access,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    checkpoints: tuple[Path, ...],
    samples: int,
    every: float,
    contents: bool,
    max_behind: int | None,
    max_age: float | None,
    out: Path | None,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Show which consumer groups and streams are behind.

    \b
      batonmq spark lag -n 10.0.0.1:9876 -t orders
      batonmq spark lag -n 10.0.0.1:9876 -g billing --samples 12 --every 5 --max-age 60
      batonmq spark lag -n 10.0.0.1:9876 --checkpoint /data/checkpoints/orders

    For each reader and topic: messages that are stored and not consumed, the age of the oldest one, and the
    queue with most of them. With several samples also the rates at which messages are stored and consumed,
    and when the reader will have caught up. Spark starts only with --contents. The exit code is 1 if a limit
    is exceeded, or if messages expired before they were consumed.
    """
    from batonmq.spark.jobs import lag as job

    if not (groups or topics or checkpoints):
        raise click.UsageError("give at least one of --group, --topic and --checkpoint")
    if out is not None:
        report.new_figure()  # it fails now if the libraries for plots are missing
    with one_line():
        taken = asyncio.run(_sampled(namesrv, access, groups, topics, checkpoints, samples, every))
    first, last = taken[0], taken[-1]
    if not last.queues:
        if not (groups or topics):
            raise click.ClickException("all topics of the checkpoint are gone")
        for topic in topics:
            check_topic(namesrv, topic, access)
        raise click.ClickException("no group consumes this topic, and none has offsets of it")
    readers = job.by_reader(last.queues)
    rates = job.rates(first.queues, last.queues, (last.at_ms - first.at_ms) / 1000) if len(taken) > 1 else {}
    limits = Limits(max_behind, max_age)
    wrong = [text for reader in readers for text in limits.broken_by(reader, last.at_ms)]
    unread = _contents(namesrv, access, readers, last.queues, master, conf) if contents else None
    if as_json:
        result = {
            "at_ms": last.at_ms,
            "readers": [asdict(r) | _rates_json(rates.get((r.reader, r.topic)), r.behind) for r in readers],
            "queues": [asdict(queue) | {"behind": queue.behind} for queue in last.queues],
            "wrong": wrong,
        }
        click.echo(json.dumps(result | ({"contents": unread} if unread is not None else {})))
    tables = _tables(readers, rates, last, unread)
    verdict = f"Too far behind: {'; '.join(wrong)}." if wrong else "No reader exceeds a limit."
    if not as_json:
        report.show(tables)
        if wrong:
            click.echo(verdict, err=True)
    if out is not None:
        page = report.Page(
            "Lag", verdict, not wrong, tables, _plots(taken, readers), f"{moment(last.at_ms)}, {namesrv}"
        )
        click.echo(f"the report is {report.write(page, out)}", err=True)
    if wrong:
        raise SystemExit(1)


async def _sampled(
    namesrv: str,
    access: Access,
    groups: Sequence[str],
    topics: Sequence[str],
    checkpoints: Sequence[Path],
    samples: int,
    every: float,
) -> list[Sample]:
    from batonmq.spark.jobs import lag as job

    known = not groups
    if known:
        names = {group for topic in topics for group in await job.groups_of(namesrv, topic, access)}
        groups = sorted(names)
    taken: list[Sample] = []
    began = time.monotonic()
    for number in range(samples):
        await asyncio.sleep(max(0.0, began + number * every - time.monotonic()))
        at_ms = job.now_ms()
        queues = await job.group_lag(namesrv, groups, topics, known=known, access=access) if groups else []
        for checkpoint in checkpoints:
            queues += await job.stream_lag(namesrv, checkpoint, access)
        taken.append(Sample(at_ms, queues))
    return taken


def _contents(
    namesrv: str,
    access: Access,
    readers: Sequence[ReaderLag],
    queues: Sequence[QueueLag],
    master: str | None,
    conf: tuple[str, ...],
) -> list[dict[str, Any]]:
    from batonmq.spark.jobs import lag as job

    session = session_for("lag", master, conf)
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(reader.reader for reader in readers if reader.behind):
        unread = [queue for queue in queues if queue.reader == name]
        rows = job.contents(session, namesrv, unread, access).collect()
        found += [{"reader": name} | row.asDict() for row in rows]
    return found


def _rates_json(rates: Rates | None, behind: int) -> dict[str, float | None]:
    if rates is None:
        return {}
    return {
        "stored_a_second": rates.stored,
        "consumed_a_second": rates.consumed,
        "seconds_left": rates.seconds_left(behind),
    }


def _tables(
    readers: Sequence[ReaderLag],
    rates: dict[tuple[str, str], Rates],
    sample: Sample,
    unread: Sequence[dict[str, Any]] | None,
) -> list[report.Table]:
    columns = ["reader", "topic", "behind", "oldest", "expired", "queues", "worst queue"]
    if rates:
        columns += ["stored/s", "consumed/s", "caught up in"]
    rows = []
    for reader in readers:
        age = "" if reader.oldest_ms is None else duration((sample.at_ms - reader.oldest_ms) / 1000)
        row = [reader.reader, reader.topic, f"{reader.behind:,}", age, f"{reader.expired:,}"]
        row += [str(reader.queues), f"{reader.worst} ({reader.worst_behind:,})"]
        if rates:
            rate = rates.get((reader.reader, reader.topic))
            left = None if rate is None else rate.seconds_left(reader.behind)
            row += ["", ""] if rate is None else [f"{rate.stored:,.0f}", f"{rate.consumed:,.0f}"]
            row.append("never, at this rate" if left is None else duration(left) if left else "")
        rows.append(row)
    tables = [report.Table("Who is behind", tuple(columns), rows)]
    worst = sorted((queue for queue in sample.queues if queue.behind), key=lambda queue: -queue.behind)[
        :WORST
    ]
    if worst:
        tables.append(
            report.Table(
                "Queues with most messages",
                ("reader", "topic", "queue", "behind", "next offset", "end"),
                [
                    (
                        q.reader,
                        q.topic,
                        f"{q.broker}:{q.queue_id}",
                        f"{q.behind:,}",
                        f"{q.next_offset:,}",
                        f"{q.end:,}",
                    )
                    for q in worst
                ],
            )
        )
    if unread is not None:
        tables.append(
            report.Table(
                "What is not consumed",
                ("reader", "topic", "tag", "messages", "bytes", "oldest", "newest"),
                [
                    (
                        row["reader"],
                        row["topic"],
                        row["tags"] or "",
                        f"{row['messages']:,}",
                        f"{row['bytes'] or 0:,}",
                        moment(row["oldest_ms"]),
                        moment(row["newest_ms"]),
                    )
                    for row in unread
                ],
            )
        )
    return tables


def _plots(taken: Sequence[Sample], readers: Sequence[ReaderLag]) -> list[Figure]:
    from batonmq.spark.jobs import lag as job

    plots = []
    if len(taken) > 1:
        over_time = report.new_figure()
        axes = over_time.subplots()
        for reader in readers[:10]:
            key = reader.reader, reader.topic
            points = [
                (
                    (sample.at_ms - taken[0].at_ms) / 1000,
                    sum(lag.behind for lag in job.by_reader(sample.queues) if (lag.reader, lag.topic) == key),
                )
                for sample in taken
            ]
            axes.plot(*zip(*points, strict=True), marker=".", label=f"{reader.reader}, {reader.topic}")
        axes.set(title="Messages behind", xlabel="seconds", ylim=(0, None))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.legend(frameon=False, fontsize=7)
        plots.append(over_time)
    queues = sorted(taken[-1].queues, key=lambda queue: -queue.behind)[:40]
    by_queue = report.new_figure(1.0 + 0.2 * len(queues))
    axes = by_queue.subplots()
    names = [f"{queue.reader}, {queue.topic} {queue.broker}:{queue.queue_id}" for queue in queues]
    axes.barh(names, [queue.behind for queue in queues], color=BLUE)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(title="Messages behind, by queue")
    return [*plots, by_queue]
