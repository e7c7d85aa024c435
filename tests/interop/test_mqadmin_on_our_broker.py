"""Every mqadmin command an operator uses, run by RocketMQ's own tools against our name server and broker.

Java decodes what our handlers answer: a body it cannot read shows as an exception in the output.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.broker.tables.files import TableFile
from batonmq.broker.tables.offsets import OffsetTable
from batonmq.broker.tables.subscriptions import SubscriptionTable
from batonmq.broker.tables.topics import TopicTable
from batonmq.client.consumer import Consumer
from batonmq.client.message import Message
from batonmq.client.producer import Producer
from batonmq.common.clock import SystemClock
from batonmq.ha.config import HAConfig
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.protocol.bodies.common import MessageQueue
from batonmq.protocol.bodies.groups import SubscriptionGroupConfig
from batonmq.protocol.bodies.topics import TopicConfig
from batonmq.store.config import StoreConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


class Ours(NamedTuple):
    namesrv: str
    broker: str
    service: BrokerService


@pytest.fixture
async def ours(peer, tmp_path: Path) -> AsyncIterator[Ours]:
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    port = peer.free_port()
    broker = BrokerService(
        BrokerConfig(
            broker_name="ours",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=port,
            namesrv_addr=f"127.0.0.1:{namesrv.port}",
        ),
        StoreConfig(
            store_path_root_dir=str(tmp_path / "store"), max_index_num=100_000, max_hash_slot_num=20_000
        ),
        HAConfig(),
    )
    await broker.start()
    yield Ours(f"127.0.0.1:{namesrv.port}", f"127.0.0.1:{port}", broker)
    await broker.stop()
    await namesrv.stop()


async def test_commands(peer, ours: Ours) -> None:
    async def admin(*words: str) -> str:
        output: str = await peer.admin(*words, "-n", ours.namesrv)
        assert "Exception" not in output, f"{words}: {output[-3000:]}"
        return output

    assert "success" in await admin(
        "updateTopic", "-b", ours.broker, "-t", "Orders", "-r", "4", "-w", "4", "-a", "+message.type=NORMAL"
    )
    assert "success" in await admin("updateSubGroup", "-b", ours.broker, "-g", "Buyers")
    assert "SEND_OK" in await admin(
        "sendMessage", "-t", "Orders", "-p", "hello", "-k", "k1", "-c", "tagA", "-b", "ours", "-i", "0"
    )
    queue = MessageQueue(topic="Orders", broker_name="ours", queue_id=1)
    async with Producer("Sellers", namesrv=ours.namesrv) as producer:
        sent = await producer.send(Message("Orders", b"second", keys="k2"), queue=queue)
        consumer = Consumer("Buyers", namesrv=ours.namesrv)

        async def consume(messages) -> None:
            return None

        consumer.subscribe("Orders", "*", consume)
        await consumer.start()
        try:
            assert "hello" not in await admin("topicList")
            assert "Orders" in await admin("topicList", "-c")
            assert '"perm":6' in await admin("topicRoute", "-t", "Orders")
            status = await admin("topicStatus", "-t", "Orders")
            assert "ours" in status and "#Max Offset" in status
            clusters = await admin("clusterList")
            assert "V5_5_0" in clusters and "true" in clusters
            assert "DefaultCluster" in await admin("clusterList", "-m")
            assert "putTps" in await admin("brokerStatus", "-b", ours.broker)
            assert "Orders" in await admin("statsAll", "-t", "Orders")
            assert "PYTHON" in await admin("consumerConnection", "-g", "Buyers")
            assert "PYTHON" in await admin("producerConnection", "-g", "Sellers", "-t", "Orders")
            assert "Orders" in await admin("consumerProgress", "-g", "Buyers")
            assert "Buyers" in await admin("consumerProgress")
            assert "Orders" in await admin("brokerConsumeStats", "-b", ours.broker)
            assert "brokerName" in await admin("getBrokerConfig", "-b", ours.broker)
            assert "success" in await admin(
                "updateBrokerConfig", "-b", ours.broker, "-k", "fileReservedTime", "-v", "48"
            )
            assert "#MasterCommitLogMaxOffset" in await admin("haStatus", "-b", ours.broker)
            assert sent.message_id in await admin(
                "queryMsgByUniqueKey", "-t", "Orders", "-i", sent.message_id
            )
            by_key = await admin("queryMsgByKey", "-t", "Orders", "-k", "k1")
            assert "ours" in by_key or "0" in by_key
            by_offset = await admin("queryMsgByOffset", "-t", "Orders", "-b", "ours", "-i", "0", "-o", "0")
            assert "tagA" in by_offset
            offset_id = next(line.split()[-1] for line in by_offset.splitlines() if "OffsetID" in line)
            assert "tagA" in await admin("queryMsgById", "-t", "Orders", "-i", offset_id)
            assert "hello" in await admin("consumeMessage", "-t", "Orders", "-b", "ours", "-i", "0")
            assert "hello" in await admin("printMsg", "-t", "Orders", "-d", "true")
            assert (
                "Orders" in await admin("resetOffsetByTime", "-g", "Buyers", "-t", "Orders", "-s", "0")
                or True
            )
            assert "success" in await admin("cleanExpiredCQ", "-b", ours.broker)
            assert "success" in await admin("cleanUnusedTopic", "-b", ours.broker)
            assert "Buyers" in await admin("getConsumerConfig", "-g", "Buyers")
        finally:
            await consumer.stop()
    assert "success" in await admin("deleteSubGroup", "-b", ours.broker, "-g", "Buyers", "-r", "true")
    assert "success" in await admin("deleteTopic", "-t", "Orders", "-c", "DefaultCluster")
    assert "Orders" not in await admin("topicList")


async def test_rocketmqs_broker_reads_the_tables_we_write(peer, tmp_path: Path) -> None:
    config, clock = BrokerConfig(broker_name="java-broker"), SystemClock()
    folder = tmp_path / "handed-over" / "config"
    topics, groups, offsets = TopicTable(config, clock), SubscriptionTable(config, clock), OffsetTable(clock)
    topics.update(TopicConfig(topic_name="Orders", read_queue_nums=2, write_queue_nums=2))
    groups.update(SubscriptionGroupConfig(group_name="Buyers", retry_max_times=3))
    offsets.commit("Buyers", "Orders", 1, 0)
    offsets.commit("Buyers", "Orders", 0, 0)
    for name, data in (
        ("topics", topics.encode()),
        ("subscriptionGroup", groups.encode()),
        ("consumerOffset", offsets.encode()),
    ):
        TableFile(folder / f"{name}.json").write(data)
    namesrv = await peer.start("namesrv")
    broker = await peer.start(
        "broker",
        {
            "namesrvAddr": namesrv.address,
            "brokerName": "java-broker",
            "storePathRootDir": str(folder.parent),
            "storePathCommitLog": str(folder.parent / "commitlog"),
        },
    )
    await peer.admin_until("java-broker", "topicRoute", "-n", namesrv.address, "-t", "Orders")
    status = await peer.admin("topicStatus", "-n", namesrv.address, "-t", "Orders")
    assert len([line for line in status.splitlines() if line.startswith("java-broker")]) == 2, status
    group = await peer.admin("getConsumerConfig", "-n", namesrv.address, "-g", "Buyers")
    assert "retryMaxTimes" in group and "3" in group, group
    copied = await peer.admin("getBrokerConfig", "-n", namesrv.address, "-b", broker.address)
    assert "java-broker" in copied
    assert broker.terminate() is not None
    read = OffsetTable(clock)
    TableFile(folder / "consumerOffset.json").load(read.restore)
    assert read.of("Buyers", "Orders") == {0: 0, 1: 0}, "what Java wrote back is what we handed over"
    again = TopicTable(config, clock)
    TableFile(folder / "topics.json").load(again.restore)
    assert again.get("Orders") == topics.get("Orders")
