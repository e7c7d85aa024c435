"""Tag expressions: ``*``, ``a`` or ``a || b``. Brokers filter by hash codes, we by the tags themselves."""

from __future__ import annotations

from batonmq.protocol.bodies.clients import SubscriptionData


def java_hash(text: str) -> int:
    """`String.hashCode()`."""
    value = 0
    data = text.encode("utf-16-be")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def parse_tags(topic: str, expression: str | None, version_ms: int) -> SubscriptionData:
    """A subscription from a tag expression.

    Raises:
        ValueError: the expression names no tag.
    """
    text = (expression or "").strip()
    if text in ("", "*"):
        return SubscriptionData(topic, "*", [], [], version_ms)
    tags = list(dict.fromkeys(part.strip() for part in text.split("||") if part.strip()))
    if not tags:
        raise ValueError(f"the tag expression {expression!r} names no tag")
    return SubscriptionData(topic, text, tags, [java_hash(tag) for tag in tags], version_ms)


def matches(subscription: SubscriptionData, tags: str | None) -> bool:
    """Does a message with this tag belong to the subscription?"""
    return not subscription.tags_set or tags in subscription.tags_set
