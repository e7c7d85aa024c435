"""`batonmq admin` against a name server and a broker of ours, over real sockets; answers read as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.integration.broker.rig import v2

from batonmq.admin.main import admin
from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.demo.ports import free_ports
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import Dispatcher, RemotingClient, Reply, Request
from batonmq.protocol.bodies.clients import (
    ConsumerData,
    ConsumerRunningInfo,
    ConsumeStatus,
    ConsumeType,
    GetConsumerStatusBody,
    HeartbeatData,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    ProducerData,
    SubscriptionData,
)
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.groups import CustomizedRetryPolicy, SubscriptionGroupConfig
from batonmq.protocol.bodies.routes import QueueData, TopicRouteData
from batonmq.protocol.bodies.topics import RegisterBrokerBody
from batonmq.protocol.compression import CompressionType
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import namesrv as namesrv_wire
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.topics import GetSubscriptionGroupConfig
from batonmq.protocol.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatusFromClient,
)
from batonmq.protocol.json import decode, encode
from batonmq.protocol.message.ids import encode_message_id, pack_address
from batonmq.protocol.message.record import decode_record
from batonmq.store.config import StoreConfig

Run = Callable[..., Awaitable[Any]]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Run, str]]:
    """A function that runs a command and gives its JSON, and the broker's address."""
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    port, ha_port = free_ports(2)
    config_file = tmp_path / "broker.conf"
    config_file.write_text("# ours\nfileReservedTime=72\n")
    broker = BrokerService(
        BrokerConfig(
            broker_name="broker-a",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=port,
            vip_channel_enabled=False,
            namesrv_addr=f"127.0.0.1:{namesrv.port}",
        ),
        StoreConfig(
            store_path_root_dir=str(tmp_path / "store"),
            mapped_file_size_commit_log=1 << 20,
            max_index_num=10_000,
            max_hash_slot_num=2_000,
        ),
        HAConfig(ha_listen_port=ha_port),
        config_path=config_file,
    )
    await broker.start()

    async def run(*words: str, fails: bool = False) -> Any:
        arguments = [words[0], "-n", f"127.0.0.1:{namesrv.port}", *words[1:], *([] if fails else ["--json"])]
        result = await asyncio.to_thread(CliRunner().invoke, admin, arguments)
        assert (result.exit_code != 0) is fails, f"{words}: {result.output}"
        return result.output if fails else json.loads(result.stdout)

    while not await run("clusterList"):  # the registration is on its way
        await asyncio.sleep(0.02)
    yield run, f"127.0.0.1:{port}"
    await broker.stop()
    await namesrv.stop()


async def test_a_topic_from_creation_to_deletion(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "2", "-w", "2")
    (route,) = await run("topicRoute", "-t", "Orders")
    assert (route["readQueues"], route["perm"], route["addresses"]) == (2, 6, f"0={broker}")
    await run("updateTopicPerm", "-b", broker, "-t", "Orders", "-p", "4")
    assert (await run("topicRoute", "-t", "Orders"))[0]["perm"] == 4
    assert {"topic": "Orders"} in await run("topicList")
    assert "Orders" in {row["topic"] for row in await run("topicList", "-c")}
    await run("deleteTopic", "-t", "Orders", "-c", "DefaultCluster")
    assert {"topic": "Orders"} not in await run("topicList")
    assert "No topic route info" in await run("topicRoute", "-t", "Orders", fails=True)


class SlavesOnly:
    """A broker set `broker-b` that has a topic, and only a slave, as the name server sees it."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self._namesrv, self._topic, self._net = namesrv, topic, RemotingClient()

    async def __aenter__(self) -> None:
        slave = namesrv_wire.RegisterBroker("broker-b", "127.0.0.1:1", "DefaultCluster", "127.0.0.1:2", 1)
        await self._net.call(self._namesrv, slave, encode(RegisterBrokerBody()))
        queues = TopicRouteData(queue_datas=[QueueData("broker-b", 1, 1, 6)])
        await self._net.call(self._namesrv, namesrv_wire.RegisterTopicInNamesrv(self._topic), encode(queues))

    async def __aexit__(self, *_: object) -> None:
        await self._net.close()


async def test_a_topic_that_a_broker_set_keeps_has_its_route(cluster: tuple[Run, str]) -> None:
    """The topic came back with the master, and until then consumers did not find its messages."""
    run, broker = cluster
    (row,) = [row for row in await run("getNamesrvConfig") if row["key"] == "listenPort"]
    (namesrv,) = row.keys() - {"key"}
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "1", "-w", "1")
    await run("updateTopic", "-b", broker, "-t", "Here", "-r", "1", "-w", "1")
    async with SlavesOnly(namesrv, "Orders"):
        done = await asyncio.to_thread(
            CliRunner().invoke, admin, ["deleteTopic", "-n", namesrv, "-t", "Orders", "-c", "DefaultCluster"]
        )
        assert done.stdout == f"topic Orders deleted at {broker}\n"
        left_out, note = done.stderr.splitlines()
        assert left_out == "left out, because no master of them lives: broker-b"
        assert note.startswith("topic Orders is still there, and so is its route: broker-b kept it.")
        assert "broker-b" in {row["broker"] for row in await run("topicRoute", "-t", "Orders")}
        assert "No topic in this" in await run(
            "updateTopicPerm", "-b", broker, "-t", "Orders", "-p", "4", fails=True
        )
        assert (await run("deleteTopic", "-t", "Here", "-c", "DefaultCluster"))["keptBy"] == []
        assert {"topic": "Here"} not in await run("topicList")


async def test_an_ordered_topic_has_its_order_at_the_name_servers(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    (row,) = [row for row in await run("getNamesrvConfig") if row["key"] == "listenPort"]
    (namesrv,) = row.keys() - {"key"}
    net = RemotingClient()

    async def order() -> str | None:
        answer = await net.call(namesrv, namesrv_wire.GetKVConfig("ORDER_TOPIC_CONFIG", "Orders"))
        assert isinstance(answer.header, namesrv_wire.GetKVConfigResponse)
        return answer.header.value

    at_broker = ("updateTopic", "-b", broker, "-t", "Orders", "-r", "4")
    at_cluster = ("updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "4", "-w", "2")
    await run(*at_broker, "-w", "4")
    with pytest.raises(MQError, match="No config item"):
        await order()
    assert (await run(*at_broker, "-w", "4", "-o", "true"))["orderConfiguration"] == "broker-a:4"
    await run("updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Orders", "-v", "broker-z:9;broker-a:4")
    await run(*at_broker, "-w", "3", "-o", "true")
    assert await order() == "broker-a:3;broker-z:9", "other brokers keep theirs"
    await run(*at_cluster, "-o", "true")
    assert await order() == "broker-a:2"
    async with SlavesOnly(namesrv, "Orders"):
        await run(*at_cluster, "-o", "true")
        assert await order() == "broker-a:2;broker-b:2", "queues stay the same while a broker is away"
    unknown = await run("updateTopic", "-b", "127.0.0.1:1", "-t", "Orders", "-o", "true", fails=True)
    assert "does not know 127.0.0.1:1" in unknown
    await net.close()


async def test_offsets_of_a_group_without_clients(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "1", "-w", "1")
    await run("updateSubGroup", "-b", broker, "-g", "Buyers")
    group = ("-g", "Buyers", "-t", "Orders")
    for body in "abc":
        await run("sendMessage", "-t", "Orders", "-p", body, "-b", "broker-a", "-i", "0")
    await run("updateBrokerConfig", "-b", broker, "-k", "useServerSideResetOffset", "-v", "false")
    back = {"broker": "broker-a", "queueId": 0, "brokerOffset": 3}
    assert await run("resetOffsetByTimeOld", *group, "-s", "0") == [
        {**back, "consumerOffset": 0, "timestampOffset": 0, "resetOffset": 0}
    ]
    assert await run("resetOffsetByTimeOld", *group, "-s", "now", "-f", "false") == [
        {**back, "consumerOffset": 0, "timestampOffset": 3, "resetOffset": 0}
    ]
    assert await run("skipAccumulatedMessage", *group) == [
        {**back, "consumerOffset": 0, "timestampOffset": 3, "resetOffset": 3}
    ]
    await run("updateBrokerConfig", "-b", broker, "-k", "useServerSideResetOffset", "-v", "true")
    assert await run("skipAccumulatedMessage", *group) == [{"broker": "broker-a", "queueId": 0, "offset": 3}]
    assert "No topic route" in await run(
        "resetOffsetByTimeOld", "-g", "No", "-t", "No", "-s", "0", fails=True
    )
    assert "No Any Consumer online" in await run("getConsumerStatus", *group, fails=True)
    assert "not online" in await run("consumerStatus", "-g", "Buyers", "-b", broker, fails=True)


async def test_timed_sends(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "2", "-w", "2")
    sends = await run("checkMsgSendRT", "-t", "Orders", "-a", "5", "-s", "10")
    assert [(row["queueId"], row["result"]) for row in sends] == [(n % 2, "SEND_OK") for n in range(5)]
    assert all(row["ms"] > 0 for row in sends)
    sends = await run("sendMsgStatus", "-b", "broker-a", "-c", "3", "-s", "20")
    assert [(row["broker"], row["result"]) for row in sends] == [("broker-a", "SEND_OK")] * 3
    (message,) = await run("consumeMessage", "-t", "broker-a", "-c", "1")
    assert message["body"] == "a" * 20
    assert "no queue to write" in await run(
        "checkMsgSendRT", "-t", await only_readable(run, broker), fails=True
    )


async def only_readable(run: Run, broker: str) -> str:
    await run("updateTopic", "-b", broker, "-t", "Closed", "-p", "4")
    return "Closed"


async def test_traces(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Traces", "-r", "1", "-w", "1")
    sent = ["Pub", "1700000000000", "R", "Senders", "T", "ID", "", "", "h", "1", "7", "0", "OFF", "true"]
    consumed = ["SubAfter", "REQ", "ID", "9", "false", "", "1", "1700000000500", "Buyers"]
    other = ["Pub", "1700000000000", "R", "Senders", "T", "OTHER", "", "", "h", "1", "7", "0", "OFF", "true"]
    late = ["Pub", "9" * 30, *sent[2:]]
    lines = [sent, ["Pub", "x"], other, [""], late, consumed, ["SubAfter", "REQ", "ID"]]
    body = "".join("\x01".join(line) + "\x02" for line in lines)
    await run("sendMessage", "-t", "Traces", "-p", body, "-k", "ID")
    assert await run("queryMsgTraceById", "-i", "ID", "-t", "Traces") == [
        {
            "type": "Pub",
            "group": "Senders",
            "clientHost": "127.0.0.1",
            "time": "2023-11-14 22:13:20.000",
            "costMs": 7,
            "status": "success",
        },
        {
            "type": "Sub",
            "group": "Buyers",
            "clientHost": "127.0.0.1",
            "time": "2023-11-14 22:13:20.500",
            "costMs": 9,
            "status": "failed",
        },
    ]
    assert "no trace of X" in await run("queryMsgTraceById", "-i", "X", "-t", "Traces", fails=True)


async def test_the_state_of_connected_clients(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    queue = MessageQueue(topic="Orders", broker_name="broker-a", queue_id=0)
    dispatcher = Dispatcher()
    dispatcher.on(
        GetConsumerRunningInfo,
        lambda request, header: Reply(
            body=encode(
                ConsumerRunningInfo(
                    properties={"PROP_CONSUMER_START_TIMESTAMP": "1700000000000"},
                    subscription_set=[SubscriptionData("Orders", "*")],
                    mq_table={queue: ProcessQueueInfo(commit_offset=4, cached_msg_count=2)},
                    mq_pop_table={
                        MessageQueue("Orders", "broker-b", -1): PopProcessQueueInfo(
                            wait_ack_count=3, last_pop_timestamp=1_700_000_000_000
                        )
                    },
                    status_table={"Orders": ConsumeStatus(pull_tps=1.5)},
                    jstack="stack" if header.jstack_enable else None,
                )
            )
        ),
    )
    dispatcher.on(
        GetConsumerStatusFromClient,
        lambda request, header: Reply(body=encode(GetConsumerStatusBody(message_queue_table={queue: 4}))),
    )
    client = RemotingClient(dispatcher=dispatcher)
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "1", "-w", "1")
    consumer = ConsumerData(
        "Buyers", ConsumeType.PASSIVELY, subscription_data_set=[SubscriptionData("Orders", "*")]
    )
    await client.call(broker, Heartbeat(), encode(HeartbeatData("c1", consumer_data_set=[consumer])))
    assert await run("consumerStatus", "-g", "Buyers", "-b", broker) == [
        {
            "clientId": "c1",
            "queues": 2,
            "cachedMessages": 5,
            "startTime": "2023-11-14 22:13:20.000",
            "sameSubscriptions": True,
        }
    ]
    one = await run("consumerStatus", "-g", "Buyers", "-b", broker, "-i", "c1", "-s")
    assert one["pops"] == [
        {
            "topic": "Orders",
            "broker": "broker-b",
            "queueId": "all",
            "unacknowledged": 3,
            "lastPopTime": "2023-11-14 22:13:20.000",
        }
    ]
    assert one["queues"][0]["commitOffset"] == 4 and one["rates"][0]["pullTPS"] == 1.5
    assert one["jstack"] == "stack" and one["subscriptions"] == {"Orders": "*"}
    assert await run("getConsumerStatus", "-g", "Buyers", "-t", "Orders") == [
        {"clientId": "c1", "broker": "broker-a", "queueId": 0, "offset": 4}
    ]
    assert await run("getConsumerStatus", "-g", "Buyers", "-t", "Orders", "-i", "c2") == []
    await client.close()


async def test_messages(cluster: tuple[Run, str]) -> None:
    run, _ = cluster
    await run("updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "2", "-w", "2")
    put = ("sendMessage", "-t", "Orders", "-b", "broker-a", "-i", "1")
    (first,) = await run(*put, "-p", "hello", "-k", "k1", "-c", "tagA")
    await run(*put, "-p", "again", "-k", "k2")
    assert first["queueOffset"] == 0
    status = {row["queueId"]: row["maxOffset"] for row in await run("topicStatus", "-t", "Orders")}
    assert status == {0: 0, 1: 2}
    (by_key,) = await run("queryMsgByKey", "-t", "Orders", "-k", "k1")
    assert by_key["body"] == "hello" and by_key["msgId"] == first["msgId"]
    (by_id,) = await run("queryMsgByUniqueKey", "-t", "Orders", "-i", first["msgId"])
    assert by_id["tags"] == "tagA"
    (at,) = await run("queryMsgByOffset", "-t", "Orders", "-b", "broker-a", "-i", "1", "-o", "1")
    assert at["body"] == "again"
    assert "no message at offset 9" in await run(
        "queryMsgByOffset", "-t", "Orders", "-b", "broker-a", "-i", "1", "-o", "9", fails=True
    )
    assert [m["body"] for m in await run("consumeMessage", "-t", "Orders")] == ["hello", "again"]
    assert [m["body"] for m in await run("printMsg", "-t", "Orders", "-c", "1")] == ["hello"]
    assert [m["body"] for m in await run("printMsg", "-t", "Orders", "-e", "now")] == ["hello", "again"]
    entries = await run("queryCq", "-t", "Orders", "-q", "1", "-i", "0")
    assert [entry["index"] for entry in entries] == [0, 1] and entries[0]["commitLogOffset"] == 0
    (brokers,) = await run("clusterList", "-m")
    assert brokers["inToday"] == 2
    (entry,) = await run("queryMsgById", "-i", await offset_id(run))
    assert entry["body"] == "hello"


async def test_a_message_that_does_not_inflate_is_shown_as_it_is(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-c", "DefaultCluster", "-t", "Orders", "-r", "1", "-w", "1")
    client = RemotingClient()
    broken = v2("Orders", sys_flag=CompressionType.ZLIB.sys_flag, properties="KEYS\1k1\2UNIQ_KEY\1u1\2")
    await client.call(broker, broken, b"no zlib")
    await client.call(broker, v2("Orders"), b"plain")
    await client.close()
    for command in (("queryMsgByKey", "-k", "k1"), ("queryMsgByUniqueKey", "-i", "u1")):
        (found,) = await run(*command, "-t", "Orders")
        assert found["body"] == "no zlib"
    assert [m["body"] for m in await run("printMsg", "-t", "Orders")] == ["no zlib", "plain"]
    (entry,) = await run("queryMsgById", "-i", await offset_id(run))
    assert entry["body"] == "no zlib"


async def offset_id(run: Run) -> str:
    """The id that stands for the first message by broker and commit log offset."""
    (brokers,) = await run("clusterList")
    return encode_message_id(pack_address(brokers["address"]), 0)


async def test_groups_and_offsets(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "1", "-w", "1")
    await run("updateSubGroup", "-b", broker, "-g", "Buyers", "-q", "2")
    assert (await run("getConsumerConfig", "-g", "Buyers"))[0]["retryQueues"] == 2
    for body in "abc":
        await run("sendMessage", "-t", "Orders", "-p", body, "-b", "broker-a", "-i", "0")
    assert await run("resetOffsetByTime", "-g", "Buyers", "-t", "Orders", "-s", "now") == [
        {"broker": "broker-a", "queueId": 0, "offset": 3}
    ]
    await run(
        "resetOffsetByTime", "-g", "Buyers", "-t", "Orders", "-s", "0", "-b", broker, "-q", "0", "-o", "1"
    )
    (progress,) = await run("consumerProgress", "-g", "Buyers", "-t", "Orders")
    assert (progress["brokerOffset"], progress["consumerOffset"], progress["diff"]) == (3, 1, 2)
    (row,) = await run("brokerConsumeStats", "-b", broker)
    assert (row["group"], row["diff"]) == ("Buyers", 2)
    assert "no offsets are known of group Nobody" in await run("consumerProgress", "-g", "Nobody", fails=True)
    assert (await run("statsAll", "-t", "Orders"))[0]["behind"] == 2
    await run("deleteSubGroup", "-b", broker, "-g", "Buyers", "-r", "true")
    assert await run("consumerProgress") == []


async def test_a_group_goes_from_a_cluster_with_its_topics(cluster: tuple[Run, str]) -> None:
    """They stayed, and a group of the same name began with the retries of the deleted one."""
    run, broker = cluster
    own = [{"topic": "%RETRY%Buyers"}, {"topic": "%DLQ%Buyers"}]
    await run("updateSubGroup", "-b", broker, "-g", "Buyers")
    for each in own:
        await run("updateTopic", "-b", broker, "-t", each["topic"], "-r", "1", "-w", "1")
    await run("deleteSubGroup", "-b", broker, "-g", "Buyers")
    assert [each in await run("topicList") for each in own] == [True, True]
    done = await run("deleteSubGroup", "-c", "DefaultCluster", "-g", "Buyers")
    assert done["topics"] == ["%RETRY%Buyers", "%DLQ%Buyers"] and done["brokers"] == [broker]
    assert [each in await run("topicList") for each in own] == [False, False]
    for each in own:
        change = ("updateTopicPerm", "-b", broker, "-t", each["topic"], "-p", "4")
        assert "No topic in this" in await run(*change, fails=True)


async def test_brokers_and_name_servers(cluster: tuple[Run, str], tmp_path: Path) -> None:
    run, broker = cluster
    (row,) = await run("clusterList")
    assert (row["cluster"], row["id"], row["address"], row["activated"]) == (
        "DefaultCluster",
        0,
        broker,
        "true",
    )
    figures = {entry["figure"]: entry[broker] for entry in await run("brokerStatus", "-c", "DefaultCluster")}
    assert figures["brokerActive"] == "true"
    await run("updateBrokerConfig", "-b", broker, "-k", "fileReservedTime", "-v", "9")
    keys = {entry["key"]: entry[broker] for entry in await run("getBrokerConfig", "-b", broker)}
    assert keys["fileReservedTime"] == "9" and keys["brokerName"] == "broker-a"
    await run("updateBrokerConfig", "-b", broker, "-k", "traceOn", "-v", "false")
    file = tmp_path / "broker.conf"
    assert file.read_text() == "# ours\nfileReservedTime=9\ntraceOn=false\n", "once it is answered"
    change = ("updateBrokerConfig", "-b", broker, "-k")
    file.rename(tmp_path / "elsewhere")
    error = await run(*change, "fileReservedTime", "-v", "39", fails=True)
    assert "in force until a restart" in error and not file.exists()
    file.mkdir()
    error = await run(*change, "fileReservedTime", "-v", "40", fails=True)
    assert "in force until a restart" in error and "broker.conf" in error
    file.rmdir()
    (tmp_path / "elsewhere").rename(file)
    assert "cannot change while" in await run(*change, "listenPort", "-v", "1", fails=True)
    assert "did you mean fileReservedTime" in await run(*change, "fileReservdTime", "-v", "1", fails=True)
    assert (await run("haStatus", "-b", broker))[0]["role"] == "master"
    for named, shown in (("broker-a", f"broker-a {broker}"), (broker, broker)):
        error = await run("getBrokerEpoch", "-b", named, fails=True)
        assert f'{shown} answered "this request only for controllerMode' in error
    assert "not text that can be sent" in await run("topicRoute", "-t", "\udcff", fails=True)
    assert "no broker nobody is registered" in await run("getBrokerEpoch", "-b", "nobody", fails=True)
    assert (await run("wipeWritePerm", "-b", "broker-a"))[0]["topicsWiped"] > 0
    assert (await run("addWritePerm", "-b", "broker-a"))[0]["topicsAdded"] > 0
    await run("updateKvConfig", "-s", "N", "-k", "a", "-v", "1")
    await run("deleteKvConfig", "-s", "N", "-k", "a")
    assert any(entry["key"] == "listenPort" for entry in await run("getNamesrvConfig"))
    (master,) = await run("haStatus", "-c", "DefaultCluster")
    assert (master["role"], master["peer"], master["inSync"]) == ("master", "0 of 0 slaves in sync", "")
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        await run(command, "-b", broker)


async def test_topics_and_groups_of_a_file(cluster: tuple[Run, str], tmp_path: Path) -> None:
    run, broker = cluster
    file = tmp_path / "list.json"
    topics = [
        {"topicName": "Orders", "readQueueNums": 2, "writeQueueNums": 3},
        {"topicName": "Bills", "attributes": {"+message.type": "FIFO"}, "topicFilterType": "SINGLE_TAG"},
    ]
    file.write_text(json.dumps(topics))
    done = await run("updateTopicList", "-c", "DefaultCluster", "-f", str(file))
    assert done["topics"] == ["Orders", "Bills"] and done["brokers"] == [broker]
    (orders,), (bills,) = [await run("topicRoute", "-t", name) for name in done["topics"]]
    assert (orders["readQueues"], orders["writeQueues"], bills["readQueues"]) == (2, 3, 16)
    file.write_text('[{"groupName": "Buyers", "retryMaxTimes": 3}, {"groupName": "Audit"}]')
    done = await run("updateSubGroupList", "-b", broker, "-f", str(file))
    assert done["groups"] == ["Buyers", "Audit"]
    assert (await run("getConsumerConfig", "-g", "Buyers"))[0]["retryMax"] == 3
    for text, reason in (
        ("[]", "lists nothing"),
        ("{", "is no list of TopicConfig"),
        ("[1]", "is no list of"),
    ):
        file.write_text(text)
        assert reason in await run("updateTopicList", "-b", broker, "-f", str(file), fails=True)
    file.write_text('[{"topicName": "%LMQ%a"}]')
    assert "is a light queue" in await run("updateTopicList", "-b", broker, "-f", str(file), fails=True)


async def test_exports(cluster: tuple[Run, str], tmp_path: Path) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "2", "-w", "2")
    await run("updateTopic", "-b", broker, "-t", "%RETRY%Buyers", "-r", "1", "-w", "1")
    await run("updateSubGroup", "-b", broker, "-g", "Buyers")
    file = tmp_path / "list.json"
    file.write_text('[{"topicName": "Odd", "perm": 99}]')
    await run("updateTopicList", "-b", broker, "-f", str(file))
    folder = tmp_path / "new" / "folder"
    where = ("-f", str(folder))
    assert (await run("exportMetadata", "-c", "DefaultCluster", *where))["file"].endswith("/metadata.json")
    found = json.loads((folder / "metadata.json").read_text())
    assert list(found["topicConfigTable"]) == ["Orders"], "system topics and retries are left out"
    assert found["topicConfigTable"]["Orders"]["readQueueNums"] == 2
    assert list(found["subscriptionGroupTable"]) == ["Buyers"] and found["exportTime"] > 0
    await run("exportMetadata", "-b", broker, "-t", "-s", *where)
    found = json.loads((folder / "topic.json").read_text())
    assert set(found["topicConfigTable"]) == {"Orders", "%RETRY%Buyers"}
    assert "subscriptionGroupTable" not in found
    await run("exportMetadata", "-b", broker, "-g", *where)
    assert "topicConfigTable" not in json.loads((folder / "subscriptionGroup.json").read_text())
    assert "give -t for topics" in await run("exportMetadata", "-b", broker, *where, fails=True)
    await run("exportConfigs", "-c", "DefaultCluster", *where)
    found = json.loads((folder / "configs.json").read_text())
    assert found["brokerConfigs"]["broker-a"]["fileReservedTime"] == "72"
    assert found["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 0}
    (folder / "file").write_text("")
    assert "file" in await run(
        "exportConfigs", "-c", "DefaultCluster", "-f", str(folder / "file"), fails=True
    )


async def test_orders_shares_and_clusters_of_a_topic(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "3", "-w", "3")
    assert await run("topicClusterList", "-t", "Orders") == [{"cluster": "DefaultCluster"}]
    assert "No topic route info" in await run("topicClusterList", "-t", "Nothing", fails=True)
    order = ("updateOrderConf", "-t", "Orders", "-m")
    assert "No config item" in await run(*order, "get", fails=True)
    assert "put needs -v" in await run(*order, "put", fails=True)
    await run(*order, "put", "-v", "broker-a:3")
    assert (await run(*order, "get"))["orderConfiguration"] == "broker-a:3"
    await run(*order, "delete")
    assert "No config item" in await run(*order, "get", fails=True)
    rows = await run("allocateMQ", "-t", "Orders", "-i", "10.0.0.1,10.0.0.2")
    assert [(row["client"][-1], row["queueId"]) for row in rows] == [("1", 0), ("1", 1), ("2", 2)]
    error = await run("resetMasterFlushOffset", "-b", broker, "-o", "7", fails=True)
    assert "there is no master flush offset to reset here" in error, "RocketMQ's slaves have one"


async def test_the_messages_of_one_queue(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "2", "-w", "2")
    for number, tag in enumerate(("a", "b", "a")):
        send = ("sendMessage", "-t", "Orders", "-p", str(number), "-c", tag, "-b", "broker-a")
        await run(*send, "-i", "1")
    queue = ("printMsgByQueue", "-t", "Orders", "-a", "broker-a", "-i")
    assert [row["body"] for row in await run(*queue, "1")] == ["0", "1", "2"]
    assert [row["body"] for row in await run(*queue, "1", "-s", "b || c", "-p", "true")] == ["1"]
    assert await run(*queue, "1", "-f", "true") == [{"tag": "a", "count": 2}, {"tag": "b", "count": 1}]
    assert await run(*queue, "0") == []


async def test_a_client_handles_a_message_on_demand(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    dispatcher = Dispatcher()
    handled: list[bytes] = []

    def handle(request: Request, header: ConsumeMessageDirectly) -> Reply:
        handled.append(decode_record(bytes(request.command.body)).body)
        # As the Go client writes it.
        return Reply(
            body=b'{"order":false,"autoCommit":true,"consumeResult":1,"remark":"","spentTimeMills":5}'
        )

    dispatcher.on(ConsumeMessageDirectly, handle)
    client = RemotingClient(dispatcher=dispatcher)
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "1", "-w", "1")
    (sent,) = await run("sendMessage", "-t", "Orders", "-p", "x", "-b", "broker-a", "-i", "0")
    data = HeartbeatData("c1", consumer_data_set=[ConsumerData("Buyers", ConsumeType.PASSIVELY)])
    await client.call(broker, Heartbeat(), encode(data))
    unique = ("queryMsgByUniqueKey", "-t", "Orders", "-i", sent["msgId"], "-g", "Buyers", "-d")
    (done,) = await run(*unique, "c1")
    assert (done["result"], done["ms"], handled) == ("CR_LATER", 5, [b"x"])
    by_id = ("queryMsgById", "-t", "Orders", "-i", await offset_id(run), "-g", "Buyers")
    assert (await run(*by_id, "-d", "c1"))[0]["result"] == "CR_LATER" and handled == [b"x", b"x"]
    assert "-g and -d belong together" in await run(*by_id, fails=True)
    assert "<Buyers> <c2> not online" in await run(*unique, "c2", fails=True)
    await client.close()


async def test_options_that_scripts_for_mqadmin_give(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    await run("updateTopic", "-b", broker, "-t", "Orders", "-r", "1", "-w", "1")
    for tag in ("a", "b"):
        await run("sendMessage", "-t", "Orders", "-p", tag, "-c", tag, "-m", "true")
    shown = ("printMsg", "-t", "Orders", "-d", "true")
    assert [row["body"] for row in await run(*shown, "-c", "UTF-8")] == ["a", "b"]
    assert [row["body"] for row in await run(*shown, "-c", "1")] == ["a"]
    assert [row["body"] for row in await run(*shown, "-s", "b")] == ["b"]
    assert "is less than 1" in await run(*shown, "-c", "0", fails=True)
    policy = '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}'
    await run("updateSubGroup", "-b", broker, "-g", "Buyers", "-p", policy)
    client = RemotingClient()
    answer = await client.call(broker, GetSubscriptionGroupConfig(group="Buyers"))
    config = decode(bytes(answer.body), SubscriptionGroupConfig)
    assert config.group_retry_policy.customized_retry_policy == CustomizedRetryPolicy([1000, 5000])
    await client.close()
    wrong = ("updateSubGroup", "-b", broker, "-g", "Buyers", "-p", "{")
    assert "Invalid value for '-p'" in await run(*wrong, fails=True)
    assert await run("topicRoute", "-t", "Orders", "-l") == await run("topicRoute", "-t", "Orders")
    assert await run("brokerConsumeStats", "-b", broker, "-o", "false", "-t", "50000") == []
    await run("deleteExpiredCommitLog", "--cluster", "DefaultCluster")


async def test_all_producers_of_a_broker(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    assert await run("producer", "-b", broker) == []
    client = RemotingClient()
    data = HeartbeatData("me@1", [ProducerData("Sellers")])
    await client.call(broker, Heartbeat(), encode(data), timeout_ms=5_000)
    (row,) = await run("producer", "-b", broker)
    assert (row["group"], row["clientId"], row["language"]) == ("Sellers", "me@1", "PYTHON")
    await client.close()


async def test_an_address_of_another_kind_of_program_is_reported(cluster: tuple[Run, str]) -> None:
    run, broker = cluster
    namesrv = next(row for row in await run("getNamesrvConfig") if row["key"] == "listenPort")
    (name_server,) = (key for key in namesrv if key != "key")
    for words, found in (
        (("clusterList", "-n", broker), f"{broker} is a broker, not a name server: -n takes name servers"),
        (("updateKvConfig", "-n", broker, "-s", "N", "-k", "k", "-v", "v"), "not a name server: -n takes"),
        (("brokerStatus", "-b", name_server), f"{name_server} is a name server, not a broker: -b takes"),
        (("haStatus", "-b", name_server), f"{name_server} is a name server, not a broker: -b takes"),
        (("getSyncStateSet", "-a", broker, "-b", "x"), f"{broker} is a broker, not a controller: -a takes"),
        (("getControllerMetaData", "-a", name_server), f"{name_server} is a name server, not a controller"),
    ):
        said = await run(*words, fails=True)
        assert found in said and len(said.splitlines()) == 1, said
