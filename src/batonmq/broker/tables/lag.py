"""The lag of consumer groups. Source: RocketMQ's `ConsumerLagCalculator`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from batonmq.protocol.bodies.clients import ConsumeType, SubscriptionData
from batonmq.protocol.codes import Perm
from batonmq.protocol.names import SYSTEM_GROUP_PREFIX, is_retry_topic, is_system_topic, pop_retry_topic
from batonmq.protocol.tags import is_tag_type, tag_subscription

if TYPE_CHECKING:
    from batonmq.broker.context import Broker
    from batonmq.protocol.bodies.topics import TopicConfig

_BLOCK: Final = 2_000
"""Consume queue units that are read at a time."""


@dataclass(slots=True)
class Lag:
    """Lag of a group in a topic; times in ms, messages summed over the queues."""

    group: str
    topic: str
    retry: bool = False
    """Of the topic's retry topic, which only groups that pop have."""
    behind: int = 0
    behind_ms: int = 0
    in_flight: int = 0
    queueing_ms: int = 0
    ready: int = 0

    @property
    def labels(self) -> tuple[str, str, bool, bool]:
        return self.group, self.topic, self.retry, is_system_topic(self.topic) or of_system(self.group)


class LagMeter:
    """Measures all groups that consume, also those without heartbeats (of a proxy) while they pull or pop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def walk(self) -> Iterator[Lag]:
        """Groups and their topics; retry topics only of groups that pop, as in RocketMQ."""
        broker = self._broker
        for group, pops, topics in self._consuming():
            for topic in topics:
                config = broker.tables.topics.get(topic)
                if config is None or is_retry_topic(topic):
                    continue
                if config.perm & broker.settings.broker.broker_permission & (Perm.READ | Perm.WRITE):
                    yield self._measure(Lag(group, topic), config)
                    if pops:
                        yield self._measure(Lag(group, topic, retry=True), self._retry_topic(group, topic))

    def _consuming(self) -> Iterable[tuple[str, bool, list[str]]]:
        """Groups, whether each pops, and its topics."""
        broker = self._broker
        consuming = {group.name: group for group in broker.tables.consumers.consuming()}
        if not broker.settings.broker.use_static_subscription:
            for name, group in consuming.items():
                yield name, group.consume_type is ConsumeType.POP, list(group.subscriptions)
            return
        for name in list(broker.tables.subscriptions):
            pops = name in consuming and consuming[name].consume_type is ConsumeType.POP
            yield name, pops, [each.topic for each in self._static(name)]

    def _retry_topic(self, group: str, topic: str) -> TopicConfig | None:
        """The retry topic that pops of this topic use; None if it does not exist yet."""
        config, topics = self._broker.settings.broker, self._broker.tables.topics
        found = topics.get(pop_retry_topic(group, topic, v2=config.enable_retry_topic_v2))
        if found is None and config.enable_retry_topic_v2 and config.retrieve_message_from_pop_retry_topic_v1:
            found = topics.get(pop_retry_topic(group, topic, v2=False))
        return found

    def _measure(self, lag: Lag, config: TopicConfig | None) -> Lag:
        """Fill in the figures of the queues of a topic; None: it has none."""
        store, offsets = self._broker.store, self._broker.tables.offsets
        if config is None:
            return lag
        group, topic, queues = lag.group, config.topic_name, config.write_queue_nums
        codes = self._codes(group, topic)
        unconsumed: list[int] = []
        unpulled: list[int] = []
        for queue_id in range(queues):
            end = store.queue_bounds(topic, queue_id).max_offset
            if not end:
                continue
            consumed = offsets.query(group, topic, queue_id)
            pulled = offsets.query_pulled(group, topic, queue_id)
            if consumed >= 0:
                lag.behind += self._count(topic, queue_id, consumed, end, codes)
                lag.in_flight += self._count(topic, queue_id, consumed, pulled, codes)
            if pulled >= 0:
                lag.ready += self._count(topic, queue_id, pulled, end, codes)
            unconsumed.append(store.queue_store_time(topic, queue_id, consumed if consumed >= 0 else end))
            unpulled.append(store.queue_store_time(topic, queue_id, max(0, pulled)))
        now_ms = self._broker.clock.now_ms()
        lag.behind_ms = _age(now_ms, unconsumed)
        lag.queueing_ms = _age(now_ms, unpulled)
        return lag

    # -- messages that a group wants

    def _static(self, group: str) -> list[SubscriptionData]:
        """What the group's configuration subscribes to. Expressions without a tag are left out."""
        config = self._broker.tables.subscriptions.get(group)
        found = []
        for each in (config.subscription_data_set if config is not None else None) or ():
            if not is_tag_type(each.expression_type):
                found.append(SubscriptionData(topic=each.topic, expression_type=each.expression_type))
                continue
            try:
                found.append(tag_subscription(each.topic, each.expression, 0))
            except ValueError:
                continue
        return found

    def _codes(self, group: str, topic: str) -> Collection[int] | None:
        """Hash codes of the tags that the group subscribes to; None for all messages, and for SQL92, for
        which consume queues say nothing."""
        broker = self._broker
        if not broker.settings.broker.estimate_accumulation:
            return None
        if broker.settings.broker.use_static_subscription:
            wanted = next((each for each in self._static(group) if each.topic == topic), None)
        else:
            wanted = broker.tables.consumers.subscription(group, topic)
        if wanted is None or not is_tag_type(wanted.expression_type) or wanted.class_filter_mode:
            return None
        return frozenset(wanted.code_set) or None

    def _count(self, topic: str, queue_id: int, begin: int, end: int, codes: Collection[int] | None) -> int:
        """Messages from queue offset `begin` up to `end` with these tags; an estimate from the first ones if
        there are many. Source: `ConsumeQueue.estimateMessageCount`."""
        if codes is None or begin >= end:
            return max(0, end - begin)
        store, config = self._broker.store, self._broker.settings.store
        at = first = max(begin, store.queue_bounds(topic, queue_id).min_offset)
        found = 0
        while at < end and at - first < config.max_consume_queue_scan:
            left = min(end - at, config.max_consume_queue_scan - (at - first))
            block = store.tags_codes(topic, queue_id, at, min(_BLOCK, left))
            if not block:
                return end - begin
            found += sum(map(codes.__contains__, block))
            at += len(block)
            if found > config.sample_count_threshold:
                break
        return found if at >= end else found * (end - begin) // (at - first)


def of_system(group: str) -> bool:
    """Like `is_system_group`, but ignores case: RocketMQ's metrics differ in case."""
    return group.lower().startswith(SYSTEM_GROUP_PREFIX.lower())


def _age(now_ms: int, stored_ms: Iterable[int]) -> int:
    """Age of the oldest message; 0 if there is none (time -1)."""
    oldest = min((each for each in stored_ms if each > 0), default=0)
    return now_ms - oldest if oldest else 0
