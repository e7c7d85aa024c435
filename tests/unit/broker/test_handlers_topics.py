"""Topics and groups over the wire: codes and remarks as a RocketMQ 5.5 broker was recorded to answer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from tests.unit.broker.conftest import Served
from tests.unit.broker.fakes import ask, json_of

from batonmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupList
from batonmq.protocol.bodies.topics import CreateTopicListRequestBody, TopicConfig
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import topics as wire
from batonmq.protocol.names import TIMER_TOPIC
from batonmq.protocol.registry import Header

WIRE = Path(__file__).parents[2] / "data" / "broker" / "wire"


def create(topic: str, attributes: str | None = None, **fields: object) -> Header:
    values: dict[str, object] = {
        "default_topic": "TBW102",
        "read_queue_nums": 4,
        "write_queue_nums": 4,
        "perm": 6,
        "topic_filter_type": "SINGLE_TAG",
        "topic_sys_flag": 0,
    }
    return wire.CreateTopic(topic=topic, attributes=attributes, **{**values, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "code", "remark"),
    [
        (
            create("bad topic"),
            29,
            "The specified topic: bad topic, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (create("TBW102"), 29, "The topic[TBW102] is conflict with system topic."),
        (create("broker-a"), 29, "The topic[broker-a] is conflict with system topic."),
        (create("t", "+foo=1"), 1, "unsupported key: foo"),
        (create("t", "message.type"), 1, "delete attribute format is wrong: message.type"),
        (create("t", "+message.type=MIXED"), 29, "MIXED message type is not supported."),
        (create("t", read_queue_nums=-1), 29, "The topic t cannot have less than 0 queues."),
        (create("t", write_queue_nums=2**31 - 1), 29, "The topic t cannot have more than 16384 queues."),
        (create("t", topic_filter_type="A B"), 1, "topicFilterType = [A B] value invalid"),
        (wire.DeleteTopic(topic=""), 29, "The specified topic is blank."),
        (wire.DeleteTopic(topic="TBW102"), 29, "The topic[TBW102] is conflict with system topic."),
        (wire.GetTopicConfig(topic="nope"), 17, "No topic in this broker. topic: nope"),
    ],
)
async def test_refusals(served: Served, header: Header, code: int, remark: str) -> None:
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, header)
    assert (refused.value.code, refused.value.remark) == (code, remark)


async def test_mixed_topics_if_the_configuration_allows_them(served: Served) -> None:
    settings = served.broker.settings
    settings.broker = dataclasses.replace(settings.broker, enable_mixed_message_type=True)
    await ask(served.dispatcher, create("t", "+message.type=MIXED"))
    assert served.broker.tables.topics.get("t").attributes == {"message.type": "MIXED"}  # type: ignore[union-attr]


async def test_create_change_and_get(served: Served) -> None:
    await ask(served.dispatcher, create("TopicA1", "+message.type=FIFO"))
    found = json_of(await ask(served.dispatcher, wire.GetTopicConfig(topic="TopicA1")))
    assert found["attributes"] == {"message.type": "FIFO"}
    await ask(served.dispatcher, create("TopicA1", perm=4))
    assert served.broker.tables.topics.get("TopicA1").perm == 4  # type: ignore[union-attr]


async def test_an_answer_has_the_shape_of_rocketmqs(served: Served) -> None:
    java = json.loads((WIRE / "topicconfig.json").read_bytes())
    await ask(served.dispatcher, create("TopicJ", order=True))
    assert json_of(await ask(served.dispatcher, wire.GetTopicConfig(topic="TopicJ"))) == java


async def test_creating_an_identical_topic_changes_nothing(served: Served) -> None:
    version = served.broker.tables.topics.version
    await ask(served.dispatcher, create("TopicJ"))
    assert served.broker.tables.topics.version == version


async def test_create_list_is_all_or_nothing(served: Served) -> None:
    lists = [
        CreateTopicListRequestBody(topic_config_list=[TopicConfig(topic_name=n) for n in names])
        for names in (("a", "b"), ("c", "TBW102"))
    ]
    await ask(served.dispatcher, wire.CreateTopicList(), lists[0])
    assert "a" in served.broker.tables.topics and "b" in served.broker.tables.topics
    with pytest.raises(MQError):
        await ask(served.dispatcher, wire.CreateTopicList(), lists[1])
    assert "c" not in served.broker.tables.topics


async def test_delete_also_removes_offsets_and_queues(served: Served) -> None:
    served.put(0, b"x")
    served.broker.tables.offsets.commit("g", "TopicJ", 0, 1)
    await ask(served.dispatcher, wire.DeleteTopic(topic="TopicJ"))
    assert "TopicJ" not in served.broker.tables.topics
    assert served.broker.tables.offsets.topics_of("g") == set()
    assert served.store.queues() == []
    await ask(served.dispatcher, wire.DeleteTopic(topic="NoSuchTopic"))


async def test_all_topics_whole_and_in_pages(served: Served) -> None:
    reply = await ask(served.dispatcher, wire.GetAllTopicConfig())
    whole = json_of(reply)
    names = sorted(served.broker.tables.topics)
    assert sorted(whole["topicConfigTable"]) == names
    assert reply.header is not None and reply.header.to_ext() == {"totalTopicNum": str(len(names))}
    assert set(json.loads((WIRE / "alltopics.json").read_bytes())) == set(whole)
    version = json.dumps(whole["dataVersion"])
    part = wire.GetAllTopicConfig(topic_seq=2, data_version=version, max_topic_num=3)
    assert sorted(json_of(await ask(served.dispatcher, part))["topicConfigTable"]) == names[2:5]


async def test_system_topics(served: Served) -> None:
    java = set(json.loads((WIRE / "systopics.json").read_bytes())["topicList"])
    ours = set(json_of(await ask(served.dispatcher, wire.GetSystemTopicListFromBroker()))["topicList"])
    # The answer was recorded without timer wheel.
    assert ours == {topic for topic in java if "ROCKSDB" not in topic} | {TIMER_TOPIC}


async def test_groups(served: Served) -> None:
    body = SubscriptionGroupConfig(
        group_name="GroupJ", consume_from_min_enable=False, consume_broadcast_enable=False
    )
    await ask(served.dispatcher, wire.UpdateSubscriptionGroup(), body)
    ours = json_of(await ask(served.dispatcher, wire.GetSubscriptionGroupConfig(group="GroupJ")))
    java = json.loads((WIRE / "group.json").read_bytes())
    assert {key: ours[key] for key in java if key != "groupRetryPolicy"} == {
        key: value for key, value in java.items() if key != "groupRetryPolicy"
    }
    both = SubscriptionGroupList(group_config_list=[SubscriptionGroupConfig(group_name=n) for n in "ab"])
    await ask(served.dispatcher, wire.UpdateSubscriptionGroupList(), both)
    reply = await ask(served.dispatcher, wire.GetAllSubscriptionGroup())
    assert {"a", "b", "GroupJ"} <= set(json_of(reply)["subscriptionGroupTable"])
    served.broker.tables.offsets.commit("a", "TopicJ", 0, 1)
    await ask(served.dispatcher, wire.DeleteSubscriptionGroup(group_name="a", clean_offset=True))
    assert "a" not in served.broker.tables.subscriptions and not served.broker.tables.offsets.topics_of("a")


async def test_a_group_with_an_invalid_name_is_refused(served: Served) -> None:
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, wire.UpdateSubscriptionGroup(), b'{"groupName":"bad group"}')
    assert refused.value.code == 29 and "bad group" in refused.value.remark


async def test_a_group_with_too_many_retry_queues_is_refused(served: Served) -> None:
    """A request about all queues of its retry topic would keep the broker busy for hours."""
    for header, body in (
        (wire.UpdateSubscriptionGroup(), b'{"groupName":"g","retryQueueNums":16385}'),
        (
            wire.UpdateSubscriptionGroupList(),
            b'{"groupConfigList":[{"groupName":"g","retryQueueNums":16385}]}',
        ),
    ):
        with pytest.raises(MQError) as refused:
            await ask(served.dispatcher, header, body)
        assert (refused.value.code, refused.value.remark) == (
            29,
            "The group g cannot have more than 16384 retry queues.",
        )
    assert "g" not in served.broker.tables.subscriptions


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (wire.UpdateSubscriptionGroup(), b'{"groupName":"g","retryMaxTimes":2147483648}'),
        (wire.UpdateSubscriptionGroup(), b'{"groupName":"g","brokerId":9223372036854775808}'),
        (wire.CreateTopicList(), b'{"topicConfigList":[{"topicName":"t","perm":2147483648}]}'),
        (wire.CreateTopicList(), b'{"topicConfigList":[{"topicName":"t","topicFilterType":"X"}]}'),
    ],
)
async def test_numbers_that_java_could_not_read_are_refused(
    served: Served, header: Header, body: bytes
) -> None:
    """RocketMQ's slaves and name servers read these tables as a whole, or not at all."""
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, header, body)
    assert refused.value.code == 1
    assert "g" not in served.broker.tables.subscriptions and "t" not in served.broker.tables.topics


async def test_an_unknown_group_is_refused_without_auto_creation(served: Served) -> None:
    served.broker.tables.subscriptions.configure(
        type(served.broker.settings.broker)(broker_name="broker-a", auto_create_subscription_group=False)
    )
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, wire.GetSubscriptionGroupConfig(group="nobody"))
    assert refused.value.code == 26


async def test_forbidding_a_group_a_topic(served: Served) -> None:
    forbid = wire.UpdateGroupForbidden(group="g", topic="TopicJ", readable=False)
    assert json_of(await ask(served.dispatcher, forbid))["readable"] is False
    look = wire.UpdateGroupForbidden(group="g", topic="TopicJ")
    assert json_of(await ask(served.dispatcher, look)) == {"group": "g", "topic": "TopicJ", "readable": False}


@pytest.mark.parametrize(
    "change",
    [
        create("t"),
        wire.DeleteTopic(topic="t"),
        wire.DeleteSubscriptionGroup(group_name="g"),
    ],
)
async def test_a_change_that_the_disk_refuses_is_answered_with_an_error(
    served: Served, change: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise OSError(28, "No space left on device", "topics.json")

    monkeypatch.setattr(served.broker.tables.persistence, "written", refuse)
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, change)
    assert refused.value.code == 1
    assert refused.value.remark == "in force until a restart: topics.json: No space left on device"
