"""Tags: their hash codes, and the expressions by which a subscription names them (``*``, ``a``, ``a || b``).

A consume queue unit keeps the hash code of a message's tags, so brokers filter by codes; the client compares
the tags themselves. Source: `FilterAPI` and `ExpressionType` of Apache RocketMQ 5.
"""

from __future__ import annotations

from functools import lru_cache

from batonmq.protocol.bodies.clients import SubscriptionData

ALL_TAGS = "*"
"""The expression that every message matches."""
TAG_EXPRESSION = "TAG"
"""The type of an expression of tags, and what a missing type means."""
SQL_EXPRESSION = "SQL92"
"""The type of an expression over properties."""


@lru_cache(maxsize=65536)
def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 units, 32 bits, signed."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression of this type is one of tags."""
    return not expression_type or expression_type == TAG_EXPRESSION


@lru_cache(maxsize=1024)
def _parse(expression: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    tags = tuple(dict.fromkeys(part.strip() for part in expression.split("||") if part.strip()))
    return tags, tuple(dict.fromkeys(java_hash(tag) for tag in tags))


def tag_subscription(topic: str, expression: str | None, version: int) -> SubscriptionData:
    """A subscription by tags; without an expression, to all messages. `version` is ms.

    Raises:
        ValueError: the expression names no tag.
    """
    if not expression or expression == ALL_TAGS:
        return SubscriptionData(topic=topic, sub_string=ALL_TAGS, sub_version=version)
    tags, codes = _parse(expression)
    if not tags:
        raise ValueError(f"the tag expression {expression!r} names no tag")
    return SubscriptionData(
        topic=topic, sub_string=expression, tags_set=list(tags), code_set=list(codes), sub_version=version
    )


def matches(subscription: SubscriptionData, tags: str | None) -> bool:
    """Does a message with these tags belong to a subscription by tags?"""
    return not subscription.tags_set or tags in subscription.tags_set
