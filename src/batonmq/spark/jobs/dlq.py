"""dlq: counts the dead letters of a group by topic and tag, and shows their ages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batonmq.client.message import PROPERTY_DLQ_ORIGIN_TOPIC
from batonmq.protocol.message.properties import PROPERTY_RETRY_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Deaths:
    """Dead letters of one topic and tag."""

    topic: str | None
    """Topic that they were first sent to; None if they do not name it."""
    tags: str | None
    count: int
    most_retries: int
    first_ms: int
    """When the oldest one became a dead letter, by the broker's clock; ms since 1970."""
    last_ms: int


def origin_topic() -> Column:
    """The topic that a dead letter was first sent to; for rows with `properties`."""
    from pyspark.sql import functions as F

    properties = F.col("properties")
    return F.coalesce(properties[PROPERTY_DLQ_ORIGIN_TOPIC], properties[PROPERTY_RETRY_TOPIC])


def deaths(letters: DataFrame) -> list[Deaths]:
    """Dead letters by topic and tag, most frequent first. `letters`: `properties`, `tags`, `reconsumeTimes`,
    `timestamp`."""
    from pyspark.sql import functions as F

    rows = (
        letters.groupBy(origin_topic().alias("origin"), "tags")
        .agg(
            F.count("*").alias("dead"),
            F.max("reconsumeTimes").alias("retries"),
            F.min(F.unix_millis("timestamp")).alias("first_ms"),
            F.max(F.unix_millis("timestamp")).alias("last_ms"),
        )
        .orderBy(F.desc("dead"), "origin", "tags")
        .collect()
    )
    return [
        Deaths(row["origin"], row["tags"], row["dead"], row["retries"], row["first_ms"], row["last_ms"])
        for row in rows
    ]
