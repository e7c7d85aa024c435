"""archive: writes a topic to partitioned Parquet, exactly once across restarts.

The stream's checkpoint holds the offsets of each micro-batch before it runs, and the file sink's own log
lists the files of the committed batches. A failed batch runs again over the same offsets, and readers that
use Spark (or the sink log) ignore its orphaned files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonmq.spark.access import OPEN, Access
from batonmq.spark.jobs.values import BodySchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = (
    "value binary, topic string, broker string, queueId int, queueOffset bigint, physicalOffset bigint, "
    "timestamp timestamp, bornTimestamp timestamp, keys string, tags string, msgId string, "
    "properties map<string,string>"
)


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
) -> StreamingQuery:
    """Start archiving `topic` below `target`, partitioned by topic and store date.

    Without `every` the query reads what is there now and ends; with a processing time such as
    ``"10 seconds"`` it runs until it is stopped. `checkpoint` defaults to ``<target>/_checkpoint``.
    With `values` there is also a column ``decoded``; raises `SchemaError`.
    """
    from pyspark.sql import functions as F

    options = {"namesrvAddr": namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    options |= access.source_options()
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
        .option("checkpointLocation", str(checkpoint or f"{target}/_checkpoint"))
        .outputMode("append")
        .queryName(f"archive {topic}")
    )
    writer = writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)
    return writer.start()


def finish(query: StreamingQuery) -> Archived:
    """Wait for a query that ends by itself, and count what it wrote. Raises the error that ended it."""
    query.awaitTermination()
    return summary(query)


def summary(query: StreamingQuery) -> Archived:
    """Rows, batches and seconds of the query's recent progress reports."""
    progress: list[Any] = [p for p in query.recentProgress if p["numInputRows"]]
    return Archived(
        rows=sum(p["numInputRows"] for p in progress),
        batches=len(progress),
        seconds=sum(p["batchDuration"] for p in progress) / 1000,
    )


def read(session: SparkSession, path: str, topic: str | None = None) -> DataFrame:
    """The messages of an archive; `topic`: only this one's."""
    from pyspark.sql import functions as F

    # Without a schema Spark takes the directory topic=007 for the number 7.
    archived = session.read.schema(f"{COLUMNS}, date date").parquet(path)
    return archived if topic is None else archived.where(F.col("topic") == topic)
