"""restore: writes an archive (`archive`) back into topics, in queue order, exactly once across restarts.

Each date of a topic is a batch job with an id (`deliveryGuarantee=exactlyOnce`), so a second run continues
with the first date that is not done. All messages of one source queue go to one queue of the target, in
order; the state directory keeps which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonmq.common.files import replace_file
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.message.properties import PROPERTY_SHARDING_KEY
from batonmq.spark.access import OPEN, Access
from batonmq.spark.jobs import archive
from batonmq.spark.jobs.queue_map import Queue, place_columns, with_more
from batonmq.spark.jobs.state import RESTORE, check_job, held
from batonmq.spark.options import ClearError
from batonmq.spark.sink.exactly_once.core import BATCH_EPOCH
from batonmq.spark.sink.exactly_once.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class RestoreError(ClearError):
    """The restore cannot continue; the text has the reason."""


@dataclass(frozen=True)
class Restore:
    """The parameters of one restore."""

    namesrv: str
    archive: str
    state: Path
    """Directory that records the progress."""
    topic: str | None = None
    """Only this topic of the archive; None: all."""
    target: str | None = None
    """Topic to write; None: the topic that the messages came from."""
    first_date: str | None = None
    """ISO date; None: the oldest."""
    last_date: str | None = None
    access: Access = OPEN

    @property
    def identity(self) -> str:
        """Parameters that must be the same in a second run with the same state directory."""
        return json.dumps([self.namesrv, self.archive, self.topic, self.target])


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of one run."""

    rows: int
    """Messages that this run has written."""
    dates: int
    """Dates of topics in the archive."""
    skipped: int
    """Dates that an earlier run has written."""


def compare_state(restore: Restore) -> None:
    """Compare the parameters of this restore with those of the first run, if there was one. Raises
    `RestoreError`, `InUse`."""
    check_job(restore.state, RESTORE)
    path = restore.state / RESTORE
    if path.exists() and path.read_text() != restore.identity:
        raise RestoreError(
            f"{restore.state} belongs to another restore: {path.read_text()}; give each its directory"
        )


def check_state(restore: Restore) -> None:
    """Store the parameters of this restore, or compare them with those of the first run. Raises as
    `compare_state`."""
    compare_state(restore)
    if not (restore.state / RESTORE).exists():
        restore.state.mkdir(parents=True, exist_ok=True)
        replace_file(restore.state / RESTORE, restore.identity.encode())


def chunk_name(topic: str, date: str) -> str:
    """Id of the job that writes one date of a topic."""
    return f"{date}-{sha256(topic.encode()).hexdigest()[:16]}"


def run(
    session: SparkSession,
    restore: Restore,
    *,
    queues: Callable[[str], Sequence[MessageQueue]],
    progress: Callable[[str, str, int], None] = lambda topic, date, rows: None,
) -> Restored:
    """Restore the remaining dates. `queues` gives the queues of a topic that can be written to; `progress`
    gets topic, date and number of messages written. Raises `RestoreError`, `NoQueue`, `InUse`."""
    with held(restore.state, RESTORE):
        return _run(session, restore, queues, progress)


def _run(
    session: SparkSession,
    restore: Restore,
    queues: Callable[[str], Sequence[MessageQueue]],
    progress: Callable[[str, str, int], None],
) -> Restored:
    from pyspark.sql import functions as F

    compare_state(restore)
    archived = archive.read(session, restore.archive, restore.topic)
    if restore.topic is not None and archived.isEmpty():
        raise RestoreError(f"{restore.archive} has no topic {restore.topic!r}")
    archived = archived.withColumn("date", F.col("date").cast("string"))
    if restore.first_date is not None:
        archived = archived.where(F.col("date") >= restore.first_date)
    if restore.last_date is not None:
        archived = archived.where(F.col("date") <= restore.last_date)
    rows = skipped = 0
    places = _places(restore, archived, queues)
    dates = [(row["topic"], row["date"]) for row in archived.select("topic", "date").distinct().collect()]
    for topic, date in sorted(dates, key=lambda pair: (pair[1], pair[0])):
        name, target = chunk_name(topic, date), restore.target or topic
        if Ledger(restore.state / name).is_done(BATCH_EPOCH):
            skipped += 1
            continue
        part = archived.where((F.col("topic") == topic) & (F.col("date") == date))
        counts = {
            (row["broker"], row["queueId"]): row["count"]
            for row in part.groupBy("broker", "queueId").count().collect()
        }
        _write(part, places[topic], restore, target, name)
        rows += sum(counts.values())
        progress(topic, date, sum(counts.values()))
    return Restored(rows, len(dates), skipped)


def _places(
    restore: Restore, archived: DataFrame, queues: Callable[[str], Sequence[MessageQueue]]
) -> dict[str, dict[Queue, MessageQueue]]:
    """By topic, where each queue goes: to the same queue for all dates and in all runs, or its messages would
    not stay in order. Raises `RestoreError`, `NoQueue`."""
    path = restore.state / "queues.json"
    places = _decoded(path) if path.exists() else {}
    sources: dict[str, list[Queue]] = {}
    for row in archived.select("topic", "broker", "queueId").distinct().collect():
        sources.setdefault(row["topic"], []).append((row["broker"], row["queueId"]))
    for topic, of_topic in sorted(sources.items()):
        target = restore.target or topic
        places[topic] = with_more(places.get(topic, {}), of_topic, queues(target))
    listed = {
        topic: [[*source, target.topic, target.broker_name, target.queue_id] for source, target in of.items()]
        for topic, of in places.items()
    }
    check_state(restore)  # not before the archive and the topics are found
    replace_file(path, json.dumps(listed, indent=1).encode())
    return places


def _decoded(path: Path) -> dict[str, dict[Queue, MessageQueue]]:
    try:
        return {
            topic: {
                (broker, int(number)): MessageQueue(to_topic, to_broker, int(to_number))
                for broker, number, to_topic, to_broker, to_number in rows
            }
            for topic, rows in json.loads(path.read_bytes()).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise RestoreError(f"{path} is damaged: {error}") from None


def _write(
    part: DataFrame, queues: dict[Queue, MessageQueue], restore: Restore, target: str, name: str
) -> None:
    from pyspark.sql import functions as F

    broker, queue_id = place_columns(queues)
    # A source queue is in one task, so that its messages are written in their order.
    frame = (
        part.repartition("broker", "queueId")
        .sortWithinPartitions("broker", "queueId", "queueOffset")
        .select(
            "value",
            "keys",
            "tags",
            "properties",
            F.col("properties")[PROPERTY_SHARDING_KEY].alias("shardingKey"),
            broker.alias("broker"),
            queue_id.alias("queueId"),
        )
    )
    options: dict[str, Any] = {
        "namesrvAddr": restore.namesrv,
        "topic": target,
        "deliveryGuarantee": "exactlyOnce",
        "transactionLocation": str(restore.state.absolute()),
        "transactionId": name,
        **restore.access.options(),
    }
    frame.write.format("rocketmq").mode("append").options(**options).save()
