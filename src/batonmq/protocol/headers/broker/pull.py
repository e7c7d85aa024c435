"""Requests that read messages and offsets."""

from __future__ import annotations

from typing import Self

from batonmq.protocol.codes import ALL_TAGS, ExpressionType, PullSysFlag, RequestCode
from batonmq.protocol.registry import I32, I64, BrokerHeader, Header, request


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
class PullMessage(BrokerHeader):
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
    lo: bool | None = None
    """False: the queue is a physical one, also of a static topic."""

    @classmethod
    def at_once(
        cls,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        max_bytes: int | None = None,
        *,
        subscription: str = ALL_TAGS,
        expression_type: str = ExpressionType.TAG,
    ) -> Self:
        """Up to `count` messages that the subscription selects, without waiting for new ones; `group` needs
        no consumers and commits nothing. `max_bytes`: None for what the broker allows."""
        return cls(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=subscription,
            expression_type=expression_type,
            max_msg_bytes=max_bytes,
        )


@request(RequestCode.LITE_PULL_MESSAGE, response=PullMessageResponse)
class LitePullMessage(PullMessage):
    """`PullMessage` of a client without rebalance."""


class QueryConsumerOffsetResponse(Header):
    """A group's committed offset."""

    offset: I64


@request(RequestCode.QUERY_CONSUMER_OFFSET, response=QueryConsumerOffsetResponse)
class QueryConsumerOffset(BrokerHeader):
    """A group's committed offset; QUERY_NOT_FOUND when it has none."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None
    lo: bool | None = None
    """False: the queue is a physical one, also of a static topic."""


@request(RequestCode.UPDATE_CONSUMER_OFFSET)
class UpdateConsumerOffset(BrokerHeader):
    """Commit a group's offset."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64
    handed_over: bool | None = None
    """From a slave that acted as master, not in RocketMQ: no offset goes back, and the answer comes when the
    offset is on disk."""
    lo: bool | None = None
    """False: the queue is a physical one, also of a static topic."""


class GetMaxOffsetResponse(Header):
    """The next offset that will be written."""

    offset: I64


@request(RequestCode.GET_MAX_OFFSET, response=GetMaxOffsetResponse)
class GetMaxOffset(BrokerHeader):
    """The end of a queue."""

    topic: str
    queue_id: I32
    committed: bool = True
    lo: bool | None = None
    """False: the queue is a physical one, also of a static topic."""


class GetMinOffsetResponse(Header):
    """The first offset that is still stored."""

    offset: I64


@request(RequestCode.GET_MIN_OFFSET, response=GetMinOffsetResponse)
class GetMinOffset(BrokerHeader):
    """The beginning of a queue."""

    topic: str
    queue_id: I32
    lo: bool | None = None
    """False: the queue is a physical one, also of a static topic."""


class SearchOffsetResponse(Header):
    """The offset that was found."""

    offset: I64


@request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, response=SearchOffsetResponse)
class SearchOffset(BrokerHeader):
    """The offset of the first message stored at or after a time (ms); ``boundary_type`` LOWER or UPPER."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None
    lo: bool | None = None
    """False: the queue is a physical one, also of a static topic."""


class GetEarliestMsgStoretimeResponse(Header):
    """Milliseconds since the epoch."""

    timestamp: I64


@request(RequestCode.GET_EARLIEST_MSG_STORETIME, response=GetEarliestMsgStoretimeResponse)
class GetEarliestMsgStoretime(BrokerHeader):
    """When the first stored message of a queue was stored."""

    topic: str
    queue_id: I32
    lo: bool | None = None
    """False: the queue is a physical one, also of a static topic."""


@request(RequestCode.GET_ALL_CONSUMER_OFFSET)
class GetAllConsumerOffset(Header):
    """All groups' offsets; body `ConsumerOffsetSerializeWrapper`."""


@request(RequestCode.GET_ALL_DELAY_OFFSET)
class GetAllDelayOffset(Header):
    """Progress of the delay levels, as the JSON of delayOffset.json."""


UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Field beside those of `QueryMessage`: "true" when the key is a unique id."""


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
    index_type: str | None = None
    """K: a key, U: a unique id, T: a tag."""
    last_key: str | None = None
    """Where a query of RocketMQ's RocksDB index continues; without meaning for index files."""


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
