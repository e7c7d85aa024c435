"""``batonmq spark``: the jobs that ship with the connector."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

F = TypeVar("F", bound=Callable[..., Any])


_OURS = re.compile(r"(?:^|: )batonmq\.[\w.]+: (.+)$", re.MULTILINE)
"""Our error in the text of Spark's: on a line below a traceback, or behind what Spark puts first."""


class Jobs(click.Group):
    """Says in one line what our source refused; Spark wraps that in tracebacks of two languages."""

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
    need PySpark (pip install '.[spark]') and a Java runtime of version 17 or newer. For queries of your own
    there is spark.read.format("rocketmq"): see docs/spark.md.
    """


def _common(command: F) -> F:
    for option in (
        click.option("-n", "--namesrv", required=True, help="Name servers, host:port;host:port."),
        click.option("-t", "--topic", required=True, help="Topic to read."),
        click.option("--master", help="Spark master; default local[*], this machine."),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be given again."),
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
    """See that there is such a topic before Spark is started, which takes longer than to say that."""
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
@click.option("--checkpoint", help="Where the stream's progress is kept; default: below --to.")
@click.option("--max-offsets", type=click.IntRange(1), help="At most so many messages a micro-batch.")
@click.option("--every", help="Go on for ever, a micro-batch each such time, e.g. '10 seconds'.")
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

    The files are partitioned by topic and date. Run it again with the same --to and it goes on where it
    stopped, however it stopped.
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
    help="What the client saw acknowledged, Parquet; 'batonmq demo' writes one.",
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

    Compares what a client saw acknowledged (--history) with what the topic, or its archive, holds; with
    --store the replicas' logs too. Exit code 1 if anything acknowledged is lost, has moved or is out of
    order, or if replicas differ.
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
@click.option("--to", "target", help="Also write the flights an hour and carrier there, as Parquet.")
def rollup(
    namesrv: str,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    archived: str | None,
    target: str | None,
) -> None:
    """Show gaps in service and the flights' delays.

    For the demonstration's topic of flights: the longest times without a message, and the delays by carrier.
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


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
