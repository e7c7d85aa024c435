"""Names of topics and consumer groups: what is allowed, which belong to the system, what they stand for.

Source: `TopicValidator`, `NamespaceUtil` and `MixAll` of Apache RocketMQ 5.
"""

from __future__ import annotations

import re
from typing import Final

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError

TOPIC_MAX_LENGTH = 127
GROUP_MAX_LENGTH = 120
"""A group's name must leave room for the prefixes of its retry topics."""
RETRY_TOPIC_MAX_LENGTH = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LIGHT_PREFIX: Final = "%LMQ%"
"""How the names of light queues begin, and of groups that consume them without being created."""
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
_REVIVE_PREFIX = f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group of administrators' tools."""
PREDEFINED_GROUPS: Final = frozenset(
    {
        TOOLS_GROUP,
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    }
)
"""Groups that are no user's, beside those of `is_system_group`."""

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The template of topics that are created by the first message for them."""
DEFAULT_TOPIC_QUEUES = 4
"""Queues that clients ask for, and use, of such a topic (RocketMQ's `defaultTopicQueueNums`)."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT = "OFFSET_MOVED_EVENT"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
"""Where messages with an exact time of delivery wait."""
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets say how far half and op messages are checked."""
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group whose offsets say how far checkpoints and acks of pop consumers are settled."""
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""Namespace of the key-value configuration that holds the queues of ordered topics."""

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        CHECKPOINT_TOPIC,
    }
)
_OF_ALL_TOPICS = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC}
)
NOT_ALLOWED_TO_SEND = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
"""Topics that brokers write themselves; a client's message to one is refused."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_RULE = "^[%|a-zA-Z0-9_-]+$"


def topic_error(topic: str | None) -> str | None:
    """Why this may not be the name of a topic; None if it may."""
    if topic is None or not topic.strip():
        return "The specified topic is blank."
    if _LEGAL.fullmatch(topic) is None:
        return f"The specified topic: {topic}, contains illegal characters, allowing only {_RULE}"
    if topic == LIGHT_PREFIX:
        return f"The specified topic: {topic}, is illegal: the name of the light queue behind it is missing"
    limit = RETRY_TOPIC_MAX_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_MAX_LENGTH
    if len(topic) > limit:
        return f"The specified topic: {topic}, is longer than topic max length: {limit}"
    return None


def group_error(group: str | None) -> str | None:
    """Why this may not be the name of a consumer or producer group; None if it may."""
    if group is None or not group.strip():
        return "The specified group is blank."
    if _LEGAL.fullmatch(group) is None:
        return f"The specified group: {group}, contains illegal characters, allowing only {_RULE}"
    if len(group) > GROUP_MAX_LENGTH:
        return f"The specified group: {group}, is longer than group max length: {GROUP_MAX_LENGTH}"
    return None


def check_topic(topic: str | None, code: int = ResponseCode.SYSTEM_ERROR) -> None:
    """Raises `MQError` with ``code`` unless the name is allowed."""
    error = topic_error(topic)
    if error is not None:
        raise MQError(code, error)


def check_group(group: str | None, code: int = ResponseCode.SYSTEM_ERROR) -> None:
    """Raises `MQError` with ``code`` unless the name is allowed."""
    error = group_error(group)
    if error is not None:
        raise MQError(code, error)


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def holds_all_topics(topic: str) -> bool:
    """Whether brokers keep messages, or what they know of messages, of all topics in this one."""
    return topic in _OF_ALL_TOPICS or topic.startswith(_REVIVE_PREFIX)


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """The topic of messages that a group could not consume and will try again."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of messages that a group failed to consume too often."""
    return DLQ_PREFIX + group


def pop_retry_topic(group: str, topic: str, *, v2: bool) -> str:
    """The topic of messages of `topic` that a pop consumer of `group` did not acknowledge in time.

    `v2` (`enableRetryTopicV2`): with "+", so that group and topic can be told apart.
    """
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def group_of_retry_topic(topic: str) -> str:
    """The group whose retry topic this is. Without "+" the name of another topic may be part of it: only who
    knows the group can take that off."""
    return topic.removeprefix(RETRY_PREFIX).partition("+")[0]


def revive_topic(cluster: str) -> str:
    """The topic of the checkpoints and acks of pop consumers."""
    return f"{_REVIVE_PREFIX}{cluster}"


def reply_topic(cluster: str) -> str:
    """The topic that replies to request messages are stored in."""
    return f"{cluster}_REPLY_TOPIC"


def is_light(name: str) -> bool:
    """Whether a topic is a light queue, or a group one that exists without being created. The prefix alone,
    which RocketMQ takes for one (`MixAll.isLmq`), is none."""
    return name.startswith(LIGHT_PREFIX) and name != LIGHT_PREFIX


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dead_letter_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)
