"""mirror: copies topics continuously to another cluster, exactly once, with the offsets of groups.

Each queue goes to one queue of the target, in order and without gaps. So for each queue the difference
between a message's offsets at the target and at the source is constant. The first run stores it in the state
directory, beside the stream's checkpoint. It translates a group's offsets: consumers that move to the target
continue at the same message.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonmq.client.admin import Admin
from batonmq.client.offsets import GroupOffsets
from batonmq.client.reader import QueueReader
from batonmq.common.files import replace_file
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, TopicNotExistError
from batonmq.protocol.message.properties import PROPERTY_SHARDING_KEY
from batonmq.routing.session import Session
from batonmq.spark.access import OPEN, Access
from batonmq.spark.jobs.groups import consumed_topics
from batonmq.spark.jobs.queue_map import Queue, place_columns, queue_map, with_more
from batonmq.spark.jobs.state import MIRROR
from batonmq.spark.options import ClearError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class MirrorError(ClearError):
    """The mirror cannot continue; the text has the reason."""


@dataclass(frozen=True)
class Mirror:
    """The parameters of one mirror."""

    namesrv: str
    target_namesrv: str
    topics: tuple[str, ...]
    state: Path
    """Directory for the data of the first run, and the checkpoint."""
    groups: tuple[str, ...] = ()
    """Consumer groups whose offsets are translated."""
    access: Access = OPEN
    target_access: Access = OPEN

    @property
    def identity(self) -> str:
        """Parameters that must be the same in a second run with the same state directory."""
        return json.dumps([self.namesrv, self.target_namesrv, sorted(self.topics)])


@dataclass(frozen=True, slots=True)
class Lane:
    """One queue of the source, and its queue of the target."""

    source: MessageQueue
    target: MessageQueue
    start: int
    """First offset that is copied."""
    difference: int | None
    """Offset at the target minus offset at the source; None if other queues go to the same target queue."""

    def translated(self, offset: int) -> int | None:
        """A group's offset at the source, translated to the target; None if there is none."""
        return None if self.difference is None else max(offset, self.start) + self.difference


def lanes_of(
    starts: Mapping[MessageQueue, int], targets: Sequence[MessageQueue], ends: Mapping[MessageQueue, int]
) -> list[Lane]:
    """Lanes of one topic. `starts`: queues of the source and their first offsets; `ends`: ends of the queues
    of the target. Raises `NoQueue`."""
    sources = sorted(starts)
    chosen = queue_map([(queue.broker_name, queue.queue_id) for queue in sources], targets)
    lanes = []
    for source in sources:
        target = chosen[source.broker_name, source.queue_id]
        alone = sum(other == target for other in chosen.values()) == 1
        lanes.append(Lane(source, target, starts[source], ends[target] - starts[source] if alone else None))
    return lanes


def with_new_queues(
    lanes: Sequence[Lane],
    starts: Mapping[MessageQueue, int],
    targets: Sequence[MessageQueue],
    ends: Mapping[MessageQueue, int],
) -> list[Lane]:
    """The lanes of one topic, and lanes for queues of the source that it has got since. Parameters as for
    `lanes_of`."""
    known = {(lane.source.broker_name, lane.source.queue_id): lane.target for lane in lanes}
    chosen = with_more(known, [(queue.broker_name, queue.queue_id) for queue in starts], targets)
    shared = {target for target, count in Counter(chosen.values()).items() if count > 1}
    found = [replace(lane, difference=None) if lane.target in shared else lane for lane in lanes]
    for source in sorted(starts):
        name = source.broker_name, source.queue_id
        if name not in known:
            target, start = chosen[name], starts[source]
            found.append(Lane(source, target, start, None if target in shared else ends[target] - start))
    return found


def encode_lanes(identity: str, lanes: Sequence[Lane]) -> bytes:
    """The stored data of the first run."""
    listed = [
        {
            "topic": lane.source.topic,
            "from": [lane.source.broker_name, lane.source.queue_id],
            "to": [lane.target.broker_name, lane.target.queue_id],
            "start": lane.start,
            "difference": lane.difference,
        }
        for lane in lanes
    ]
    return json.dumps({"mirror": identity, "lanes": listed}, indent=1).encode()


def decode_lanes(identity: str, data: bytes, path: Path) -> list[Lane]:
    """Raises `MirrorError` if the data is damaged, or belongs to another mirror."""
    try:
        kept = json.loads(data)
        if kept["mirror"] != identity:
            raise MirrorError(f"{path} belongs to another mirror: {kept['mirror']}; give each its directory")
        return [
            Lane(
                MessageQueue(lane["topic"], *lane["from"]),
                MessageQueue(lane["topic"], *lane["to"]),
                int(lane["start"]),
                None if lane["difference"] is None else int(lane["difference"]),
            )
            for lane in kept["lanes"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise MirrorError(f"{path} is damaged: {error}") from None


async def prepare(mirror: Mirror) -> list[Lane]:
    """The lanes of the first run and of queues that the source has got since, which are stored. Creates
    topics that the target does not have, with the same number of queues. Raises `MirrorError`, `NoQueue`,
    `MQError`, `NetError`."""
    path = mirror.state / MIRROR
    known = decode_lanes(mirror.identity, path.read_bytes(), path) if path.exists() else []
    lanes: list[Lane] = []
    async with (
        QueueReader(mirror.namesrv, **mirror.access.client()) as source,
        QueueReader(mirror.target_namesrv, **mirror.target_access.client()) as target,
    ):
        for topic in mirror.topics:
            starts = {queue: await source.min_offset(queue) for queue in await source.queues(topic)}
            if not starts:
                raise MirrorError(f"topic {topic!r} has no queue that can be read")
            targets = await _queues(mirror, target, topic, 1 + max(queue.queue_id for queue in starts))
            ends = {queue: await target.max_offset(queue) for queue in targets}
            of_topic = [lane for lane in known if lane.source.topic == topic]
            if of_topic:
                lanes += with_new_queues(of_topic, starts, targets, ends)
            else:
                lanes += lanes_of(starts, targets, ends)
    if mirror.groups and any(lane.difference is None for lane in lanes):
        # Nothing is stored: with more queues the next run finds other lanes.
        raise MirrorError(
            "the target has fewer queues than the source, so offsets of groups cannot be translated; leave "
            "out --group, or give the topic as many queues"
        )
    mirror.state.mkdir(parents=True, exist_ok=True)
    replace_file(path, encode_lanes(mirror.identity, lanes))
    return lanes


async def check_groups(mirror: Mirror) -> None:
    """Raises `MirrorError` if a group has no offset in any of the topics at the source, and `MQError`,
    `NetError`."""
    source = Session(mirror.namesrv, **mirror.access.client())
    try:
        for group, topics in (await _consumed(mirror, source)).items():
            if not topics:
                raise MirrorError(
                    f"group {group} has consumed nothing of {', '.join(mirror.topics)} at the source: is its "
                    "name right? A group that has not begun yet needs no mirror; leave it out until it has"
                )
    finally:
        await source.close()


async def _consumed(mirror: Mirror, source: Session) -> dict[str, set[str]]:
    """The topics of the mirror in which each of its groups has an offset at the source."""
    if not mirror.groups:
        return {}
    masters = (await Admin(mirror.namesrv, session=source).masters()).values()
    return {
        group: await consumed_topics(source, masters, group) & {*mirror.topics} for group in mirror.groups
    }


async def check_queues(mirror: Mirror, lanes: Sequence[Lane]) -> None:
    """Raises `MirrorError` if the source has queues that have no lane, and `MQError`, `NetError`."""
    known = {lane.source for lane in lanes}
    async with QueueReader(mirror.namesrv, **mirror.access.client()) as source:
        for topic in mirror.topics:
            new = sorted(set(await source.queues(topic)) - known)
            if new:
                names = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in new)
                raise MirrorError(
                    f"topic {topic!r} has queues at the source that were created after the start: {names}; "
                    "start the mirror again, with the same --state, to copy them too"
                )


async def _queues(mirror: Mirror, target: QueueReader, topic: str, count: int) -> list[MessageQueue]:
    try:
        return await target.queues(topic)
    except TopicNotExistError:
        async with Admin(mirror.target_namesrv, **mirror.target_access.client()) as admin:
            await admin.create_topic(topic, count)
        return await target.queues(topic)


def start(
    session: SparkSession,
    mirror: Mirror,
    lanes: Sequence[Lane],
    *,
    every: str | None,
    max_offsets_per_trigger: int | None = None,
) -> StreamingQuery:
    """Start copying. `every`: a processing time such as ``"1 second"``; None: copy what is there now, and
    end."""
    from pyspark.sql import functions as F

    offsets: dict[str, dict[str, int]] = {}
    places: dict[str, dict[Queue, MessageQueue]] = {}
    for lane in lanes:
        queue = lane.source
        offsets.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = lane.start
        places.setdefault(queue.topic, {})[queue.broker_name, queue.queue_id] = lane.target
    options: dict[str, Any] = {
        "namesrvAddr": mirror.namesrv,
        "assign": json.dumps({topic: list(queues) for topic, queues in offsets.items()}),
        "startingOffsets": json.dumps(offsets),
        **mirror.access.source_options(),
    }
    if max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = max_offsets_per_trigger
    stream = (
        session.readStream.format("rocketmq")
        .schema("value binary, topic string, broker string, queueId int, keys string, tags string, "
                "properties map<string,string>")
        .options(**options)
        .load()
    )  # fmt: skip
    broker, queue_id = F.lit(None).cast("string"), F.lit(None).cast("int")
    for topic, queues in places.items():
        of_topic = place_columns(queues)
        broker = F.when(F.col("topic") == topic, of_topic[0]).otherwise(broker)
        queue_id = F.when(F.col("topic") == topic, of_topic[1]).otherwise(queue_id)
    rows = stream.select(
        "value",
        "topic",
        "keys",
        "tags",
        "properties",
        F.col("properties")[PROPERTY_SHARDING_KEY].alias("shardingKey"),
        broker.alias("broker"),
        queue_id.alias("queueId"),
    )
    writer = (
        rows.writeStream.format("rocketmq")
        .options(namesrvAddr=mirror.target_namesrv, deliveryGuarantee="exactlyOnce")
        .options(**mirror.target_access.options())
        .option("checkpointLocation", str((mirror.state / "checkpoint").absolute()))
        .queryName("mirror")
    )
    return (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()


async def _commit(
    mirror: Mirror, group: str, offsets: GroupOffsets, queue: MessageQueue, offset: int
) -> None:
    try:
        await offsets.commit(queue, offset)
    except MQError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        async with Admin(mirror.target_namesrv, **mirror.target_access.client()) as admin:
            await admin.create_group(SubscriptionGroupConfig(group_name=group))
        await offsets.commit(queue, offset)


async def translate(mirror: Mirror, lanes: Sequence[Lane]) -> int:
    """Advance the groups' offsets at the target to those at the source; returns the number of changes.

    Groups that the target does not have are created, with offsets in the topics that they consume at the
    source. An offset at the target never goes back, because consumers that have moved there are ahead. It
    never passes the end of the target queue. Raises `MQError`, `NetError`.
    """
    moved = 0
    source = Session(mirror.namesrv, **mirror.access.client())
    target = Session(mirror.target_namesrv, **mirror.target_access.client())
    try:
        async with QueueReader(mirror.target_namesrv, **mirror.target_access.client()) as reader:
            for group, topics in (await _consumed(mirror, source)).items():
                there, here = GroupOffsets(source, group), GroupOffsets(target, group)
                for lane in lanes:
                    if lane.source.topic not in topics:
                        continue
                    offset = await there.read(lane.source)
                    wanted = None if offset is None else lane.translated(offset)
                    if wanted is None:
                        continue
                    wanted = min(wanted, await reader.max_offset(lane.target))
                    known = await here.read(lane.target)
                    if known is None or known < wanted:
                        await _commit(mirror, group, here, lane.target, wanted)
                        moved += 1
    finally:
        await asyncio.gather(source.close(), target.close())
    return moved
