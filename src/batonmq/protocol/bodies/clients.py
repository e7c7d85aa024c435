"""Clients: heartbeats, subscriptions, connections, locks and assignments.

Source: the `protocol.heartbeat` and `protocol.body` packages of Apache RocketMQ 5.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.json import Body
from batonmq.protocol.registry import I32, I64


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


class SubscriptionData(Body):
    """What a group wants of a topic. ``code_set`` are Java hash codes of the tags; ``sub_version`` is ms."""

    topic: str = ""
    sub_string: str | None = None
    tags_set: list[str] = field(default_factory=list)
    code_set: list[I32] = field(default_factory=list)
    sub_version: I64 = 0
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
    heartbeat_fingerprint: I32 = 0
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


class LockAttemptBody(LockBatchRequestBody):
    """Of LOCK_BATCH_MQ and UNDO_QUEUE_LOCKS between brokers."""

    attempt: str = ""
    """Names the request; not in RocketMQ."""


class HeldLocks(Body):
    """One client's queues of ``config/queueLocks.json``, which RocketMQ does not have."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue]


class QueueLocksFile(Body):
    locks: list[HeldLocks] = field(default_factory=list)


class LockBatchResponseBody(Body):
    lock_ok_mq_set: list[MessageQueue] = field(name="lockOKMQSet", default_factory=list)


class UnlockBatchRequestBody(Body):
    consumer_group: str = ""
    client_id: str = ""
    only_this_broker: bool = False
    mq_set: list[MessageQueue] = field(default_factory=list)


class UnlockAttemptBody(UnlockBatchRequestBody):
    """Of UNLOCK_BATCH_MQ between brokers."""

    attempt: str | None = None
    """Release only what the lock request of this name took or renewed last; not in RocketMQ."""


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
    pop_share_queue_num: I32 = 0


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


class PopProcessQueueInfo(Body):
    """What a consumer has popped of one queue, or of one broker (queue id -1)."""

    wait_ack_count: int = 0
    droped: bool = False
    last_pop_timestamp: int = 0


class ConsumerRunningInfo(Body):
    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = field(default_factory=dict)
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


class MessageQueueForC(Body):
    """A queue and its offset, for C++ clients, whose JSON has no objects as keys."""

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0
    offset: int = 0


class ResetOffsetBodyForC(Body):
    offset_table: list[MessageQueueForC] = field(default_factory=list)


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
