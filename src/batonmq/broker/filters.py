"""Which messages of a queue a subscription wants, as far as the consume queue alone can tell. Pure.

A consume queue unit keeps the Java hash code of the message's tags; the client compares the tags themselves.
Source: RocketMQ's tag filter (`FilterAPI`, `ExpressionMessageFilter`).
"""

from __future__ import annotations

from collections.abc import Callable

from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.tags import ALL_TAGS, is_tag_type, tag_subscription

Accept = Callable[[int], bool]
"""Takes a consume queue unit's tags code."""


def subscription_of(
    topic: str, expression: str | None, expression_type: str | None, version: int
) -> SubscriptionData:
    """The subscription that a pull carries. Raises ValueError for a tag expression without a tag."""
    if not is_tag_type(expression_type):
        return SubscriptionData(
            topic=topic, sub_string=expression, expression_type=expression_type, sub_version=version
        )
    return tag_subscription(topic, expression, version)


def acceptor(subscription: SubscriptionData) -> Accept | None:
    """Filter for `MessageStore.get`; None takes every message."""
    if subscription.class_filter_mode or subscription.sub_string == ALL_TAGS:
        return None
    codes = frozenset(subscription.code_set)
    return codes.__contains__
