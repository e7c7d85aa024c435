"""Copies the master's topics, consumer groups and consumer offsets to a slave, table by table.

Source: RocketMQ's `SlaveSynchronize` (GET_ALL_TOPIC_CONFIG, GET_ALL_CONSUMER_OFFSET,
GET_ALL_SUBSCRIPTIONGROUP_CONFIG).
"""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import TYPE_CHECKING

from batonmq.common.log import some
from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.groups import SubscriptionGroupWrapper
from batonmq.protocol.bodies.statistics import ConsumerOffsetSerializeWrapper
from batonmq.protocol.bodies.topics import TopicConfigAndMappingSerializeWrapper
from batonmq.protocol.headers.broker.pull import GetAllConsumerOffset
from batonmq.protocol.headers.broker.replication import GetAllConsumerFilter, GetAllResetOffset
from batonmq.protocol.headers.broker.topics import GetAllSubscriptionGroup, GetAllTopicConfig
from batonmq.protocol.json import decode

if TYPE_CHECKING:
    from batonmq.broker.tables.filters import FilterTable
    from batonmq.broker.tables.offsets import OffsetTable
    from batonmq.broker.tables.persistence import Master
    from batonmq.broker.tables.subscriptions import SubscriptionTable
    from batonmq.broker.tables.topics import TopicTable
    from batonmq.store.store import MessageStore

log = logging.getLogger(__name__)


async def copy_topics(master: Master, topics: TopicTable, store: MessageStore) -> None:
    """Copy the topics, and infer which ones the master has deleted."""
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
    topics.replace(table, version)


async def copy_offsets(
    master: Master, offsets: OffsetTable, store: MessageStore, recreated: Set[str]
) -> None:
    """Copy the consumer offsets; drop those in `recreated` topics.

    `recreated`: those of `store.recreated_topics` that were there before the topics were copied. A topic that
    is recreated between the two copies is still noted as deleted here, and must stay in the store's set.
    """
    read = decode(await master.fetch(GetAllConsumerOffset()), ConsumerOffsetSerializeWrapper)
    for topic in recreated:
        offsets.remove_topic(topic)
    # Only after the fetch: if it fails, these offsets must still be dropped later.
    store.recreated_topics.difference_update(recreated)
    offsets.replace(read.offset_table, read.data_version or DataVersion())


async def copy_groups(master: Master, groups: SubscriptionTable) -> None:
    """Copy the consumer groups."""
    read = decode(await master.fetch(GetAllSubscriptionGroup()), SubscriptionGroupWrapper)
    groups.replace(read.subscription_group_table, read.forbidden_table, read.data_version)


async def copy_filters(master: Master, filters: FilterTable) -> None:
    """Copy the SQL92 filters. A RocketMQ master does not give them out; then heartbeats fill the table."""
    if master.announces_changes:
        filters.merge(await master.fetch(GetAllConsumerFilter()))


async def copy_resets(master: Master, offsets: OffsetTable) -> None:
    """Copy the offset resets; a RocketMQ master does not give them out."""
    if master.announces_changes:
        offsets.replace_resets(await master.fetch(GetAllResetOffset()))
