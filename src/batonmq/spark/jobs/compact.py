"""compact: the days of an archive in few large files, as a table that any reader of Parquet can use.

A stream writes a file for each task of each micro-batch. This job writes each day of each topic again, in the
order of its queues. A day is complete in the table if it has as many rows as in the archive; then nothing is
done. Otherwise the day is written again: Spark writes beside the table, and puts the day's directory in place
of the old one at the end (`spark.sql.sources.partitionOverwriteMode=dynamic`). Readers see a whole day;
between the removal of the old directory and the renaming of the new one they see none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from batonmq.common.plural import counted
from batonmq.spark.jobs.archive import columns
from batonmq.spark.options import ClearError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY: Final = ("topic", "date")
"""What the files are partitioned by."""
ORDER: Final = ("broker", "queueId", "queueOffset")


class CompactError(ClearError):
    """A table that cannot be written; the text says why."""


@dataclass(frozen=True, slots=True)
class Day:
    """One day of one topic."""

    topic: str
    date: str
    rows: int
    files: int
    size: int
    """Bytes of its files."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of one run of the job."""

    rows: int
    days: int
    files_before: int
    files_after: int
    done_before: int
    """Days that the table had already."""


def run(
    session: SparkSession,
    archive: str,
    table: str,
    *,
    topic: str | None = None,
    until: str | None = None,
    file_bytes: int = 128 << 20,
    progress: Callable[[Day, int], None] = lambda day, files: None,
) -> Compacted:
    """Bring `table` up to date with `archive`, day by day.

    `topic`: only this one. `until`: the last date, ISO 8601; later days are left out, because they still
    grow. `progress` gets each day that was written, as it is in the archive, and its new number of files.
    Raises `CompactError`.
    """
    if archive.rstrip("/") == table.rstrip("/"):
        raise CompactError("--archive and --to must differ: a stream may still write to the archive")
    if not columns(session, archive):
        return Compacted(0, 0, 0, 0, 0)
    rows = _read(session, archive)
    missing = {*DAY, *ORDER} - set(rows.columns)
    if missing:
        raise CompactError(f"{archive} is not an archive: it has no column {sorted(missing)[0]!r}")
    archived = days(rows)
    if topic is not None and all(day.topic != topic for day in archived):
        raise CompactError(f"{archive} has no topic {topic!r}")
    wanted = [
        day
        for day in archived
        if (topic is None or day.topic == topic) and (until is None or day.date <= until)
    ]
    there = days(_read(session, table)) if _is_there(session, table) else []
    before = {(day.topic, day.date): day.rows for day in there}
    open_days = [day for day in wanted if before.get((day.topic, day.date)) != day.rows]
    files_after = 0
    for day in open_days:
        files = _write(session, rows, table, day, file_bytes)
        files_after += files
        progress(day, files)
    return Compacted(
        rows=sum(day.rows for day in open_days),
        days=len(open_days),
        files_before=sum(day.files for day in open_days),
        files_after=files_after,
        done_before=len(wanted) - len(open_days),
    )


def days(rows: DataFrame) -> list[Day]:
    """The days of an archive or table, in their order."""
    from pyspark.sql import functions as F

    files = rows.groupBy(*DAY, "_metadata.file_path", "_metadata.file_size").count()
    found = files.groupBy(*DAY).agg(
        F.sum("count").alias("rows"), F.count("*").alias("files"), F.sum("file_size").alias("size")
    )
    return [Day(*row) for row in found.orderBy(*DAY).collect()]


def _write(session: SparkSession, rows: DataFrame, table: str, day: Day, file_bytes: int) -> int:
    """Returns the number of files."""
    from pyspark.sql import functions as F

    number = max(1, round(day.size / file_bytes))
    part = rows.where((F.col("topic") == day.topic) & (F.col("date") == day.date))
    part = part.repartition(1) if number == 1 else part.repartitionByRange(number, *ORDER)
    # Spark sorts by the columns of the directories, and loses any order that does not begin with them.
    writer = part.sortWithinPartitions(*DAY, *ORDER).write.mode("overwrite")
    writer.option("partitionOverwriteMode", "dynamic").partitionBy(*DAY).parquet(table)
    # Not `_read`: it looks into all files for columns.
    there = session.read.schema(rows.schema).parquet(table)
    written = days(there.where((F.col("topic") == day.topic) & (F.col("date") == day.date)))
    if [each.rows for each in written] != [day.rows]:
        count = written[0].rows if written else 0
        raise CompactError(
            f"{day.topic} {day.date}: {count:,} of {counted(day.rows, 'message is', 'messages are')} in "
            f"{table}; did the archive change meanwhile? Run the job again"
        )
    return written[0].files


def _read(session: SparkSession, path: str) -> DataFrame:
    """All columns. Those of the directories' names are text: a topic may be called 007."""
    from pyspark.sql.types import StringType, StructField, StructType

    reader = session.read.option("mergeSchema", "true")
    fields = [
        StructField(field.name, StringType()) if field.name in DAY else field
        for field in reader.parquet(path).schema.fields
    ]
    return session.read.schema(StructType(fields)).parquet(path)


def _is_there(session: SparkSession, path: str) -> bool:
    """Whether a table was written there; any file system of Hadoop's."""
    context: Any = session.sparkContext
    jvm = context._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(context._jsc.hadoopConfiguration())
    if not files.exists(place):
        return False
    return any(not status.getPath().getName().startswith(("_", ".")) for status in files.listStatus(place))
