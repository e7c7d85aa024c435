"""lag: how far consumer groups and Spark streams are behind the ends of their queues, and since when.

Brokers know the committed offsets of groups. A stream without `groupId` keeps its offsets in its checkpoint
only, so `stream_offsets` reads them there. `contents` reads the messages that nobody has consumed yet.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from batonmq.client.admin import Admin
from batonmq.client.reader import QueueReader
from batonmq.protocol.bodies.clients import GroupList
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.statistics import ConsumeStats
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.headers.broker.admin import (
    GetConsumeStats,
    QueryTopicConsumeByWho,
)
from batonmq.protocol.json import decode
from batonmq.protocol.message.record import decode_records
from batonmq.routing.session import Session
from batonmq.spark.access import OPEN, Access
from batonmq.spark.jobs.groups import consumed_topics
from batonmq.spark.options import ClearError
from batonmq.spark.plan import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUESTIONS_AT_A_TIME = 64
"""Queues that are looked at together."""


class LagError(ClearError):
    """The lag cannot be determined; the text has the reason."""


@dataclass(frozen=True, slots=True)
class QueueLag:
    """One reader in one queue."""

    reader: str
    """Consumer group, or the path of a stream's checkpoint."""
    topic: str
    broker: str
    queue_id: int
    begin: int
    """First offset that is still stored."""
    end: int
    """The offset that the next message gets."""
    next_offset: int
    """First offset that the reader has not consumed."""
    oldest_ms: int | None = None
    """When the oldest message that it has not consumed was stored; None if there is none."""

    @property
    def behind(self) -> int:
        """Messages that are stored and not consumed."""
        return max(0, self.end - max(self.next_offset, self.begin))

    @property
    def expired(self) -> int:
        """Messages that were deleted before the reader consumed them."""
        return max(0, self.begin - self.next_offset)


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """One reader of one topic, over all queues."""

    reader: str
    topic: str
    queues: int
    behind: int
    worst: str
    """``broker:queue`` with most messages."""
    worst_behind: int
    expired: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class Rates:
    """What changed between two samples, a second."""

    stored: float
    consumed: float

    @property
    def catches_up(self) -> bool:
        return self.consumed > self.stored

    def seconds_left(self, behind: int) -> float | None:
        """Until nothing is left at these rates; None if that never happens."""
        if not behind:
            return 0.0
        return behind / (self.consumed - self.stored) if self.catches_up else None


def by_reader(queues: Iterable[QueueLag]) -> list[ReaderLag]:
    """Sum up, most messages behind first."""
    grouped: dict[tuple[str, str], list[QueueLag]] = defaultdict(list)
    for queue in queues:
        grouped[queue.reader, queue.topic].append(queue)
    found = []
    for (reader, topic), members in grouped.items():
        worst = max(members, key=lambda queue: queue.behind)
        found.append(
            ReaderLag(
                reader,
                topic,
                len(members),
                sum(queue.behind for queue in members),
                f"{worst.broker}:{worst.queue_id}",
                worst.behind,
                sum(queue.expired for queue in members),
                min((queue.oldest_ms for queue in members if queue.oldest_ms is not None), default=None),
            )
        )
    return sorted(found, key=lambda lag: (-lag.behind, lag.reader, lag.topic))


def rates(
    first: Iterable[QueueLag], last: Iterable[QueueLag], seconds: float
) -> dict[tuple[str, str], Rates]:
    """(reader, topic) -> rates between two samples. Queues that are in one sample only do not count."""
    before = {(q.reader, q.topic, q.broker, q.queue_id): q for q in first}
    stored: dict[tuple[str, str], int] = defaultdict(int)
    consumed: dict[tuple[str, str], int] = defaultdict(int)
    for queue in last:
        then = before.get((queue.reader, queue.topic, queue.broker, queue.queue_id))
        if then is not None:
            stored[queue.reader, queue.topic] += queue.end - then.end
            consumed[queue.reader, queue.topic] += queue.next_offset - then.next_offset
    return {key: Rates(stored[key] / seconds, consumed[key] / seconds) for key in stored}


def stream_offsets(checkpoint: Path) -> Offsets:
    """The offsets that a stream of ours has committed, from its checkpoint, a local or mounted directory.

    Raises `LagError` if there are none.
    """
    commits, plans = checkpoint / "commits", checkpoint / "offsets"
    if not plans.is_dir():
        raise LagError(f"{checkpoint} is not a checkpoint: it has no directory 'offsets'")
    done = [int(path.name) for path in commits.iterdir() if path.name.isdigit()] if commits.is_dir() else []
    if not done:
        raise LagError(f"{checkpoint}: the stream has not committed a micro-batch yet")
    plan = plans / str(max(done))
    try:
        lines = plan.read_text("utf-8", "replace").splitlines()[2:]  # the version, then the batch's metadata
    except OSError as error:
        raise LagError(f"{plan}: {error.strerror}") from None
    found: Offsets = {}
    for line in lines:
        for topic, queues in _source_offsets(line).items():
            found.setdefault(topic, {}).update(queues)
    if not found:
        raise LagError(f"{plan} has no offsets of format('rocketmq')")
    return found


_NAME: Final = re.compile(r".+:[0-9]+")
"""Of a queue: ``broker:id``."""


def _source_offsets(line: str) -> Offsets:
    """Empty if the line is another source's. Kafka's connector names queues by their number alone."""
    try:
        given = json.loads(line)
        if not all(_NAME.fullmatch(queue) for queues in given.values() for queue in queues):
            return {}
        return {
            str(topic): {str(queue): int(offset) for queue, offset in queues.items()}
            for topic, queues in given.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}


async def groups_of(namesrv: str, topic: str, access: Access = OPEN) -> list[str]:
    """Groups that have committed offsets of a topic, or consume it now. Raises `MQError`, `NetError`."""
    async with Admin(namesrv, session=(session := Session(namesrv, **access.client()))) as admin:
        found: set[str] = set()
        for address in (await admin.masters()).values():
            answer = await session.net.call(address, QueryTopicConsumeByWho(topic=topic))
            found |= set(decode(bytes(answer.body), GroupList).group_list)
        return sorted(found)


async def group_lag(
    namesrv: str,
    groups: Sequence[str],
    topics: Sequence[str] = (),
    *,
    known: bool = False,
    access: Access = OPEN,
) -> list[QueueLag]:
    """The lag of groups in all topics that they consume, or in `topics` alone. `known`: the groups exist,
    even if they have not committed an offset yet.

    Raises `LagError` if no broker has offsets of a group; `MQError`, `NetError`.
    """
    session = Session(namesrv, **access.client())
    found: list[QueueLag] = []
    async with (
        Admin(namesrv, session=session) as admin,
        QueueReader(namesrv, **access.client()) as reader,
    ):
        masters = await admin.masters()
        for group in groups:
            offsets: dict[MessageQueue, int] = {}
            for address in masters.values():
                for topic in topics or (None,):
                    offsets |= await _offsets_at(session, address, group, topic)
            # Brokers answer 0 for any group in a topic that exists: a misspelt name would look far behind.
            is_known = known or any(offsets.values())
            if not offsets or not (is_known or await consumed_topics(session, masters.values(), group)):
                about = f" of {', '.join(topics)}" if topics else ""
                raise LagError(f"no broker has offsets of group {group}{about}: nothing was consumed yet")
            found += await _measured(reader, group, offsets)
    return found


async def _offsets_at(
    session: Session, address: str, group: str, topic: str | None
) -> dict[MessageQueue, int]:
    try:
        answer = await session.net.call(address, GetConsumeStats(consumer_group=group, topic=topic))
    except MQError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        raise
    table = decode(bytes(answer.body), ConsumeStats).offset_table
    return {queue: at.consumer_offset for queue, at in table.items()}


async def stream_lag(namesrv: str, checkpoint: Path, access: Access = OPEN) -> list[QueueLag]:
    """The lag of a stream, by its checkpoint. Raises `LagError`, `MQError`, `NetError`."""
    offsets = {}
    for topic, queues in stream_offsets(checkpoint).items():
        for name, offset in queues.items():
            broker, _, queue_id = name.rpartition(":")
            offsets[MessageQueue(topic, broker, int(queue_id))] = offset
    async with QueueReader(namesrv, **access.client()) as reader:
        return await _measured(reader, str(checkpoint), offsets)


async def _measured(reader: QueueReader, name: str, offsets: Mapping[MessageQueue, int]) -> list[QueueLag]:
    turn = asyncio.Semaphore(QUESTIONS_AT_A_TIME)

    async def measure(queue: MessageQueue, offset: int) -> QueueLag | None:
        async with turn:
            try:
                begin, end = await reader.min_offset(queue), await reader.max_offset(queue)
                at = max(begin, offset)
                oldest = await _stored_ms(reader, queue, at) if at < end else None
            except TopicNotExistError:
                return None  # deleted; its offsets remain for a while
            # Brokers answer 0 where a group never committed: then nothing expired before it came.
            known = offset if offset > 0 else begin
            return QueueLag(name, queue.topic, queue.broker_name, queue.queue_id, begin, end, known, oldest)

    found = await asyncio.gather(*(measure(queue, offset) for queue, offset in sorted(offsets.items())))
    return [lag for lag in found if lag is not None]


async def _stored_ms(reader: QueueReader, queue: MessageQueue, offset: int) -> int | None:
    """When the message at an offset was stored; None if nobody may read it yet, or no longer."""
    pulled = await reader.pull(queue, offset, max_count=1)
    return next((record.store_timestamp for record in decode_records(pulled.records)), None)


def contents(
    session: SparkSession, namesrv: str, queues: Sequence[QueueLag], access: Access = OPEN
) -> DataFrame:
    """What one reader has not consumed of its topics: ``topic, tags, messages, bytes, oldest_ms, newest_ms``,
    most messages first."""
    from pyspark.sql import functions as F

    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for lag in queues:
        name = f"{lag.broker}:{lag.queue_id}"
        starts.setdefault(lag.topic, {})[name] = min(lag.end, max(lag.begin, lag.next_offset))
        ends.setdefault(lag.topic, {})[name] = lag.end
    rows = (
        session.read.format("rocketmq")
        .schema("topic string, tags string, value binary, timestamp timestamp")
        .options(
            namesrvAddr=namesrv,
            assign=json.dumps({topic: list(names) for topic, names in starts.items()}),
            startingOffsets=json.dumps(starts),
            endingOffsets=json.dumps(ends),
            failOnDataLoss="false",
            **access.source_options(),
        )
        .load()
    )
    return (
        rows.groupBy("topic", "tags")
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.length("value")).alias("bytes"),
            F.min(F.unix_millis("timestamp")).alias("oldest_ms"),
            F.max(F.unix_millis("timestamp")).alias("newest_ms"),
        )
        .orderBy(F.desc("messages"), "topic", "tags")
    )


def now_ms() -> int:
    """This machine's time, ms since 1970; ages are measured by it."""
    return time.time_ns() // 1_000_000
