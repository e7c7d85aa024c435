"""rollup: counts a topic's traffic by second, and flights by hour and carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FLIGHT_SCHEMA = (
    "year int, month int, day int, hour int, carrier string, flight int, origin string, dest string, "
    "dep_delay double, arr_delay double, distance double"
)


LEAST_GAP_MS = 100


def gaps(log: DataFrame) -> DataFrame:
    """Times of `LEAST_GAP_MS` and more without a stored message, longest first.

    Columns: ``began timestamp, ended timestamp, milliseconds long``.

    While clients keep sending, a gap is a time without service, as during a failover."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    moments = log.select("timestamp").distinct()
    before = F.lag("timestamp").over(Window.orderBy("timestamp"))
    return (
        moments.select(before.alias("began"), F.col("timestamp").alias("ended"))
        .withColumn("milliseconds", F.unix_millis("ended") - F.unix_millis("began"))
        .where(F.col("milliseconds") >= LEAST_GAP_MS)
        .orderBy(F.desc("milliseconds"))
    )


def longest_gaps(log: DataFrame, count: int) -> list[tuple[int, int]]:
    """Beginnings and ends of the longest gaps, ms since 1970."""
    from pyspark.sql import functions as F

    rows = gaps(log).limit(count).select(F.unix_millis("began"), F.unix_millis("ended")).collect()
    return [(row[0], row[1]) for row in rows]


def flights(log: DataFrame) -> DataFrame:
    """The flights in the messages' bodies (JSON), as typed columns."""
    from pyspark.sql import functions as F

    parsed = log.select(F.from_json(F.col("value").cast("string"), FLIGHT_SCHEMA).alias("flight"))
    return parsed.select("flight.*").where(F.col("carrier").isNotNull())


def by_hour_and_carrier(log: DataFrame) -> DataFrame:
    """Flights by hour and carrier: ``hour, carrier, flights, mean_dep_delay, mean_arr_delay`` (minutes)."""
    from pyspark.sql import functions as F

    hour = F.make_timestamp("year", "month", "day", "hour", F.lit(0), F.lit(0))
    return (
        flights(log)
        .groupBy(hour.alias("hour"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.avg("dep_delay").alias("mean_dep_delay"),
            F.avg("arr_delay").alias("mean_arr_delay"),
        )
        .orderBy("hour", "carrier")
    )


def delay_by_carrier(log: DataFrame) -> DataFrame:
    """``carrier, flights, mean_dep_delay, mean_arr_delay``, worst first."""
    from pyspark.sql import functions as F

    return (
        flights(log)
        .groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.avg("dep_delay").alias("mean_dep_delay"),
            F.avg("arr_delay").alias("mean_arr_delay"),
        )
        .orderBy(F.desc("mean_arr_delay"))
    )
