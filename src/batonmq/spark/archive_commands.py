"""`batonmq spark archive` and `compact`: topics as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batonmq.common.plural import counted
from batonmq.spark.access import Access
from batonmq.spark.cluster_options import cluster_options
from batonmq.spark.command import (
    check_topic,
    iso_date,
    one_line,
    session_for,
    spark_options,
    topic_option,
)
from batonmq.spark.jobs.protobuf_values import ProtobufSchema
from batonmq.spark.jobs.values import FORMATS, BodySchema, ValueSchema
from batonmq.spark.signals import ended, stop_requests, stops_in_order

if TYPE_CHECKING:
    from batonmq.spark.jobs.compact import Day

SCHEMA_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@cluster_options()
@topic_option
@click.option("--to", "target", required=True, help="Directory for the Parquet files.")
@click.option("--checkpoint", help="Directory of the stream's checkpoint; default: below --to.")
@click.option(
    "--max-offsets", type=click.IntRange(1), help="Most messages in a micro-batch; default: all there are."
)
@click.option(
    "--values",
    "values_format",
    type=click.Choice(FORMATS),
    help="Also decode the bodies, into the column 'decoded'; needs --schema.",
)
@click.option(
    "--schema", "schema_file", type=SCHEMA_FILE, help="File with the schema of the bodies; see above."
)
@click.option("--message", help="With --values protobuf: the message, e.g. shop.Order.")
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Continue where messages are gone (expired, or the topic was recreated); default: fail.",
)
@click.option("--every", help="Run until stopped, with a micro-batch at this interval, e.g. '10 seconds'.")
@spark_options
def archive(
    namesrv: str,
    access: Access,
    topic: str,
    master: str | None,
    conf: tuple[str, ...],
    target: str,
    checkpoint: str | None,
    max_offsets: int | None,
    values_format: str | None,
    schema_file: Path | None,
    message: str | None,
    skip_lost: bool,
    every: str | None,
) -> None:
    """Write a topic to Parquet, exactly once.

    \b
      batonmq spark archive -n 10.0.0.1:9876 -t orders --to /data/orders
      batonmq spark archive -n 10.0.0.1:9876 -t orders --to /data/orders --every '10 seconds'
      batonmq spark archive -n 10.0.0.1:9876 -t orders --to /data/orders \\
        --values json --schema orders.ddl

    Without --every it writes what is there now, and ends. The files are partitioned by topic and date. A
    second run with the same --to continues where the first one stopped, for whatever reason.

    The file of --schema depends on --values:

    \b
      json      columns as in SQL (id BIGINT, name STRING), or the JSON of a Spark schema
      avro      the schema of a record (.avsc); Spark needs
                --conf spark.jars.packages=org.apache.spark:spark-avro_2.13:VERSION, its own version
      protobuf  a set of descriptors; tasks need Python's protobuf. To write one:
                protoc --include_imports --descriptor_set_out=orders.desc orders.proto

    'value' keeps the body unchanged, and 'decoded' is null where a body does not match the schema.
    """
    from batonmq.spark.jobs import archive as job

    if (values_format is None) != (schema_file is None):
        raise click.UsageError("--values and --schema belong together")
    if message is not None and values_format != "protobuf":
        raise click.UsageError("--message belongs to --values protobuf")
    values: BodySchema | None = None
    with one_line():
        if schema_file and values_format == "protobuf":
            values = ProtobufSchema.load(schema_file, message)
        elif schema_file and values_format:
            values = ValueSchema.load(schema_file, values_format)
    check_topic(namesrv, topic, access)
    session = session_for("archive", master, conf)
    with one_line():
        query = job.start(
            session,
            namesrv=namesrv,
            topic=topic,
            target=target,
            checkpoint=checkpoint,
            max_offsets_per_trigger=max_offsets,
            every=every,
            access=access,
            values=values,
            skip_lost=skip_lost,
        )
    with stop_requests() as asked:
        done = job.finish(query, lambda query: ended(query, asked))
    click.echo(
        f"archived {counted(done.rows, 'message')} in "
        f"{counted(done.batches, 'batch', 'batches')}, {done.seconds:.1f} s"
    )


@click.command()
@click.option("--archive", "archived", required=True, help="Directory that 'archive' writes.")
@click.option("--to", "table", required=True, help="Directory of the table; must differ from --archive.")
@click.option("-t", "--topic", help="Only this topic; default: all of the archive.")
@click.option(
    "--until",
    metavar="YYYY-MM-DD",
    callback=iso_date,
    help="Last date; default: yesterday, UTC, because later days still grow.",
)
@click.option(
    "--file-mib",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="About the size of a file, in MiB.",
)
@spark_options
def compact(
    archived: str,
    table: str,
    topic: str | None,
    until: str | None,
    file_mib: int,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Rewrite an archive's days in few large files.

    \b
      batonmq spark compact --archive /data/orders --to /tables/orders

    The table has the columns of the archive, one directory for each topic and date, and the order of the
    queues. Run the job once a day: it writes what the table lacks, and days that have grown since. Readers
    see a whole day, or for a moment none of it while the job replaces it. 'restore', 'audit', 'rollup' and
    'skew' take the table as --archive.
    """
    from batonmq.spark.jobs import compact as job

    last = until or (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    session = session_for("compact", master, conf)

    def show(day: Day, files: int) -> None:
        click.echo(
            f"{day.topic} {day.date}: {counted(day.rows, 'message')}, "
            f"{counted(day.files, 'file')} -> {files:,}",
            err=True,
        )

    with one_line(), stops_in_order(session):
        done = job.run(
            session, archived, table, topic=topic, until=last, file_bytes=file_mib << 20, progress=show
        )
    click.echo(
        f"compacted {counted(done.rows, 'message')} of {counted(done.days, 'day')} up to {last}, "
        f"{counted(done.files_before, 'file')} -> {done.files_after:,}; "
        f"{counted(done.done_before, 'day was', 'days were')} done before"
    )
