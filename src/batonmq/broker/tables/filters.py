"""SQL92 filters of consumer groups, by topic: consumerFilter.json.

A heartbeat carries the expression, the pulls of a push consumer do not: the broker keeps it compiled. Unlike
RocketMQ's, slaves copy this table, so a new master knows the filters before the first heartbeat. Source:
`ConsumerFilterManager`, `ConsumerFilterData`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from msgspec import field

from batonmq.broker.sql import SqlError, compile_expression, weight_of
from batonmq.protocol.codes import ExpressionType
from batonmq.protocol.json import Body, decode, encode
from batonmq.protocol.names import topic_error
from batonmq.protocol.tags import is_tag_type

if TYPE_CHECKING:
    from batonmq.broker.tables.consumers import ConsumerTable
    from batonmq.protocol.bodies.clients import SubscriptionData

log = logging.getLogger(__name__)

MAX_FILTERS: Final = 10_000
MAX_CHARACTERS: Final = 4 * 1024 * 1024
"""Of all expressions together. Beyond these two limits filters without consumers go first, the oldest before
the others; then new filters are refused. RocketMQ has no limits."""
MAX_COMPILED: Final = 1 << 18
"""Characters of new expressions in one heartbeat; compiling them takes about a quarter of a second."""


class ConsumerFilterData(Body):
    """One entry of the file. Times are ms; `dead_time` at or above `born_time`: no consumer uses it."""

    consumer_group: str = ""
    topic: str = ""
    expression: str = ""
    expression_type: str | None = ExpressionType.SQL92
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0
    bloom_filter_data: dict[str, object] | None = None
    """Of RocketMQ's bit maps (enableCalcFilterBitMap); not used here."""


class _FilterDataMapByTopic(Body):
    topic: str = ""
    group_filter_data: dict[str, ConsumerFilterData] = field(default_factory=dict)


class _ConsumerFilterFile(Body):
    filter_data_by_topic: dict[str, _FilterDataMapByTopic] = field(default_factory=dict)


@dataclass(slots=True)
class ConsumerFilter:
    """`matches` takes the encoded properties of a message."""

    data: ConsumerFilterData
    matches: Callable[[bytes], bool]
    weight: int
    """How much work `matches` is (`MessageFilter`)."""

    @property
    def dead(self) -> bool:
        return self.data.dead_time >= self.data.born_time

    def wants(self, subscription: SubscriptionData) -> bool:
        """Whether this is the filter of that subscription."""
        data = self.data
        same_type = data.expression_type == subscription.expression_type
        return same_type and data.expression == subscription.sub_string


def compile_filter(expression: str | None, expression_type: str | None) -> Callable[[bytes], bool]:
    """The function for a filter that is not by tags. Raises `SqlError`."""
    if expression_type != ExpressionType.SQL92:
        raise SqlError(
            f"expression type {expression_type!s:.40} is unknown, there are TAG and {ExpressionType.SQL92}"
        )
    if not expression:
        raise SqlError("the expression is empty")
    return compile_expression(expression)


class FilterTable:
    """The filters of one broker."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._filters: dict[str, dict[str, ConsumerFilter]] = {}
        """Topic -> group -> filter."""
        self._count = 0
        self._characters = 0
        self._refused: set[tuple[str, str]] = set()
        """Groups and topics whose filter was refused since the last sweep; for one log line each."""
        self.on_change: Callable[[], None] = _nothing

    def __len__(self) -> int:
        return self._count

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """The group's filter; None if it has none, or its expression is not valid."""
        return self._filters.get(topic, {}).get(group)

    # -- heartbeats

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], budget: int = MAX_COMPILED
    ) -> int:
        """A heartbeat of the group. A subscription with a newer version replaces its filter; one with an
        invalid expression removes it, so that pulls are answered with FILTER_DATA_NOT_EXIST.

        `budget`: characters that may be compiled; returns what is left of it. Expressions beyond it are
        ignored; the next heartbeat brings them again.
        """
        changed = False
        for subscription in subscriptions:
            if is_tag_type(subscription.expression_type) or not self._is_news(group, subscription):
                continue
            if topic_error(subscription.topic) is not None:
                continue  # there is no such topic, and its name may have megabytes
            known = self.get(subscription.topic, group)
            if known is not None and known.wants(subscription):
                known.data.client_version, known.data.dead_time = subscription.sub_version, 0
                changed = True
                continue
            size = len(subscription.sub_string or "")
            if size > budget:
                self._log_refused(group, subscription.topic, "the expressions of one heartbeat are too long")
                continue
            budget -= size
            changed |= self._replace(group, subscription)
        if changed:
            self.on_change()
        return budget

    def _is_news(self, group: str, subscription: SubscriptionData) -> bool:
        """Whether the filter is new, newer than the known one, or that one in use again."""
        known = self.get(subscription.topic, group)
        if known is None or subscription.sub_version > known.data.client_version:
            return True
        same_version = subscription.sub_version == known.data.client_version
        return same_version and known.dead and known.wants(subscription)

    def _replace(self, group: str, subscription: SubscriptionData) -> bool:
        topic, version = subscription.topic, subscription.sub_version
        expression, kind = subscription.sub_string, subscription.expression_type
        try:
            matches = compile_filter(expression, kind)
        except SqlError as error:
            self._log_refused(group, topic, str(error))
            return self._remove(topic, group)
        now_ms = self._now_ms()
        data = ConsumerFilterData(group, topic, expression or "", kind, now_ms, 0, version)
        if not self._put(ConsumerFilter(data, matches, weight_of(data.expression))):
            self._log_refused(group, topic, f"this broker has {self._count} filters, too many or too long")
            return self._remove(topic, group)
        log.info("filter group=%s topic=%s expression=%.200s", group, topic, expression)
        return True

    def _log_refused(self, group: str, topic: str, reason: str) -> None:
        if (group, topic) not in self._refused and len(self._refused) < MAX_FILTERS:
            self._refused.add((group, topic))
            log.warning("filter of group=%s topic=%s refused: %s", group, topic, reason)

    def sweep(self, consumers: ConsumerTable, expire_ms: int) -> None:
        """Mark the filters that no consumer uses, and remove those unused for `expire_ms`."""
        now_ms = self._now_ms()
        self._refused.clear()
        changed = False
        for topic in list(self._filters):
            for group, found in list(self._filters[topic].items()):
                data = found.data
                subscription = consumers.subscriptions(group).get(topic)
                if subscription is not None and not is_tag_type(subscription.expression_type):
                    changed |= found.dead
                    data.dead_time = 0
                elif not found.dead:
                    data.dead_time = max(now_ms, data.born_time)
                    changed = True
                elif now_ms - data.dead_time >= expire_ms:
                    changed |= self._remove(topic, group)
        if changed:
            self.on_change()

    # -- the file, and copies of it

    def encode(self) -> bytes:
        """Contents of consumerFilter.json."""
        return encode(
            _ConsumerFilterFile(
                {
                    topic: _FilterDataMapByTopic(topic, {name: found.data for name, found in groups.items()})
                    for topic, groups in self._filters.items()
                }
            )
        )

    def restore(self, contents: bytes) -> None:
        """Load a file, RocketMQ's too. Raises ValueError."""
        for data in _entries(contents):
            self._take(data)

    def merge(self, contents: bytes) -> None:
        """On a slave: take the master's filters that are newer. Raises ValueError."""
        changed = False
        for data in _entries(contents):
            known = self.get(data.topic, data.consumer_group)
            if known is None or data.client_version > known.data.client_version:
                changed |= self._take(data)
        if changed:
            self.on_change()

    def _take(self, data: ConsumerFilterData) -> bool:
        try:
            matches = compile_filter(data.expression, data.expression_type)
        except SqlError as error:
            log.warning(
                "filter of group=%s topic=%s left out: %s", data.consumer_group, data.topic, str(error)
            )
            return False
        return self._put(ConsumerFilter(data, matches, weight_of(data.expression)))

    # -- bounds

    def _put(self, new: ConsumerFilter) -> bool:
        """False if there is no room."""
        topic, group, size = new.data.topic, new.data.consumer_group, len(new.data.expression)
        known = self.get(topic, group)
        if known is not None:
            self._remove(topic, group)
        if not self._fits(size):
            self._evict(size)
            if not self._fits(size):
                return False
        self._filters.setdefault(topic, {})[group] = new
        self._count += 1
        self._characters += size
        return True

    def _fits(self, size: int) -> bool:
        return self._count < MAX_FILTERS and self._characters + size <= MAX_CHARACTERS

    def _evict(self, size: int) -> None:
        dead = [found.data for groups in self._filters.values() for found in groups.values() if found.dead]
        for data in sorted(dead, key=lambda each: each.dead_time):
            self._remove(data.topic, data.consumer_group)
            if self._fits(size):
                return

    def _remove(self, topic: str, group: str) -> bool:
        found = self._filters.get(topic, {}).pop(group, None)
        if found is None:
            return False
        if not self._filters[topic]:
            del self._filters[topic]
        self._count -= 1
        self._characters -= len(found.data.expression)
        return True


def _entries(contents: bytes) -> list[ConsumerFilterData]:
    read = decode(contents, _ConsumerFilterFile)
    return [
        data
        for by_topic in read.filter_data_by_topic.values()
        for data in by_topic.group_filter_data.values()
    ]


def _nothing() -> None:
    """Default of `on_change`."""
