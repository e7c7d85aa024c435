"""Tags: their hash codes, and the expressions by which a subscription names them (``*``, ``a``, ``a || b``).

A consume queue unit keeps the hash code of a message's tags, so brokers filter by codes; the client compares
the tags themselves. Source: `FilterAPI` and `ExpressionType` of Apache RocketMQ 5.
"""

from __future__ import annotations

from functools import lru_cache

from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.codes import ALL_TAGS, ExpressionType

MAX_EXPRESSION = 65_536
"""Characters of an expression of tags, as of one of SQL92."""
_SHORT = 64
"""Characters of texts whose hash codes are remembered in great number: tags and topics in use."""
_LONG = 32_767
"""Characters of texts whose hash codes are remembered at all."""
_SHORT_EXPRESSION = 2_048


def java_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 units, 32 bits, signed."""
    size = len(text)
    if size <= _SHORT:
        return _short_hash(text)
    return _long_hash(text) if size <= _LONG else _hash(text)


def _hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


# Clients choose the texts: what is remembered must not take all memory.
_short_hash = lru_cache(maxsize=65_536)(_hash)
_long_hash = lru_cache(maxsize=64)(_hash)


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
