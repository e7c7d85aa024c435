"""Statistics for tools, compared with bodies recorded from RocketMQ 5.5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.conftest import START_MS, Served
from tests.unit.broker.fakes import FakeConnection, ask, json_of, plain_keys
from tests.unit.broker.test_handlers_client import heartbeat

from batonmq.protocol.bodies.statistics import ConsumeStats, ConsumeStatsList, TopicStatsTable
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import (
    GetConsumeStats,
    GetConsumeStatsInBroker,
    GetTopicStatsInfo,
    QueryConsumeTimeSpan,
    QuerySubscriptionByConsumer,
    QueryTopicConsumeByWho,
    QueryTopicsByConsumer,
    ViewBrokerStatsData,
)
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.json import decode
from batonmq.protocol.registry import Header

WIRE = Path(__file__).parents[2] / "data" / "broker" / "wire"


def java(name: str) -> Any:
    return json.loads(plain_keys((WIRE / name).read_bytes()))


def shape(value: Any) -> Any:
    """The shape of a body: keys and types, without values."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def queue(queue_id: int) -> str:
    return f'{{"brokerName": "broker-a", "queueId": {queue_id}, "topic": "TopicJ"}}'


async def test_topic_stats(served: Served) -> None:
    served.put(0, b"1")
    served.put(0, b"2")
    reply = await ask(served.dispatcher, GetTopicStatsInfo(topic="TopicJ"))
    ours = json_of(reply)
    assert ours["offsetTable"][queue(0)] == {
        "minOffset": 0,
        "maxOffset": 2,
        "lastUpdateTimestamp": START_MS + 2_000,
    }
    assert ours["offsetTable"][queue(3)] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
    assert shape(ours) == shape(java("topicstats.json"))
    assert isinstance(reply.body, bytes) and len(decode(reply.body, TopicStatsTable).offset_table) == 4


@pytest.mark.parametrize(
    "header", [GetTopicStatsInfo(topic="nope"), QueryConsumeTimeSpan(topic="nope", group="g")]
)
async def test_unknown_topics(served: Served, header: Header) -> None:
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, header)
    assert (refused.value.code, refused.value.remark) == (17, "topic[nope] not exist")


async def test_consume_stats(served: Served) -> None:
    for _ in range(3):
        served.put(0, b"x")
    served.broker.tables.offsets.commit("GroupJ", "TopicJ", 0, 1)
    served.broker.tables.offsets.commit_pulled("GroupJ", "TopicJ", 0, 2)
    reply = await ask(served.dispatcher, GetConsumeStats(consumer_group="GroupJ"))
    ours = json_of(reply)
    assert ours["offsetTable"][queue(0)] == {
        "brokerOffset": 3,
        "consumerOffset": 1,
        "pullOffset": 2,
        "lastTimestamp": START_MS + 1_000,
    }
    assert shape(ours) == shape(java("consumestats.json"))
    none = json_of(await ask(served.dispatcher, GetConsumeStats(consumer_group="nobody")))
    assert none == java("consumestats_none.json")


async def test_consume_stats_omit_topics_that_the_connected_group_does_not_subscribe(served: Served) -> None:
    served.broker.tables.topics.update(TopicConfig(topic_name="Old", read_queue_nums=1, write_queue_nums=1))
    for topic in ("TopicJ", "Old", "Deleted"):
        served.broker.tables.offsets.commit("GroupJ", topic, 0, 0)

    async def topics(**fields: str) -> set[str]:
        header = GetConsumeStats(consumer_group="GroupJ", **fields)
        reply = await ask(served.dispatcher, header)
        assert isinstance(reply.body, bytes)
        return {q.topic for q in decode(reply.body, ConsumeStats).offset_table}

    assert await topics() == {"TopicJ", "Old"}
    await ask(served.dispatcher, Heartbeat(), heartbeat(), connection=FakeConnection())
    assert await topics() == {"TopicJ"}
    assert await topics(topic="Old") == set()
    assert await topics(topic_list="Old;TopicJ") == {"TopicJ", "Old"}


async def test_consume_stats_of_all_groups(served: Served) -> None:
    served.put(0, b"x")
    served.put(0, b"x")
    served.broker.tables.subscriptions.get_or_create("GroupJ")
    served.broker.tables.offsets.commit("GroupJ", "TopicJ", 0, 1)
    reply = await ask(served.dispatcher, GetConsumeStatsInBroker(is_order=False))
    ours = json_of(reply)
    assert (ours["totalDiff"], ours["brokerAddr"]) == (1, "10.0.0.1:10911")
    assert set(ours) == set(java("brokerconsumestats.json"))
    by_group = {group: stats for entry in ours["consumeStatsList"] for group, stats in entry.items()}
    assert by_group["GroupJ"][0]["offsetTable"][queue(0)]["brokerOffset"] == 2
    assert by_group["TOOLS_CONSUMER"] == []
    ordered = json_of(await ask(served.dispatcher, GetConsumeStatsInBroker(is_order=True)))
    assert ordered["totalDiff"] == 0
    assert decode((WIRE / "hastatus.json").read_bytes(), ConsumeStatsList) is not None


async def test_time_span(served: Served) -> None:
    for _ in range(3):
        served.put(0, b"x")
    served.broker.tables.offsets.commit("GroupJ", "TopicJ", 0, 2)
    ours = json_of(await ask(served.dispatcher, QueryConsumeTimeSpan(topic="TopicJ", group="GroupJ")))
    first, second, *_ = ours["consumeTimeSpanSet"]
    assert first["minTimeStamp"] == START_MS + 1_000 and first["maxTimeStamp"] == START_MS + 3_000
    assert first["consumeTimeStamp"] == START_MS + 2_000 and first["delayTime"] == 0
    assert second["minTimeStamp"] == -1 and second["delayTime"] == 0
    served.clock.advance(5_000)
    again = json_of(await ask(served.dispatcher, QueryConsumeTimeSpan(topic="TopicJ", group="GroupJ")))
    assert again["consumeTimeSpanSet"][0]["delayTime"] == 5_000


async def test_who_consumes_what(served: Served) -> None:
    await ask(served.dispatcher, Heartbeat(), heartbeat())
    served.broker.tables.offsets.commit("Offline", "TopicJ", 0, 1)
    groups = json_of(await ask(served.dispatcher, QueryTopicConsumeByWho(topic="TopicJ")))
    assert groups == {"groupList": ["GroupJ", "Offline"]}
    topics = json_of(await ask(served.dispatcher, QueryTopicsByConsumer(group="Offline")))
    assert topics == {"topicList": ["TopicJ"], "brokerAddr": "10.0.0.1:10911"}
    ours = json_of(await ask(served.dispatcher, QuerySubscriptionByConsumer(group="GroupJ", topic="TopicJ")))
    recorded = java("subbyconsumer.json")
    recorded["subscriptionData"]["subVersion"] = 1
    assert ours == recorded


async def test_statistics(served: Served) -> None:
    served.broker.stats.count_put("TopicJ", 2, 518)
    served.broker.stats.sample(served.clock.now_ms() + 10_000)
    served.broker.stats.count_put("TopicJ", 4, 518)
    served.broker.stats.sample(served.clock.now_ms() + 20_000)
    header = ViewBrokerStatsData(stats_name="TOPIC_PUT_NUMS", stats_key="TopicJ")
    ours = json_of(await ask(served.dispatcher, header))
    assert ours["statsMinute"] == {"sum": 4, "tps": 0.4, "avgpt": 4.0}
    assert shape(ours) == shape(java("stats.json"))
    with pytest.raises(MQError) as refused:
        header = ViewBrokerStatsData(stats_name="TOPIC_PUT_NUMS", stats_key="nope")
        await ask(served.dispatcher, header)
    assert refused.value.remark == "The stats <TOPIC_PUT_NUMS> <nope> not exist"


async def test_statistics_of_the_whole_broker_have_the_clusters_name_as_key(served: Served) -> None:
    stats, cluster = served.broker.stats, served.broker.settings.broker.broker_cluster_name
    stats.count_put("TopicJ", 2, 100)
    stats.count_put("SCHEDULE_TOPIC_XXXX", 3, 100)
    stats.count_get("G", "TopicJ", 4, 100)
    stats.sample(served.clock.now_ms() + 10_000)
    expected = {
        "BROKER_PUT_NUMS": 5,
        "BROKER_GET_NUMS": 4,
        "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": 2,
        "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": 4,
    }
    for name, total in expected.items():
        body = json_of(await ask(served.dispatcher, ViewBrokerStatsData(name, cluster)))
        assert body["statsMinute"]["sum"] == total, name
    with pytest.raises(MQError, match="The stats <BROKER_PUT_NUMS> <nope> not exist"):
        await ask(served.dispatcher, ViewBrokerStatsData("BROKER_PUT_NUMS", "nope"))
