"""``batonmq spark``: the connector's jobs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from batonmq.protocol.bodies.common import MessageQueue
    from batonmq.spark.jobs.mirror import Lane, Mirror

F = TypeVar("F", bound=Callable[..., Any])


_OURS = re.compile(r"(?:^|: )batonmq\.[\w.]+: (.+)$", re.MULTILINE)
"""Our error in the text of Spark's error: on a line below a traceback, or after Spark's prefix."""


_TRANSLATE_S = 10
"""How often a mirror translates the offsets of groups."""
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


class Jobs(click.Group):
    """Reports an error of our source in one line; Spark wraps it in tracebacks of two languages."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            found = _OURS.findall(str(error)) if type(error).__module__.startswith("pyspark.errors") else []
            if not found:
                raise
            raise click.ClickException(found[-1]) from None


@click.group(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"]})
def spark() -> None:
    """Spark jobs over topics of a BatonMQ or RocketMQ cluster.

    \b
      batonmq spark archive -n 127.0.0.1:9876 -t orders --to /data/orders

    All run on this machine (local[*]) unless --master names a Spark cluster, such as spark://host:7077. They
    need PySpark (pip install '.[spark]') and a Java runtime, version 17 or newer. For your own queries use
    spark.read.format("rocketmq"): see docs/spark.md.
    """


def _common(command: F) -> F:
    for option in (
        click.option("-n", "--namesrv", required=True, help="Name servers, host:port;host:port."),
        click.option("-t", "--topic", required=True, help="Topic to read."),
        click.option("--master", help="Spark master; default local[*], this machine."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated."),
    ):
        command = option(command)
    return command


def _session(job: str, master: str | None, conf: tuple[str, ...]) -> SparkSession:
    try:
        from batonmq.spark.session import spark_session
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; install Spark with: pip install 'batonmq[spark]'") from None
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise click.ClickException(
            "Spark needs a Java runtime, version 17 or newer: there is no java on PATH"
        )
    settings = {}
    for item in conf:
        key, equals, value = item.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {item!r}: expected KEY=VALUE")
        settings[key] = value
    return spark_session(f"batonmq {job}", master=master, settings=settings)


def _check(namesrv: str, topic: str) -> None:
    """Check that the topic exists before Spark starts, which takes much longer."""
    from batonmq.client.sync import QueueReader
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError, TopicNotExistError

    try:
        with QueueReader(namesrv) as reader:
            reader.queues(topic)
    except TopicNotExistError:
        raise click.ClickException(
            f"topic {topic!r} does not exist: name server {namesrv} knows no broker that has it"
        ) from None
    except (ValueError, NetError, MQError) as error:
        raise click.ClickException(str(error)) from None


def _read(session: SparkSession, namesrv: str, topic: str) -> DataFrame:
    options = {"namesrvAddr": namesrv, "subscribe": topic}
    return session.read.format("rocketmq").options(**options).load()


@spark.command()
@_common
@click.option("--to", "target", required=True, help="Directory for the Parquet files.")
@click.option("--checkpoint", help="Directory of the stream's checkpoint; default: below --to.")
@click.option("--max-offsets", type=click.IntRange(1), help="Most messages in a micro-batch.")
@click.option("--every", help="Run for ever, one micro-batch per interval, e.g. '10 seconds'.")
def archive(
    namesrv: str,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    target: str,
    checkpoint: str | None,
    max_offsets: int | None,
    every: str | None,
) -> None:
    """Write a topic to Parquet, exactly once.

    The files are partitioned by topic and date. A second run with the same --to continues where the first
    one stopped, for whatever reason.
    """
    from batonmq.spark.jobs import archive as job

    _check(namesrv, topic)
    session = _session("archive", master, conf)
    query = job.start(
        session,
        namesrv=namesrv,
        topic=topic,
        target=target,
        checkpoint=checkpoint,
        max_offsets_per_trigger=max_offsets,
        every=every,
    )
    done = job.finish(query)
    click.echo(f"archived {done.rows:,} messages in {done.batches} batches, {done.seconds:.1f} s")


@spark.command()
@_common
@click.option(
    "--history",
    required=True,
    type=click.Path(exists=True),
    help="The client's history of sends, Parquet; 'batonmq demo' writes one.",
)
@click.option("--archive", "archived", help="Read this archive instead of the live topic.")
@click.option(
    "--store",
    "stores",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Store directory of a replica (twice or more): their commit logs are compared.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def audit(
    namesrv: str,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    history: str,
    archived: str | None,
    stores: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Look for messages that were lost or duplicated.

    Compares a client's history of sends (--history) with the topic or its archive; with --store also the
    replicas' logs. The exit code is 1 if anything acknowledged is lost, moved or out of order, or if
    replicas differ.
    """
    from batonmq.spark.jobs import audit as job
    from batonmq.spark.jobs.replicas import compare

    if not archived:
        _check(namesrv, topic)
    session = _session("audit", master, conf)
    log = session.read.parquet(archived) if archived else _read(session, namesrv, topic)
    report = job.audit(session.read.schema(job.HISTORY_SCHEMA).parquet(history), log)
    replicas = compare(stores) if len(stores) > 1 else None
    if as_json:
        click.echo(json.dumps(report.as_dict() | ({"replicas": replicas.as_dict()} if replicas else {})))
    else:
        table = Table("audit of " + topic, "messages")
        for name, count in report.as_dict().items():
            table.add_row(name.replace("_", " "), f"{count:,}")
        Console().print(table)
        if replicas is not None:
            click.echo(replicas.text)
    if not report.ok or (replicas is not None and not replicas.equal):
        raise SystemExit(1)


@spark.command()
@_common
@click.option("--archive", "archived", help="Read this archive instead of the live topic.")
@click.option(
    "--to", "target", help="Also write the flights by hour and carrier to this directory, as Parquet."
)
def rollup(
    namesrv: str,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    archived: str | None,
    target: str | None,
) -> None:
    """Show gaps in service and the flights' delays.

    For the demo's topic of flights: the longest times without a message, and the delays by carrier.
    """
    from batonmq.spark.jobs import rollup as job

    if not archived:
        _check(namesrv, topic)
    session = _session("rollup", master, conf)
    log = session.read.parquet(archived) if archived else _read(session, namesrv, topic)
    log = log.select("value", "timestamp").cache()
    console = Console()
    gaps = Table("no message from", "to", "ms", title="longest gaps")
    for row in job.gaps(log).limit(5).collect():
        gaps.add_row(str(row["began"]), str(row["ended"]), f"{row['milliseconds']:,}")
    console.print(gaps)
    carriers = Table("carrier", "flights", "departure delay, min", "arrival delay, min")
    for row in job.delay_by_carrier(log).collect():
        carriers.add_row(
            row["carrier"],
            f"{row['flights']:,}",
            _minutes(row["mean_dep_delay"]),
            _minutes(row["mean_arr_delay"]),
        )
    console.print(carriers)
    if target:
        job.by_hour_and_carrier(log).write.mode("overwrite").parquet(target)
        click.echo(f"flights by hour and carrier are in {target}")


def _time_ms(_: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """A point in time: ms since 1970, or ISO 8601 (this machine's time zone if it has none)."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither milliseconds since 1970 nor a time such as 2026-11-24T10:00:00+01:00"
        ) from None


def _iso_date(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        return None if text is None else date.fromisoformat(text).isoformat()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no date such as 2026-11-24") from None


def _progress(done: int, total: int) -> None:
    share = f" ({100 * done // total} %)" if total else ""
    click.echo(f"{done:,} of {total:,} messages{share}", err=True)


@spark.command()
@_common
@click.option("--to", "target", required=True, help="Topic to write; it must exist.")
@click.option("--state", required=True, type=_DIRECTORY, help="Directory that remembers what is done.")
@click.option("--to-namesrv", help="Name servers of another cluster to write to.")
@click.option("--from", "from_ms", callback=_time_ms, help="Store time of the first message.")
@click.option("--until", "until_ms", callback=_time_ms, help="Store time that ends the window; default: now.")
@click.option("--where", help="Only messages for which this is true: Spark SQL over the source's columns.")
@click.option("--rate", type=click.IntRange(1), help="Messages read a second; default: without limit.")
@click.option("--keep-queues", is_flag=True, help="Each message goes to the queue with its old number.")
def replay(
    namesrv: str,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    target: str,
    state: Path,
    to_namesrv: str | None,
    from_ms: int | None,
    until_ms: int | None,
    where: str | None,
    rate: int | None,
    keep_queues: bool,
) -> None:
    """Send messages of a time window again, exactly once.

    \b
      batonmq spark replay -n 10.0.0.1:9876 -t orders --to orders-again \\
        --state /data/replay-1 --from 2026-11-24T08:00 --until 2026-11-24T09:00 \\
        --where "tags = 'paid'" --rate 5000

    Reads the messages that are stored in the window, and writes those for which --where is true into another
    topic, also of another cluster. Keys, tags, properties and sharding keys are kept. What is read is fixed
    at the first run. A second run with the same --state continues, for whatever reason the first one stopped.
    """
    from batonmq.spark.jobs import replay as job

    if to_namesrv is None and target == topic:
        raise click.UsageError("--to is the topic itself: its messages would be there twice")
    _check(namesrv, topic)
    _check(to_namesrv or namesrv, target)
    wanted = job.Replay(
        namesrv=namesrv,
        topic=topic,
        target=target,
        state=state,
        target_namesrv=to_namesrv,
        from_ms=from_ms,
        until_ms=until_ms,
        where=where,
        rate=rate,
        keep_queues=keep_queues,
    )
    with _one_line():
        window = job.window_of(wanted)
    if not window.rows:
        click.echo("no message is stored in this window")
        return
    session = _session("replay", master, conf)
    done = job.run(session, wanted, progress=_progress)
    click.echo(
        f"replayed {done.rows:,} messages in {done.chunks} chunks, {done.seconds:.1f} s; "
        f"{done.skipped} chunks were done before"
    )


@spark.command()
@click.option("-n", "--namesrv", required=True, help="Name servers, host:port;host:port.")
@click.option(
    "--archive", "archived", required=True, help="Directory of the archive (batonmq spark archive)."
)
@click.option("--state", required=True, type=_DIRECTORY, help="Directory that remembers what is done.")
@click.option("-t", "--topic", help="Only this topic of the archive.")
@click.option("--to", "target", help="Topic to write; default: the one that messages came from.")
@click.option(
    "--from-date", metavar="YYYY-MM-DD", callback=_iso_date, help="First date; default: the oldest."
)
@click.option("--to-date", metavar="YYYY-MM-DD", callback=_iso_date, help="Last date; default: the newest.")
@click.option("--master", help="Spark master; default local[*], this machine.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
def restore(
    namesrv: str,
    archived: str,
    state: Path,
    topic: str | None,
    target: str | None,
    from_date: str | None,
    to_date: str | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Write an archive back into topics, exactly once.

    \b
      batonmq spark restore -n 10.0.0.1:9876 --archive /data/orders --state /data/restore-1

    Messages of one queue keep their order: they go to the queue of the same name, or to another one if the
    topic has other queues now. The topics must exist. A second run with the same --state continues. Restore
    an archive that is not being written: what comes to a date that is done stays out.
    """
    from batonmq.client.sync import QueueReader
    from batonmq.spark.jobs import restore as job

    wanted = job.Restore(namesrv, archived, state, topic, target, from_date, to_date)
    with _one_line():
        job.check_state(wanted)
    if target is not None:
        _check(namesrv, target)
    session = _session("restore", master, conf)

    def queues(name: str) -> Sequence[MessageQueue]:
        with QueueReader(namesrv) as reader:
            return reader.queues(name)

    def progress(name: str, day: str, rows: int) -> None:
        click.echo(f"{name} {day}: {rows:,} messages", err=True)

    with _one_line():
        done = job.run(session, wanted, queues=queues, progress=progress)
    click.echo(f"restored {done.rows:,} messages; {done.skipped} of {done.dates} dates were done before")


@spark.command()
@click.option("-n", "--namesrv", required=True, help="Name servers of the source, host:port;host:port.")
@click.option("--to-namesrv", required=True, help="Name servers of the target.")
@click.option("-t", "--topic", "topics", required=True, multiple=True, help="Topic; may be repeated.")
@click.option("--state", required=True, type=_DIRECTORY, help="Directory for the checkpoint.")
@click.option("-g", "--group", "groups", multiple=True, help="Group whose offsets follow; may be repeated.")
@click.option("--every", default="1 second", show_default=True, help="Interval of the micro-batches.")
@click.option("--once", is_flag=True, help="Copy what is there now, and end.")
@click.option("--max-offsets", type=click.IntRange(1), help="Most messages in a micro-batch.")
@click.option("--master", help="Spark master; default local[*], this machine.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be repeated.")
def mirror(
    namesrv: str,
    to_namesrv: str,
    topics: tuple[str, ...],
    state: Path,
    groups: tuple[str, ...],
    every: str,
    once: bool,
    max_offsets: int | None,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Copy topics into another cluster, exactly once.

    \b
      batonmq spark mirror -n 10.0.0.1:9876 --to-namesrv 10.1.0.1:9876 -t orders -g billing \\
        --state /data/mirror-1

    Works between BatonMQ and RocketMQ, in either direction. Each queue keeps its order. Topics that the
    target does not have are created. The offsets of groups follow: consumers that move to the target go on
    where they were. Nobody else may write to these topics of the target before that. A second run with the
    same --state continues.
    """
    from batonmq.spark.jobs import mirror as job

    if namesrv == to_namesrv:
        raise click.UsageError("--to-namesrv is the source itself: its messages would be there twice")
    for topic in topics:
        _check(namesrv, topic)
    wanted = job.Mirror(namesrv, to_namesrv, topics, state, groups)
    with _one_line():
        lanes = asyncio.run(job.prepare(wanted))
    if groups and any(lane.difference is None for lane in lanes):
        raise click.ClickException(
            "the target has fewer queues than the source, so offsets of groups cannot be translated; leave "
            "out --group, or give the topic as many queues"
        )
    session = _session("mirror", master, conf)
    query = job.start(
        session, wanted, lanes, every=None if once else every, max_offsets_per_trigger=max_offsets
    )
    ended, copied = False, 0
    while not ended:
        ended = bool(query.awaitTermination(_TRANSLATE_S))
        moved = asyncio.run(_translated(wanted, lanes)) if groups else 0
        rows = sum(progress["numInputRows"] for progress in query.recentProgress)
        if rows != copied or moved:
            click.echo(f"{rows:,} messages in the last batches; {moved} offsets of groups moved", err=True)
        copied = rows


async def _translated(wanted: Mirror, lanes: Sequence[Lane]) -> int:
    """How many offsets moved; an outage is one line, and the next time makes up for it."""
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError
    from batonmq.spark.jobs import mirror as job

    try:
        return await job.translate(wanted, lanes)
    except (NetError, MQError) as error:
        click.echo(f"offsets of groups stay where they are for now: {error}", err=True)
        return 0


@contextmanager
def _one_line() -> Iterator[None]:
    """Report what a job's preparation raises as one line."""
    from batonmq.net.errors import NetError
    from batonmq.protocol.errors import MQError
    from batonmq.spark.options import ClearError
    from batonmq.spark.plan import DataLoss

    try:
        yield
    except (ClearError, DataLoss, NetError, MQError, OSError) as error:
        raise click.ClickException(str(error).splitlines()[0]) from None


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
