"""`batonmq spark skew`: which keys and queues of a topic are hot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from batonmq.common.plots import BLUE, GREY, RED
from batonmq.common.terminal import visible
from batonmq.spark import report
from batonmq.spark.access import Access
from batonmq.spark.cluster_options import cluster_options
from batonmq.spark.command import (
    DIRECTORY,
    Number,
    check_times,
    check_topic,
    one_line,
    session_for,
    spark_options,
    time_option,
    topic_option,
)
from batonmq.spark.jobs.skew import BY

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession

    from batonmq.spark.jobs.skew import HotQueue, Skew

NAME_LENGTH = 60
"""Characters of a key in tables."""


@click.command()
@cluster_options(unless={"archived": "--archive", "stores": "--store"})
@topic_option
@click.option("--archive", "archived", help="Read this archive (batonmq spark archive) instead.")
@click.option("--store", "stores", multiple=True, help="Read this store directory instead; may be repeated.")
@time_option("--from", "from_ms", "Only messages stored then or later; default: the oldest too.")
@time_option("--until", "until_ms", "Only messages stored before; default: now.")
@click.option(
    "--by",
    type=click.Choice(BY),
    default="keys",
    show_default=True,
    help="Property to count messages by.",
)
@click.option("--top", type=click.IntRange(1, 1_000), default=20, show_default=True, help="Keys to show.")
@click.option(
    "--max-share",
    type=Number(0, 1),
    help="Exit code 1 if a key has a larger share of the messages: 0.1 is a tenth.",
)
@click.option(
    "--max-of-mean",
    type=Number(1),
    help="Exit code 1 if a queue has more messages than this multiple of the mean of all queues.",
)
@click.option("--out", type=DIRECTORY, help="Directory for a page with plots, report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@spark_options
def skew(
    namesrv: str | None,
    access: Access,
    topic: str,
    archived: str | None,
    stores: tuple[str, ...],
    from_ms: int | None,
    until_ms: int | None,
    by: str,
    top: int,
    max_share: float | None,
    max_of_mean: float | None,
    out: Path | None,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Show which keys and queues are hot.

    \b
      batonmq spark skew -n 10.0.0.1:9876 -t orders
      batonmq spark skew -n 10.0.0.1:9876 -t orders --by shardingKey --max-share 0.1
      batonmq spark skew -t orders --archive /data/orders --from 2026-11-24T08:00

    Counts messages and bytes by key and by queue. A hot key makes its queue long, and its consumer late. The
    exit code is 1 if a limit is exceeded.
    """
    from batonmq.spark.jobs import skew as job

    # NAMESRV_ADDR stands for no choice: with another source it does not count.
    chosen = click.get_current_context().get_parameter_source("namesrv") is ParameterSource.COMMANDLINE
    if chosen + bool(archived) + bool(stores) > 1:
        raise click.UsageError("give one of --namesrv, --archive and --store")
    check_times(from_ms, until_ms)
    known: list[str] = []
    if namesrv is not None:
        check_topic(namesrv, topic, access)
        with one_line():
            known = asyncio.run(_queues(namesrv, topic, access))
    if out is not None:
        report.new_figure()  # it fails now if the libraries for plots are missing
    session = session_for("skew", master, conf)
    with one_line():
        log = _log(session, namesrv, access, topic, archived, stores, from_ms, until_ms)
    measured = job.measure(log, by=by, top=top)
    queues = job.empty_queues(measured.queues, known)
    if not measured.messages:
        click.echo("there is no message", err=True)
        return
    wrong = []
    if max_share is not None and measured.hottest_share > max_share:
        hottest = measured.top[0]
        wrong.append(f"key {short(hottest.key)} has {hottest.share:.1%} of the messages")
    fullest = max(queues, key=lambda queue: queue.of_mean)
    if max_of_mean is not None and fullest.of_mean > max_of_mean:
        wrong.append(f"queue {fullest.queue} has {fullest.of_mean:.1f} times the mean")
    if as_json:
        values = measured.as_dict() | {"queues": [asdict(queue) for queue in queues], "wrong": wrong}
        click.echo(json.dumps(values))
    tables = _tables(measured, queues, by)
    verdict = f"Uneven: {'; '.join(wrong)}." if wrong else "No limit is exceeded."
    if not as_json:
        report.show(tables)
        if wrong:
            click.echo(verdict, err=True)
    if out is not None:
        page = report.Page(f"Skew of {topic}", verdict, not wrong, tables, _plots(measured, queues, by))
        click.echo(f"the report is {report.write(page, out)}", err=True)
    if wrong:
        raise SystemExit(1)


async def _queues(namesrv: str, topic: str, access: Access) -> list[str]:
    """``broker:queue`` of all readable queues."""
    from batonmq.client.reader import QueueReader

    async with QueueReader(namesrv, **access.client()) as reader:
        return [f"{queue.broker_name}:{queue.queue_id}" for queue in await reader.queues(topic)]


def _log(
    session: SparkSession,
    namesrv: str | None,
    access: Access,
    topic: str,
    archived: str | None,
    stores: Sequence[str],
    from_ms: int | None,
    until_ms: int | None,
) -> DataFrame:
    from pyspark.sql import functions as F

    from batonmq.spark.jobs import archive
    from batonmq.spark.jobs import skew as job

    if archived:
        log = archive.read(session, archived, topic)
        at_ms = F.unix_millis("timestamp")
        log = log if from_ms is None else log.where(at_ms >= from_ms)
        return log if until_ms is None else log.where(at_ms < until_ms)
    options = {"subscribe": topic}
    options |= {} if from_ms is None else {"startingTimestamp": str(from_ms)}
    options |= {} if until_ms is None else {"endingTimestamp": str(until_ms)}
    if stores:
        reader = session.read.format("rocketmq-store").schema(job.COLUMNS)
        return reader.options(**options).load(",".join(stores))
    assert namesrv is not None
    reader = session.read.format("rocketmq").schema(job.COLUMNS)
    return reader.options(namesrvAddr=namesrv, **options, **access.source_options()).load()


def short(key: str) -> str:
    """A key that fits a table."""
    key = visible(key)
    return key if len(key) <= NAME_LENGTH else f"{key[: NAME_LENGTH - 1]}…"


def _tables(measured: Skew, queues: Sequence[HotQueue], by: str) -> list[report.Table]:
    facts = [
        ("messages", f"{measured.messages:,}"),
        ("bytes", f"{measured.bytes:,}"),
        (f"messages without {by}", f"{measured.without_key:,}"),
        (f"different {by}", f"{measured.keys:,}"),
        ("so many have half of the messages", f"{measured.half_of_messages:,}"),
        ("Gini coefficient (0: even)", f"{measured.gini:.3f}"),
    ]
    return [
        report.Table("Totals", ("", ""), facts),
        report.Table(
            f"Hottest {by}",
            (by, "messages", "share", "bytes", "queues", "hottest queue"),
            [
                (
                    short(hot.key),
                    f"{hot.messages:,}",
                    f"{hot.share:.2%}",
                    f"{hot.bytes:,}",
                    str(hot.queues),
                    hot.hottest_queue,
                )
                for hot in measured.top
            ],
        ),
        report.Table(
            "Queues",
            ("queue", "messages", "of the mean", "bytes"),
            [(q.queue, f"{q.messages:,}", f"{q.of_mean:.2f}", f"{q.bytes:,}") for q in queues],
        ),
    ]


def _plots(measured: Skew, queues: Sequence[HotQueue], by: str) -> list[Figure]:
    from batonmq.spark.jobs import skew as job

    bars = report.new_figure()
    axes = bars.subplots()
    axes.bar([queue.queue for queue in queues], [queue.messages for queue in queues], color=BLUE)
    axes.axhline(measured.messages / len(queues), color=GREY, linewidth=1)
    axes.tick_params(axis="x", labelrotation=90 if len(queues) > 12 else 0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(title="Messages by queue, and their mean")
    if not measured.keys:
        return [bars]
    curve = report.new_figure()
    axes = curve.subplots()
    ranks, shares = zip(*job.shares(measured.frequencies), strict=True)
    axes.plot(ranks, shares, color=RED)
    axes.plot((0, measured.keys), (0, 1), color=GREY, linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set(
        title=f"Share of the messages that the most frequent {by} have (grey: an even topic)",
        xlabel=f"number of {by}, most frequent first",
        ylim=(0, 1),
    )
    return [bars, curve]
