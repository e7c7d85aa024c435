"""Filters that select the messages of a subscription. Pure.

A consume queue unit keeps the Java hash code of the message's tags; the client compares the tags themselves.
Source: RocketMQ's tag filter (`FilterAPI`, `ExpressionMessageFilter`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from batonmq.protocol.bodies import SubscriptionData
from batonmq.store.policy import MessageFilter
from batonmq.store.scan import java_hash

ALL = "*"
TAG = "TAG"


class TagFilter:
    """Accepts messages whose tags have one of these hash codes."""

    __slots__ = ("by_code",)

    by_properties = None
    """Not needed: the code is enough."""

    def __init__(self, codes: Iterable[int]) -> None:
        self.by_code = frozenset(codes).__contains__


def is_tag_type(expression_type: str | None) -> bool:
    return not expression_type or expression_type == TAG


@lru_cache(maxsize=1024)
def _parse(expression: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    tags = tuple(dict.fromkeys(part.strip() for part in expression.split("||") if part.strip()))
    return tags, tuple(dict.fromkeys(java_hash(tag) for tag in tags))


def subscription_of(
    topic: str, expression: str | None, expression_type: str | None, version: int
) -> SubscriptionData:
    """The subscription that a pull carries. Raises ValueError for a tag expression without a tag."""
    if not is_tag_type(expression_type):
        return SubscriptionData(
            topic=topic, sub_string=expression, expression_type=expression_type, sub_version=version
        )
    if not expression or expression == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version)
    tags, codes = _parse(expression)
    if not tags:
        raise ValueError(f"no tag in {expression!r}")
    return SubscriptionData(
        topic=topic, sub_string=expression, tags_set=list(tags), code_set=list(codes), sub_version=version
    )


def filter_of(subscription: SubscriptionData) -> MessageFilter | None:
    """Filter for `MessageStore.get`; None takes every message."""
    if subscription.class_filter_mode or subscription.sub_string == ALL:
        return None
    return TagFilter(subscription.code_set)
