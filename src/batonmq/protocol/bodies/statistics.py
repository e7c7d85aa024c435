"""Offsets and statistics of topics, queues and groups.

Source: the `protocol.admin` and `protocol.body` packages of Apache RocketMQ 5.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType, field

from batonmq.protocol.bodies.clients import SubscriptionData
from batonmq.protocol.bodies.common import DataVersion, MessageQueue
from batonmq.protocol.json import Body
from batonmq.protocol.message.light import LIGHT_QUEUE_ID

BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
BROKER_PUT_NUMS_OF_USERS: Final = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_NUMS_OF_USERS: Final = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
"""Names of statistics: messages of the whole broker. Their key is the cluster's name."""
TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS: Final = "SNDBCK_PUT_NUMS"
"""Names of the statistics that VIEW_BROKER_STATS_DATA gives: of a topic, or of ``topic@group``."""


class ConsumerOffsetSerializeWrapper(Body):
    """``topic@group`` -> queue id -> offset; also ``config/consumerOffset.json``."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None
    lmq_offset_table: dict[str, int] | UnsetType = UNSET
    """``topic@group`` -> offset in queue 0, for groups of light queues; only with enableLmq
    (`LmqConsumerOffsetManager`)."""

    def whole_table(self) -> dict[str, dict[int, int]]:
        """The offsets of all groups."""
        light = {} if isinstance(self.lmq_offset_table, UnsetType) else self.lmq_offset_table
        return self.offset_table | {key: {LIGHT_QUEUE_ID: offset} for key, offset in light.items()}


class ResetOffsets(Body):
    """Resets that no pull has used: topic@group -> queue id -> offset; also ``config/resetOffset.json``."""

    reset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    numbers: dict[str, dict[int, int]] = field(default_factory=dict)
    """The number of each reset, by which a record of the log says that a pop has used it."""


class DelayOffsetSerializeWrapper(Body):
    """Delay level -> offset in its queue; also ``config/delayOffset.json``."""

    offset_table: dict[int, int] = field(default_factory=dict)
    data_version: DataVersion | None = None


class TopicOffset(Body):
    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsTable(Body):
    topic_put_tps: float = 0.0
    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)


class OffsetWrapper(Body):
    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


class ConsumeStats(Body):
    offset_table: dict[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


class ConsumeStatsList(Body):
    """Group -> its `ConsumeStats`, one map a group."""

    consume_stats_list: list[dict[str, list[ConsumeStats]]] = field(default_factory=list)
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


class QueueTimeSpan(Body):
    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


class QueryConsumeTimeSpanBody(Body):
    consume_time_span_set: list[QueueTimeSpan] = field(default_factory=list)


class QueryCorrectionOffsetBody(Body):
    correction_offsets: dict[int, int] = field(default_factory=dict)


class ConsumeQueueData(Body):
    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body):
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = field(default_factory=list)
    max_queue_index: int = 0
    min_queue_index: int = 0


class BrokerStatsItem(Body):
    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)
