"""audit: compares a client's history of sends with the log.

The history has one row per message that a producer tried to send::

    key string       unique per message
    status string    'acked', or anything else for a send with an unknown outcome
    queue string     broker:queue of the acknowledgement (null unless acked)
    offset long      queue offset of the acknowledgement (null unless acked)
    sent_us long     when the (last) attempt began, us since the epoch
    acked_us long    when the acknowledgement came (null unless acked)

*Lost*: acknowledged, but its key is nowhere in the log. *Moved*: acknowledged, and in the log, but no longer
at the offset that was acknowledged. *Duplicated*: in the log more than once (a retry after an unknown
outcome). *Reordered*: in its queue after a message whose send began only after this one was acknowledged.
*Unacknowledged*: in the log although no acknowledgement came, which is allowed. Messages without a key are
counted, and not compared.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from batonmq.spark.options import ClearError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HISTORY_SCHEMA = "key string, status string, queue string, offset long, sent_us long, acked_us long"


class NoHistory(ClearError):
    """A table that is not a history; the text has the reason."""


def check_history(path: Path) -> None:
    """Raises `NoHistory` unless this is a Parquet file, or a directory of such files, with all columns of a
    history. Read with its schema, other tables would have nulls in their place, and nothing of them would be
    lost. Before Spark reads it: Spark would log Java's traces for a file of another format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = _files(path) if path.is_dir() else [path]
    if not files:
        raise NoHistory(f"{path} is not a history of sends: there is no Parquet file in it")
    columns: dict[Path, set[str]] = {}
    for file in files:
        try:
            columns[file] = set(pq.read_schema(file).names)
        except (OSError, pa.ArrowException):
            which = "it" if file == path else str(file.relative_to(path))
            raise NoHistory(f"{path} is not a history of sends: {which} is not a Parquet file") from None
        columns[file] |= {name.partition("=")[0] for name in file.relative_to(path).parts[:-1]}
    # Spark takes directories for one table if all levels between it and the files are partitions.
    if len({_table(file, path) for file in files}) > 1:
        raise NoHistory(
            f"{path} is not a history of sends: below the directory are several tables, or files beside its "
            "partitions; name that of one table"
        )
    wanted = [column.split()[0] for column in HISTORY_SCHEMA.split(",")]
    missing = [name for file in files for name in wanted if name not in columns[file]]
    if missing:
        raise NoHistory(f"{path} is not a history of sends: it has no column {missing[0]!r}")


def _table(file: Path, path: Path) -> tuple[str, ...]:
    """Names of the directories from `path` to the table that the file belongs to."""
    names = file.relative_to(path).parts[:-1]
    first = next((place for place, name in enumerate(names) if "=" in name), len(names))
    return names[:first]


def _files(directory: Path) -> list[Path]:
    """Those that Spark reads: names that begin with a dot or an underscore are of its own use, but for
    partitions (``_column=value``)."""

    def is_read(path: Path) -> bool:
        names = path.relative_to(directory).parts
        return not any(name[0] == "." or (name[0] == "_" and "=" not in name) for name in names)

    return sorted(path for path in directory.rglob("*") if is_read(path) and path.is_file())


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Counts of messages; `ok` if nothing was lost, moved or reordered."""

    sent: int
    acked: int
    in_log: int
    lost: int
    moved: int
    duplicated: int
    reordered: int
    unacknowledged: int
    unknown_keys: int
    """Keys in the log that are not in the history (another producer's)."""
    without_key: int = 0
    """Messages in the log without a key: nothing tells whether they are in the history."""

    @property
    def ok(self) -> bool:
        return self.lost == self.moved == self.reordered == 0

    @property
    def copies(self) -> int:
        """Records in the log beyond the first of each key."""
        with_key = self.in_log - self.without_key
        return with_key - (self.acked - self.lost + self.unacknowledged + self.unknown_keys)

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def audit(history: DataFrame, log: DataFrame) -> AuditReport:
    """Compare; `log` needs the columns keys, broker, queueId, queueOffset (a topic read, or its archive)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    stored = log.select(
        F.col("keys").alias("key"),
        F.concat_ws(":", "broker", F.col("queueId").cast("string")).alias("log_queue"),
        F.col("queueOffset").alias("log_offset"),
    )
    # One row per stored copy, or one with nulls for a message that is not in the log.
    joined = history.join(stored, "key", "full_outer").cache()
    earlier = Window.partitionBy("log_queue").orderBy("log_offset").rowsBetween(Window.unboundedPreceding, -1)
    placed = joined.withColumn(
        "is_acked_copy",
        (F.col("status") == "acked")
        & (F.col("queue") == F.col("log_queue"))
        & (F.col("offset") == F.col("log_offset")),
    )
    by_key = placed.groupBy("key").agg(
        F.max("status").alias("status"),
        F.count("log_offset").alias("copies"),
        F.max(F.coalesce(F.col("is_acked_copy"), F.lit(False))).alias("in_place"),
    )
    known, acked = F.col("status").isNotNull(), F.coalesce(F.col("status") == "acked", F.lit(False))
    keyed = F.col("key").isNotNull()

    def count(condition: Column) -> Column:
        return F.sum(F.when(condition, 1).otherwise(0))

    totals = by_key.agg(
        count(known).alias("sent"),
        count(acked).alias("acked"),
        F.sum("copies").alias("in_log"),
        count(acked & (F.col("copies") == 0)).alias("lost"),
        count(acked & (F.col("copies") > 0) & ~F.col("in_place")).alias("moved"),
        count(keyed & (F.col("copies") > 1)).alias("duplicated"),
        count(known & ~acked & (F.col("copies") > 0)).alias("unacknowledged"),
        count(keyed & ~known).alias("unknown_keys"),
        F.sum(F.when(keyed, 0).otherwise(F.col("copies"))).alias("without_key"),
    ).first()
    reordered = (
        placed.where("is_acked_copy")
        .withColumn("latest_start_before", F.max("sent_us").over(earlier))
        .where(F.col("latest_start_before") > F.col("acked_us"))
        .count()
    )
    joined.unpersist()
    assert totals is not None
    return AuditReport(reordered=reordered, **{k: int(v or 0) for k, v in totals.asDict().items()})
