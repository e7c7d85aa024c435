"""JSON bodies of requests, answers and of the files a broker keeps, as typed structs.

Field defaults are Java's, because Java's JSON leaves null members out. `decode` also takes fastjson's bare
numeric keys and object keys (`json.py`). Source: the `protocol.body`, `route`, `heartbeat`, `subscription`
and `admin` packages of Apache RocketMQ 5.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import field

from batonmq.protocol.json import Body, BodyError, decode, encode

__all__ = ["Body", "BodyError", "decode", "encode"]


class ConsumeType(StrEnum):
    """How a group gets its messages."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each client of a group gets all messages, or each message goes to one."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without offsets begins."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageRequestMode(StrEnum):
    PULL = "PULL"
    POP = "POP"


class ConsumeResult(StrEnum):
    """What became of a message that was handed to a consumer directly."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


class DataVersion(Body):
    """How two states of a table are told apart. ``timestamp`` is ms, ``state_version`` the master epoch."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of a topic on one broker (by the broker's name, not its address)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


# Routes and clusters


class QueueData(Body):
    """A topic's queues on one broker."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(Body):
    """One replica group: broker id (0 is the master) -> ``host:port``."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicQueueMappingInfo(Body):
    """Static topics: logical queue -> physical queue on one broker."""

    topic: str | None = None
    scope: str = "__global__"
    total_queues: int = 0
    bname: str | None = None
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = field(default_factory=dict)


class TopicRouteData(Body):
    """Where a topic's queues are."""

    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(Body):
    """Broker name -> replica group, cluster name -> broker names."""

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class BrokerMemberGroup(Body):
    """Live members of one replica group."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(Body):
    broker_member_group: BrokerMemberGroup | None = None


class TopicList(Body):
    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class KVTable(Body):
    table: dict[str, str] = field(default_factory=dict)


# Topics


class TopicConfig(Body):
    topic_name: str = ""
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


class TopicConfigSerializeWrapper(Body):
    """All topics of a broker; also ``config/topics.json``."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


class TopicConfigAndMappingSerializeWrapper(Body):
    """`TopicConfigSerializeWrapper` with the mappings of static topics."""

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, Any] = field(default_factory=dict)
    mapping_data_version: DataVersion = field(default_factory=DataVersion)


class CreateTopicListRequestBody(Body):
    topic_config_list: list[TopicConfig] = field(default_factory=list)


class RegisterBrokerBody(Body):
    """What a broker tells a name server with each registration."""

    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = field(
        default_factory=TopicConfigAndMappingSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)


# Subscription groups


class ExponentialRetryPolicy(Body):
    """Milliseconds."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2


class CustomizedRetryPolicy(Body):
    """Delay before each attempt, in milliseconds."""

    next: list[int] = field(
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
    version: int = 0


class SubscriptionGroupConfig(Body):
    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: GroupRetryPolicy = field(default_factory=GroupRetryPolicy)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
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
    forbidden_table: dict[str, dict[str, int]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


# Clients


class SubscriptionData(Body):
    """What a group wants of a topic. ``code_set`` are Java hash codes of the tags; ``sub_version`` is ms."""

    topic: str = ""
    sub_string: str | None = None
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ProducerData(Body):
    group_name: str = ""


class ConsumerData(Body):
    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Body):
    client_id: str = field(name="clientID", default="")
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


class CheckClientRequestBody(Body):
    client_id: str | None = None
    group: str | None = None
    subscription_data: SubscriptionData | None = None
    namespace: str | None = None


class ConsumerIdList(Body):
    """Answer to GET_CONSUMER_LIST_BY_GROUP (`GetConsumerListByGroupResponseBody` in Java)."""

    consumer_id_list: list[str] = field(default_factory=list)


class LockBatchRequestBody(Body):
    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(default_factory=list)


class LockBatchResponseBody(Body):
    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class UnlockBatchRequestBody(Body):
    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(default_factory=list)


class QueryAssignmentRequestBody(Body):
    topic: str = ""
    consumer_group: str = ""
    client_id: str = ""
    strategy_name: str | None = None
    message_model: MessageModel | None = None


class MessageQueueAssignment(Body):
    message_queue: MessageQueue | None = None
    mode: MessageRequestMode = MessageRequestMode.PULL
    attachments: dict[str, str] | None = None


class QueryAssignmentResponseBody(Body):
    message_queue_assignments: list[MessageQueueAssignment] = field(default_factory=list)


class SetMessageRequestModeRequestBody(Body):
    topic: str = ""
    consumer_group: str = ""
    mode: MessageRequestMode = MessageRequestMode.PULL
    pop_share_queue_num: int = 0


class MessageRequestModeSerializeWrapper(Body):
    """Topic -> group -> mode."""

    message_request_mode_map: dict[str, dict[str, SetMessageRequestModeRequestBody]] = field(
        default_factory=dict
    )


class Connection(Body):
    """One client of a group. ``language`` is a `LanguageCode` name."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


class ConsumerConnection(Body):
    connection_set: list[Connection] = field(default_factory=list)
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


class ProducerConnection(Body):
    connection_set: list[Connection] = field(default_factory=list)


class ProducerInfo(Body):
    client_id: str = ""
    remote_ip: str = field(name="remoteIP", default="")
    language: str = "OTHER"
    version: int = 0
    last_update_timestamp: int = 0


class ProducerTableInfo(Body):
    """Producer group -> clients."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class ProcessQueueInfo(Body):
    """What a consumer holds of one queue."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(name="cachedMsgSizeInMiB", default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class ConsumeStatus(Body):
    """Rates a second, and times in ms."""

    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(Body):
    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None


class ConsumeMessageDirectlyResult(Body):
    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    remark: str | None = None
    spent_time_mills: int = 0


class ResetOffsetBody(Body):
    offset_table: dict[MessageQueue, int] = field(default_factory=dict)


class GetConsumerStatusBody(Body):
    """Queue -> offset of one client; client -> queue -> offset of a group."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


class GroupList(Body):
    group_list: list[str] = field(default_factory=list)


class QuerySubscriptionResponseBody(Body):
    subscription_data: SubscriptionData | None = None
    group: str | None = None
    topic: str | None = None


# Offsets and statistics


class ConsumerOffsetSerializeWrapper(Body):
    """``topic@group`` -> queue id -> offset; also ``config/consumerOffset.json``."""

    offset_table: dict[str, dict[int, int]] = field(default_factory=dict)
    data_version: DataVersion | None = None


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


# Replication and controller


class EpochEntry(Body):
    """A master epoch and the commit log range written in it; the last one is open-ended."""

    epoch: int = 0
    start_offset: int = 0
    end_offset: int = 2**63 - 1


class EpochEntryCache(Body):
    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int = 0
    epoch_list: list[EpochEntry] = field(default_factory=list)
    max_offset: int = 0


class HAConnectionRuntimeInfo(Body):
    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0


class HAClientRuntimeInfo(Body):
    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0


class HARuntimeInfo(Body):
    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo = field(default_factory=HAClientRuntimeInfo)


class BrokerSyncInfo(Body):
    master_ha_address: str | None = None
    master_flush_offset: int = 0
    master_address: str | None = None


class SyncStateSet(Body):
    """Broker ids that hold all acknowledged messages, and the version of that set."""

    sync_state_set: list[int] = field(default_factory=list)
    sync_state_set_epoch: int = 0


class ReplicaIdentity(Body):
    broker_name: str = ""
    broker_id: int = 0
    broker_address: str = ""
    alive: bool = False


class ReplicasInfo(Body):
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = field(default_factory=list)


class BrokerReplicasInfo(Body):
    """Broker name -> who replicates it, as the controller sees it."""

    replicas_info_table: dict[str, ReplicasInfo] = field(default_factory=dict)


class ElectMasterResponseBody(Body):
    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = field(default_factory=list)


class RoleChangeNotifyEntry(Body):
    broker_member_group: BrokerMemberGroup | None = None
    master_address: str | None = None
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    sync_state_set: list[int] = field(default_factory=list)
