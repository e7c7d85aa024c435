"""Topics, and what a broker registers.

Source: `TopicConfig` and the `protocol.body` package of Apache RocketMQ 5.
"""

from __future__ import annotations

from msgspec import field

from batonmq.protocol.bodies.common import DataVersion
from batonmq.protocol.bodies.routes import TopicQueueMappingInfo
from batonmq.protocol.bodies.static_topics import TopicQueueMappingDetail
from batonmq.protocol.json import Body
from batonmq.protocol.registry import I32

SINGLE_TAG = "SINGLE_TAG"
MULTI_TAG = "MULTI_TAG"
"""A topic's filter type: whether its messages may have several tags (`TopicFilterType`)."""


class TopicConfig(Body):
    topic_name: str = ""
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: I32 = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicConfigAndQueueMapping(TopicConfig):
    """A topic as GET_TOPIC_CONFIG gives it with ``lo=true``."""

    mapping_detail: TopicQueueMappingDetail | None = None
    """None: not a static topic."""


class TopicRemappingDetailWrapper(Body):
    """What changes when a static topic is created, grows or moves; also the map files of mqadmin."""

    topic: str = ""
    type: str = ""
    epoch: int = 0
    broker_config_map: dict[str, TopicConfigAndQueueMapping] = field(default_factory=dict)
    """Broker name -> what it is to know of the topic."""
    broker_to_map_in: list[str] = field(default_factory=list)
    """Names of the brokers that get logical queues."""
    broker_to_map_out: list[str] = field(default_factory=list)
    """Names of the brokers that logical queues leave."""


class TopicConfigSerializeWrapper(Body):
    """All topics of a broker; also ``config/topics.json``."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class TopicConfigAndMappingSerializeWrapper(Body):
    """`TopicConfigSerializeWrapper` with the mappings of static topics."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


class CreateTopicListRequestBody(Body):
    topic_config_list: list[TopicConfig] = field(default_factory=list)


class RegisterBrokerBody(Body):
    """What a broker registers at a name server."""

    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)
