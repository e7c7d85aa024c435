"""Copies the master's topics, consumer groups and consumer offsets to a slave, table by table.

Source: RocketMQ's `SlaveSynchronize` (GET_ALL_TOPIC_CONFIG, GET_ALL_CONSUMER_OFFSET,
GET_ALL_SUBSCRIPTIONGROUP_CONFIG).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Set
from typing import TYPE_CHECKING, Final

from batonmq.broker.tables.persistence import fetch_if_known
from batonmq.broker.versions import age
from batonmq.common.log import some
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.groups import SubscriptionGroupWrapper
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper
from batonmq.protocol.bodies.topics import TopicConfigAndMappingSerializeWrapper
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.pull import GetAllConsumerOffset, UpdateConsumerOffset
from batonmq.protocol.headers.broker.replication import GetAllConsumerFilter, GetAllResetOffset
from batonmq.protocol.headers.broker.topics import GetAllSubscriptionGroup, GetAllTopicConfig
from batonmq.protocol.json import decode

if TYPE_CHECKING:
    from batonmq.broker.tables.filters import FilterTable
    from batonmq.broker.tables.mappings import MappingTable
    from batonmq.broker.tables.offsets import Offset, OffsetTable
    from batonmq.broker.tables.persistence import Master, Member
    from batonmq.broker.tables.subscriptions import SubscriptionTable
    from batonmq.broker.tables.topics import TopicTable
    from batonmq.store.store import MessageStore

log = logging.getLogger(__name__)

AT_ONCE: Final = 100
"""Offsets that a slave hands over at the same time: the master writes them to disk together."""
_LASTING: Final = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})
"""Refusals of an offset that another attempt would not change."""


async def copy_topics(
    master: Master, topics: TopicTable, mappings: MappingTable, store: MessageStore
) -> None:
    """Copy the topics, and infer which ones the master has deleted. Static ones come with their mappings: a
    read of a logical queue must not take it for a physical one."""
    stored = {topic for topic, _ in store.queues()}
    read = decode(await master.fetch(GetAllTopicConfig()), TopicConfigAndMappingSerializeWrapper)
    table, version = read.topic_config_table, read.data_version
    # `stored` was read first, so it has no topic that the master created in the meantime.
    if topics.infer_deleted(stored, table, version, complete=master.announces_changes):
        log.warning(
            "master %s has no topic %s, but this broker has messages of it: the topic was deleted, or the "
            "master was elected before it had copied it. updateTopic there makes the messages readable; this "
            "broker recreates the topic if it becomes master",
            master.address,
            some(sorted(topics.missing_on_master)),
        )
    mappings.replace(read.topic_queue_mapping_detail_map, read.mapping_data_version)
    topics.replace(table, version)


async def copy_offsets(
    master: Master, offsets: OffsetTable, store: MessageStore, recreated: Set[str]
) -> None:
    """Copy the consumer offsets; drop those in `recreated` topics.

    `recreated`: those of `store.recreated_topics` that were there before the topics were copied. A topic that
    is recreated between the two copies is still noted as deleted here, and must stay in the store's set.
    """
    read = decode(await master.fetch(GetAllConsumerOffset()), ConsumerOffsetSerializeWrapper)
    table, version = read.whole_table(), read.data_version or DataVersion()
    handed: set[Offset] = set()
    # More than once: clients with an old route commit here meanwhile.
    while late := [each for each in offsets.not_before(table, version) if each not in handed]:
        await _hand_over(master, late)
        handed.update(late)
    offsets.end_acting()
    for topic in recreated:
        offsets.remove_topic(topic)
    # Only after the fetch: if it fails, these offsets must still be dropped later.
    store.recreated_topics.difference_update(recreated)
    offsets.replace(table, version)
    for topic, group, queue_id, offset in handed:
        if offset > offsets.of(group, topic).get(queue_id, -1):
            offsets.commit(group, topic, queue_id, offset)


async def _hand_over(master: Master, late: list[Offset]) -> None:
    """Commits to a slave that acted as master, after the master had taken back its offsets. A master that is
    not RocketMQ's has them on disk then. Raises `NetError`, `MQError`."""
    for first in range(0, len(late), AT_ONCE):
        calls = (_hand_one_over(master, each) for each in late[first : first + AT_ONCE])
        for failure in await asyncio.gather(*calls, return_exceptions=True):
            if failure is not None:
                raise failure


async def _hand_one_over(master: Master, late: Offset) -> None:
    topic, group, queue_id, offset = late
    header = UpdateConsumerOffset(group, topic, queue_id, offset, handed_over=True)
    try:
        await master.fetch(header)
    except MQError as error:
        if error.code not in _LASTING:
            raise
        log.warning("offset %d of group=%s topic=%s is not handed over: %s", offset, group, topic, error)


async def take_back_topics(member: Member, topics: TopicTable) -> bool:
    """Take a member's topics if they are newer; those that only this broker has stay."""
    read = decode(await member.fetch(GetAllTopicConfig()), TopicConfigAndMappingSerializeWrapper)
    if age(read.data_version) <= age(topics.version):
        return False
    return topics.replace({**topics.table, **read.topic_config_table}, read.data_version)


async def take_back_groups(member: Member, groups: SubscriptionTable) -> bool:
    """Take a member's consumer groups if they are newer; those that only this broker has stay."""
    read = decode(await member.fetch(GetAllSubscriptionGroup()), SubscriptionGroupWrapper)
    if age(read.data_version) <= age(groups.version):
        return False
    return groups.replace(
        {**groups.table, **read.subscription_group_table}, read.forbidden_table, read.data_version
    )


async def take_back_offsets(member: Member, offsets: OffsetTable) -> bool:
    """Take a member's consumer offsets where it knows better, and find out whether it acted as master."""
    read = decode(await member.fetch(GetAllConsumerOffset()), ConsumerOffsetSerializeWrapper)
    version = read.data_version or DataVersion()
    if age(version) > age(offsets.version):
        member.acted = True
    return offsets.take_back(read.whole_table(), version)


async def if_it_acted(member: Member, copy: Callable[[Master], Awaitable[None]]) -> bool:
    """Copy a table without a version from a member that acted as master: only it can have changed it."""
    if member.acted:
        await copy(member)
    return member.acted


async def copy_groups(master: Master, groups: SubscriptionTable) -> None:
    """Copy the consumer groups."""
    read = decode(await master.fetch(GetAllSubscriptionGroup()), SubscriptionGroupWrapper)
    groups.replace(read.subscription_group_table, read.forbidden_table, read.data_version)


async def copy_filters(master: Master, filters: FilterTable) -> None:
    """Copy the SQL92 filters. A RocketMQ master does not give them out; then heartbeats fill the table."""
    if (
        master.announces_changes
        and (data := await fetch_if_known(master, GetAllConsumerFilter())) is not None
    ):
        filters.merge(data)


async def copy_resets(master: Master, offsets: OffsetTable) -> None:
    """Copy the offset resets; a RocketMQ master does not give them out."""
    if master.announces_changes and (data := await fetch_if_known(master, GetAllResetOffset())) is not None:
        offsets.replace_resets(data)
