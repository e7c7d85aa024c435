"""Topics: names, routes, offsets and traffic; creation, change and deletion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from batonmq.admin.logical_offsets import topic_offsets
from batonmq.admin.operations import static_topics
from batonmq.admin.session import Admin, AdminError, naming
from batonmq.client.rebalance import allocate_averagely
from batonmq.protocol.bodies.clients import GroupList
from batonmq.protocol.bodies.common import MessageQueue, TopicList
from batonmq.protocol.bodies.statistics import BrokerStatsData, ConsumeStats, TopicOffset, TopicStatsTable
from batonmq.protocol.bodies.topics import SINGLE_TAG, CreateTopicListRequestBody, TopicConfig
from batonmq.protocol.codes import Perm, ResponseCode, TopicSysFlag
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import namesrv as namesrv_wire
from batonmq.protocol.headers.broker.admin import (
    GetConsumeStats,
    GetTopicStatsInfo,
    QueryTopicConsumeByWho,
    ViewBrokerStatsData,
)
from batonmq.protocol.headers.broker.topics import CreateTopic, CreateTopicList, DeleteTopic, GetTopicConfig
from batonmq.protocol.json import decode, encode
from batonmq.protocol.names import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX, is_light


@dataclass(frozen=True, slots=True)
class TopicConsumers:
    """Who has a topic and who consumes it."""

    topic: str
    clusters: list[str]
    """Sorted; empty for a topic that no live broker has."""
    groups: list[str]
    """Consumer groups, sorted."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """Where a topic was deleted."""

    brokers: list[str]
    """Addresses of masters."""
    kept: list[str]
    """Names of broker sets without a master: they still have the topic, and so its route stays."""


@dataclass(frozen=True, slots=True)
class TopicQueues:
    """A topic's queues at one broker set, as the name server gives them to clients."""

    cluster: str
    broker: str
    """Broker name."""
    read_queues: int
    write_queues: int
    perm: int
    """Bits of `Perm`."""
    addresses: Mapping[int, str]
    """Broker id -> address; empty if no broker of the set is alive."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """Offsets of one queue."""

    broker: str
    """Broker name."""
    queue_id: int
    min_offset: int
    max_offset: int
    """The offset that the next message gets."""
    last_stored_ms: int
    """When the last message was stored; 0 if none was."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Rates of a topic, and of one group that consumes it."""

    topic: str
    group: str | None
    """None for a topic that no group consumes."""
    behind: int
    """Messages that the group has not consumed yet."""
    in_tps: float
    out_tps: float
    in_day: int
    """Messages stored within the last 24 hours."""
    out_day: int

    @property
    def active(self) -> bool:
        return bool(self.in_day or self.out_day or self.in_tps or self.out_tps)


async def names(admin: Admin) -> list[str]:
    """All topics that the name server knows, sorted; retry and dead letter topics too."""
    answer = await admin.ask_namesrv(namesrv_wire.GetAllTopicList())
    return sorted(decode(bytes(answer.body), TopicList).topic_list)


async def consumers(admin: Admin) -> list[TopicConsumers]:
    """All topics with the clusters that have them and the groups that consume them."""
    found: list[TopicConsumers] = []
    for topic in await names(admin):
        try:
            clusters = {group.cluster for group in (await admin.route(topic)).broker_datas}
        except MQError:  # a topic without a broker right now
            found.append(TopicConsumers(topic, [], []))
            continue
        groups = await _groups(admin, topic, (await admin.masters_of_topic(topic)).values())
        found.append(TopicConsumers(topic, sorted(clusters), groups))
    return found


async def route(admin: Admin, topic: str) -> list[TopicQueues]:
    """A topic's queues by broker name. Raises `MQError` TOPIC_NOT_EXIST."""
    found = await admin.route(topic)
    sets = {each.broker_name: each for each in found.broker_datas}
    rows: list[TopicQueues] = []
    for queues in sorted(found.queue_datas, key=lambda each: each.broker_name):
        brokers = sets.get(queues.broker_name)
        rows.append(
            TopicQueues(
                brokers.cluster if brokers else "",
                queues.broker_name,
                queues.read_queue_nums,
                queues.write_queue_nums,
                queues.perm,
                dict(sorted(brokers.broker_addrs.items())) if brokers else {},
            )
        )
    return rows


async def status(admin: Admin, topic: str, cluster: str | None = None) -> list[QueueStatus]:
    """Offsets of a topic's queues, at all brokers or at those of a cluster; sorted.

    Logical queues of a static topic follow its physical ones, unless a cluster is given.
    """
    brokers = await admin.masters_of_topic(topic)
    if cluster is not None:
        members = {group.broker_name for group in await admin.groups(cluster)}
        brokers = {name: address for name, address in brokers.items() if name in members}
    offsets: dict[MessageQueue, TopicOffset] = {}
    for name, address in sorted(brokers.items()):
        answer = await admin.ask(address, GetTopicStatsInfo(topic=topic))
        table = decode(bytes(answer.body), TopicStatsTable).offset_table
        offsets |= {MessageQueue(topic, name, queue.queue_id): at for queue, at in sorted(table.items())}
    if cluster is None:
        parts = await static_topics.logical_parts(admin, topic)
        offsets |= topic_offsets(topic, parts or {}, offsets)
    return [
        QueueStatus(queue.broker_name, queue.queue_id, at.min_offset, at.max_offset, at.last_update_timestamp)
        for queue, at in offsets.items()
    ]


async def traffic(admin: Admin, only: str | None = None) -> list[Traffic]:
    """Rates and backlog by topic and group, of all topics but retry and dead letter topics, or of one."""
    rows: list[Traffic] = []
    for topic in await names(admin):
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or only not in (None, topic):
            continue
        try:
            brokers = list((await admin.masters_of_topic(topic)).values())
        except MQError:  # a topic without a broker right now
            continue
        groups = await _groups(admin, topic, brokers)
        in_tps, in_day = await _counted(admin, brokers, "TOPIC_PUT_NUMS", topic)
        for group in groups:
            out_tps, out_day = await _counted(admin, brokers, "GROUP_GET_NUMS", f"{topic}@{group}")
            behind = await _behind(admin, brokers, topic, group)
            rows.append(Traffic(topic, group, behind, in_tps, out_tps, in_day, out_day))
        if not groups:
            rows.append(Traffic(topic, None, 0, in_tps, 0.0, in_day, 0))
    return rows


async def create(
    admin: Admin,
    addresses: Iterable[str],
    topic: str,
    *,
    read_queues: int = 8,
    write_queues: int = 8,
    perm: int = Perm.READ | Perm.WRITE,
    order: bool = False,
    unit: bool = False,
    unit_subscriptions: bool = False,
    attributes: str | None = None,
) -> None:
    """Create a topic at brokers, or change it: what is not given is set to its default.

    `attributes` are those to set and to remove, e.g. ``+message.type=FIFO,-reserve.time``.

    Raises `AdminError` for a light queue: brokers accept the request and change nothing.
    """
    check_configurable(topic)
    header = CreateTopic(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        topic_filter_type=SINGLE_TAG,
        topic_sys_flag=TopicSysFlag.UNIT * unit | TopicSysFlag.UNIT_SUB * unit_subscriptions,
        order=order,
        attributes=attributes,
    )
    await admin.ask_each(addresses, header)


async def create_list(admin: Admin, addresses: Iterable[str], configs: list[TopicConfig]) -> None:
    """Create topics at brokers, or replace their configuration; the attributes are changes, as for `create`.
    Raises `AdminError` as `create`."""
    for config in configs:
        check_configurable(config.topic_name)
    await admin.ask_each(addresses, CreateTopicList(), encode(CreateTopicListRequestBody(configs)))


async def shares(admin: Admin, topic: str, clients: list[str]) -> dict[str, list[MessageQueue]]:
    """Client -> the queues of a topic that it would consume."""
    queues = (await admin.queues(topic)).read_queues
    return {client: allocate_averagely(client, clients, queues) for client in clients}


def check_configurable(topic: str) -> None:
    """Raises `AdminError` for a light queue."""
    if is_light(topic):
        raise AdminError(
            f"{topic} is a light queue, which has no configuration: it begins with the first message that "
            "names it in INNER_MULTI_DISPATCH"
        )


async def set_permission(admin: Admin, addresses: Iterable[str], topic: str, perm: int) -> None:
    """Allow or forbid reading and writing (bits of `Perm`); everything else of the topic stays. Raises
    `AdminError` as `create`."""
    check_configurable(topic)
    done: list[str] = []
    with naming(done):
        for address in addresses:
            answer = await admin.ask(address, GetTopicConfig(topic=topic))
            config = decode(bytes(answer.body), TopicConfig)
            await admin.ask(
                address,
                CreateTopic(
                    topic=topic,
                    default_topic=AUTO_CREATE_TOPIC,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    perm=perm,
                    topic_filter_type=config.topic_filter_type,
                    topic_sys_flag=config.topic_sys_flag,
                    order=config.order,
                ),
            )
            done.append(address)


async def delete(admin: Admin, topic: str, cluster: str) -> Deletion:
    """Delete a topic from all masters of a cluster and, unless a broker set keeps it, from the name servers.

    A set without a master keeps it: without the route, consumers would miss what they have not read there
    yet, and the topic would come back with the master all the same.
    """
    masters = await admin.addresses(cluster)
    kept = await _without_master(admin, topic, cluster)
    await admin.ask_each(masters, DeleteTopic(topic=topic))
    if not kept:
        with naming(masters):
            header = namesrv_wire.DeleteTopicInNamesrv(topic=topic, cluster_name=cluster)
            await admin.ask_each(admin.namesrv, header)
    return Deletion(masters, kept)


async def _without_master(admin: Admin, topic: str, cluster: str) -> list[str]:
    """Names of the broker sets that have a topic and no master now."""
    without = await admin.without_master(cluster)
    try:
        having = {group.broker_name for group in (await admin.route(topic)).broker_datas} if without else ()
    except MQError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return []
    return [name for name in without if name in having]


async def _groups(admin: Admin, topic: str, brokers: Iterable[str]) -> list[str]:
    groups: set[str] = set()
    for address in brokers:
        answer = await admin.ask(address, QueryTopicConsumeByWho(topic=topic))
        groups |= set(decode(bytes(answer.body), GroupList).group_list)
    return sorted(groups)


async def _counted(admin: Admin, brokers: Iterable[str], name: str, key: str) -> tuple[float, int]:
    """Rate and sum of a day of one statistic, over brokers."""
    rate, day = 0.0, 0
    for address in brokers:
        try:
            answer = await admin.ask(address, ViewBrokerStatsData(stats_name=name, stats_key=key))
        except MQError:  # a broker that has counted nothing yet has no such statistic
            continue
        data = decode(bytes(answer.body), BrokerStatsData)
        rate += data.stats_minute.tps
        day += next((w.sum for w in (data.stats_day, data.stats_hour, data.stats_minute) if w.sum), 0)
    return rate, day


async def _behind(admin: Admin, brokers: Iterable[str], topic: str, group: str) -> int:
    behind = 0
    for address in brokers:
        answer = await admin.ask(address, GetConsumeStats(consumer_group=group, topic=topic))
        queues = decode(bytes(answer.body), ConsumeStats).offset_table.values()
        behind += sum(queue.broker_offset - queue.consumer_offset for queue in queues)
    return behind
