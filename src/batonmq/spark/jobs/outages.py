"""outages: how long producers had no acknowledgement around each election, from their histories.

A history has the columns of `audit.HISTORY_SCHEMA`, and optionally `producer`; without it the name of the
file or directory is the producer. The gap of a producer at an election is the longest time between two
acknowledgements of that broker set that touches the time from the election to the next one, at most
`window_s` later. A gap that began between two elections and lasts beyond the second one is that of the second
only: the outage led to it. If sends follow and none is acknowledged, the gap lasts to the last send. A
producer that has nothing in flight and sends nothing for 0.1 s is idle: then the gap begins with its next
send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from batonmq.spark.jobs.audit import HISTORY_SCHEMA, check_history
from batonmq.spark.jobs.failover import Election

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL = "all producers"
IDLE_US = 100_000
"""A gap begins with the last acknowledgement, but with the next send if that came more than this later."""
SCHEMA = f"{HISTORY_SCHEMA}, producer string"
_BUCKETS = 600


@dataclass(frozen=True, slots=True)
class Outage:
    """What one producer saw of one election."""

    broker_set: str
    master_epoch: int
    producer: str
    """`ALL`: the acknowledgements of all together."""
    began_us: int
    """Last acknowledgement before the gap, or the first send after idle time; us since 1970."""
    ended_us: int
    """The one after it, or the last send if none followed."""
    acked_again: bool
    failed: int
    """Sends without acknowledgement that began in the gap or the window."""
    slowest_ms: float
    """Longest time that an acknowledged send of the window took."""

    @property
    def gap_ms(self) -> float:
        return (self.ended_us - self.began_us) / 1000

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"gap_ms": self.gap_ms}


@dataclass(frozen=True, slots=True)
class Window:
    """Time after one election: until the next one of the broker set, or the longest time of interest."""

    broker_set: str
    master_epoch: int
    start_us: int
    end_us: int
    next_us: int | None = None
    """The next election of the broker set; None: there was no other."""


def windows_of(elections: Sequence[Election], window_s: float) -> list[Window]:
    """Of all elections with a time."""
    found: list[Window] = []
    for name in dict.fromkeys(election.broker_set for election in elections):
        timed = [e for e in elections if e.broker_set == name and e.time_ms is not None]
        starts = [1000 * (e.time_ms or 0) for e in timed]
        for election, (start, following) in zip(timed, pairwise([*starts, None]), strict=True):
            assert start is not None
            end = start + round(window_s * 1e6)
            end = end if following is None else min(end, following)
            found.append(Window(name, election.master_epoch, start, max(end, start + 1), following))
    return found


def read_histories(session: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Parquet files, or directories of them, as ``producer, broker_set, sent_us, acked_us, status``. One
    without producers is that of a single producer, named like the path. Raises `NoHistory`."""
    from pyspark.sql import functions as F

    for path in paths:
        check_history(path)

    rows = [
        session.read.schema(SCHEMA)
        .parquet(str(path.absolute()))
        .withColumn("producer", F.coalesce("producer", F.lit(path.stem)))
        for path in paths
    ]
    return reduce(type(rows[0]).unionByName, rows).select(
        "producer",
        F.regexp_extract("queue", r"^(.*):\d+$", 1).alias("broker_set"),
        "sent_us",
        "acked_us",
        "status",
    )


def measure(session: SparkSession, histories: DataFrame, windows: Sequence[Window]) -> list[Outage]:
    """Outages by time, then by producer. `histories`: as `read_histories` returns them."""
    if not windows:
        return []
    from pyspark.sql import functions as F

    around = F.broadcast(
        session.createDataFrame(
            [(w.broker_set, w.master_epoch, w.start_us, w.end_us, w.next_us) for w in windows],
            "broker_set string, master_epoch int, start_us bigint, end_us bigint, next_us bigint",
        )
    )
    single = histories.withColumn("who", F.col("producer"))
    both = single.unionByName(histories.withColumn("who", F.lit(ALL))).cache()
    try:
        gaps = _gaps(both).join(around, "broker_set")
        touching = gaps.where((F.col("ended_us") > F.col("start_us")) & (F.col("began_us") < F.col("end_us")))
        of_the_next = (F.col("began_us") >= F.col("start_us")) & (F.col("ended_us") > F.col("next_us"))
        touching = touching.where(~F.coalesce(of_the_next, F.lit(False)))
        longest = touching.groupBy("broker_set", "master_epoch", "start_us", "end_us", "who").agg(
            F.max_by(F.struct("began_us", "ended_us", "acked_again"), F.col("ended_us") - F.col("began_us"))
            .alias("gap")
        )  # fmt: skip
        # A send without acknowledgement names no broker set: it counts for each.
        sends = both.select("who", "sent_us", "acked_us", F.col("broker_set").alias("at"))
        inside = (
            sends.join(F.broadcast(longest), "who")
            .where((F.col("at") == F.col("broker_set")) | F.col("acked_us").isNull())
            .where(
                (F.col("sent_us") < F.greatest("end_us", F.col("gap.ended_us")))
                & (F.coalesce("acked_us", "sent_us") >= F.least(F.col("gap.began_us"), F.col("start_us")))
            )
        )
        counted = inside.groupBy("broker_set", "master_epoch", "who").agg(
            F.sum(F.when(F.col("acked_us").isNull(), 1).otherwise(0)).alias("failed"),
            F.max(F.col("acked_us") - F.col("sent_us")).alias("slowest_us"),
        )
        rows = longest.join(counted, ["broker_set", "master_epoch", "who"], "left").collect()
    finally:
        both.unpersist()
    rows.sort(key=lambda row: (row["start_us"], row["broker_set"], row["who"] != ALL, row["who"]))
    return [
        Outage(
            row["broker_set"],
            row["master_epoch"],
            row["who"],
            row["gap"]["began_us"],
            row["gap"]["ended_us"],
            row["gap"]["acked_again"],
            row["failed"] or 0,
            (row["slowest_us"] or 0) / 1000,
        )
        for row in rows
    ]


def _gaps(histories: DataFrame) -> DataFrame:
    """``who, broker_set, began_us, ended_us, acked_again``: from each acknowledgement to the next one of the
    broker set, and from the last one to the last send. Idle time before a send is not part of a gap."""
    from pyspark.sql import Window as Over
    from pyspark.sql import functions as F

    acks = histories.where("acked_us IS NOT NULL").select("who", "broker_set", "sent_us", "acked_us")
    # A send without acknowledgement may have been meant for any broker set that the producer uses.
    failed = (
        histories.where("acked_us IS NULL")
        .select("who", "sent_us", "acked_us")
        .join(acks.select("who", "broker_set").distinct(), "who")
    )
    steps = acks.unionByName(failed).withColumn("at_us", F.coalesce("acked_us", "sent_us"))
    # Newest first: Spark computes a frame that only grows in one pass, but not one that shrinks.
    newer = (
        Over.partitionBy("who", "broker_set")
        .orderBy(F.desc("at_us"))
        .rowsBetween(Over.unboundedPreceding, -1)
    )
    chained = (
        steps.withColumn("next_us", F.min("acked_us").over(newer))
        .withColumn("first_sent_us", F.min("sent_us").over(newer))
        .withColumn("last_sent_us", F.max("sent_us").over(newer))
        .where("acked_us IS NOT NULL")
    )
    idle = F.col("first_sent_us") > F.col("acked_us") + IDLE_US
    return chained.select(
        "who",
        "broker_set",
        F.when(idle, F.col("first_sent_us")).otherwise(F.col("acked_us")).alias("began_us"),
        F.coalesce("next_us", "last_sent_us").alias("ended_us"),
        F.col("next_us").isNotNull().alias("acked_again"),
    ).where(F.col("ended_us") > F.col("began_us"))


def acks_over_time(
    histories: DataFrame, start_us: int, end_us: int
) -> tuple[float, list[tuple[str, int, int]]]:
    """Acknowledgements from `start_us` to `end_us`: (seconds a bucket, [(producer, bucket, count)])."""
    from pyspark.sql import functions as F

    bucket_us = max(100_000, (end_us - start_us) // _BUCKETS)
    rows = (
        histories.where(F.col("acked_us").between(start_us, end_us))
        .groupBy("producer", F.floor((F.col("acked_us") - start_us) / bucket_us).alias("bucket"))
        .agg(F.count("*").alias("acks"))
        .collect()
    )
    return bucket_us / 1e6, sorted((row["producer"], row["bucket"], row["acks"]) for row in rows)
