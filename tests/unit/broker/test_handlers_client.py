"""Heartbeats and group members over the wire; answers as recorded from RocketMQ 5.5."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from tests.unit.broker.fakes import FakeConnection, ask, become_slave, json_of, make_broker

from batonmq.broker.context import Broker
from batonmq.broker.tables.handlers import clients as client
from batonmq.net.dispatch import Dispatcher
from batonmq.protocol.bodies.clients import (
    CheckClientRequestBody,
    SubscriptionData,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import clients as wire
from batonmq.protocol.headers.broker.replication import GetAllConsumerFilter
from batonmq.protocol.headers.client import NotifyConsumerIdsChanged

WIRE = Path(__file__).parents[2] / "data" / "broker" / "wire"


def setup(**keys: object) -> tuple[Broker, Dispatcher]:
    broker, dispatcher = make_broker(**keys), Dispatcher()
    client.register(dispatcher, broker)
    return broker, dispatcher


def heartbeat(group: str = "GroupJ", fingerprint: int = 0, **fields: object) -> bytes:
    subscription = {"topic": "TopicJ", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return json.dumps(
        {
            "clientID": "127.0.0.1@1",
            "producerDataSet": [{"groupName": "ProdJ"}],
            "consumerDataSet": [consumer],
            "heartbeatFingerprint": fingerprint,
            **fields,
        }
    ).encode()


async def test_a_heartbeat_registers_the_client_and_its_retry_topic() -> None:
    broker, dispatcher = setup()
    connection = FakeConnection()
    reply = await ask(dispatcher, wire.Heartbeat(), heartbeat(), connection=connection)
    assert reply.header is not None
    assert reply.header.to_ext() == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert "GroupJ" in broker.tables.subscriptions and "%RETRY%GroupJ" in broker.tables.topics
    assert broker.tables.producers.members("ProdJ") is not None
    ids = await ask(dispatcher, wire.GetConsumerListByGroup(consumer_group="GroupJ"))
    assert json_of(ids) == json.loads((WIRE / "consumerlist.json").read_bytes())


async def test_all_members_are_notified_once_per_loop_turn() -> None:
    _, dispatcher = setup()
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    for connection in (first, second):
        await ask(dispatcher, wire.Heartbeat(), heartbeat(), connection=connection)
    await asyncio.sleep(0)
    for connection in (first, second):
        assert [(type(h), h.consumer_group) for h, _ in connection.sent] == [
            (NotifyConsumerIdsChanged, "GroupJ")
        ]  # type: ignore[attr-defined]
    await ask(dispatcher, wire.Heartbeat(), heartbeat(), connection=second)
    await asyncio.sleep(0)
    assert len(first.sent) == 1


async def test_a_member_that_does_not_read_is_not_sent_more_and_more_notices() -> None:
    _, dispatcher = setup()
    deaf, other = FakeConnection("a:1"), FakeConnection("b:1")
    deaf.congested = True
    for connection in (deaf, other):
        await ask(dispatcher, wire.Heartbeat(), heartbeat(), connection=connection)
    await asyncio.sleep(0)
    assert (len(deaf.sent), len(other.sent)) == (0, 1)


async def test_members_are_not_notified_if_the_configuration_disables_it() -> None:
    _, dispatcher = setup(notify_consumer_ids_changed_enable=False)
    connection = FakeConnection()
    await ask(dispatcher, wire.Heartbeat(), heartbeat(), connection=connection)
    await asyncio.sleep(0)
    assert connection.sent == []


async def test_heartbeat_v2_reports_different_subscriptions_of_a_group() -> None:
    broker, dispatcher = setup()
    first, second = FakeConnection("a:1"), FakeConnection("b:1")

    async def beat(connection: FakeConnection, fingerprint: int, **fields: object) -> str:
        body = heartbeat(fingerprint=fingerprint, **fields)
        reply = await ask(dispatcher, wire.Heartbeat(), body, connection=connection)
        assert reply.header is not None
        return reply.header.to_ext()["IS_SUB_CHANGE"]

    assert await beat(first, 5) == "false"
    assert await beat(second, 5, withoutSub=True) == "false"
    assert await beat(second, 6) == "true"
    assert broker.tables.consumers.subscription("GroupJ", "TopicJ") is not None


async def test_a_group_that_may_not_be_created_is_not_registered() -> None:
    broker, dispatcher = setup(auto_create_subscription_group=False)
    await ask(dispatcher, wire.Heartbeat(), heartbeat())
    assert broker.tables.consumers.group("GroupJ") is None
    assert broker.tables.producers.members("ProdJ") is not None


def many(count: int, **fields: object) -> bytes:
    groups = [{"groupName": f"g{i}", "consumeType": "CONSUME_PASSIVELY"} for i in range(count)]
    producers = [{"groupName": f"p{i}"} for i in range(count)]
    return json.dumps(
        {"clientID": "c", "consumerDataSet": groups, "producerDataSet": producers, **fields}
    ).encode()


async def test_a_heartbeat_of_thousands_of_groups_does_not_block_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Log lines and changes of the tables do not grow with the groups that are registered in one turn."""
    caplog.set_level(logging.INFO)
    broker, dispatcher = setup()
    connection = FakeConnection()
    topic_changes: list[int] = []
    group_changes: list[int] = []
    broker.tables.topics.listeners.append(lambda changed: topic_changes.append(len(changed)))
    broker.tables.subscriptions.on_change = lambda: group_changes.append(1)
    count, turns = 5000, 0
    beat = asyncio.ensure_future(ask(dispatcher, wire.Heartbeat(), many(count), connection=connection))
    while not beat.done():
        await asyncio.sleep(0)
        turns += 1
    reply = await beat
    assert reply.header is not None and reply.header.to_ext()["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    assert turns >= 2 * count / client.SLICE
    assert sum(topic_changes) == count and max(topic_changes) <= client.SLICE
    assert len(group_changes) == len(topic_changes)
    for i in range(count):
        assert (
            broker.tables.consumers.group(f"g{i}") is not None
            and broker.tables.producers.members(f"p{i}") is not None
        )
    assert len(caplog.records) <= 5 * count / client.SLICE
    caplog.clear()
    await ask(dispatcher, wire.Heartbeat(), many(count), connection=connection)
    assert not caplog.records and sum(topic_changes) == count
    await ask(dispatcher, wire.Heartbeat(), many(count, clientID="d"), connection=connection)
    assert 0 < len(caplog.records) <= count / client.SLICE
    caplog.clear()
    broker.tables.consumers.connection_closed(connection)  # type: ignore[arg-type]
    broker.tables.producers.connection_closed(connection)  # type: ignore[arg-type]
    assert (
        len(caplog.records) <= 2 and not list(broker.tables.consumers) and not broker.tables.producers.groups
    )


async def test_a_heartbeat_of_more_groups_than_any_client_has_is_refused() -> None:
    broker, dispatcher = setup()
    with pytest.raises(MQError) as refused:
        await ask(dispatcher, wire.Heartbeat(), many(client.MAX_GROUPS))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR and "20000 groups" in refused.value.remark
    assert broker.tables.consumers.group("g0") is None


BAD_NAMES = [
    "../../evil",
    "..",
    ".",
    "a/b",
    "a b",
    "",
    " ",
    "é",
    "g\n2026-01-01 INFO forged",
    "g" * 121,
    "\0",
]


async def test_groups_with_invalid_names_are_ignored_in_a_heartbeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in RocketMQ the answer is SUCCESS and does not mention them; the valid ones are registered."""
    broker, dispatcher = setup()
    groups = [{"groupName": name} for name in [*BAD_NAMES, "good"]]
    await ask(
        dispatcher,
        wire.Heartbeat(),
        json.dumps({"clientID": "c", "consumerDataSet": groups, "producerDataSet": groups}).encode(),
    )
    assert list(broker.tables.consumers) == ["good"] and list(broker.tables.producers.groups) == ["good"]
    for name in BAD_NAMES:
        assert name not in broker.tables.subscriptions and f"%RETRY%{name}" not in broker.tables.topics
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "../../evil" in warning.getMessage() and "client=" in warning.getMessage()


async def test_a_slave_creates_no_topics() -> None:
    broker, dispatcher = setup()
    become_slave(broker)
    await ask(dispatcher, wire.Heartbeat(), heartbeat())
    assert "%RETRY%GroupJ" not in broker.tables.topics and broker.tables.consumers.group("GroupJ") is not None


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"consumerDataSet":3}'])
async def test_a_broken_heartbeat_is_refused(body: bytes) -> None:
    _, dispatcher = setup()
    with pytest.raises(MQError) as refused:
        await ask(dispatcher, wire.Heartbeat(), body)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR and "HeartbeatData" in refused.value.remark


async def test_unregister() -> None:
    broker, dispatcher = setup()
    connection = FakeConnection()
    await ask(dispatcher, wire.Heartbeat(), heartbeat(), connection=connection)
    leave = wire.UnregisterClient(client_id="127.0.0.1@1", producer_group="ProdJ", consumer_group="GroupJ")
    await ask(dispatcher, leave, connection=connection)
    assert (
        broker.tables.consumers.group("GroupJ") is None and broker.tables.producers.members("ProdJ") is None
    )


async def test_members_of_an_unknown_group() -> None:
    _, dispatcher = setup()
    with pytest.raises(MQError) as refused:
        await ask(dispatcher, wire.GetConsumerListByGroup(consumer_group="nobody"))
    assert (refused.value.code, refused.value.remark) == (1, "no consumer for this group, nobody")


async def test_sql_filters_are_checked_if_they_are_enabled() -> None:
    broker, dispatcher = setup(enable_property_filter=True)

    async def check(expression: str | None, kind: str = "SQL92") -> None:
        data = SubscriptionData(sub_string=expression, expression_type=kind)
        await ask(dispatcher, wire.CheckClientConfig(), CheckClientRequestBody(subscription_data=data))

    await check("a > 5 and b = 'x'")
    for expression, kind in [("a >", "SQL92"), ("", "SQL92"), (None, "SQL92"), ("a > 5", "XPATH")]:
        with pytest.raises(MQError) as refused:
            await check(expression, kind)
        assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert refused.value.remark.startswith("Invalid MessageSelector. ")
    assert len(broker.tables.filters) == 0


async def test_a_heartbeat_registers_its_sql_filters_if_they_are_enabled() -> None:
    sql = {"topic": "T", "subString": "a > 5", "subVersion": 7, "expressionType": "SQL92"}
    consumer = {"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": [sql]}
    for enabled in (False, True):
        broker, dispatcher = setup(enable_property_filter=enabled)
        body = heartbeat(consumerDataSet=[consumer])
        await ask(dispatcher, wire.Heartbeat(), body)
        found = broker.tables.filters.get("T", "g")
        assert (found is not None) is enabled
    assert found is not None and found.data.client_version == 7
    served = await ask(dispatcher, GetAllConsumerFilter())
    assert json_of(served) == json.loads(broker.tables.filters.encode())


async def test_a_heartbeat_with_numbers_beyond_javas_is_refused() -> None:
    """RocketMQ's brokers could not read the filters, nor its tools the connections of the group."""
    sql = {"topic": "T", "subString": "a > 5", "subVersion": 7, "expressionType": "SQL92"}
    for fields in ({"subVersion": 1 << 63}, {"codeSet": [1 << 31]}):
        consumer = {"groupName": "g", "subscriptionDataSet": [{**sql, **fields}]}
        broker, dispatcher = setup(enable_property_filter=True)
        with pytest.raises(MQError, match="HeartbeatData"):
            await ask(dispatcher, wire.Heartbeat(), heartbeat(consumerDataSet=[consumer]))
        assert len(broker.tables.filters) == 0 and broker.tables.consumers.group("g") is None


async def test_a_client_id_of_megabytes_is_not_kept() -> None:
    broker, dispatcher = setup()
    with pytest.raises(MQError, match="at most 1024"):
        await ask(dispatcher, wire.Heartbeat(), heartbeat(clientID="c" * 1_025))
    assert broker.tables.consumers.group("GroupJ") is None
    await ask(dispatcher, wire.Heartbeat(), heartbeat(clientID="c" * 1_024))


async def test_only_tag_filters_are_accepted() -> None:
    _, dispatcher = setup()
    await ask(
        dispatcher, wire.CheckClientConfig(), CheckClientRequestBody(subscription_data=SubscriptionData())
    )
    sql = CheckClientRequestBody(subscription_data=SubscriptionData(expression_type="SQL92"))
    with pytest.raises(MQError, match="does not support consumer to filter message by SQL92"):
        await ask(dispatcher, wire.CheckClientConfig(), sql)
