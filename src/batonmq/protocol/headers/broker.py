"""Headers of the requests that brokers serve, and of their answers.

A request without fields still has a struct: its code is declared there. Bodies are named where there is one;
they are in `bodies.py`. Source: `RequestCode` and the `protocol.header` package of Apache RocketMQ 5.
"""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, Header, field, request

# Sending


class SendMessageResponse(Header):
    """Where a message was stored.

    Also comes with FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE.
    """

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


@request(RequestCode.SEND_MESSAGE, response=SendMessageResponse)
class SendMessage(Header):
    """Send one message; the body is the message's body."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: I32 | None = None


@request(RequestCode.SEND_MESSAGE_V2, response=SendMessageResponse)
class SendMessageV2(Header):
    """`SendMessage` with one-letter keys, which is what clients send today."""

    producer_group: str = field("a")
    topic: str = field("b")
    default_topic: str = field("c")
    default_topic_queue_nums: I32 = field("d")
    queue_id: I32 = field("e")
    sys_flag: I32 = field("f")
    born_timestamp: I64 = field("g")
    flag: I32 = field("h")
    properties: str | None = field("i", None)
    reconsume_times: I32 | None = field("j", None)
    unit_mode: bool | None = field("k", None)
    max_reconsume_times: I32 | None = field("l", None)
    batch: bool | None = field("m", None)
    broker_name: str | None = field("n", None)


@request(RequestCode.SEND_BATCH_MESSAGE, response=SendMessageResponse)
class SendBatchMessage(SendMessageV2):
    """Send a batch in one body (message.py's wire batch); the header is that of `SendMessageV2`."""


@request(RequestCode.CONSUMER_SEND_MSG_BACK)
class ConsumerSendMsgBack(Header):
    """A consumer could not handle a message: store it again for its group, delayed, or as dead letter."""

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


@request(RequestCode.END_TRANSACTION)
class EndTransaction(Header):
    """Commit or roll back a half message."""

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    msg_id: str
    topic: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None


@request(RequestCode.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheckHalfMessage(Header):
    """Have a half message checked again that was given up on."""

    topic: str | None = None
    msg_id: str | None = None


# Pulling and offsets


class PullMessageResponse(Header):
    """Where to pull on; also comes with PULL_NOT_FOUND, PULL_RETRY_IMMEDIATELY and PULL_OFFSET_MOVED."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None


@request(RequestCode.PULL_MESSAGE, response=PullMessageResponse)
class PullMessage(Header):
    """Read a queue from an offset on; the answer's body is stored records, one after another."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    sub_version: I64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    proxy_froward_client_id: str | None = None


@request(RequestCode.LITE_PULL_MESSAGE, response=PullMessageResponse)
class LitePullMessage(PullMessage):
    """`PullMessage` of a client without rebalance."""


class QueryConsumerOffsetResponse(Header):
    """A group's committed offset."""

    offset: I64


@request(RequestCode.QUERY_CONSUMER_OFFSET, response=QueryConsumerOffsetResponse)
class QueryConsumerOffset(Header):
    """A group's committed offset; QUERY_NOT_FOUND when it has none."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


@request(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffset(Header):
    """Commit a group's offset."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class GetMaxOffsetResponse(Header):
    """The next offset that will be written."""

    offset: I64


@request(RequestCode.GET_MAX_OFFSET, response=GetMaxOffsetResponse)
class GetMaxOffset(Header):
    """The end of a queue."""

    topic: str
    queue_id: I32
    committed: bool = True


class GetMinOffsetResponse(Header):
    """The first offset that is still stored."""

    offset: I64


@request(RequestCode.GET_MIN_OFFSET, response=GetMinOffsetResponse)
class GetMinOffset(Header):
    """The beginning of a queue."""

    topic: str
    queue_id: I32


class SearchOffsetResponse(Header):
    """The offset that was found."""

    offset: I64


@request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, response=SearchOffsetResponse)
class SearchOffset(Header):
    """The offset of the first message stored at or after a time (ms); ``boundary_type`` LOWER or UPPER."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


class GetEarliestMsgStoretimeResponse(Header):
    """Milliseconds since the epoch."""

    timestamp: I64


@request(RequestCode.GET_EARLIEST_MSG_STORETIME, response=GetEarliestMsgStoretimeResponse)
class GetEarliestMsgStoretime(Header):
    """When the first stored message of a queue was stored."""

    topic: str
    queue_id: I32


@request(RequestCode.GET_ALL_CONSUMER_OFFSET)
class GetAllConsumerOffset(Header):
    """All groups' offsets; body `ConsumerOffsetSerializeWrapper`."""


@request(RequestCode.GET_ALL_DELAY_OFFSET)
class GetAllDelayOffset(Header):
    """Progress of the delay levels, as the JSON of delayOffset.json."""


class QueryMessageResponse(Header):
    """How far the index reaches."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


@request(RequestCode.QUERY_MESSAGE, response=QueryMessageResponse)
class QueryMessage(Header):
    """Messages by key within a time range (ms); the body is stored records."""

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64


@request(RequestCode.VIEW_MESSAGE_BY_ID)
class ViewMessage(Header):
    """The record at a commit log offset."""

    offset: I64
    topic: str | None = None


@request(RequestCode.QUERY_CONSUME_QUEUE)
class QueryConsumeQueue(Header):
    """Raw entries of a consume queue; body `QueryConsumeQueueResponseBody`."""

    topic: str
    queue_id: I32
    index: I64 = 0
    count: I32 = 0
    consumer_group: str | None = None


# Clients and groups


@request(RequestCode.HEART_BEAT)
class Heartbeat(Header):
    """A client's groups and subscriptions; body `HeartbeatData`."""


@request(RequestCode.UNREGISTER_CLIENT)
class UnregisterClient(Header):
    """A client leaves a group."""

    client_id: str = field("clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


@request(RequestCode.CHECK_CLIENT_CONFIG)
class CheckClientConfig(Header):
    """Would this subscription be accepted? Body `CheckClientRequestBody`."""


@request(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
class GetConsumerListByGroup(Header):
    """Client ids of a group; body `ConsumerIdList`."""

    consumer_group: str


@request(RequestCode.LOCK_BATCH_MQ)
class LockBatchMq(Header):
    """Lock queues for ordered consumption: `LockBatchRequestBody` to `LockBatchResponseBody`."""


@request(RequestCode.UNLOCK_BATCH_MQ)
class UnlockBatchMq(Header):
    """Give locked queues back; body `UnlockBatchRequestBody`."""


@request(RequestCode.QUERY_ASSIGNMENT)
class QueryAssignment(Header):
    """Ask the broker which queues a client has; body `QueryAssignmentRequestBody`."""


@request(RequestCode.SET_MESSAGE_REQUEST_MODE)
class SetMessageRequestMode(Header):
    """Pull or pop for a group on a topic; body `SetMessageRequestModeRequestBody`."""


@request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
class GetAllMessageRequestMode(Header):
    """All settings of `SetMessageRequestMode`."""


# Topics and subscription groups


@request(RequestCode.UPDATE_AND_CREATE_TOPIC)
class CreateTopic(Header):
    """Create or change a topic; ``attributes`` are ``+key=value`` or ``-key`` joined by commas."""

    topic: str
    default_topic: str
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str
    topic_sys_flag: I32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool = False


@request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
class CreateTopicList(Header):
    """Create or change topics; body `CreateTopicListRequestBody`."""


@request(RequestCode.DELETE_TOPIC_IN_BROKER)
class DeleteTopic(Header):
    """Delete a topic on this broker."""

    topic: str


@request(RequestCode.GET_TOPIC_CONFIG)
class GetTopicConfig(Header):
    """One topic; body `TopicConfig`."""

    topic: str


class GetAllTopicConfigResponse(Header):
    """How many topics there are, when they are sent in parts."""

    total_topic_num: I32 | None = None


@request(RequestCode.GET_ALL_TOPIC_CONFIG, response=GetAllTopicConfigResponse)
class GetAllTopicConfig(Header):
    """All topics, body `TopicConfigAndMappingSerializeWrapper`; in parts when ``topic_seq`` is given."""

    topic_seq: I32 | None = None
    data_version: str | None = None
    max_topic_num: I32 | None = None


@request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
class UpdateSubscriptionGroup(Header):
    """Create or change a group; body `SubscriptionGroupConfig`."""


@request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
class UpdateSubscriptionGroupList(Header):
    """Create or change groups; body `SubscriptionGroupList`."""


@request(RequestCode.DELETE_SUBSCRIPTIONGROUP)
class DeleteSubscriptionGroup(Header):
    """Delete a group, with its offsets when ``clean_offset``."""

    group_name: str
    clean_offset: bool = False


@request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
class GetSubscriptionGroupConfig(Header):
    """One group; body `SubscriptionGroupConfig`."""

    group: str


class GetAllSubscriptionGroupResponse(Header):
    """How many groups there are, when they are sent in parts."""

    total_group_num: I32 | None = None


@request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, response=GetAllSubscriptionGroupResponse)
class GetAllSubscriptionGroup(Header):
    """All groups, body `SubscriptionGroupWrapper`; in parts when ``group_seq`` is given."""

    group_seq: I32 | None = None
    data_version: str | None = None
    max_group_num: I32 | None = None


@request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
class UpdateGroupForbidden(Header):
    """Forbid or allow a group to read a topic."""

    group: str
    topic: str
    readable: bool | None = None


@request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
class GetSystemTopicListFromBroker(Header):
    """This broker's system topics; body `TopicList`."""


# What administrators ask


@request(RequestCode.GET_TOPIC_STATS_INFO)
class GetTopicStatsInfo(Header):
    """Offsets and times of a topic's queues; body `TopicStatsTable`."""

    topic: str


@request(RequestCode.GET_CONSUME_STATS)
class GetConsumeStats(Header):
    """A group's offsets beside the broker's; body `ConsumeStats`."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@request(RequestCode.GET_BROKER_CONSUME_STATS)
class GetConsumeStatsInBroker(Header):
    """`GetConsumeStats` of all groups; body `ConsumeStatsList`."""

    is_order: bool


@request(RequestCode.GET_CONSUMER_CONNECTION_LIST)
class GetConsumerConnectionList(Header):
    """A group's connections; body `ConsumerConnection`."""

    consumer_group: str


@request(RequestCode.GET_PRODUCER_CONNECTION_LIST)
class GetProducerConnectionList(Header):
    """A producer group's connections; body `ProducerConnection`."""

    producer_group: str


@request(RequestCode.GET_ALL_PRODUCER_INFO)
class GetAllProducerInfo(Header):
    """All producers; body `ProducerTableInfo`."""


@request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
class QueryTopicConsumeByWho(Header):
    """Groups that consume a topic; body `GroupList`."""

    topic: str


@request(RequestCode.QUERY_TOPICS_BY_CONSUMER)
class QueryTopicsByConsumer(Header):
    """Topics that a group consumes; body `TopicList`."""

    group: str


@request(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
class QuerySubscriptionByConsumer(Header):
    """A group's subscription; body `QuerySubscriptionResponseBody`."""

    group: str
    topic: str | None = None


@request(RequestCode.QUERY_CONSUME_TIME_SPAN)
class QueryConsumeTimeSpan(Header):
    """Time span of a topic's queues; body `QueryConsumeTimeSpanBody`."""

    topic: str
    group: str


@request(RequestCode.QUERY_CORRECTION_OFFSET)
class QueryCorrectionOffset(Header):
    """Least offsets among some groups; body `QueryCorrectionOffsetBody`."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


@request(RequestCode.CLONE_GROUP_OFFSET)
class CloneGroupOffset(Header):
    """Copy one group's offsets to another."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
class ResetOffset(Header):
    """Reset a group's offsets to a time (ms); -1 is the end, -2 the beginning. Body `ResetOffsetBody`."""

    group: str
    topic: str
    timestamp: I64
    is_force: bool
    queue_id: I32 = -1
    offset: I64 | None = None


@request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
class GetConsumerStatus(Header):
    """Ask a group's clients where they are; body `GetConsumerStatusBody`."""

    topic: str
    group: str
    client_addr: str | None = None


@request(RequestCode.VIEW_BROKER_STATS_DATA)
class ViewBrokerStatsData(Header):
    """One statistic; body `BrokerStatsData`."""

    stats_name: str
    stats_key: str


@request(RequestCode.GET_BROKER_RUNTIME_INFO)
class GetBrokerRuntimeInfo(Header):
    """Figures of a running broker; body `KVTable`."""


class GetBrokerConfigResponse(Header):
    """JSON of the configuration's `DataVersion`."""

    version: str


@request(RequestCode.GET_BROKER_CONFIG, response=GetBrokerConfigResponse)
class GetBrokerConfig(Header):
    """The configuration as properties text."""


@request(RequestCode.UPDATE_BROKER_CONFIG)
class UpdateBrokerConfig(Header):
    """Change the running configuration; body is properties text."""


@request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
class CleanExpiredConsumeQueue(Header):
    """Delete consume queue files that point before the commit log."""


@request(RequestCode.CLEAN_UNUSED_TOPIC)
class CleanUnusedTopic(Header):
    """Delete consume queues of topics that no longer exist."""


@request(RequestCode.DELETE_EXPIRED_COMMITLOG)
class DeleteExpiredCommitLog(Header):
    """Delete expired commit log files now."""


@request(RequestCode.GET_TIMER_CHECK_POINT)
class GetTimerCheckPoint(Header):
    """Checkpoint of the timer store."""


@request(RequestCode.GET_TIMER_METRICS)
class GetTimerMetrics(Header):
    """Metrics of the timer store."""


# Between brokers


class ExchangeHAInfoResponse(Header):
    """The master's side of `ExchangeHAInfo`."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


@request(RequestCode.EXCHANGE_BROKER_HA_INFO, response=ExchangeHAInfoResponse)
class ExchangeHAInfo(Header):
    """Slave and master tell each other their replication addresses and flushed offsets."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


class WatchTablesResponse(Header):
    """Changes of the master's tables so far."""

    changes: I64


@request(RequestCode.WATCH_TABLES, response=WatchTablesResponse)
class WatchTables(Header):
    """A slave has copied so many changes of the master's tables (-1: none) and waits for the next."""

    copied: I64
    broker_id: I64 | None = None


@request(RequestCode.GET_BROKER_HA_STATUS)
class GetBrokerHAStatus(Header):
    """Replication as this broker sees it; body `HARuntimeInfo`."""


@request(RequestCode.GET_BROKER_EPOCH_CACHE)
class GetBrokerEpochCache(Header):
    """The epoch file; body `EpochEntryCache`."""


@request(RequestCode.RESET_MASTER_FLUSH_OFFSET)
class ResetMasterFlushOffset(Header):
    """Tell a slave the master's flushed offset."""

    master_flush_offset: I64


@request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)
class NotifyMinBrokerIdChange(Header):
    """The name server says that a group's least live broker id changed (slave acting master)."""

    min_broker_id: I64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


@request(RequestCode.ADD_BROKER)
class AddBroker(Header):
    """Start a broker in this container."""

    config_path: str | None = None


@request(RequestCode.REMOVE_BROKER)
class RemoveBroker(Header):
    """Stop a broker of this container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: I64
