"""Which rights requests need: every request that a broker answers has a rule, and what the rules say."""

from __future__ import annotations

from typing import Any

import pytest

from batonmq.broker.auth.core import Need
from batonmq.broker.auth.guard import HINTS
from batonmq.broker.auth.needs import OPEN, RULES, SUPER_ONLY, Known, needs_of
from batonmq.broker.auth.policies import Action, Kind, Resource
from batonmq.protocol.bodies.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    SubscriptionData,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from batonmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from batonmq.protocol.bodies.topics import CreateTopicListRequestBody, TopicConfig
from batonmq.protocol.bodies.transactions import MOST_ENDS, TransactionEnd, TransactionEnds
from batonmq.protocol.codes import RequestCode as Code
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.json import encode
from batonmq.protocol.message.ids import encode_message_id, pack_host

MESSAGES = {7: "T", 8: "%RETRY%g", 9: "S"}
KNOWN = Known("c", MESSAGES.get, MESSAGES.get)
AT_9 = encode_message_id(pack_host("127.0.0.1", 1), 9)
HEARTBEAT = HeartbeatData(
    consumer_data_set=[
        ConsumerData(
            group_name="g",
            subscription_data_set=[SubscriptionData(topic="T"), SubscriptionData(topic="%RETRY%g")],
        )
    ]
)
LOCKS = LockBatchRequestBody(
    consumer_group="g", mq_set=[MessageQueue("T", "b", 0), MessageQueue("%RETRY%g", "b", 0)]
)
ACKS = BatchAckMessageRequestBody(acks=[BatchAck(consumer_group="g", topic="T")])
ENDS = TransactionEnds(ends=[TransactionEnd(0, offset, "") for offset in (9, 1, 9)])
TOO_MANY_ENDS = TransactionEnds(ends=[TransactionEnd(0, offset, "") for offset in range(MOST_ENDS + 1)])
PULL = {"topic": "T", "consumerGroup": "g"}
RETRY = {"topic": "%RETRY%g", "consumerGroup": "g"}

CASES: list[tuple[Code, dict[str, str], Any, list[str]]] = [
    (Code.SEND_MESSAGE, {"topic": "T"}, None, ["Topic:T Pub"]),
    (Code.SEND_MESSAGE, {"topic": "%RETRY%g"}, None, ["Group:g Sub"]),
    (Code.SEND_MESSAGE_V2, {"b": "T"}, None, ["Topic:T Pub"]),
    (Code.SEND_MESSAGE_V2, {"topic": "T"}, None, ["Topic: Pub"]),
    (Code.SEND_BATCH_MESSAGE, {"b": "%DLQ%g"}, None, ["Topic:%DLQ%g Pub"]),
    (Code.PREPARE_BATCH, {"b": "T"}, None, ["Topic:T Pub"]),
    (Code.RECALL_MESSAGE, {"topic": "T"}, None, ["Topic:T Pub"]),
    (Code.END_TRANSACTION, {"topic": "T"}, None, ["Topic:T Pub"]),
    (Code.END_TRANSACTION, {}, None, []),
    (Code.CONSUMER_SEND_MSG_BACK, {"group": "g", "originTopic": "T"}, None, ["Group:g Sub"]),
    (Code.PULL_MESSAGE, PULL, None, ["Topic:T Sub", "Group:g Sub"]),
    (Code.PULL_MESSAGE, RETRY, None, ["Group:g Sub"]),
    (Code.PULL_MESSAGE, {**RETRY, "consumerGroup": "h"}, None, ["Group:g Sub", "Group:h Sub"]),
    (Code.PULL_MESSAGE, {**PULL, "topic": "%RETRY%g_T"}, None, ["Group:g_T Sub", "Group:g Sub"]),
    (Code.LITE_PULL_MESSAGE, PULL, None, ["Topic:T Sub", "Group:g Sub"]),
    (Code.POP_MESSAGE, PULL, None, ["Group:g Sub", "Topic:T Sub"]),
    (Code.ACK_MESSAGE, {**PULL, "topic": "%RETRY%g_T"}, None, ["Group:g Sub"]),
    (Code.POP_MESSAGE, {**PULL, "topic": "%RETRY%g_T"}, None, ["Group:g Sub", "Group:g_T Sub"]),
    (Code.CHANGE_MESSAGE_INVISIBLETIME, {**PULL, "topic": "%RETRY%g+T"}, None, ["Group:g Sub"]),
    (Code.ACK_MESSAGE, {**PULL, "topic": "%RETRY%ghost"}, None, ["Group:g Sub", "Group:ghost Sub"]),
    (Code.ACK_MESSAGE, {**PULL, "topic": "%RETRY%other"}, None, ["Group:g Sub", "Group:other Sub"]),
    (Code.BATCH_ACK_MESSAGE, {}, ACKS, ["Group:g Sub", "Topic:T Sub"]),
    (Code.QUERY_MESSAGE, {"topic": "T"}, None, ["Topic:T Sub,Get"]),
    (Code.QUERY_CONSUMER_OFFSET, PULL, None, ["Topic:T Sub,Get", "Group:g Sub,Get"]),
    (Code.UPDATE_CONSUMER_OFFSET, RETRY, None, ["Group:g Sub,Update"]),
    (Code.HEART_BEAT, {}, HEARTBEAT, ["Group:g Sub", "Topic:T Sub"]),
    (Code.HEART_BEAT, {}, HeartbeatData(), []),
    (Code.UNREGISTER_CLIENT, {"producerGroup": "p"}, None, []),
    (Code.UNREGISTER_CLIENT, {"consumerGroup": "g"}, None, ["Group:g Sub"]),
    (Code.LOCK_BATCH_MQ, {}, LOCKS, ["Group:g Sub", "Topic:T Sub"]),
    (Code.UNLOCK_BATCH_MQ, {}, LOCKS, ["Group:g Sub", "Topic:T Sub"]),
    (Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, None, ["Group:g Sub,Get"]),
    (Code.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, None, ["Topic:T Create"]),
    (
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        {},
        CreateTopicListRequestBody(topic_config_list=[TopicConfig("A"), TopicConfig("B")]),
        ["Topic:A Create", "Topic:B Create"],
    ),
    (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, SubscriptionGroupConfig("g"), ["Group:g Create"]),
    (
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        SubscriptionGroupList(group_config_list=[SubscriptionGroupConfig("g")]),
        ["Group:g Create"],
    ),
    (Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, None, ["Topic:T Delete"]),
    (
        Code.GET_CONSUME_STATS,
        {"consumerGroup": "g", "topicList": "A;B"},
        None,
        ["Group:g Get", "Topic:A Get", "Topic:B Get"],
    ),
    (Code.VIEW_MESSAGE_BY_ID, {"offset": "1"}, None, []),
    (Code.VIEW_MESSAGE_BY_ID, {"offset": "7"}, None, ["Topic:T Sub,Get"]),
    (Code.VIEW_MESSAGE_BY_ID, {"offset": "9", "topic": "T"}, None, ["Topic:T Get", "Topic:S Sub,Get"]),
    (Code.VIEW_MESSAGE_BY_ID, {"offset": "8"}, None, ["Group:g Sub,Get"]),
    (Code.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": "9"}, None, ["Group:g Sub", "Topic:S Sub"]),
    (Code.END_TRANSACTION, {"topic": "T", "commitLogOffset": "7"}, None, ["Topic:T Pub"]),
    (Code.END_TRANSACTION, {"topic": "T", "commitLogOffset": "9"}, None, ["Topic:T Pub", "Topic:S Pub"]),
    (Code.END_TRANSACTION, {"commitLogOffset": "8"}, None, ["Group:g Sub"]),
    (Code.END_TRANSACTIONS, {}, ENDS, ["Topic:S Pub"]),
    (Code.END_TRANSACTIONS, {}, TOO_MANY_ENDS, []),
    (
        Code.CONSUME_MESSAGE_DIRECTLY,
        {"consumerGroup": "g", "msgId": AT_9},
        None,
        ["Group:g Sub", "Topic:S Sub"],
    ),
    (Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": AT_9}, None, ["Topic:S Update"]),
    (Code.SEND_REPLY_MESSAGE, {"topic": "c_REPLY_TOPIC"}, None, []),
    (Code.SEND_REPLY_MESSAGE_V2, {"b": "c_REPLY_TOPIC"}, None, []),
    (Code.SEND_REPLY_MESSAGE_V2, {"b": "T"}, None, ["Topic:T Pub"]),
    (Code.UPDATE_BROKER_CONFIG, {}, None, ["Cluster:c Update"]),
    (Code.AUTH_LIST_USER, {}, None, ["Cluster:c Get"]),
    (Code.GET_BROKER_RUNTIME_INFO, {}, None, []),
]


def shown(need: Need) -> str:
    return f"{need.resource.key} {','.join(action.value for action in need.actions)}"


@pytest.mark.parametrize(("code", "ext", "body", "expected"), CASES)
def test_what_a_request_needs(code: Code, ext: dict[str, str], body: Any, expected: list[str]) -> None:
    found = needs_of(Command(int(code), ext, encode(body) if body is not None else b""), KNOWN)
    assert found is not None
    assert [shown(need) for need in found] == expected


@pytest.mark.parametrize(
    "code", [Code.HEART_BEAT, Code.LOCK_BATCH_MQ, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP]
)
@pytest.mark.parametrize("body", [b"", b"[", b"\xff", b"[1]"])
def test_a_body_that_names_no_resources_is_refused(code: Code, body: bytes) -> None:
    with pytest.raises(MQError, match="parse authorization context error") as caught:
        needs_of(Command(int(code), {}, body), KNOWN)
    assert caught.value.code == 16


@pytest.mark.parametrize("code", [Code.VIEW_MESSAGE_BY_ID, Code.CONSUMER_SEND_MSG_BACK])
def test_an_offset_that_is_not_a_number_is_refused(code: Code) -> None:
    with pytest.raises(MQError, match="parse authorization context error"):
        needs_of(Command(int(code), {"offset": "x"}), KNOWN)


def test_a_request_without_a_rule_is_for_super_users() -> None:
    for code in (*SUPER_ONLY, 59_999):
        assert needs_of(Command(int(code), {}), KNOWN) is None


def test_every_code_is_in_one_place_only() -> None:
    places = [set(RULES), set(OPEN), set(SUPER_ONLY)]
    assert sum(map(len, places)) == len(set().union(*places))


def test_a_need_names_resources_and_no_patterns() -> None:
    found = needs_of(Command(int(Code.SEND_MESSAGE_V2), {"b": "Ord*"}), KNOWN)
    assert found == (Need(Resource(Kind.TOPIC, "Ord*"), (Action.PUB,)),)
    assert set(RULES) >= HINTS, "hints have RocketMQ's rule, and are exempt from it"
