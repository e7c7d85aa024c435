"""Statistics of topics and groups for tools: offsets, times, rates, and which group consumes which topic.

Source: RocketMQ's admin requests (`topicStatus`, `consumerProgress`, `statsAll`, …).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from batonmq.broker.context import Broker
from batonmq.broker.stats import Snapshot
from batonmq.broker.tables.offsets import NOT_FOUND
from batonmq.net.dispatch import Dispatcher, Reply, Request
from batonmq.protocol.bodies.clients import GroupList, QuerySubscriptionResponseBody
from batonmq.protocol.bodies.common import MessageQueue, TopicList
from batonmq.protocol.bodies.statistics import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
)
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import admin as wire
from batonmq.protocol.json import encode


def register(dispatcher: Dispatcher, broker: Broker) -> None:
    """Bind the requests of this module."""
    handlers = _StatisticsHandlers(broker)
    dispatcher.on(wire.GetTopicStatsInfo, handlers.topic_stats)
    dispatcher.on(wire.GetConsumeStats, handlers.consume_stats)
    dispatcher.on(wire.GetConsumeStatsInBroker, handlers.all_consume_stats)
    dispatcher.on(wire.QueryConsumeTimeSpan, handlers.time_span)
    dispatcher.on(wire.QueryTopicConsumeByWho, handlers.groups_of_topic)
    dispatcher.on(wire.QueryTopicsByConsumer, handlers.topics_of_group)
    dispatcher.on(wire.QuerySubscriptionByConsumer, handlers.subscription)
    dispatcher.on(wire.ViewBrokerStatsData, handlers.statistic)


class _StatisticsHandlers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def _topic(self, topic: str) -> TopicConfig:
        config = self._broker.tables.topics.get(topic)
        if config is None:
            raise MQError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(
            topic=topic, broker_name=self._broker.settings.broker.broker_name, queue_id=queue_id
        )

    def topic_stats(self, request: Request, header: wire.GetTopicStatsInfo) -> Reply:
        broker, topic = self._broker, header.topic
        config = self._topic(topic)
        table: dict[MessageQueue, TopicOffset] = {}
        for queue_id in range(max(config.write_queue_nums, config.read_queue_nums)):
            bounds = broker.store.queue_bounds(topic, queue_id)
            updated = broker.store.queue_store_time(topic, queue_id, bounds.max_offset - 1)
            table[self._queue(topic, queue_id)] = TopicOffset(
                min_offset=bounds.min_offset,
                max_offset=bounds.max_offset,
                last_update_timestamp=max(0, updated),
            )
        return Reply(
            body=encode(TopicStatsTable(topic_put_tps=broker.stats.put_rate(topic), offset_table=table))
        )

    # -- progress of groups

    def consume_stats(self, request: Request, header: wire.GetConsumeStats) -> Reply:
        broker, group = self._broker, header.consumer_group
        if header.topic_list:
            topics: Iterable[str] = [topic for topic in header.topic_list.split(";") if topic]
        else:
            asked = {header.topic} if header.topic else broker.tables.offsets.topics_of(group)
            topics = self._subscribed(group, asked)
        return Reply(body=encode(self._progress(group, topics)))

    def all_consume_stats(self, request: Request, header: wire.GetConsumeStatsInBroker) -> Reply:
        broker = self._broker
        groups: list[dict[str, list[msgspec.Raw]]] = []
        behind = in_flight = 0
        for group in broker.tables.subscriptions:
            topics = self._subscribed(group, broker.tables.offsets.topics_of(group))
            found: list[msgspec.Raw] = []
            for topic in topics:
                config = broker.tables.topics.get(topic)
                if config is None or (header.is_order and not config.order):
                    continue
                progress = self._progress(group, [topic])
                queues = progress.offset_table.values()
                behind += sum(queue.broker_offset - queue.consumer_offset for queue in queues)
                in_flight += sum(queue.pull_offset - queue.consumer_offset for queue in queues)
                found.append(msgspec.Raw(encode(progress)))
            groups.append({group: found})
        return Reply(
            body=msgspec.json.encode(
                {
                    "brokerAddr": broker.address,
                    "consumeStatsList": groups,
                    "totalDiff": behind,
                    "totalInflightDiff": in_flight,
                }
            )
        )

    def _subscribed(self, group: str, topics: Iterable[str]) -> list[str]:
        """The topics that the connected group subscribes to; all topics if no consumer is connected."""
        subscriptions = self._broker.tables.consumers.subscriptions(group)
        return [topic for topic in sorted(topics) if not subscriptions or topic in subscriptions]

    def _progress(self, group: str, topics: Iterable[str]) -> ConsumeStats:
        broker = self._broker
        progress = ConsumeStats()
        for topic in topics:
            config = broker.tables.topics.get(topic)
            if config is None:
                continue
            # A logical queue's position is in its last part with a commit: 0 would be one.
            least = NOT_FOUND if topic in broker.tables.mappings else 0
            for queue_id in range(config.read_queue_nums):
                consumed = max(least, broker.tables.offsets.query(group, topic, queue_id))
                last = broker.store.queue_store_time(topic, queue_id, consumed - 1)
                progress.offset_table[self._queue(topic, queue_id)] = OffsetWrapper(
                    broker_offset=broker.store.queue_bounds(topic, queue_id).max_offset,
                    consumer_offset=consumed,
                    pull_offset=max(consumed, broker.tables.offsets.query_pulled(group, topic, queue_id)),
                    last_timestamp=max(0, last),
                )
            progress.consume_tps += broker.stats.get_rate(group, topic)
        return progress

    def time_span(self, request: Request, header: wire.QueryConsumeTimeSpan) -> Reply:
        store, topic = self._broker.store, header.topic
        spans: list[QueueTimeSpan] = []
        for queue_id in range(self._topic(topic).write_queue_nums):
            bounds = store.queue_bounds(topic, queue_id)
            earliest = store.earliest_message_time(topic, queue_id)
            consumed = self._broker.tables.offsets.query(header.group, topic, queue_id)
            following = store.queue_store_time(topic, queue_id, consumed)
            spans.append(
                QueueTimeSpan(
                    message_queue=self._queue(topic, queue_id),
                    min_time_stamp=earliest,
                    max_time_stamp=store.queue_store_time(topic, queue_id, bounds.max_offset - 1),
                    consume_time_stamp=(
                        store.queue_store_time(topic, queue_id, consumed - 1) if consumed > 0 else earliest
                    ),
                    delay_time=self._broker.clock.now_ms() - following if following >= 0 else 0,
                )
            )
        return Reply(body=encode(QueryConsumeTimeSpanBody(consume_time_span_set=spans)))

    # -- groups and topics

    def groups_of_topic(self, request: Request, header: wire.QueryTopicConsumeByWho) -> Reply:
        broker = self._broker
        groups = broker.tables.consumers.groups_of(header.topic) | broker.tables.offsets.groups_of(
            header.topic
        )
        return Reply(body=encode(GroupList(group_list=sorted(groups))))

    def topics_of_group(self, request: Request, header: wire.QueryTopicsByConsumer) -> Reply:
        broker = self._broker
        topics = sorted(broker.tables.offsets.topics_of(header.group))
        return Reply(body=encode(TopicList(topic_list=topics, broker_addr=broker.address)))

    def subscription(self, request: Request, header: wire.QuerySubscriptionByConsumer) -> Reply:
        found = self._broker.tables.consumers.subscription(header.group, header.topic or "")
        body = QuerySubscriptionResponseBody(subscription_data=found, group=header.group, topic=header.topic)
        return Reply(body=encode(body))

    # -- counters

    def statistic(self, request: Request, header: wire.ViewBrokerStatsData) -> Reply:
        stats = self._broker.stats
        counter = stats.find(header.stats_name, header.stats_key)
        if counter is None and header.stats_key == self._broker.settings.broker.broker_cluster_name:
            counter = stats.of_broker.get(header.stats_name)
        if counter is None:
            raise MQError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist",
            )
        body = BrokerStatsData(
            stats_minute=_item(counter.minute.snapshot()),
            stats_hour=_item(counter.hour.snapshot()),
            stats_day=_item(counter.day.snapshot()),
        )
        return Reply(body=encode(body))


def _item(snapshot: Snapshot) -> BrokerStatsItem:
    return BrokerStatsItem(sum=snapshot.total, tps=snapshot.per_second, avgpt=snapshot.per_event)
