"""skew: which keys and queues have more than their share of a topic's messages.

Works on any table with the source's columns: a topic, an archive, or store directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from batonmq.protocol.message.properties import PROPERTY_SHARDING_KEY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BY = ("keys", "shardingKey", "tags")
"""What a message can be counted by."""
COLUMNS = "value binary, broker string, queueId int, keys string, tags string, properties map<string,string>"


@dataclass(frozen=True, slots=True)
class HotKey:
    """One key."""

    key: str
    messages: int
    bytes: int
    share: float
    """Of all messages that have a key."""
    queues: int
    """In how many queues it is."""
    hottest_queue: str
    """``broker:queue`` with most of its messages."""


@dataclass(frozen=True, slots=True)
class HotQueue:
    """One queue."""

    queue: str
    messages: int
    bytes: int
    of_mean: float
    """Its messages, divided by the mean of all queues."""


@dataclass(frozen=True, slots=True)
class Skew:
    """How uneven a topic is."""

    messages: int
    bytes: int
    without_key: int
    keys: int
    """Different keys."""
    half_of_messages: int
    """So many keys, the most frequent ones, have half of the messages."""
    gini: float
    """Of the messages a key: 0 if all keys have the same number, near 1 if one has nearly all."""
    top: tuple[HotKey, ...]
    queues: tuple[HotQueue, ...]
    frequencies: tuple[tuple[int, int], ...]
    """(messages a key, number of such keys), most messages first."""

    @property
    def hottest_share(self) -> float:
        return self.top[0].share if self.top else 0.0

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def gini(frequencies: Sequence[tuple[int, int]]) -> float:
    """Gini coefficient of the messages a key. `frequencies`: (messages a key, number of such keys)."""
    keys = sum(count for _, count in frequencies)
    total = sum(messages * count for messages, count in frequencies)
    if not total:
        return 0.0
    below = area = 0
    for messages, count in sorted(frequencies):
        # The Lorenz curve is straight over keys with the same number of messages.
        area += count * (2 * below + messages * count)
        below += messages * count
    return 1 - area / (keys * total)


def keys_with_half(frequencies: Sequence[tuple[int, int]]) -> int:
    """The least number of keys that have half of the messages together."""
    total = sum(messages * count for messages, count in frequencies)
    taken = keys = 0
    for messages, count in sorted(frequencies, reverse=True):
        wanted = -(-(total - 2 * taken) // (2 * messages))
        if wanted <= count:
            return keys + max(0, wanted)
        taken += messages * count
        keys += count
    return keys


def shares(frequencies: Sequence[tuple[int, int]]) -> list[tuple[int, float]]:
    """(number of the most frequent keys, their share of the messages): points of a curve, which is straight
    between them."""
    total = sum(messages * count for messages, count in frequencies)
    keys = taken = 0
    points = [(0, 0.0)]
    for messages, count in sorted(frequencies, reverse=True):
        keys, taken = keys + count, taken + messages * count
        points.append((keys, taken / total))
    return points


def measure(log: DataFrame, *, by: str = "keys", top: int = 20) -> Skew:
    """Count a table with `COLUMNS`. A message with several keys counts once for each."""
    from pyspark.sql import functions as F

    rows = log.select(
        _keys(by).alias("names"),
        F.concat_ws(":", "broker", F.col("queueId").cast("string")).alias("queue"),
        F.length("value").cast("long").alias("size"),
    )
    per_queue = rows.groupBy("queue").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.sum(F.when(F.size("names") == 0, 1).otherwise(0)).alias("bare"),
    )
    queues = per_queue.orderBy(F.desc("messages"), "queue").collect()
    in_queue = (
        rows.select(F.explode("names").alias("key"), "queue", "size")
        .groupBy("key", "queue")
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
    )
    per_key = (
        in_queue.groupBy("key")
        .agg(
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.count("*").alias("queues"),
            F.max_by("queue", "messages").alias("hottest"),
        )
        .cache()
    )
    try:
        hottest = per_key.orderBy(F.desc("messages"), "key").limit(top).collect()
        counted = per_key.groupBy("messages").agg(F.count("*").alias("keys")).collect()
    finally:
        per_key.unpersist()
    frequencies = tuple(sorted(((row["messages"], row["keys"]) for row in counted), reverse=True))
    with_key = sum(messages * keys for messages, keys in frequencies)
    total = sum(row["messages"] for row in queues)
    return Skew(
        messages=total,
        bytes=sum(row["bytes"] or 0 for row in queues),
        without_key=sum(row["bare"] for row in queues),
        keys=sum(keys for _, keys in frequencies),
        half_of_messages=keys_with_half(frequencies),
        gini=gini(frequencies),
        top=tuple(
            HotKey(
                row["key"],
                row["messages"],
                row["bytes"] or 0,
                row["messages"] / with_key,
                row["queues"],
                row["hottest"],
            )
            for row in hottest
        ),
        queues=tuple(
            HotQueue(row["queue"], row["messages"], row["bytes"] or 0, row["messages"] * len(queues) / total)
            for row in queues
        ),
        frequencies=frequencies,
    )


def _keys(by: str) -> Column:
    """The keys of a message as an array without duplicates; empty if it has none."""
    from pyspark.sql import functions as F

    if by == "keys":
        words = F.split(F.coalesce("keys", F.lit("")), " +")
    else:
        column = F.col("properties")[PROPERTY_SHARDING_KEY] if by == "shardingKey" else F.col("tags")
        words = F.array(F.coalesce(column, F.lit("")))
    return F.array_distinct(F.filter(words, lambda word: word != ""))


def empty_queues(queues: Iterable[HotQueue], known: Iterable[str]) -> tuple[HotQueue, ...]:
    """`queues` with those of `known` that have no message, and means over all of them."""
    counted = {queue.queue: queue for queue in queues}
    names = [*counted, *sorted(set(known) - set(counted))]
    total = sum(queue.messages for queue in counted.values())
    return tuple(
        HotQueue(
            name,
            counted[name].messages if name in counted else 0,
            counted[name].bytes if name in counted else 0,
            counted[name].messages * len(names) / total if name in counted else 0.0,
        )
        for name in names
    )
