"""The expressions by which a subscription names tags (``*``, ``a``, ``a || b``).

A consume queue unit keeps the hash code of a message's tags, so brokers filter by codes; the client compares
the tags themselves. Source: `FilterAPI` and `ExpressionType` of Apache RocketMQ 5.
"""

from __future__ import annotations

from functools import lru_cache

from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.codes import ALL_TAGS, ExpressionType
from batonmq.protocol.java_hash import java_hash

MAX_EXPRESSION = 65_536
"""Characters of an expression of tags, as of one of SQL92."""
_SHORT_EXPRESSION = 2_048


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression of this type is one of tags."""
    return not expression_type or expression_type == ExpressionType.TAG


def _parse(expression: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    tags = tuple(dict.fromkeys(part.strip() for part in expression.split("||") if part.strip()))
    return tags, tuple(dict.fromkeys(java_hash(tag) for tag in tags))


_parse_short = lru_cache(maxsize=1024)(_parse)


def tag_subscription(topic: str, expression: str | None, version: int) -> SubscriptionData:
    """A subscription by tags; without an expression, to all messages. `version` is ms.

    Raises:
        ValueError: the expression names no tag, or is longer than `MAX_EXPRESSION`.
    """
    if not expression or expression == ALL_TAGS:
        return SubscriptionData(topic=topic, sub_string=ALL_TAGS, sub_version=version)
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"an expression of {len(expression)} characters, at most {MAX_EXPRESSION} are read")
    tags, codes = (_parse_short if len(expression) <= _SHORT_EXPRESSION else _parse)(expression)
    if not tags:
        raise ValueError(f"the tag expression {expression!r} names no tag")
    return SubscriptionData(
        topic=topic, sub_string=expression, tags_set=list(tags), code_set=list(codes), sub_version=version
    )


def matches(subscription: SubscriptionData, tags: str | None) -> bool:
    """Does a message with these tags belong to a subscription by tags?"""
    return not subscription.tags_set or tags in subscription.tags_set
