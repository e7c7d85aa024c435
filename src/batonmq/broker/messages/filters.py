"""Filters that select the messages of a subscription. Pure.

A consume queue unit keeps the Java hash code of the message's tags; the client compares the tags themselves.
Source: RocketMQ's tag filter (`FilterAPI`, `ExpressionMessageFilter`).
"""

from __future__ import annotations

from collections.abc import Iterable

from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.tags import ALL_TAGS, is_tag_type, tag_subscription
from batonmq.store.policy import MessageFilter


class TagFilter:
    """Accepts messages whose tags have one of these hash codes."""

    __slots__ = ("by_code",)

    by_properties = None
    """Not needed: the code is enough."""

    def __init__(self, codes: Iterable[int]) -> None:
        self.by_code = frozenset(codes).__contains__


def subscription_of(
    topic: str, expression: str | None, expression_type: str | None, version: int
) -> SubscriptionData:
    """The subscription that a pull carries. Raises ValueError for a tag expression without a tag."""
    if not is_tag_type(expression_type):
        return SubscriptionData(
            topic=topic, sub_string=expression, expression_type=expression_type, sub_version=version
        )
    return tag_subscription(topic, expression, version)


def filter_of(subscription: SubscriptionData) -> MessageFilter | None:
    """Filter for `MessageStore.get`; None takes every message."""
    if subscription.class_filter_mode or subscription.sub_string == ALL_TAGS:
        return None
    return TagFilter(subscription.code_set)
