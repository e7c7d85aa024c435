"""Requests of administrators to a broker."""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, Header, request


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
    """Reset a group's offsets to a time (ms; negative: the end) or an offset. Body `ResetOffsetBody`."""

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
