"""Topics and subscription groups."""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, Header, request


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


@request(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC)
class CreateStaticTopic(CreateTopic):
    """Create or change a topic and this broker's part of its logical queues; body
    `TopicQueueMappingDetail`."""


@request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
class CreateTopicList(Header):
    """Create or change topics; body `CreateTopicListRequestBody`."""


@request(RequestCode.DELETE_TOPIC_IN_BROKER)
class DeleteTopic(Header):
    """Delete a topic on this broker."""

    topic: str


@request(RequestCode.GET_TOPIC_CONFIG)
class GetTopicConfig(Header):
    """One topic; body `TopicConfig`, or `TopicConfigAndQueueMapping` with ``lo``."""

    topic: str
    lo: bool | None = None


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
