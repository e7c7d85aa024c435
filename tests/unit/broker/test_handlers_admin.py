"""The broker as a whole over the wire: figures, configuration, clients, replication, clean-up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.broker.conftest import Served
from tests.unit.broker.fakes import FakeConnection, ask, become_slave, json_of
from tests.unit.broker.test_handlers_client import heartbeat

from batonmq.broker import settings
from batonmq.broker.delay.part import DelayPart
from batonmq.broker.replica import handlers as replica_handlers
from batonmq.common.config import parse_properties
from batonmq.ha.autoswitch.epochs import EpochCache
from batonmq.ha.autoswitch.service import MasterStatus, ReplicaStatus
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.ha_frames import EpochStart
from batonmq.protocol.headers.broker.admin import (
    CleanExpiredConsumeQueue,
    CleanUnusedTopic,
    DeleteExpiredCommitLog,
    GetAllProducerInfo,
    GetBrokerConfig,
    GetBrokerRuntimeInfo,
    GetConsumerConnectionList,
    GetProducerConnectionList,
    UpdateBrokerConfig,
)
from batonmq.protocol.headers.broker.clients import Heartbeat
from batonmq.protocol.headers.broker.replication import (
    ExchangeHAInfo,
    GetBrokerEpochCache,
    GetBrokerHAStatus,
    NotifyMinBrokerIdChange,
    ResetMasterFlushOffset,
)

WIRE = Path(__file__).parents[2] / "data" / "broker" / "wire"

RUNTIME_KEYS_OF_CLUSTER_LIST = (
    "msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgGetTotalYesterdayMorning "
    "msgGetTotalTodayMorning msgGetTotalTodayNow brokerActive putTps getTransferredTps brokerVersionDesc "
    "sendThreadPoolQueueSize pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills "
    "pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp "
    "commitLogDiskRatio timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps"
)


async def test_runtime_info_has_what_tools_print(served: Served) -> None:
    served.put(0, b"x")
    served.broker.stats.count_put("TopicJ", 1, 100)
    info = json_of(await ask(served.dispatcher, GetBrokerRuntimeInfo()))["table"]
    assert set(RUNTIME_KEYS_OF_CLUSTER_LIST.split()) <= set(info)
    assert all(isinstance(value, str) for value in info.values())
    assert info["brokerActive"] == "true" and info["msgPutTotalTodayNow"] == "1"
    assert info["runtime"] == "[ 0 days, 0 hours, 0 minutes, 1 seconds ]"
    assert info["commitLogMaxOffset"] == str(served.store.max_offset)
    assert len(info["putTps"].split()) == 3
    become_slave(served.broker)
    assert json_of(await ask(served.dispatcher, GetBrokerRuntimeInfo()))["table"]["brokerActive"] == "false"


NUMBERS_OF_THE_EXPORTER = """
    msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning
    msgPutTotalTodayMorning msgGetTotalTodayMorning sendThreadPoolQueueHeadWaitTimeMills
    queryThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize
    pullThreadPoolQueueSize sendThreadPoolQueueSize sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity
    queryThreadPoolQueueCapacity bootTimestamp commitLogMinOffset commitLogMaxOffset dispatchMaxBuffer
    brokerVersion pageCacheLockTimeMills getMessageEntireTimeMax putMessageTimesTotal
    startAcceptSendRequestTimeStamp putMessageEntireTimeMax earliestMessageTimeStamp
    remainTransientStoreBufferNumbs dispatchBehindBytes putMessageSizeTotal
"""
FRACTIONS_OF_THE_EXPORTER = """
    consumeQueueDiskRatio commitLogDiskRatio putMessageAverageSize putLatency99 putLatency999
"""
RATES_OF_THE_EXPORTER = "putTps getMissTps getTransferedTps getTotalTps getFoundTps"


async def test_runtime_info_can_be_read_by_apaches_exporter(served: Served) -> None:
    served.put(2, b"x", topic="SCHEDULE_TOPIC_XXXX")
    served.put(2, b"y", topic="SCHEDULE_TOPIC_XXXX")
    delayed = {"offsetTable": {"3": 1, "18": 0}}
    delay = next(part for part in served.parts if isinstance(part, DelayPart))
    delay.schedule.restore(json.dumps(delayed).encode())
    info = json_of(await ask(served.dispatcher, GetBrokerRuntimeInfo()))["table"]
    for key in NUMBERS_OF_THE_EXPORTER.split():
        assert int(info[key]) >= 0, key
    for key in FRACTIONS_OF_THE_EXPORTER.split():
        assert float(info[key]) >= 0, key
    for key in RATES_OF_THE_EXPORTER.split():
        assert len([float(rate) for rate in info[key].split(" ")]) == 3, key
    for each in info["putMessageDistributeTime"].split(" "):
        label, count = each.split(":")
        assert label[0] + label[-1] == "[]" and count == "0"
    assert float(info["remainHowManyDataToFlush"].split(" ")[0]) >= 0
    words = info["commitLogDirCapacity"].split(" ")
    assert float(words[2]) >= float(words[6]) and words[3][-1] + words[7][-1] == ",."
    assert info["scheduleMessageOffset_3"] == "1,2" and info["scheduleMessageOffset_18"] == "0,0"


async def test_configuration_has_rocketmqs_spelling(served: Served) -> None:
    reply = await ask(served.dispatcher, GetBrokerConfig())
    shown = parse_properties(bytes(reply.body).decode())  # type: ignore[arg-type]
    assert shown["brokerName"] == "broker-a" and shown["autoCreateTopicEnable"] == "true"
    assert "fileReservedTime" in shown and "haListenPort" in shown
    assert reply.header is not None and json.loads(reply.header.to_ext()["version"])["counter"] == 0


async def test_configuration_changes_take_effect_and_are_saved(served: Served) -> None:
    file = served.root / "broker.conf"
    file.write_text("brokerName=broker-a\n")
    version = served.broker.tables.topics.version.counter
    body = b"autoCreateTopicEnable=false\nfileReservedTime=48\nbrokerPermission=4\n"
    await ask(served.dispatcher, UpdateBrokerConfig(), body)
    assert served.broker.tables.topics.create_on_send("new", "TBW102", 4) is None
    assert served.store.config.file_reserved_time == 48
    assert served.broker.settings.broker.broker_permission == 4
    assert served.broker.tables.topics.version.counter == version + 1, "name servers see a new version"
    assert parse_properties(file.read_text()) == {
        "brokerName": "broker-a",
        "autoCreateTopicEnable": "false",
        "fileReservedTime": "48",
        "brokerPermission": "4",
    }
    assert served.broker.settings.version.counter == 1


async def test_of_two_changes_at_once_the_file_and_the_broker_have_the_same_last_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    file: dict[str, str] = {}

    def slow_first(path: Path, changes: Mapping[str, str], *, make: bool) -> None:
        time.sleep(0.02 if changes["fileReservedTime"] == "48" else 0)
        file.update(changes)

    monkeypatch.setattr(settings, "change_file", slow_first)
    bodies = [b"fileReservedTime=48\n", b"fileReservedTime=49\n"]
    await asyncio.gather(*(ask(served.dispatcher, UpdateBrokerConfig(), body) for body in bodies))
    assert file == {"fileReservedTime": "49"} and served.store.config.file_reserved_time == 49


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"brokerConfigPath=x", 16, "Can not update config in black list."),
        (b"noSuchKey=1", 1, "unknown key noSuchKey"),
        (b"autoCreateTopicEnabel=true", 1, "did you mean autoCreateTopicEnable?"),
        (b"brokerPermission=abc", 1, "brokerPermission=abc"),
        (b"autoCreateTopicEnable=false\nslaveTimeout=0", 1, "slaveTimeout=0"),
        (b"aclEnable=true", 1, "aclEnable cannot be set: access control is a matter of the broker's file"),
        (b"authenticationEnabled=false", 1, "authenticationEnabled cannot be set"),
        (b"initAuthenticationUser={}", 1, "initAuthenticationUser cannot be set"),
        (b"listenPort=1", 1, "listenPort cannot change while the broker runs"),
        (b"storePathRootDir=/x", 1, "storePathRootDir cannot change while the broker runs"),
        (b"\xff\xfe", 1, "not properties text"),
    ],
)
async def test_a_bad_change_is_refused_whole_in_one_line(
    served: Served, body: bytes, code: int, words: str
) -> None:
    before = served.broker.settings.broker
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, UpdateBrokerConfig(), body)
    assert refused.value.code == code and words in refused.value.remark and "\n" not in refused.value.remark
    assert served.broker.settings.broker is before


async def test_connections(served: Served) -> None:
    connection = FakeConnection("127.0.0.1:36860")
    await ask(served.dispatcher, Heartbeat(), heartbeat(), connection=connection)
    ours = json_of(await ask(served.dispatcher, GetConsumerConnectionList(consumer_group="GroupJ")))
    java = json.loads((WIRE / "consumerconn.json").read_bytes())
    del java["subscriptionTable"]["%RETRY%GroupJ"]
    ours["subscriptionTable"]["TopicJ"]["subVersion"] = 1_700_000_000_000
    java["connectionSet"][0]["clientAddr"] = connection.peer
    assert ours == java
    producers = json_of(await ask(served.dispatcher, GetProducerConnectionList(producer_group="ProdJ")))
    assert producers == {"connectionSet": java["connectionSet"]}
    everyone = json_of(await ask(served.dispatcher, GetAllProducerInfo()))
    (info,) = everyone["data"]["ProdJ"]
    assert set(info) == set(json.loads((WIRE / "allproducers.json").read_bytes())["data"]["ProdJ"][0])


async def test_connections_of_unknown_groups(served: Served) -> None:
    with pytest.raises(MQError) as consumer:
        await ask(served.dispatcher, GetConsumerConnectionList(consumer_group="Gnope"))
    assert (consumer.value.code, consumer.value.remark) == (206, "the consumer group[Gnope] not online")
    with pytest.raises(MQError) as producer:
        await ask(served.dispatcher, GetProducerConnectionList(producer_group="Pnope"))
    assert (producer.value.code, producer.value.remark) == (1, "the producer group[Pnope] not exist")


async def test_unused_topics_lose_their_queues(served: Served) -> None:
    served.put(0, b"x")
    served.put(0, b"x", topic="Gone")
    await ask(served.dispatcher, CleanUnusedTopic())
    assert served.store.queues() == [("TopicJ", 0)]
    await ask(served.dispatcher, CleanExpiredConsumeQueue())
    await ask(served.dispatcher, DeleteExpiredCommitLog())


class FakeHA:
    """Stands for `HAService`, with the figures that tools read."""

    def __init__(self) -> None:
        self.epochs = EpochCache([EpochStart(1, 0), EpochStart(3, 500)])
        self.master_address = ""

    def replicas(self) -> list[ReplicaStatus]:
        return [ReplicaStatus(2, "10.0.0.2:4000", 80, 100, True, False, 7)]

    def master(self) -> MasterStatus | None:
        return MasterStatus("10.0.0.3:10912", 1, 2, 9)

    def set_master_address(self, address: str) -> None:
        self.master_address = address


async def test_ha_status(served: Served) -> None:
    alone = json_of(await ask(served.dispatcher, GetBrokerHAStatus()))
    java = json.loads((WIRE / "hastatus.json").read_bytes())
    assert set(alone) == set(java) and alone["master"] is True and alone["haConnectionInfo"] == []
    served.put(0, b"x")
    served.broker.replication = FakeHA()  # type: ignore[assignment]
    master = json_of(await ask(served.dispatcher, GetBrokerHAStatus()))
    (replica,) = master["haConnectionInfo"]
    assert replica["addr"] == "10.0.0.2:4000" and replica["diff"] == served.store.max_offset - 80
    assert master["inSyncSlaveNums"] == 1
    become_slave(served.broker)
    slave = json_of(await ask(served.dispatcher, GetBrokerHAStatus()))
    assert slave["haClientRuntimeInfo"]["masterAddr"] == "10.0.0.3:10912" and slave["master"] is False


async def test_epochs(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MQError, match="this request only for controllerMode"):
        await ask(served.dispatcher, GetBrokerEpochCache())
    monkeypatch.setattr(replica_handlers, "HAService", FakeHA)
    served.broker.replication = FakeHA()  # type: ignore[assignment]
    cache = json_of(await ask(served.dispatcher, GetBrokerEpochCache()))
    assert cache["epochList"] == [
        {"epoch": 1, "startOffset": 0, "endOffset": 500},
        {"epoch": 3, "startOffset": 500, "endOffset": 2**63 - 1},
    ]


async def test_master_and_slave_exchange_addresses(served: Served) -> None:
    reply = await ask(served.dispatcher, ExchangeHAInfo())
    assert reply.header is not None
    assert reply.header.to_ext()["masterHaAddress"] == "10.0.0.1:10912"
    become_slave(served.broker)
    served.broker.replication = FakeHA()  # type: ignore[assignment]
    announced = ExchangeHAInfo(master_ha_address="10.0.0.5:10912", master_address="10.0.0.5:10911")
    before = served.broker.role.master_address, served.broker.replication.master_address  # type: ignore[union-attr]
    await ask(served.dispatcher, announced)
    after = served.broker.role.master_address, served.broker.replication.master_address  # type: ignore[union-attr]
    assert after == before, "any client could send this"
    asked = await ask(served.dispatcher, ExchangeHAInfo())
    assert asked.header is not None and asked.header.to_ext() == {}


async def test_notices_between_brokers(served: Served) -> None:
    await ask(served.dispatcher, NotifyMinBrokerIdChange(min_broker_id=2))
    with pytest.raises(MQError) as refused:
        await ask(served.dispatcher, ResetMasterFlushOffset(master_flush_offset=9))
    assert refused.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
