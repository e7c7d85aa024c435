"""Filters that select the messages of a subscription. Pure.

By tags: a consume queue unit keeps the Java hash code of the message's tags; the client compares the tags
themselves. By SQL92 (`broker/sql`): the properties of every message are read from the log. Source: RocketMQ's
`FilterAPI`, `ExpressionMessageFilter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from batonmq.broker.sql import weight_of
from batonmq.broker.sql.one_property import OneProperty
from batonmq.broker.tables.filters import compile_filter
from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.codes import ALL_TAGS
from batonmq.protocol.tags import is_tag_type, tag_subscription
from batonmq.store.policy import MessageFilter


class TagFilter:
    """Accepts messages whose tags have one of these hash codes."""

    __slots__ = ("by_code",)

    by_properties = None
    """Not needed: the code is enough."""
    one_property = None
    weight = 1

    def __init__(self, codes: Iterable[int]) -> None:
        self.by_code = frozenset(codes).__contains__


class SqlFilter:
    """Accepts messages whose encoded properties match."""

    __slots__ = ("by_properties", "one_property", "weight")

    by_code = None
    """Tags say nothing about properties."""

    def __init__(self, matches: Callable[[bytes], bool], weight: int) -> None:
        self.by_properties = matches
        self.one_property = matches if isinstance(matches, OneProperty) else None
        self.weight = weight


def subscription_of(
    topic: str, expression: str | None, expression_type: str | None, version: int
) -> SubscriptionData:
    """The subscription that a pull carries. Raises ValueError for a tag expression without a tag, and for an
    empty one of another type."""
    if not is_tag_type(expression_type):
        if not expression:
            raise ValueError(f"a subscription of type {expression_type} needs an expression")
        return SubscriptionData(
            topic=topic, sub_string=expression, expression_type=expression_type, sub_version=version
        )
    return tag_subscription(topic, expression, version)


def filter_of(subscription: SubscriptionData) -> MessageFilter | None:
    """Filter for `MessageStore.get`; None takes every message. Raises ValueError for an expression of another
    type that is not valid (`SqlError`), or whose type is unknown."""
    if subscription.class_filter_mode:
        return None
    if not is_tag_type(subscription.expression_type):
        matches = compile_filter(subscription.sub_string, subscription.expression_type)
        return SqlFilter(matches, weight_of(subscription.sub_string))
    if subscription.sub_string == ALL_TAGS:
        return None
    return TagFilter(subscription.code_set)
