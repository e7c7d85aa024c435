"""dlq: the dead letters of a group: how many, of which topics and tags, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batonmq.client.message import PROPERTY_DLQ_ORIGIN_TOPIC
from batonmq.protocol.message.properties import PROPERTY_RETRY_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Deaths:
    """Dead letters of one topic and tag."""

    topic: str | None
    """Where they were sent to first; None if they do not say."""
    tags: str | None
    count: int
    most_retries: int
    first: Any
    """When the oldest one died, by the broker's clock."""
    last: Any


def origin_topic() -> Column:
    """The topic that a dead letter was sent to first; for rows with `properties`."""
    from pyspark.sql import functions as F

    properties = F.col("properties")
    return F.coalesce(properties[PROPERTY_DLQ_ORIGIN_TOPIC], properties[PROPERTY_RETRY_TOPIC])


def deaths(letters: DataFrame) -> list[Deaths]:
    """What died, most first. `letters`: `properties`, `tags`, `reconsumeTimes`, `timestamp`."""
    from pyspark.sql import functions as F

    rows = (
        letters.groupBy(origin_topic().alias("origin"), "tags")
        .agg(
            F.count("*").alias("dead"),
            F.max("reconsumeTimes").alias("retries"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
        )
        .orderBy(F.desc("dead"), "origin", "tags")
        .collect()
    )
    return [
        Deaths(row["origin"], row["tags"], row["dead"], row["retries"], row["first"], row["last"])
        for row in rows
    ]
