"""``batonmq spark``: the connector's jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from batonmq.common.terminal import plain_console, visible
from batonmq.spark.access import Access
from batonmq.spark.archive_commands import archive, compact
from batonmq.spark.bench_command import bench_report
from batonmq.spark.chaos_command import chaos_report
from batonmq.spark.cluster_options import cluster_options
from batonmq.spark.command import (
    WHERE,
    check_topic,
    for_job,
    one_line,
    session_for,
    spark_options,
    topic_option,
)
from batonmq.spark.failover_command import failover_report
from batonmq.spark.lag_command import lag
from batonmq.spark.report import moment
from batonmq.spark.signals import ended_by_signals
from batonmq.spark.skew_command import skew
from batonmq.spark.topic_commands import COMMANDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS = re.compile(r"(?:^|: )batonmq\.[\w.]+: (.+)$", re.MULTILINE)
"""Our error in the text of Spark's error: on a line below a traceback, or after Spark's prefix."""


_OF_A_FILE = re.compile(
    r"^: (?:java\.lang\.RuntimeException: (?=java\.lang\.ClassNotFoundException: ))?"
    r"((?:java\.(?:io|nio\.file|lang\.ClassNotFoundException)|org\.apache\.hadoop)[\w.]*: .+)$",
    re.MULTILINE,
)
"""An error of a file system, or that Spark has none for such paths, in the text of py4j's error: Spark's
Python has no class for it."""

_OF_DATA = re.compile(
    r"\[[A-Z][\w.]*\] .+?(?:\n.+?)?(?=\.? +SQLSTATE: (?:22|P0001))"
    r"|\[FAILED_READ_FILE[\w.]*\] .+?(?=\.?(?: +SQLSTATE|$))"
    r"|(?<=java\.util\.regex\.PatternSyntaxException: ).+",
    re.MULTILINE,
)
"""Spark's words for a value that does not fit (class 22), an error that an expression raises (P0001), a file
that cannot be read or no regular expression, within a text."""

_OF_ANOTHER_RUN = re.compile(
    r"\[CONCURRENT_STREAM_LOG_UPDATE\]|Race while writing batch \d+ .*another writer already committed"
)
"""Spark's words for two streams with one checkpoint or one output, within a text."""

_OF_A_CHECKPOINT = re.compile(
    r"Failed to read log file \S+\. .+?(?=\.? SQLSTATE|$)"
    r"|(?<=\.start\.\n: )(?:com\.fasterxml\.jackson|org\.json4s)[\w.]*: .+"
    r"|(?<=^json\.decoder\.)JSONDecodeError: .+",
    re.MULTILINE,
)
"""Spark's words for a damaged file of a checkpoint, within a text; the second for its file ``metadata``, the
third for the offsets of a Python source."""

_OF_A_STREAM = re.compile(
    r"\[STREAM_FAILED\] Query \[.+?\] terminated with exception: (.+?)(?=\.? SQLSTATE|$)", re.MULTILINE
)
"""How Spark reports that a stream ended, within a text."""

_SQLSTATE = re.compile(r"\.? SQLSTATE: \w+.*")


class Jobs(click.Group):
    """Reports an error of our source in one line; Spark wraps it in tracebacks of two languages. The same for
    what Spark says of a wrong path, file or expression."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with ended_by_signals():
                return super().invoke(ctx)
        except Exception as error:
            if not type(error).__module__.startswith(("pyspark.errors", "py4j.protocol")):
                raise
            found = _OURS.findall(str(error)) or _OF_A_FILE.findall(str(error)) or _of_the_input(error)
            if not found:
                raise
            text = for_job(ctx.invoked_subcommand, " ".join(found[-1].split()))
            raise click.ClickException(_where_of(ctx, error) + text) from None


def _where_of(ctx: click.Context, error: Exception) -> str:
    """``--where 'condition': `` if Spark refuses or cannot compute the one of this job."""
    from pyspark.errors import AnalysisException

    of_it = isinstance(error, AnalysisException) or _OF_DATA.search(str(error))
    return f"--where {ctx.meta[WHERE]!r}: " if of_it and ctx.meta.get(WHERE) else ""


def _of_the_input(error: Exception) -> list[str]:
    """What is wrong with what the user named, according to Spark; empty for any other error."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

    if found := _OF_DATA.findall(str(error)):
        return found
    if _OF_ANOTHER_RUN.search(str(error)):
        return ["another run writes to the same directory or checkpoint; end one of them"]
    if found := _OF_A_CHECKPOINT.findall(str(error)):
        return [f"the checkpoint is damaged: {found[0]}; restore it from a backup"]
    if (ended := _OF_A_STREAM.match(str(error))) and "Traceback" not in str(error):
        # What Spark says of other damage in a checkpoint ("next on empty iterator") does not name it.
        return [
            f"Spark ended the stream: {ended[1]}; start the job again, and if that does not help, restore "
            "its checkpoint from a backup"
        ]
    condition = (error.getCondition() or "") if isinstance(error, PySparkException) else ""
    if condition.startswith("CONFLICTING_"):
        return [
            "below the directory are several tables, or files beside its partitions; name that of one table"
        ]
    # Above the line of the second, the JVM has said what is wrong.
    known = condition.startswith(("FAILED_READ_FILE", "JAVA_GATEWAY_EXITED"))
    if not known and not isinstance(error, AnalysisException | IllegalArgumentException):
        return []
    return [_SQLSTATE.sub("", str(error).strip().splitlines()[0])]


@click.group(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"]})
def spark() -> None:
    """Spark jobs over topics of a BatonMQ or RocketMQ cluster.

    \b
      batonmq spark archive -n 127.0.0.1:9876 -t orders --to /data/orders
      batonmq spark lag -n 127.0.0.1:9876 -t orders
      batonmq spark JOB --help                examples and options of a job

    All run on this machine (local[*]) unless --master names a Spark cluster, such as spark://host:7077. They
    need PySpark (pip install '.[spark]') and a Java runtime, version 17 or newer. For your own queries use
    spark.read.format("rocketmq"): see docs/spark.md.

    The cluster is named as for 'batonmq admin':

    \b
      export NAMESRV_ADDR=127.0.0.1:9876      instead of -n with every command
      export BATONMQ_TLS_CONFIG=tls.conf      where programs speak TLS only
      export BATONMQ_CREDENTIALS=tools.yml    where brokers know users
    """


def _log(
    session: SparkSession, namesrv: str | None, topic: str, access: Access, archived: str | None
) -> DataFrame:
    """The topic's messages, from its archive if there is one."""
    if archived:
        from batonmq.spark.jobs import archive as archives

        return archives.read(session, archived, topic)
    assert namesrv is not None
    options = {"namesrvAddr": namesrv, "subscribe": topic, **access.source_options()}
    return session.read.format("rocketmq").options(**options).load()


@spark.command()
@cluster_options(unless={"archived": "--archive"})
@topic_option
@click.option(
    "--history",
    required=True,
    type=click.Path(exists=True, path_type=Path),
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
@spark_options
def audit(
    namesrv: str | None,
    access: Access,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    history: Path,
    archived: str | None,
    stores: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Look for messages that were lost or duplicated.

    \b
      batonmq spark audit -n 10.0.0.1:9876 -t orders --history history.parquet
      batonmq spark audit -t orders --history history.parquet --archive /data/orders \\
        --store /data/broker-0/store --store /data/broker-1/store

    Compares a client's history of sends (--history) with the topic or its archive; with --store also the
    replicas' logs. The exit code is 1 if anything acknowledged is lost, moved or out of order, or if
    replicas differ.
    """
    from batonmq.spark.jobs import audit as job
    from batonmq.spark.jobs.replicas import compare

    if len(stores) == 1:
        raise click.UsageError("--store is needed twice or more: the replicas' logs are compared")
    with one_line():
        job.check_history(history)
        replicas = compare(stores) if len(stores) > 1 else None
    if namesrv is not None:
        check_topic(namesrv, topic, access)
    session = session_for("audit", master, conf)
    with one_line():
        log = _log(session, namesrv, topic, access, archived)
    report = job.audit(session.read.schema(job.HISTORY_SCHEMA).parquet(str(history)), log)
    if as_json:
        click.echo(json.dumps(report.as_dict() | ({"replicas": replicas.as_dict()} if replicas else {})))
    else:
        table = Table("audit of " + topic, "messages")
        for name, count in report.as_dict().items():
            table.add_row(name.replace("_", " "), f"{count:,}")
        plain_console().print(table)
        if replicas is not None:
            click.echo(replicas.text)
    if not report.ok or (replicas is not None and not replicas.equal):
        raise SystemExit(1)


@spark.command()
@cluster_options(unless={"archived": "--archive"})
@topic_option
@click.option("--archive", "archived", help="Read this archive instead of the live topic.")
@click.option(
    "--to", "target", help="Also write the flights by hour and carrier to this directory, as Parquet."
)
@spark_options
def rollup(
    namesrv: str | None,
    access: Access,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    archived: str | None,
    target: str | None,
) -> None:
    """Show gaps in service and the flights' delays.

    \b
      batonmq spark rollup -n 10.0.0.1:9876 -t flights

    The longest times without a message in any topic, and, for the topic of flights that 'batonmq demo'
    writes, the delays by carrier.
    """
    from batonmq.spark.jobs import rollup as job

    if namesrv is not None:
        check_topic(namesrv, topic, access)
    session = session_for("rollup", master, conf)
    with one_line():
        log = _log(session, namesrv, topic, access, archived)
    log = log.select("value", "timestamp").cache()
    of = f"topic {topic!r}" + (f" in {archived}" if archived else "")
    if log.isEmpty():
        click.echo(f"nothing to show: {of} has no message")
    else:
        _show_rollup(
            of, job.longest_gaps(log, 5), [row.asDict() for row in job.delay_by_carrier(log).collect()]
        )
    if target:
        job.by_hour_and_carrier(log).write.mode("overwrite").parquet(target)
        click.echo(f"flights by hour and carrier are in {target}")


def _show_rollup(of: str, longest: Sequence[tuple[int, int]], delays: Sequence[Mapping[str, Any]]) -> None:
    """Print the tables; a line says why one has no row. `of`: what was read."""
    from batonmq.spark.jobs.rollup import LEAST_GAP_MS

    console = plain_console()
    if longest:
        gaps = Table("no message from", "to", "ms", title="longest gaps")
        for began, ended in longest:
            gaps.add_row(moment(began, exact=True), moment(ended, exact=True), f"{ended - began:,}")
        console.print(gaps)
    else:
        click.echo(f"no gaps to show: {of} was never without a message for {LEAST_GAP_MS} ms or more")
    if delays:
        carriers = Table("carrier", "flights", "departure delay, min", "arrival delay, min")
        for row in delays:
            carriers.add_row(
                visible(row["carrier"]),
                f"{row['flights']:,}",
                _minutes(row["mean_dep_delay"]),
                _minutes(row["mean_arr_delay"]),
            )
        console.print(carriers)
    else:
        click.echo(f"no delays to show: no message of {of} is a flight as 'batonmq demo' writes them")


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


for _command in (archive, compact, *COMMANDS, lag, skew, failover_report, chaos_report, bench_report):
    spark.add_command(_command)
