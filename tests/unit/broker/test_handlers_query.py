"""Single messages, and requests that the broker relays to a consumer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.broker.conftest import START_MS, Served
from tests.unit.broker.fakes import FakeConnection, ask, json_of
from tests.unit.broker.test_handlers_client import heartbeat

from batonmq.net.errors import CallTimeout, ConnectionLost
from batonmq.protocol.bodies.clients import ConsumeType, SubscriptionData
from batonmq.protocol.codes import RequestCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.broker.admin import GetConsumerStatus
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.pull import QueryConsumeQueue, QueryMessage, ViewMessage
from batonmq.protocol.headers.client import ConsumeMessageDirectly, GetConsumerRunningInfo
from batonmq.protocol.message.ids import encode_message_id, pack_host
from batonmq.protocol.message.record import decode_record, decode_records

WIRE = Path(__file__).parents[2] / "data" / "broker" / "wire"


def by_key(key: str, **fields: int) -> QueryMessage:
    values = {"max_num": 32, "begin_timestamp": 0, "end_timestamp": START_MS + 99_000, **fields}
    return QueryMessage(topic="TopicJ", key=key, **values)


async def test_messages_by_key(served: Served) -> None:
    served.put(0, b"hello1", key="k1")
    served.put(0, b"hello2", key="k2")
    reply = await ask(served.dispatcher, by_key("k1"))
    assert not isinstance(reply.body, bytes | bytearray | memoryview)
    assert [m.body for m in decode_records(b"".join(reply.body))] == [b"hello1"]
    assert reply.header is not None
    assert reply.header.to_ext()["indexLastUpdateTimestamp"] == str(START_MS + 2_000)


async def test_a_consume_queue_with_the_filter_of_a_group(served: Served) -> None:
    served.put(0, b"hello1")
    wanted = SubscriptionData("TopicJ", "a > 1", sub_version=1, expression_type="SQL92")
    served.broker.tables.consumers.remember("GroupS", wanted, ConsumeType.PASSIVELY)
    served.broker.tables.filters.register("GroupS", [wanted])
    header = QueryConsumeQueue(topic="TopicJ", queue_id=0, index=0, count=1, consumer_group="GroupS")
    body = json_of(await ask(served.dispatcher, header))
    assert json.loads(body["filterData"])["expression"] == "a > 1"


async def test_the_index_has_no_tags(served: Served) -> None:
    served.put(0, b"hello1", key="k1")
    for kind, found in (("K", True), ("U", True), ("T", False)):
        header = by_key("k1")
        header.index_type = kind
        if found:
            assert (await ask(served.dispatcher, header)).code == 0
        else:
            with pytest.raises(MQError, match="tags are not indexed"):
                await ask(served.dispatcher, header)


async def test_the_answer_for_an_unknown_key_has_the_progress_of_the_index(served: Served) -> None:
    served.put(0, b"hello1", key="k1")
    reply = await ask(served.dispatcher, by_key("nope"))
    assert (reply.code, reply.remark) == (22, "can not find message, maybe time range not correct")
    assert reply.header is not None
    late = await ask(served.dispatcher, by_key("k1", begin_timestamp=START_MS + 50_000))
    assert late.code == 22


async def test_message_by_offset(served: Served) -> None:
    offset = served.put(0, b"hello")
    reply = await ask(served.dispatcher, ViewMessage(offset=offset))
    assert decode_record(reply.body).body == b"hello"  # type: ignore[arg-type]
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, ViewMessage(offset=99_999_999))
    assert (refused.value.code, refused.value.remark) == (1, "can not find message by the offset, 99999999")


async def test_consume_queue(served: Served) -> None:
    first, second = served.put(0, b"hello1"), served.put(0, b"hello2")
    header = QueryConsumeQueue(topic="TopicJ", queue_id=0, index=0, count=10, consumer_group="GroupJ")
    await ask(served.dispatcher, Heartbeat(), heartbeat())
    ours = json_of(await ask(served.dispatcher, header))
    java = json.loads((WIRE / "queryqueue.json").read_bytes())
    assert [entry["physicOffset"] for entry in ours["queueData"]] == [first, second]
    assert [entry["tagsCode"] for entry in ours["queueData"]] == [e["tagsCode"] for e in java["queueData"]]
    assert (ours["minQueueIndex"], ours["maxQueueIndex"], ours["filterData"]) == (0, 2, "null")
    assert ours["subscriptionData"]["topic"] == "TopicJ"


async def test_an_unknown_consume_queue(served: Served) -> None:
    served.put(0, b"x")
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, QueryConsumeQueue(topic="nope", queue_id=0, count=1))
    assert refused.value.remark == "0@nope is not exist!"
    offline = QueryConsumeQueue(topic="TopicJ", queue_id=0, index=7, count=1, consumer_group="G")
    reply = await ask(served.dispatcher, offline)
    assert reply.remark == "Index 7 of 0@TopicJ is not exist!"
    assert json_of(reply)["filterData"] == "G@TopicJ is not online!"


async def connected(served: Served) -> FakeConnection:
    connection = FakeConnection()
    await ask(served.dispatcher, Heartbeat(), heartbeat(), connection=connection)
    return connection


async def test_running_info_is_relayed(served: Served) -> None:
    connection = await connected(served)
    connection.answers = [Command(0, {}, b'{"properties":{}}')]
    header = GetConsumerRunningInfo(consumer_group="GroupJ", client_id="127.0.0.1@1", jstack_enable=True)
    reply = await ask(served.dispatcher, header)
    assert reply.body == b'{"properties":{}}'
    (command,) = connection.invoked
    assert command.code == RequestCode.GET_CONSUMER_RUNNING_INFO and command.ext["jstackEnable"] == "true"


@pytest.mark.parametrize(
    ("failure", "code", "remark"),
    [
        (CallTimeout("a:1", "10 s"), 207, "consumer <GroupJ> <127.0.0.1@1> Timeout: a:1: 10 s"),
        (ConnectionLost("a:1", "gone"), 1, "invoke consumer <GroupJ> <127.0.0.1@1> Exception: a:1: gone"),
    ],
)
async def test_a_consumer_that_does_not_answer(
    served: Served, failure: Exception, code: int, remark: str
) -> None:
    (await connected(served)).answers = [failure]
    header = GetConsumerRunningInfo(consumer_group="GroupJ", client_id="127.0.0.1@1")
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, header)
    assert (refused.value.code, refused.value.remark) == (code, remark)


async def test_a_consumer_that_is_not_online(served: Served) -> None:
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, GetConsumerRunningInfo(consumer_group="Gx", client_id="c"))
    assert refused.value.remark == "The Consumer <Gx> <c> not online"


async def test_a_consumer_consumes_a_message_directly(served: Served) -> None:
    offset = served.put(0, b"hello")
    connection = await connected(served)
    connection.answers = [Command(0, {}, b'{"consumeResult":"CR_SUCCESS"}')]
    header = ConsumeMessageDirectly(
        consumer_group="GroupJ",
        client_id="127.0.0.1@1",
        msg_id=encode_message_id(pack_host("10.0.0.1", 10911), offset),
        topic="TopicJ",
    )
    reply = await ask(served.dispatcher, header)
    assert b"CR_SUCCESS" in bytes(reply.body)  # type: ignore[arg-type]
    (command,) = connection.invoked
    assert decode_record(command.body).body == b"hello"
    assert command.ext["brokerName"] == "broker-a" and command.ext["topicSysFlag"] == "0"


@pytest.mark.parametrize("message_id", ["", "zz", "00" * 16 + "7"])
async def test_a_bad_message_id_is_refused(served: Served, message_id: str) -> None:
    await connected(served)
    header = ConsumeMessageDirectly(consumer_group="GroupJ", client_id="127.0.0.1@1", msg_id=message_id)
    with pytest.raises(MQError):
        await ask(served.dispatcher, header)


async def test_consumer_status_without_consumers(served: Served) -> None:
    with pytest.raises(MQError, match="No Any Consumer online in the consumer group"):
        await ask(served.dispatcher, GetConsumerStatus(topic="TopicJ", group="g"))


async def test_consumer_status_is_gathered_from_the_members_that_answer(served: Served) -> None:
    first, second = FakeConnection("a:1"), FakeConnection("b:1")
    for connection, client_id in ((first, "c1"), (second, "c2")):
        body = heartbeat().replace(b"127.0.0.1@1", client_id.encode())
        await ask(served.dispatcher, Heartbeat(), body, connection=connection)
    answer = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicJ"}:7}}'
    first.answers = [Command(0, {}, answer), Command(0, {}, answer)]
    table = json_of(await ask(served.dispatcher, GetConsumerStatus(topic="TopicJ", group="GroupJ")))
    assert list(table["consumerTable"]) == ["c1"], "the other one is not there any more"
    assert list(table["consumerTable"]["c1"].values()) == [7]
    one = GetConsumerStatus(topic="TopicJ", group="GroupJ", client_addr="c1")
    assert list(json_of(await ask(served.dispatcher, one))["consumerTable"]) == ["c1"]
    assert len(second.invoked) == 1
