"""Subscription groups.

Source: the `protocol.subscription` package of Apache RocketMQ 5.
"""

from __future__ import annotations

from msgspec import field

from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.json import Body
from batonmq.protocol.registry import I32, I64


class ExponentialRetryPolicy(Body):
    """Milliseconds."""

    initial: I64 = 5_000
    max: I64 = 7_200_000
    multiplier: I64 = 2


class CustomizedRetryPolicy(Body):
    """Delay before each attempt, in milliseconds."""

    next: list[I64] = field(
        default_factory=lambda: [
            seconds * 1000
            for seconds in (
                *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360),
                *(420, 480, 540, 600, 1200, 1800, 3600, 7200),
            )
        ]
    )


class GroupRetryPolicy(Body):
    type: str = "CUSTOMIZED"
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(Body):
    topic: str = ""
    expression_type: str | None = None
    expression: str | None = None
    version: I64 = 0


class SubscriptionGroupConfig(Body):
    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: I32 = 1
    retry_max_times: I32 = 16
    group_retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: I32 = 0
    consume_timeout_minute: I32 = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupList(Body):
    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body):
    """Whether a group may read a topic."""

    group: str = ""
    topic: str = ""
    readable: bool = True


class SubscriptionGroupWrapper(Body):
    """All groups of a broker; also ``config/subscriptionGroup.json``."""

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, I32]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
