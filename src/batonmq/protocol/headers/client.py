"""Headers of the requests that brokers send to clients.

Source: `Broker2Client` and the `protocol.header` package of Apache RocketMQ 5.
"""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, Header, field, request


@request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
class NotifyConsumerIdsChanged(Header):
    """The clients of a group changed: rebalance. Sent oneway."""

    consumer_group: str


@request(RequestCode.CHECK_TRANSACTION_STATE)
class CheckTransactionState(Header):
    """What became of a half message's transaction? The body is the record; answered with `EndTransaction`."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = field("bname", None)


@request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
class ResetConsumerClientOffset(Header):
    """Set offsets of a running consumer; body `ResetOffsetBody`. Sent oneway."""

    topic: str
    group: str
    timestamp: I64 = 0
    is_force: bool = False
    queue_id: I32 = -1
    offset: I64 | None = None


@request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
class GetConsumerStatusFromClient(Header):
    """Where a consumer is; answered with `GetConsumerStatusBody`."""

    topic: str
    group: str
    client_addr: str | None = None


@request(RequestCode.GET_CONSUMER_RUNNING_INFO)
class GetConsumerRunningInfo(Header):
    """What a consumer is doing; answered with `ConsumerRunningInfo`. Brokers pass it on."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@request(RequestCode.CONSUME_MESSAGE_DIRECTLY)
class ConsumeMessageDirectly(Header):
    """Handle the record in the body now; answered with `ConsumeMessageDirectlyResult`. Brokers pass it on."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


@request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
class ReplyMessage(Header):
    """The reply to a request message, on its way to the requester."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str
    store_host: str
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False
