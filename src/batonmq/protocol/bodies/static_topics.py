"""Static topics: which queues of which brokers make up their logical queues.

Source: the `protocol.statictopic` package of Apache RocketMQ 5 (RIP-21, logical queues).
"""

from __future__ import annotations

from msgspec import field

from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import TopicQueueMappingInfo
from batonmq.protocol.json import Body
from batonmq.protocol.registry import I32, I64

UNKNOWN = -1
"""A value that is not decided yet: the logic offset of a new leader, the end offset of the present one."""


class LogicQueueMappingItem(Body):
    """One physical queue that holds a part of a logical queue."""

    gen: I32 = 0
    """Number of the part; each remapping adds one with the next number."""
    queue_id: I32 = 0
    bname: str = ""
    """Name of the broker set that has the physical queue."""
    logic_offset: I64 = 0
    """Offset in the logical queue at which the part begins; `UNKNOWN` during a remapping."""
    start_offset: I64 = 0
    """First offset of the part in the physical queue; 0 in all mappings that RocketMQ's tools write."""
    end_offset: I64 = UNKNOWN
    """End of the part in the physical queue, excluded."""
    time_of_start: I64 = UNKNOWN
    time_of_end: I64 = UNKNOWN


class TopicQueueMappingDetail(TopicQueueMappingInfo):
    """What one broker set knows of a static topic."""

    hosted_queues: dict[int, list[LogicQueueMappingItem]] = field(default_factory=dict)
    """Logical queue -> its parts, oldest first. The last one is the leader: it takes new messages."""


class TopicQueueMappingSerializeWrapper(Body):
    """All static topics of a broker; also ``config/topicQueueMapping.json``."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
