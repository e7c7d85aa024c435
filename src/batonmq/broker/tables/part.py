"""The part for topics, consumer groups, offsets and clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from batonmq.broker.part import Part
from batonmq.broker.stats import SAMPLE_INTERVAL_MS
from batonmq.broker.tables.broadcast import broadcast_group
from batonmq.broker.tables.copying import (
    copy_filters,
    copy_groups,
    copy_offsets,
    copy_resets,
    copy_topics,
    if_it_acted,
    take_back_groups,
    take_back_offsets,
    take_back_topics,
)
from batonmq.broker.tables.handlers import clients, consumers, groups, offsets, topics
from batonmq.broker.tables.metrics import METRICS, TableMetrics
from batonmq.broker.tables.offsets import FILES, OFFSETS
from batonmq.broker.tables.persistence import Master, Table
from batonmq.common.tasks import Tasks

if TYPE_CHECKING:
    from batonmq.broker.config import BrokerConfig
    from batonmq.broker.context import Broker
    from batonmq.broker.role import RoleState
    from batonmq.common.metrics import Metric, Source
    from batonmq.net import Connection, Dispatcher
    from batonmq.protocol.bodies.topics import TopicConfig

TOPICS = "topics"
DELETED_TOPICS = "deletedTopics"
MAPPINGS = "topicQueueMapping"
GROUPS = "subscriptionGroup"
FILTERS = "consumerFilter"
RESETS = "resetOffset"


class TablesPart(Part):
    METRICS: ClassVar[tuple[Metric, ...]] = METRICS

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._tables = tables = broker.tables
        self._tasks = Tasks()
        self._recreated: frozenset[str] = frozenset()
        """Recreated topics that the last copy of the topics has taken into account."""
        tables.topics.listeners.append(self._topics_changed)
        tables.topics.deleted.on_change = partial(tables.persistence.save, DELETED_TOPICS)
        tables.mappings.listeners.append(self._mappings_changed)
        tables.subscriptions.on_change = self._groups_changed
        tables.offsets.on_first_commit = tables.watch.changed
        tables.offsets.on_resets = self._resets_changed
        tables.filters.on_change = self._filters_changed
        broker.settings.listeners.append(self._configured)

    def tables(self) -> Sequence[Table]:
        tables, store, settings = self._tables, self._broker.store, self._broker.settings
        return (
            Table(
                name=TOPICS,
                encode=tables.topics.encode,
                restore=tables.topics.restore,
                copy=self._copy_topics,
                take_back=lambda member: take_back_topics(member, tables.topics),
            ),
            Table(
                name=DELETED_TOPICS,
                encode=tables.topics.deleted.encode,
                restore=tables.topics.deleted.restore,
            ),
            Table(
                name=MAPPINGS,
                encode=tables.mappings.encode,
                restore=tables.mappings.restore,  # slaves copy it with the topics
                used=lambda: len(tables.mappings) > 0,  # every change is written at once
            ),
            Table(
                name=OFFSETS,
                file=FILES[settings.store.light_queues],
                other_file=FILES[not settings.store.light_queues],
                encode=tables.offsets.encode,
                restore=tables.offsets.restore,
                interval_ms=lambda: settings.broker.flush_consumer_offset_interval,
                take_changed=tables.offsets.take_changed,
                copy=lambda master: copy_offsets(master, tables.offsets, store, self._recreated),
                take_back=lambda member: take_back_offsets(member, tables.offsets),
            ),
            Table(
                name=GROUPS,
                encode=tables.subscriptions.encode,
                restore=tables.subscriptions.restore,
                copy=lambda master: copy_groups(master, tables.subscriptions),
                take_back=lambda member: take_back_groups(member, tables.subscriptions),
            ),
            Table(
                name=RESETS,
                encode=tables.offsets.encode_resets,
                restore=tables.offsets.restore_resets,
                copy=lambda master: copy_resets(master, tables.offsets),
                take_back=lambda member: if_it_acted(member, lambda each: copy_resets(each, tables.offsets)),
            ),
            Table(
                name=FILTERS,
                encode=tables.filters.encode,
                restore=tables.filters.restore,
                copy=lambda master: copy_filters(master, tables.filters),
                take_back=lambda member: if_it_acted(member, lambda each: copy_filters(each, tables.filters)),
            ),
        )

    async def _copy_topics(self, master: Master) -> None:
        store = self._broker.store
        recreated, self._recreated = frozenset(store.recreated_topics), frozenset()
        await copy_topics(master, self._tables.topics, self._tables.mappings, store)
        self._recreated = recreated

    def handlers(self, dispatcher: Dispatcher) -> None:
        for module in (topics, groups, offsets, clients, consumers):
            module.register(dispatcher, self._broker)

    def metrics(self) -> Mapping[Metric, Source]:
        return TableMetrics(self._broker).sources()

    async def start(self) -> None:
        self._tables.persistence.start()
        self._tasks.keep(self._drop_expired, "removal of silent clients and expired locks")

    async def stop(self) -> None:
        await self._tasks.cancel()
        if self._broker.store.failure is not None:
            self._tables.persistence.abandon()
        await self._tables.persistence.stop()

    def term_begins(self, epoch: int) -> None:
        tables, store = self._tables, self._broker.store
        for table in (tables.topics, tables.mappings, tables.subscriptions, tables.offsets):
            table.begin_term(epoch)
        tables.watch.begin_term()
        if not self._broker.role.is_master:
            # The former master recreated these topics; this broker's offsets in them are out of date. A
            # master that stays master has current ones.
            tables.topics.deleted.discard(store.recreated_topics)
            for topic in store.recreated_topics:
                tables.offsets.remove_topic(topic)
        store.recreated_topics.clear()
        tables.topics.recreate_missing(store.queues())
        tables.persistence.save(TOPICS)
        tables.persistence.save(GROUPS)

    def role_changed(self, role: RoleState) -> None:
        tables = self._tables
        tables.offsets.act(role.is_acting)
        if role.is_master:
            tables.offsets.end_acting()
        if role.is_acting:
            # The master may have died before this slave copied its last topics.
            tables.topics.recreate_missing(self._broker.store.queues())

    def connection_closed(self, connection: Connection) -> None:
        self._tables.consumers.connection_closed(connection)
        self._tables.producers.connection_closed(connection)
        self._tables.watch.closed(connection)

    def _topics_changed(self, changed: Sequence[TopicConfig]) -> None:
        self._tables.persistence.save(TOPICS)
        self._tables.watch.changed()

    def _mappings_changed(self) -> None:
        self._tables.persistence.save(MAPPINGS)
        self._tables.watch.changed()

    def _groups_changed(self) -> None:
        self._tables.persistence.save(GROUPS)
        self._tables.watch.changed()

    def _resets_changed(self) -> None:
        self._tables.persistence.save(RESETS)
        self._tables.watch.changed()

    def _filters_changed(self) -> None:
        self._tables.persistence.save(FILTERS)
        self._tables.watch.changed()

    def _configured(self, before: BrokerConfig) -> None:
        self._tables.topics.configure(self._broker.settings.broker)
        self._tables.subscriptions.configure(self._broker.settings.broker)

    async def _drop_expired(self) -> None:
        """Drop expired locks, clients and subscriptions."""
        broker, tables = self._broker, self._tables
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_MS / 1000)
            now_ms, config = broker.clock.monotonic_ms(), broker.settings.broker
            tables.locks.drop_expired(now_ms)
            for clients_of in (tables.consumers, tables.producers):
                for connection in clients_of.drop_silent(now_ms, config.channel_expired_timeout):
                    connection.close()
            tables.consumers.forget_old_subscriptions(
                broker.clock.now_ms(), config.subscription_expired_timeout
            )
            tables.filters.sweep(tables.consumers, config.filter_data_clean_time_span)
            least = tables.broadcast.sweep(
                lambda group, client: tables.consumers.member(group, client) is not None,
                now_ms,
                config.broadcast_offset_expire_second * 1000,
                config.broadcast_offset_expire_max_second * 1000,
            )
            for (topic, group), queues in least.items():
                for queue_id, offset in queues.items():
                    tables.offsets.commit(broadcast_group(group), topic, queue_id, offset)
