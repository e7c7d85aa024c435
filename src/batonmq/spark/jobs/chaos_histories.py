"""chaos: the longest gap of each round, which Spark computes from the histories of producers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from batonmq.spark.jobs.audit import HISTORY_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def gaps_of(session: SparkSession, rounds: DataFrame, files: Mapping[Path, int]) -> DataFrame:
    """``place, number, gap_s, open, acked, all_acked``, of rounds with a history of their time."""
    from pyspark.sql import functions as F

    histories = read_histories(session, files)
    spans = histories.groupBy("place").agg(
        F.min("sent_us").alias("first_us"),
        F.max(F.coalesce("acked_us", "sent_us")).alias("last_us"),
        F.count("acked_us").alias("all_acked"),
    )
    # A later run may have written over the history of an earlier one, whose results it kept.
    covered = (
        rounds.select("place", "number", "began_us", "start_us", "end_us")
        .join(spans, "place")
        .where((F.col("first_us") < F.col("start_us")) & (F.col("last_us") > F.col("began_us")))
        .select("place", "number", "start_us", "end_us", "all_acked")
    )
    return covered.join(gaps(histories, covered), ["place", "number"], "left").select(
        "place",
        "number",
        # Without any acknowledgement there is no gap between two: it is the whole round.
        (F.coalesce("gap_us", F.col("end_us") - F.col("start_us")) / 1e6).alias("gap_s"),
        F.coalesce("open", F.lit(True)).alias("open"),
        F.coalesce("acked", F.lit(0)).alias("acked"),
        "all_acked",
    )


def read_histories(session: SparkSession, files: Mapping[Path, int]) -> DataFrame:
    """``place, sent_us, acked_us`` of all files."""
    from pyspark.sql import functions as F

    if not files:
        return session.createDataFrame([], "place int, sent_us bigint, acked_us bigint")
    frame = session.read.schema(HISTORY_SCHEMA).parquet(*map(str, files))
    # Spark names files by URIs, and one reading of all files is much faster than a union of many.
    places = [(uri, files[Path(unquote(urlparse(uri).path))]) for uri in frame.inputFiles()]
    named = frame.select(F.input_file_name().alias("file"), "sent_us", "acked_us")
    known = session.createDataFrame(places, "file string, place int")
    return named.join(F.broadcast(known), "file").select("place", "sent_us", "acked_us")


def gaps(histories: DataFrame, rounds: DataFrame) -> DataFrame:
    """``place, number, gap_us, open, acked``: the longest gap of each round of results with acknowledgements.

    It counts from the last acknowledgement before the round, or from its start if there is none, and to the
    end of the round at most."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    acks = histories.where("acked_us IS NOT NULL")
    order = Window.partitionBy("place").orderBy("acked_us")
    between = acks.select(
        "place", F.col("acked_us").alias("began_us"), F.lead("acked_us").over(order).alias("next_us")
    )
    before = acks.groupBy("place").agg(
        F.lit(None).cast("bigint").alias("began_us"), F.min("acked_us").alias("next_us")
    )
    began, ended = F.coalesce("began_us", "start_us"), F.coalesce("next_us", "end_us")
    length = F.least(ended, "end_us") - began
    return (
        between.unionByName(before)
        .join(F.broadcast(rounds.select("place", "number", "start_us", "end_us")), "place")
        .where((ended >= F.col("start_us")) & (began < F.col("end_us")))
        .groupBy("place", "number")
        .agg(
            F.max(length).alias("gap_us"),
            F.max_by(F.coalesce(F.col("next_us") > F.col("end_us"), F.lit(True)), length).alias("open"),
            F.count_if(F.col("began_us") >= F.col("start_us")).alias("acked"),
        )
    )
