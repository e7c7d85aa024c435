"""Consumer and producer groups: configuration, connected clients, progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from batonmq.admin.logical_offsets import group_offsets
from batonmq.admin.operations import static_topics, topics
from batonmq.admin.session import Admin, AdminError, naming
from batonmq.protocol.bodies.clients import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    GroupList,
    MessageModel,
    MessageRequestMode,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    SetMessageRequestModeRequestBody,
)
from batonmq.protocol.bodies.common import MessageQueue, TopicList
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from batonmq.protocol.bodies.statistics import ConsumeStats, OffsetWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import (
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetConsumeStats,
    GetProducerConnectionList,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
)
from batonmq.protocol.headers.broker.clients import SetMessageRequestMode
from batonmq.protocol.headers.broker.topics import (
    DeleteSubscriptionGroup,
    GetAllTopicConfig,
    GetSubscriptionGroupConfig,
    UpdateSubscriptionGroup,
    UpdateSubscriptionGroupList,
)
from batonmq.protocol.headers.client import GetConsumerRunningInfo
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import (
    dead_letter_topic,
    group_of_retry_topic,
    is_light,
    is_retry_topic,
    retry_topic,
)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a consumer group is, over all its queues."""

    group: str
    online: bool
    """At least one client is connected."""
    clients: int
    model: MessageModel | None
    """None if it is not known."""
    tps: float
    behind: int
    """Messages not consumed yet."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a consumer group is in one queue."""

    group: str
    topic: str
    broker: str
    """Broker name."""
    queue_id: int
    broker_offset: int
    """The offset that the next message gets."""
    consumer_offset: int
    """What the group has committed."""
    pull_offset: int
    last_stored_ms: int
    """When the last consumed message was stored; 0 if none was."""

    @property
    def behind(self) -> int:
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Messages pulled and not committed yet."""
        return self.pull_offset - self.consumer_offset


class _TopicTable(msgspec.Struct, rename="camel"):
    """The names alone of GET_ALL_TOPIC_CONFIG's answer."""

    topic_config_table: dict[str, msgspec.Raw]


async def configs(admin: Admin, group: str) -> dict[str, SubscriptionGroupConfig]:
    """Broker name -> a group's configuration as that master has it."""
    found: dict[str, SubscriptionGroupConfig] = {}
    for name, address in (await admin.masters()).items():
        answer = await admin.ask(address, GetSubscriptionGroupConfig(group=group))
        found[name] = decode(bytes(answer.body), SubscriptionGroupConfig)
    return found


async def create(admin: Admin, addresses: Iterable[str], config: SubscriptionGroupConfig) -> None:
    """Create a consumer group at brokers, or replace its configuration. Raises `AdminError` for a group of
    light queues: brokers accept the request and change nothing."""
    _check_configurable(config.group_name)
    await admin.ask_each(addresses, UpdateSubscriptionGroup(), encode(config))


async def create_list(admin: Admin, addresses: Iterable[str], configs: list[SubscriptionGroupConfig]) -> None:
    """`create` for several groups."""
    for config in configs:
        _check_configurable(config.group_name)
    await admin.ask_each(addresses, UpdateSubscriptionGroupList(), encode(SubscriptionGroupList(configs)))


def _check_configurable(group: str) -> None:
    if is_light(group):
        raise AdminError(f"{group} exists without being created and always has the defaults")


async def all_producers(admin: Admin, broker: str) -> dict[str, list[ProducerInfo]]:
    """Producer group -> its clients that are connected to a broker."""
    answer = await admin.ask(broker, GetAllProducerInfo())
    return decode(bytes(answer.body), ProducerTableInfo).data


async def delete(admin: Admin, addresses: Iterable[str], group: str, *, with_offsets: bool = False) -> None:
    """Delete a consumer group from brokers."""
    await admin.ask_each(addresses, DeleteSubscriptionGroup(group_name=group, clean_offset=with_offsets))


async def delete_topics(admin: Admin, group: str, cluster: str) -> dict[str, topics.Deletion]:
    """Delete the topics of a group's retries and dead letters from a cluster; by topic."""
    done: dict[str, topics.Deletion] = {}
    with naming(done):
        for topic in (retry_topic(group), dead_letter_topic(group)):
            done[topic] = await topics.delete(admin, topic, cluster)
    return done


async def set_mode(
    admin: Admin,
    addresses: Iterable[str],
    topic: str,
    group: str,
    mode: MessageRequestMode,
    share_with: int = 0,
) -> None:
    """Let a group pull or pop a topic; `share_with`: clients whose queues a client pops besides its own."""
    body = SetMessageRequestModeRequestBody(topic, group, mode, share_with)
    await admin.ask_each(addresses, SetMessageRequestMode(), encode(body))


async def consumers(admin: Admin, group: str, broker: str | None = None) -> ConsumerConnection:
    """Connected clients of a group, and its subscriptions; asked at `broker` or at one that serves the group.

    Raises `MQError` CONSUMER_NOT_ONLINE if no client is connected.
    """
    if broker is None:
        broker = await admin.a_broker_of(retry_topic(group))
    return await _consumers(admin, group, broker)


async def running_info(
    admin: Admin, group: str, client_id: str, broker: str, *, jstack: bool = False
) -> ConsumerRunningInfo:
    """What a connected consumer is doing, as it says; relayed by the broker at an address."""
    header = GetConsumerRunningInfo(consumer_group=group, client_id=client_id, jstack_enable=jstack)
    answer = await admin.ask(broker, header)
    return decode(bytes(answer.body), ConsumerRunningInfo)


async def producers(admin: Admin, group: str, topic: str) -> list[Connection]:
    """Connected clients of a producer group, asked at a broker of a topic that they send to."""
    broker = await admin.a_broker_of(topic)
    answer = await admin.ask(broker, GetProducerConnectionList(producer_group=group))
    return decode(bytes(answer.body), ProducerConnection).connection_set


async def all_progress(
    admin: Admin, topic: str | None = None, cluster: str | None = None
) -> list[GroupProgress]:
    """How far all consumer groups are, sorted by name; in all topics and clusters, or in one."""
    found: list[GroupProgress] = []
    names = await topics.names(admin)
    for group in sorted({group_of_retry_topic(name) for name in names if is_retry_topic(name)}):
        stats = (await offset_tables(admin, group, topic, cluster)).values()
        queues = [at for table in stats for at in table.offset_table.values()]
        clients = await _clients(admin, group, cluster)
        found.append(
            GroupProgress(
                group,
                clients is not None,
                len(clients.connection_set) if clients else 0,
                clients.message_model if clients else None,
                sum(table.consume_tps for table in stats),
                sum(at.broker_offset - at.consumer_offset for at in queues),
            )
        )
    return found


async def progress(
    admin: Admin, group: str, topic: str | None = None, cluster: str | None = None
) -> list[QueueProgress]:
    """How far one group is, queue by queue, sorted by topic, broker and queue.

    Raises `MQError` CONSUMER_NOT_ONLINE, as mqadmin does, if no offset of the group is known.
    """
    rows = [
        _progress(group, queue.topic, name, queue, at)
        for name, table in (await offset_tables(admin, group, topic, cluster)).items()
        for queue, at in table.offset_table.items()
    ]
    if not rows:
        about = f"group {group}" if topic is None else f"group {group} and topic {topic}"
        raise MQError(
            ResponseCode.CONSUMER_NOT_ONLINE, f"no offsets are known of {about}: nothing was consumed yet"
        )
    return sorted(rows, key=lambda row: (row.topic, row.broker, row.queue_id))


async def progress_at(admin: Admin, broker: str) -> list[QueueProgress]:
    """How far the queues of the broker at an address are consumed, by group, topic and queue."""
    answer = await admin.ask(broker, GetAllTopicConfig())
    groups: set[str] = set()
    for topic in sorted(msgspec.json.decode(bytes(answer.body), type=_TopicTable).topic_config_table):
        answer = await admin.ask(broker, QueryTopicConsumeByWho(topic=topic))
        groups |= set(decode(bytes(answer.body), GroupList).group_list)
    rows: list[QueueProgress] = []
    for group in sorted(groups):
        answer = await admin.ask(broker, QueryTopicsByConsumer(group=group))
        for topic in sorted(decode(bytes(answer.body), TopicList).topic_list):
            header = GetConsumeStats(consumer_group=group, topic=topic)
            answer = await admin.ask(broker, header)
            for queue, at in sorted(decode(bytes(answer.body), ConsumeStats).offset_table.items()):
                rows.append(_progress(group, topic, queue.broker_name, queue, at))
    return rows


def _progress(group: str, topic: str, broker: str, queue: MessageQueue, at: OffsetWrapper) -> QueueProgress:
    return QueueProgress(
        group,
        topic,
        broker,
        queue.queue_id,
        at.broker_offset,
        at.consumer_offset,
        at.pull_offset,
        at.last_timestamp,
    )


async def _brokers(admin: Admin, group: str, topic: str | None, cluster: str | None) -> dict[str, str]:
    """Broker name -> address of those that may know a group's offsets."""
    if cluster is not None:
        return await admin.masters(cluster)
    try:
        return await admin.masters_of_topic(topic or retry_topic(group))
    except MQError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST or topic is not None:
            raise
        return await admin.masters()  # a group that never sent a heartbeat has no retry topic


async def offset_tables(
    admin: Admin, group: str, topic: str | None = None, cluster: str | None = None
) -> dict[str, ConsumeStats]:
    """What each broker knows of a group's offsets, by broker name. Of static topics the offsets in logical
    queues, under the name that these have for a broker; in one cluster those in physical queues."""
    stats: dict[str, ConsumeStats] = {}
    for name, address in (await _brokers(admin, group, topic, cluster)).items():
        answer = await admin.ask(address, GetConsumeStats(consumer_group=group, topic=topic))
        stats[name] = decode(bytes(answer.body), ConsumeStats)
    if cluster is None:
        await _add_logical(admin, group, stats)
    return stats


async def _add_logical(admin: Admin, group: str, stats: dict[str, ConsumeStats]) -> None:
    """Replace the physical queues of static topics by the logical ones."""
    physical = {queue: at for name, table in stats.items() for queue, at in _physical(name, table).items()}
    for topic in sorted({queue.topic for queue in physical}):
        try:
            parts = await static_topics.logical_parts(admin, topic)
        except MQError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            continue  # offsets outlive their topic
        if parts is None:
            continue
        # A broker where the group has committed nothing of the topic speaks of it only if it is asked.
        silent = {part.bname for items in parts.values() for part in items}
        silent -= {queue.broker_name for queue in physical if queue.topic == topic}
        for name, address in (await admin.masters_of_topic(topic)).items() if silent else ():
            if name in silent:
                answer = await admin.ask(address, GetConsumeStats(consumer_group=group, topic=topic))
                physical |= _physical(name, decode(bytes(answer.body), ConsumeStats))
        for table in stats.values():
            table.offset_table = {q: at for q, at in table.offset_table.items() if q.topic != topic}
        for queue, at in group_offsets(topic, parts, physical).items():
            stats.setdefault(queue.broker_name, ConsumeStats()).offset_table[queue] = at


def _physical(broker: str, stats: ConsumeStats) -> dict[MessageQueue, OffsetWrapper]:
    return {MessageQueue(queue.topic, broker, queue.queue_id): at for queue, at in stats.offset_table.items()}


async def _clients(admin: Admin, group: str, cluster: str | None) -> ConsumerConnection | None:
    """What the first broker knows that has clients of the group; None if none has."""
    for address in (await _brokers(admin, group, None, cluster)).values():
        try:
            return await _consumers(admin, group, address)
        except MQError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
    return None


async def _consumers(admin: Admin, group: str, address: str) -> ConsumerConnection:
    answer = await admin.ask(address, GetConsumerConnectionList(consumer_group=group))
    return decode(bytes(answer.body), ConsumerConnection)
