"""Bodies: what the real fastjson wrote, both ways, and what is not a body."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonmq.protocol.bodies.clients import (
    Connection,
    ConsumeFromWhere,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeType,
    GetConsumerStatusBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageModel,
    ProducerData,
    ResetOffsetBody,
    SubscriptionData,
)
from batonmq.protocol.bodies.common import DataVersion, KVTable, MessageQueue
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from batonmq.protocol.bodies.replication import (
    EpochEntry,
    EpochEntryCache,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
)
from batonmq.protocol.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from batonmq.protocol.bodies.statistics import (
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryCorrectionOffsetBody,
    TopicOffset,
    TopicStatsTable,
)
from batonmq.protocol.bodies.topics import (
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.json import Body, BodyError, decode, decode_request, encode

DATA = Path(__file__).parents[2] / "data" / "protocol"
QUEUE = MessageQueue("orders", "broker-a", 3)
BROKER = BrokerData(
    "DefaultCluster", "broker-a", {0: "10.0.0.1:10911", 2: "10.0.0.2:10911"}, enable_acting_master=True
)
VERSION = DataVersion(1_700_000_000_003, 5, 2)
SUBSCRIPTION = SubscriptionData("orders", "a || b", ["a"], [97], 1_700_000_000_002)

EXPECTED: dict[str, Any] = {
    "TopicRouteData": TopicRouteData([QueueData("broker-a", 4, 8, 6)], [BROKER]),
    "ClusterInfo": ClusterInfo({"broker-a": BROKER}, {"DefaultCluster": ["broker-a"]}),
    "TopicStatsTable": TopicStatsTable(0.0, {QUEUE: TopicOffset(1, 20, 1_700_000_000_000)}),
    "ConsumeStats": ConsumeStats({QUEUE: OffsetWrapper(20, 7, 0, 1_700_000_000_001)}, 2.5),
    "ResetOffsetBody": ResetOffsetBody({QUEUE: 12}),
    "GetConsumerStatusBody": GetConsumerStatusBody({QUEUE: 12}, {"client-1": {QUEUE: 12}}),
    "HeartbeatData": HeartbeatData(
        "10.0.0.9@7",
        [ProducerData("producers")],
        [
            ConsumerData(
                "consumers",
                ConsumeType.PASSIVELY,
                MessageModel.CLUSTERING,
                ConsumeFromWhere.FIRST_OFFSET,
                [SUBSCRIPTION],
            )
        ],
    ),
    "TopicConfigSerializeWrapper": TopicConfigSerializeWrapper(
        {"orders": TopicConfig("orders", 8, 8, attributes={"message.type": "NORMAL"})}, VERSION
    ),
    "SubscriptionGroupWrapper": SubscriptionGroupWrapper(
        {"consumers": SubscriptionGroupConfig("consumers")}, {}, VERSION
    ),
    "LockBatchRequestBody": LockBatchRequestBody("consumers", "10.0.0.9@7", False, [QUEUE]),
    "LockBatchResponseBody": LockBatchResponseBody([QUEUE]),
    "HARuntimeInfo": HARuntimeInfo(
        True, 4096, 1, [HAConnectionRuntimeInfo("10.0.0.2:40000", 4000, 96, True)]
    ),
    "EpochEntryCache": EpochEntryCache(
        "DefaultCluster", "broker-a", 1, [EpochEntry(1, 0), EpochEntry(2, 500)], 900
    ),
    "SyncStateSet": SyncStateSetBody((1, 2), 3),
    "QueryCorrectionOffsetBody": QueryCorrectionOffsetBody({0: 5, 1: 6}),
    "ConsumerConnection": ConsumerConnection(
        [Connection("10.0.0.9@7", "10.0.0.9:50000", "JAVA", 475)],
        {},
        ConsumeType.PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.LAST_OFFSET,
    ),
    "KVTable": KVTable({"msgPutTotalTodayNow": "12"}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_bodies_of_the_real_rocketmq(name: str) -> None:
    data = (DATA / f"{name}.json").read_bytes()
    assert decode(data, type(EXPECTED[name])) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_our_own_bodies(name: str) -> None:
    value = EXPECTED[name]
    assert decode(encode(value), type(value)) == value


def test_every_member_that_java_writes_is_known() -> None:
    """A misspelt member would be ignored in silence."""
    for name, value in EXPECTED.items():
        java = (DATA / f"{name}.json").read_text()
        known = names_of(type(value))
        for member in members(java):
            assert member in known, f"{name}.{member}"


def members(text: str) -> set[str]:
    return set(re.findall(r'"([a-z][A-Za-z]+)":', text)) - {"broker-a", "msgPutTotalTodayNow"}


def names_of(kind: Any) -> set[str]:
    info = msgspec.json.schema_components([kind])[1]
    found = {name for part in info.values() for name in part.get("properties", ())}
    return found | {"orders", "consumers"}


def test_standard_json_has_quoted_keys() -> None:
    encoded = encode(EXPECTED["TopicRouteData"])
    assert json.loads(encoded)["brokerDatas"][0]["brokerAddrs"] == {
        "0": "10.0.0.1:10911",
        "2": "10.0.0.2:10911",
    }


def test_maps_of_maps_inside_lists() -> None:
    stats = ConsumeStatsList([{"g": [ConsumeStats({QUEUE: OffsetWrapper(1)}, 2.0)]}], "10.0.0.1:10911", 4)
    assert decode(encode(stats), ConsumeStatsList) == stats


def test_an_object_key_may_be_quoted() -> None:
    data = rb'{"offsetTable":{"{\"topic\":\"orders\",\"brokerName\":\"broker-a\",\"queueId\":3}":12}}'
    assert decode(data, ResetOffsetBody) == ResetOffsetBody({QUEUE: 12})


def test_nulls_are_absent_members() -> None:
    data = b'{"brokerDatas":null,"queueDatas":[{"brokerName":"b","perm":null}]}'
    assert decode(data, TopicRouteData) == TopicRouteData([QueueData("b")])


def heartbeat_of(**members: Any) -> ConsumerData:
    group = {"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"} | members
    data = json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
    return decode_request(data, HeartbeatData).consumer_data_set[0]


def test_members_of_enums_are_read_in_any_case_as_go_clients_write_them() -> None:
    assert heartbeat_of(messageModel="Clustering").message_model is MessageModel.CLUSTERING
    assert heartbeat_of(messageModel="BroadCasting").message_model is MessageModel.BROADCASTING


def test_members_of_enums_are_read_by_their_position() -> None:
    group = heartbeat_of(messageModel=0, consumeType=2, consumeFromWhere=4)
    assert group.message_model is MessageModel.BROADCASTING
    assert group.consume_type is ConsumeType.POP
    assert group.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    answer = decode(b'{"order":false,"consumeResult":1,"remark":""}', ConsumeMessageDirectlyResult)
    assert answer.consume_result is ConsumeResult.LATER
    with pytest.raises(BodyError):
        heartbeat_of(messageModel=2)


@pytest.mark.parametrize("text", ["UNKOWN", ""])
def test_an_unknown_member_of_an_enum_is_absent(text: str) -> None:
    group = heartbeat_of(consumeFromWhere=text)
    assert group.consume_from_where is None
    assert group.message_model is MessageModel.CLUSTERING


def test_numbers_fit_texts_and_an_empty_text_is_no_number() -> None:
    group = heartbeat_of(groupName=5, subscriptionDataSet=[{"topic": "t", "subVersion": "", "subString": 7}])
    assert group.group_name == "5"
    assert group.subscription_data_set == [SubscriptionData("t", "7")]
    with pytest.raises(BodyError):
        heartbeat_of(subscriptionDataSet=[{"topic": "t", "subVersion": "x"}])


def test_a_last_comma_and_texts_of_another_encoding_are_read() -> None:
    data = '{"clientID":"\u6d88@1","producerDataSet":[{"groupName":"p"},],}'.encode("gbk")
    read = decode_request(data, HeartbeatData)
    assert read.client_id.endswith("@1")
    assert read.producer_data_set == [ProducerData("p")]
    with pytest.raises(BodyError):
        decode_request(b'{"clientID":"c",,}', HeartbeatData)


def test_a_stack_that_a_go_client_writes_with_its_line_ends_is_read() -> None:
    table = b'{"topic":"T","brokerName":"b","queueId":0}:{"commitOffset":1,"dropped":false}'
    data = b'{"properties":{},"mqTable":{' + table + b'}, "jstack":"goroutine 1:\n\tmain.main\\t" }'
    info = decode(data, ConsumerRunningInfo)
    assert info.jstack == "goroutine 1:\n\tmain.main\t"
    assert info.mq_table[MessageQueue("T", "b", 0)].commit_offset == 1


INVALID = [
    b"",
    b"{",
    b"[]",
    b"{}x",
    b'{"table":5}',
    b'{"table":{1 2}}',
    b"\xff",
    b"{" * 5000,
    b'{"table":{"a":}}',
]


@pytest.mark.parametrize("data", INVALID)
def test_what_is_not_a_body_is_the_senders_error(data: bytes) -> None:
    with pytest.raises(BodyError) as caught:
        decode(data, KVTable)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert isinstance(caught.value, ValueError)


def refused_quickly(data: bytes, kind: type[Any] = HeartbeatData) -> BodyError:
    """The refusal, which must cost the reader little: half a second of processor on any machine."""
    began = time.process_time()
    with pytest.raises(BodyError) as caught:
        decode_request(data, kind)
    assert time.process_time() - began < 0.5
    return caught.value


BOMBS = {
    "objects": b'{"consumerDataSet":[' + b"{}," * 5_000_000 + b"{}]}",
    "arrays in a member that is skipped": b'{"x":' + b"[" * 8_000_000 + b"]" * 8_000_000 + b"}",
    "few arrays in a member that is skipped": b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "objects of the wrong shape": b'{"consumerDataSet":[' + b'{"groupName":1},' * 400_000 + b"{}]}",
    "a number": b'{"heartbeatFingerprint":' + b"1" * 16_000_000 + b"}",
    "a number in quotes": b'{"heartbeatFingerprint":"' + b"1" * 16_000_000 + b'"}',
    "a string that does not end": b'{"clientID":"' + b"\\\\" * 8_000_000 + b"]}",
    "bare words": b"{" + b"a:" * 8_000_000 + b"}",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_request_that_would_keep_its_reader_busy_is_refused(bomb: str) -> None:
    refused_quickly(BOMBS[bomb])


def test_a_large_registration_is_read() -> None:
    topics = {f"topic{i}": TopicConfig(f"topic{i}") for i in range(50_000)}
    body = RegisterBrokerBody(TopicConfigAndMappingSerializeWrapper(topics))
    data = encode(body)
    assert len(data) > 4 << 20 and decode_request(data, RegisterBrokerBody) == body
    small = b'{"topicConfigSerializeWrapper":{"topicQueueMappingInfoMap":{"t":{"currIdMap":{0:1}}}}}'
    assert decode_request(small, RegisterBrokerBody) == decode(small, RegisterBrokerBody)


@given(st.text(alphabet='{}[]":,0123456789 abtrue\\-."', max_size=60))
def test_any_text_either_decodes_or_raises_body_error(text: str) -> None:
    for kind in (KVTable, TopicStatsTable, TopicRouteData):
        with contextlib.suppress(BodyError):
            decode(text.encode(), kind)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


class Anything(Body):
    a: Any = None


@given(json_values)
def test_the_lenient_reader_reads_standard_json(value: Any) -> None:
    from batonmq.protocol.json import _Reader

    assert _Reader(json.dumps({"a": value}, indent=1)).read() == {"a": value}
