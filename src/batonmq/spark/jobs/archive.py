"""archive: writes a topic to partitioned Parquet, exactly once across restarts.

The stream's checkpoint holds the offsets of each micro-batch before it runs, and the file sink's own log
lists the files of the committed batches. A failed batch runs again over the same offsets, and readers that
use Spark (or the sink log) ignore its orphaned files.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from batonmq.common.plural import counted
from batonmq.spark.access import OPEN, Access
from batonmq.spark.jobs.values import BodySchema
from batonmq.spark.options import ClearError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = (
    "value binary, topic string, broker string, queueId int, queueOffset bigint, physicalOffset bigint, "
    "timestamp timestamp, bornTimestamp timestamp, keys string, tags string, msgId string, "
    "properties map<string,string>"
)

MUST_HAVE: Final = frozenset({"topic", "date", "broker", "queueId", "queueOffset", "value"})
"""Columns without which a table is not an archive."""
_LOOK_S: Final = 1
"""How often a query's progress is looked at: Spark keeps that of 100 micro-batches."""


class ArchiveError(ClearError):
    """The archive cannot be continued; the text has the reason."""


@dataclass(frozen=True, slots=True)
class Archived:
    """Result of one run of the job."""

    rows: int
    batches: int
    seconds: float


def start(
    session: SparkSession,
    *,
    namesrv: str,
    topic: str,
    target: Path | str,
    checkpoint: Path | str | None = None,
    max_offsets_per_trigger: int | None = None,
    every: str | None = None,
    access: Access = OPEN,
    values: BodySchema | None = None,
    skip_lost: bool = False,
) -> StreamingQuery:
    """Start archiving `topic` below `target`, partitioned by topic and store date.

    Without `every` the query reads what is there now and ends; with a processing time such as
    ``"10 seconds"`` it runs until it is stopped. `checkpoint` defaults to ``<target>/_checkpoint``.
    `skip_lost`: messages that are gone are left out, instead of an error.
    With `values` there is also a column ``decoded``; raises `SchemaError`. Raises `ArchiveError` for a
    checkpoint that is not the archive's.
    """
    from pyspark.sql import functions as F

    checkpoint = str(checkpoint or f"{target}/_checkpoint")
    _check_pair(session, str(target), checkpoint)
    options = {"namesrvAddr": namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    options |= access.source_options()
    if skip_lost:
        options["failOnDataLoss"] = "false"
    if max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    stream = session.readStream.format("rocketmq").schema(COLUMNS).options(**options).load()
    if values is not None:
        stream = stream.withColumn("decoded", values.column(session, F.col("value")))
    writer = (
        stream.withColumn("date", F.to_date("timestamp"))
        .writeStream.format("parquet")
        .partitionBy("topic", "date")
        .option("path", str(target))
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .queryName(f"archive {topic}")
    )
    writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
    return writer.start()


def _check_pair(session: SparkSession, target: str, checkpoint: str) -> None:
    """Spark's file sink takes a micro-batch whose number is in the target's log for one that is written
    already, and writes nothing, whatever the checkpoint says. And a checkpoint does not read again what it
    has written to another target. Raises `ArchiveError` if messages would be missing for one or the other."""
    written = _newest(session, f"{target}/_spark_metadata")
    planned = _newest(session, f"{checkpoint}/offsets")
    committed = _newest(session, f"{checkpoint}/commits")
    if committed > written:
        raise ArchiveError(
            f"{checkpoint} has written {_batches(committed)} to another directory than {target}, which has "
            f"{written + 1}: their messages would be missing here. Give --to of the first run, or another "
            "--checkpoint"
        )
    if written > planned:
        raise ArchiveError(
            f"{target} has {_batches(written)} of another checkpoint than {checkpoint}, which has "
            f"{planned + 1}: the next ones would be lost. Give --checkpoint of the first run, or archive to "
            "another directory"
        )


def _batches(last: int) -> str:
    """How many there are up to `last`; the first one has number 0."""
    return counted(last + 1, "batch", "batches")


def _newest(session: SparkSession, directory: str) -> int:
    """The highest number among the names of the files (``7``, ``9.compact``) in a directory; -1 for none."""
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(directory)
    files = path.getFileSystem(session._jsc.hadoopConfiguration())
    if not files.exists(path):
        return -1
    names = (status.getPath().getName().removesuffix(".compact") for status in files.listStatus(path))
    return max((int(name) for name in names if name.isdigit()), default=-1)


def finish(
    query: StreamingQuery,
    ended: Callable[[StreamingQuery], bool] = lambda query: bool(query.awaitTermination(_LOOK_S)),
) -> Archived:
    """Wait for the end of a query, and count what it wrote. Raises the error that ended it. `ended` waits for
    a moment, and says whether that was the end."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    rows = batches = took_ms = 0
    counted, over, seen = -1, False, query.recentProgress
    while not over:
        over = ended(query)
        with suppress(Py4JError, OSError):  # the JVM may have ended too
            seen = query.recentProgress
        for progress in seen:
            if progress["numInputRows"] and progress["batchId"] > counted:
                counted = progress["batchId"]
                rows += progress["numInputRows"]
                batches += 1
                took_ms += progress["batchDuration"]
    return Archived(rows=rows, batches=batches, seconds=took_ms / 1000)


def columns(session: SparkSession, path: str) -> list[str]:
    """The columns of the Parquet files below a directory; none if there is no file, as of a topic that had no
    message."""
    from pyspark.errors import AnalysisException

    try:
        return session.read.parquet(path).columns
    except AnalysisException as error:
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        return []


def read(session: SparkSession, path: str, topic: str | None = None) -> DataFrame:
    """The messages of an archive; `topic`: only this one's. Raises `ArchiveError`."""
    from pyspark.sql import functions as F

    missing = MUST_HAVE - set(columns(session, path) or MUST_HAVE)
    if missing:
        raise ArchiveError(f"{path} is not an archive: it has no column {min(missing)!r}")
    # Without a schema Spark takes the directory topic=007 for the number 7.
    archived = session.read.schema(f"{COLUMNS}, date date").parquet(path)
    return archived if topic is None else archived.where(F.col("topic") == topic)
