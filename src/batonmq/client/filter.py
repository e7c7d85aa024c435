"""The filter of a subscription: tags, or an SQL expression over properties. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.names import is_light
from batonmq.protocol.tags import tag_subscription

SQL92 = "SQL92"
"""The type of an expression over properties (RocketMQ's `ExpressionType`)."""


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over the properties of messages; see `sql`."""

    expression: str


Expression: TypeAlias = str | Sql


def sql(expression: str) -> Sql:
    """Select by properties, e.g. ``sql("region = 'eu' AND amount > 100")``.

    Properties are text and are compared as the type of the operator's other side. Messages that lack a
    property of a comparison do not match. Brokers evaluate the expression; they need
    `enablePropertyFilter=true`.
    """
    if not expression.strip():
        raise ValueError("the SQL expression is empty")
    return Sql(expression.strip())


def subscription_data(topic: str, expression: Expression, version: int) -> SubscriptionData:
    """A subscription as heartbeats and pulls carry it. ``version`` is ms.

    Raises:
        ValueError: the expression names no tag, or the topic is a light queue.
    """
    if is_light(topic):
        raise ValueError(
            f"{topic} is a light queue, which name servers do not list: read it with QueueReader"
        )
    if isinstance(expression, Sql):
        return SubscriptionData(
            topic=topic, sub_string=expression.expression, sub_version=version, expression_type=SQL92
        )
    return tag_subscription(topic, (expression or "").strip(), version)
