"""The rights that a request needs, by its code.

Where RocketMQ has a rule, the rule here is the same (`DefaultAuthorizationContextBuilder` and the
`RocketMQAction` of the headers in Apache RocketMQ 5.5). RocketMQ lets every user send the requests that it
has no rule for. Here that holds for those that only read figures and settings; for the others there are rules
of the same kind, and a request without any rule is for super users. Requests that name a message by its
offset also need a right on that message's topic; RocketMQ looks only at what the request says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from batonmq.broker.auth.core import Need
from batonmq.broker.auth.policies import Action, Kind, Resource, group, topic
from batonmq.protocol.bodies.clients import HeartbeatData, LockBatchRequestBody
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from batonmq.protocol.bodies.pop import BatchAckMessageRequestBody
from batonmq.protocol.bodies.topics import CreateTopicListRequestBody
from batonmq.protocol.bodies.transactions import MOST_ENDS, TransactionEnds
from batonmq.protocol.codes import RequestCode as Code
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.json import decode_request
from batonmq.protocol.message.ids import decode_message_id
from batonmq.protocol.names import RETRY_PREFIX, is_retry_topic, reply_topic

if TYPE_CHECKING:
    from batonmq.protocol.frame import Command


class Known(NamedTuple):
    """What rules know of the broker."""

    cluster: str
    topic_at: Callable[[int], str | None]
    """The topic that the message at a commit log offset was sent to; None if there is none."""
    half_topic_at: Callable[[int], str | None]
    """The topic that the half message at a commit log offset is for; None if there is none."""


Ext: TypeAlias = Mapping[str, str]
Rule: TypeAlias = "Callable[[Command, Known], Iterator[Need]]"
"""From a request to what it needs; any `Exception` refuses it."""
T = TypeVar("T")

_PUB, _SUB, _GET = (Action.PUB,), (Action.SUB,), (Action.GET,)
_UPDATE, _CREATE, _DELETE = (Action.UPDATE,), (Action.CREATE,), (Action.DELETE,)


def needs_of(command: Command, known: Known) -> tuple[Need, ...] | None:
    """What a request needs; None: only super users may send it. Raises `MQError`."""
    rule = RULES.get(command.code)
    if rule is None:
        return () if command.code in OPEN else None
    try:
        return tuple(rule(command, known))
    except (MQError, ValueError) as error:
        raise MQError(ResponseCode.NO_PERMISSION, f"parse authorization context error. {error}") from None


def _body(command: Command, kind: type[T]) -> T:
    return decode_request(command.body, kind)


def _of_topic(name: str, actions: tuple[Action, ...]) -> Iterator[Need]:
    """A topic; the retry topic of a group counts as the group."""
    yield Need(group(name) if is_retry_topic(name) else topic(name), actions)


def _fields(actions: tuple[Action, ...], **fields: Kind) -> Rule:
    """Rights on what the given header fields name; a field that is missing needs none. A field may name
    several, see `_SPLITTERS`."""

    def rule(command: Command, known: Known) -> Iterator[Need]:
        for name, kind in fields.items():
            for value in _values(command.ext, name):
                if kind is Kind.TOPIC:
                    yield from _of_topic(value, actions)
                else:
                    yield Need(Resource(kind, value), actions)

    return rule


_SPLITTERS: Final = {"topicList": ";", "filterGroups": ","}


def _values(ext: Ext, name: str) -> list[str]:
    if name not in ext:
        return []
    splitter = _SPLITTERS.get(name)
    return [each for each in ext[name].split(splitter) if each] if splitter else [ext[name]]


def _cluster(actions: tuple[Action, ...]) -> Rule:
    """A right on the broker's cluster."""

    def rule(command: Command, known: Known) -> Iterator[Need]:
        yield Need(Resource(Kind.CLUSTER, known.cluster), actions)

    return rule


def _of_message(rule: Rule, actions: tuple[Action, ...], offset_of: Callable[[Ext], int]) -> Rule:
    """What `rule` says, and rights on the topic of the message whose commit log offset the request names."""

    def both(command: Command, known: Known) -> Iterator[Need]:
        yield from rule(command, known)
        name = known.topic_at(offset_of(command.ext))
        if name is not None:
            yield from _of_topic(name, actions)

    return both


def _offset(ext: Ext) -> int:
    return int(ext.get("offset", "-1"))


def _offset_in_id(ext: Ext) -> int:
    """-1 without a message id. Raises `MessageFormatError`, a ValueError."""
    message_id = ext.get("msgId", "")
    return decode_message_id(message_id)[2] if message_id else -1


def to_send(name: str) -> Need:
    """What sending to a topic needs."""
    return Need(group(name), _SUB) if is_retry_topic(name) else Need(topic(name), _PUB)


def _send(topic_field: str) -> Rule:
    def rule(command: Command, known: Known) -> Iterator[Need]:
        yield to_send(command.ext.get(topic_field, ""))

    return rule


def _reply(topic_field: str) -> Rule:
    """A reply to the cluster's reply topic needs no right; whoever may consume a request may answer it."""

    def rule(command: Command, known: Known) -> Iterator[Need]:
        name = command.ext.get(topic_field, "")
        if name != reply_topic(known.cluster):
            yield to_send(name)

    return rule


def _topic_and_group(actions: tuple[Action, ...]) -> Rule:
    """Both; for its own retry topic, the group suffices. RocketMQ takes any retry topic for it."""

    def rule(command: Command, known: Known) -> Iterator[Need]:
        ext = command.ext
        name, consumer_group = ext.get("topic", ""), ext.get("consumerGroup", "")
        if name != RETRY_PREFIX + consumer_group:
            yield from _of_topic(name, actions)
        yield Need(group(consumer_group), actions)

    return rule


def _settle(consumer_group: str, name: str) -> Iterator[Need]:
    """An ack needs no right on the retry topic that pops of its group fill: the group suffices."""
    yield Need(group(consumer_group), _SUB)
    own = RETRY_PREFIX + consumer_group
    if name != own and not name.startswith((f"{own}_", f"{own}+")):
        yield from _of_topic(name, _SUB)


def _ack(command: Command, known: Known) -> Iterator[Need]:
    yield from _settle(command.ext.get("consumerGroup", ""), command.ext.get("topic", ""))


def _route(command: Command, known: Known) -> Iterator[Need]:
    name = command.ext.get("topic", "")
    if is_retry_topic(name):
        yield Need(group(name), (Action.SUB, Action.GET))
    else:
        yield Need(topic(name), (Action.PUB, Action.SUB, Action.GET))


def _end_transaction(command: Command, known: Known) -> Iterator[Need]:
    name = command.ext.get("topic", "")
    if name.strip():
        yield Need(topic(name), _PUB)
    stored = known.half_topic_at(int(command.ext.get("commitLogOffset", "-1")))
    if stored is not None and stored != name:
        yield to_send(stored)


def _end_transactions(command: Command, known: Known) -> Iterator[Need]:
    offsets = {end.commit_log_offset for end in _body(command, TransactionEnds).ends}
    if len(offsets) <= MOST_ENDS:  # more are refused, whoever asks
        names = {known.half_topic_at(offset) for offset in offsets}
        yield from (to_send(name) for name in names if name is not None)


def _heartbeat(command: Command, known: Known) -> Iterator[Need]:
    for consumer in _body(command, HeartbeatData).consumer_data_set:
        yield Need(group(consumer.group_name), _SUB)
        for subscription in consumer.subscription_data_set:
            if not is_retry_topic(subscription.topic):
                yield Need(topic(subscription.topic), _SUB)


def _unregister(command: Command, known: Known) -> Iterator[Need]:
    name = command.ext.get("consumerGroup", "")
    if name.strip():
        yield Need(group(name), _SUB)


def _locks(command: Command, known: Known) -> Iterator[Need]:
    asked = _body(command, LockBatchRequestBody)
    yield Need(group(asked.consumer_group), _SUB)
    for queue in asked.mq_set:
        if not is_retry_topic(queue.topic):
            yield Need(topic(queue.topic), _SUB)


def _batch_ack(command: Command, known: Known) -> Iterator[Need]:
    for ack in _body(command, BatchAckMessageRequestBody).acks:
        yield from _settle(ack.consumer_group, ack.topic)


def _new_topics(command: Command, known: Known) -> Iterator[Need]:
    for config in _body(command, CreateTopicListRequestBody).topic_config_list:
        yield Need(topic(config.topic_name or ""), _CREATE)


def _new_group(command: Command, known: Known) -> Iterator[Need]:
    yield Need(group(_body(command, SubscriptionGroupConfig).group_name), _CREATE)


def _new_groups(command: Command, known: Known) -> Iterator[Need]:
    for config in _body(command, SubscriptionGroupList).group_config_list:
        yield Need(group(config.group_name), _CREATE)


RULES: Final[Mapping[int, Rule]] = {
    # RocketMQ's own rules for single requests.
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
    Code.SEND_MESSAGE: _send("topic"),
    Code.SEND_MESSAGE_V2: _send("b"),
    Code.SEND_BATCH_MESSAGE: _send("b"),
    Code.RECALL_MESSAGE: _send("topic"),
    Code.END_TRANSACTION: _end_transaction,
    Code.CONSUMER_SEND_MSG_BACK: _of_message(_fields(_SUB, group=Kind.GROUP), _SUB, _offset),
    Code.PULL_MESSAGE: _topic_and_group(_SUB),
    Code.QUERY_MESSAGE: _fields((Action.SUB, Action.GET), topic=Kind.TOPIC),
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: _fields((Action.SUB, Action.GET), consumerGroup=Kind.GROUP),
    Code.QUERY_CONSUMER_OFFSET: _topic_and_group((Action.SUB, Action.GET)),
    Code.UPDATE_CONSUMER_OFFSET: _topic_and_group((Action.SUB, Action.UPDATE)),
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    # Its rules from the fields of headers.
    Code.ACK_MESSAGE: _ack,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _ack,
    Code.CLONE_GROUP_OFFSET: _fields(_UPDATE, destGroup=Kind.GROUP, topic=Kind.TOPIC),
    Code.CONSUME_MESSAGE_DIRECTLY: _of_message(
        _fields(_SUB, consumerGroup=Kind.GROUP, topic=Kind.TOPIC), _SUB, _offset_in_id
    ),
    Code.DELETE_SUBSCRIPTIONGROUP: _fields(_DELETE, groupName=Kind.GROUP),
    Code.DELETE_TOPIC_IN_BROKER: _fields(_DELETE, topic=Kind.TOPIC),
    Code.GET_CONSUMER_CONNECTION_LIST: _fields(_GET, consumerGroup=Kind.GROUP),
    Code.GET_CONSUMER_RUNNING_INFO: _fields(_GET, consumerGroup=Kind.GROUP),
    Code.GET_CONSUME_STATS: _fields(_GET, consumerGroup=Kind.GROUP, topic=Kind.TOPIC, topicList=Kind.TOPIC),
    Code.GET_EARLIEST_MSG_STORETIME: _fields(_GET, topic=Kind.TOPIC),
    Code.GET_MAX_OFFSET: _fields(_GET, topic=Kind.TOPIC),
    Code.GET_MIN_OFFSET: _fields(_GET, topic=Kind.TOPIC),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _fields(_GET, group=Kind.GROUP),
    Code.GET_TOPIC_CONFIG: _fields(_GET, topic=Kind.TOPIC),
    Code.GET_TOPIC_STATS_INFO: _fields(_GET, topic=Kind.TOPIC),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _fields(_GET, topic=Kind.TOPIC, group=Kind.GROUP),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _fields(_UPDATE, group=Kind.GROUP, topic=Kind.TOPIC),
    Code.NOTIFICATION: _fields(_SUB, consumerGroup=Kind.GROUP, topic=Kind.TOPIC),
    Code.PEEK_MESSAGE: _fields(_SUB, topic=Kind.TOPIC, consumerGroup=Kind.GROUP),
    Code.POLLING_INFO: _fields(_GET, consumerGroup=Kind.GROUP, topic=Kind.TOPIC),
    Code.POP_MESSAGE: _fields(_SUB, consumerGroup=Kind.GROUP, topic=Kind.TOPIC),
    Code.QUERY_CONSUME_QUEUE: _fields(_GET, topic=Kind.TOPIC, consumerGroup=Kind.GROUP),
    Code.QUERY_CONSUME_TIME_SPAN: _fields(_GET, topic=Kind.TOPIC, group=Kind.GROUP),
    Code.QUERY_CORRECTION_OFFSET: _fields(
        _GET, filterGroups=Kind.GROUP, compareGroup=Kind.GROUP, topic=Kind.TOPIC
    ),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _fields(_GET, group=Kind.GROUP, topic=Kind.TOPIC),
    Code.QUERY_TOPICS_BY_CONSUMER: _fields(_GET, group=Kind.GROUP),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _fields(_GET, topic=Kind.TOPIC),
    Code.RESUME_CHECK_HALF_MESSAGE: _of_message(_fields(_UPDATE, topic=Kind.TOPIC), _UPDATE, _offset_in_id),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _fields(_GET, topic=Kind.TOPIC),
    Code.UPDATE_AND_CREATE_TOPIC: _fields(_CREATE, topic=Kind.TOPIC),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _fields(_UPDATE, group=Kind.GROUP, topic=Kind.TOPIC),
    Code.VIEW_MESSAGE_BY_ID: _of_message(_fields(_GET, topic=Kind.TOPIC), (Action.SUB, Action.GET), _offset),
    # On the cluster.
    Code.AUTH_CREATE_USER: _cluster(_UPDATE),
    Code.AUTH_UPDATE_USER: _cluster(_UPDATE),
    Code.AUTH_DELETE_USER: _cluster(_UPDATE),
    Code.AUTH_GET_USER: _cluster(_GET),
    Code.AUTH_LIST_USER: _cluster(_GET),
    Code.AUTH_CREATE_ACL: _cluster(_UPDATE),
    Code.AUTH_UPDATE_ACL: _cluster(_UPDATE),
    Code.AUTH_DELETE_ACL: _cluster(_UPDATE),
    Code.AUTH_GET_ACL: _cluster(_GET),
    Code.AUTH_LIST_ACL: _cluster(_GET),
    Code.EXCHANGE_BROKER_HA_INFO: _cluster(_UPDATE),
    Code.GET_ALL_PRODUCER_INFO: _cluster(_GET),
    Code.GET_BROKER_CONSUME_STATS: _cluster(_GET),
    Code.GET_PRODUCER_CONNECTION_LIST: _cluster(_GET),
    Code.NOTIFY_BROKER_ROLE_CHANGED: _cluster(_UPDATE),
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _cluster(_UPDATE),
    Code.RESET_MASTER_FLUSH_OFFSET: _cluster(_UPDATE),
    Code.VIEW_BROKER_STATS_DATA: _cluster(_GET),
    # RocketMQ has no rule for these; they read or change what others have a rule for.
    Code.LITE_PULL_MESSAGE: _topic_and_group(_SUB),
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.PREPARE_BATCH: _send("b"),
    Code.SEND_REPLY_MESSAGE: _reply("topic"),
    Code.SEND_REPLY_MESSAGE_V2: _reply("b"),
    Code.END_TRANSACTIONS: _end_transactions,
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _new_topics,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _new_group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _new_groups,
    Code.UPDATE_AND_CREATE_STATIC_TOPIC: _fields(_CREATE, topic=Kind.TOPIC),
    Code.UPDATE_BROKER_CONFIG: _cluster(_UPDATE),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster(_UPDATE),
    Code.CLEAN_UNUSED_TOPIC: _cluster(_UPDATE),
    Code.DELETE_EXPIRED_COMMITLOG: _cluster(_UPDATE),
    Code.SET_MESSAGE_REQUEST_MODE: _cluster(_UPDATE),
}
"""What users other than super users must be allowed to do."""

OPEN: Final = frozenset(
    {
        Code.CHECK_CLIENT_CONFIG,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_EPOCH_CACHE,
        Code.GET_BROKER_HA_STATUS,
        Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS,
        Code.QUERY_ASSIGNMENT,
    }
)
"""What every user may send, as in RocketMQ."""
SUPER_ONLY: Final = frozenset(
    {
        Code.GET_ALL_ACCESS_CONTROL,
        Code.GET_ALL_CONSUMER_FILTER,
        Code.GET_ALL_RESET_OFFSET,
        Code.GET_ALL_TRANSACTION_CHECKS,
        Code.HAND_BACK,
        Code.PASS_ACCESS_CHANGE,
        Code.UNDO_QUEUE_LOCKS,
        Code.WATCH_TABLES,
    }
)
"""What brokers send each other. A request that is nowhere here is treated like these."""
