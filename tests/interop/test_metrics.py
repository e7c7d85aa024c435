"""Our metrics beside those of RocketMQ's own exporter: the same requests to both, then both are scraped.

What dashboards and alerts written for RocketMQ go by must be the same: names, types, label keys, the values
of labels that are not names of somebody's, and the bounds of buckets.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric as Family

from batonmq import (
    Consumer,
    Message,
    MessageExt,
    Producer,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
)
from batonmq.broker.config import BrokerConfig
from batonmq.broker.messages.metrics import BYTES_OUT, MESSAGES_OUT
from batonmq.broker.parts import all_metrics
from batonmq.broker.pop.part import PopPart
from batonmq.broker.service import BrokerService
from batonmq.broker.timer.part import TimerPart
from batonmq.broker.transaction.part import TransactionPart
from batonmq.common.metrics import Kind, Metric
from batonmq.common.metrics_config import MetricsExporterType
from batonmq.controller import metrics as controller_metrics
from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.ha.config import HAConfig
from batonmq.net.client import RemotingClient
from batonmq.protocol.bodies.clients import ConsumeFromWhere
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.errors import MQError, NotLeaderError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode
from batonmq.store.config import StoreConfig
from tests.interop.conftest import Peer
from tests.scrape import families

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CLUSTER, NAME, TOPIC, GROUP = "DefaultCluster", "set", "MetricsTopic", "MetricsGroup"
OTHER_TOPIC = "MetricsOtherTopic"
FREE = {
    "address",
    "peer_id",
    "node_id",
    "broker_set",
    "cluster",
    "group",
    "topic",
    "consumer_group",
    "le",
    "version",
}
"""Labels whose values are somebody's names (or, `version`, the client's release as RocketMQ can tell it)."""


async def scraped_until(port: int, complete: Callable[[dict[str, Family]], bool]) -> dict[str, Family]:
    deadline = time.monotonic() + 30
    while True:
        found = {family.name: family for family in await asyncio.to_thread(families, port)}
        if complete(found):
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"metrics are missing, there are {sorted(found)}")
        await asyncio.sleep(0.5)


def keys(family: Family) -> set[str]:
    """Label keys of a family; a label with an empty value is none, as in Prometheus."""
    return {key for sample in family.samples for key, value in sample.labels.items() if value}


def values(family: Family) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for sample in family.samples:
        for key, value in sample.labels.items():
            if value and key not in FREE:
                found.setdefault(key, set()).add(value)
    return found


def bounds(family: Family) -> list[float]:
    return sorted({float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")})


def family_name(metric: Metric) -> str:
    """Prometheus' parser takes the `_total` off a counter's name."""
    return metric.prometheus_name.removesuffix("_total")


# -- the controller ----------------------------------------------------------------------------------------


async def drive_controller(address: str) -> None:
    """Two replicas, a master, both in sync, refusals, reads: every type of request that brokers make."""
    client = RemotingClient()
    try:
        for broker_id in (1, 2):
            at = f"127.0.0.1:{broker_id}"
            await client.call(address, wire.GetNextBrokerId(NAME, CLUSTER))
            await client.call(address, wire.ApplyBrokerId(NAME, broker_id, f"{at};1", CLUSTER))
            await client.call(address, wire.RegisterBrokerToController(CLUSTER, NAME, broker_id, at))
            await client.call(address, BrokerHeartbeat(CLUSTER, at, NAME, broker_id, 0, 0, 0, 60_000, 100))
        elected = await client.call(address, wire.ElectMaster(CLUSTER, NAME, 1))
        assert isinstance(elected.header, wire.ElectMasterReply) and elected.header.master_epoch is not None
        with pytest.raises(MQError, match="STILL_EXIST"):
            await client.call(address, wire.ElectMaster(CLUSTER, NAME, 1))
        epoch, set_epoch = elected.header.master_epoch, elected.header.sync_state_set_epoch
        assert set_epoch is not None
        await client.call(
            address,
            wire.AlterSyncStateSet(NAME, 1, epoch),
            encode(SyncStateSetBody((1, 2), set_epoch)),
        )
        await client.call(address, wire.GetReplicaInfo(NAME))
        await client.call(address, wire.GetMetadata())
        await client.call(address, wire.GetSyncStateData(), f'["{NAME}"]'.encode())
        await client.call(address, wire.GetControllerConfig())
        await client.call(address, wire.UpdateControllerConfig(), b"scanInactiveMasterInterval=4000\n")
        await client.call(address, wire.CleanBrokerData(NAME, CLUSTER, "2", is_clean_living_broker=True))
    finally:
        await client.close()


async def until_leading(address: str) -> None:
    """Until it serves as a leader: Java's says that it leads before it answers anything but 2007."""
    client = RemotingClient()
    deadline = time.monotonic() + 60
    try:
        while True:
            with contextlib.suppress(NotLeaderError):
                await client.call(address, wire.GetNextBrokerId(NAME, CLUSTER))
                return
            assert time.monotonic() < deadline, "no leader within 60 s"
            await asyncio.sleep(0.2)
    finally:
        await client.close()


async def test_quick_controllers_metrics_are_those_of_rocketmq(peer: Peer, tmp_path: Path) -> None:
    java_metrics, port = peer.free_port(), peer.free_port()
    java = await peer.start(
        "controller",
        {
            "metricsExporterType": "PROM",
            "metricsPromExporterHost": "127.0.0.1",
            "metricsPromExporterPort": java_metrics,
            "metricsLabel": "zone:a",
        },
    )
    ours = ControllerService(
        ControllerConfig(
            controller_d_leger_group="interop",
            controller_d_leger_peers=f"n0-127.0.0.1:{port}",
            controller_d_leger_self_id="n0",
            controller_store_path=str(tmp_path / "ours"),
            config_store_path=str(tmp_path / "ours.properties"),
            bind_address="127.0.0.1",
            metrics_exporter_type=MetricsExporterType.PROM,
            metrics_prom_exporter_port=0,
            metrics_label="zone:a",
        )
    )
    await ours.start()
    try:
        names = {family_name(metric) for metric in controller_metrics.METRICS}
        scrapes = []
        for address, metrics_port in (
            (java.address, java_metrics),
            (f"127.0.0.1:{port}", ours.metrics.port),
        ):
            await until_leading(address)
            await drive_controller(address)
            scrapes.append(await scraped_until(metrics_port, lambda found: names <= found.keys()))
    finally:
        await ours.stop()

    theirs, mine = scrapes
    assert mine.keys() == theirs.keys()
    for name in sorted(mine):
        assert mine[name].type == theirs[name].type, name
        assert keys(mine[name]) == keys(theirs[name]), name
        assert bounds(mine[name]) == bounds(theirs[name]), name
    # A closed connection elects at once here and there, but not necessarily before the scrape.
    assert values(mine["request"]) == values(theirs["request"])
    for name in ("request_latency_microseconds", "dledger_op", "dledger_op_latency_microseconds", "role"):
        assert values(mine[name]) == values(theirs[name]), name
    results = "election_result"
    assert {"new_master_elected", "keep_current_master"} <= values(mine["election"])[results]
    assert {"new_master_elected", "keep_current_master"} <= values(theirs["election"])[results]


# -- the broker --------------------------------------------------------------------------------------------


FEATURES = (*TransactionPart.METRICS, *TimerPart.METRICS, *PopPart.METRICS)
"""Metrics that RocketMQ exports only once there are such messages."""


@pytest.mark.parametrize("features", [False, True], ids=["plain", "transactions-timers-pop"])
async def test_brokers_metrics_are_those_of_rocketmq(peer: Peer, tmp_path: Path, features: bool) -> None:
    """Together the two cases compare every metric. With pops the others are not compared: RocketMQ goes on to
    report the lag of a group that popped and is gone."""
    if features:
        compared = (*FEATURES, MESSAGES_OUT, BYTES_OUT)
    else:
        compared = tuple(metric for metric in all_metrics() if metric not in FEATURES)
    names = {family_name(metric) for metric in compared}
    scrapes = []
    for java in (True, False):
        namesrv = await peer.start("namesrv")
        metrics_port = peer.free_port()
        service: BrokerService | None = None
        if java:
            broker = await peer.start(
                "broker",
                {
                    "namesrvAddr": namesrv.address,
                    "brokerName": NAME,
                    "metricsExporterType": "PROM",
                    "metricsPromExporterHost": "127.0.0.1",
                    "metricsPromExporterPort": metrics_port,
                    "metricsLabel": "zone:a",
                    "timerWheelEnable": "true",
                },
            )
            address = broker.address
        else:
            service = BrokerService(
                BrokerConfig(
                    broker_name=NAME,
                    broker_ip1="127.0.0.1",
                    listen_port=peer.free_port(),
                    namesrv_addr=namesrv.address,
                    metrics_exporter_type=MetricsExporterType.PROM,
                    metrics_prom_exporter_port=metrics_port,
                    metrics_label="zone:a",
                    transaction_time_out=1_000,
                    transaction_check_interval=1_000,
                    transaction_check_max=1,
                ),
                StoreConfig(store_path_root_dir=str(tmp_path / "store"), mapped_file_size_commit_log=1 << 20),
                HAConfig(),
            )
            await service.start()
            address = f"127.0.0.1:{service.port}"
        try:
            await peer.admin_until(address, "clusterList", "-n", namesrv.address)
            scrapes.append(
                await messages_in_and_out(namesrv.address, metrics_port, names, java=java, features=features)
            )
        finally:
            if service is not None:
                await service.stop()

    theirs = scrapes[0]
    mine = {name: family for name, family in scrapes[1].items() if name in names}
    own = {name for name in mine if name.startswith("batonmq_")}
    assert own == {name for name in names if name.startswith("batonmq_")}
    assert mine.keys() - own <= theirs.keys()
    for name in sorted(mine.keys() - own):
        assert mine[name].type == theirs[name].type, name
        assert keys(mine[name]) == keys(theirs[name]), name
        assert bounds(mine[name]) == bounds(theirs[name]), name
    for metric in compared:
        name = family_name(metric)
        if metric.kind is Kind.GAUGE and name not in own and "processor" not in keys(mine[name]):
            assert values(mine[name]) == values(theirs[name]), name
    for counter in {"rocketmq_messages_in", "rocketmq_messages_out"} & names:
        counted = [
            {s.labels["topic"]: s.value for s in scrape[counter].samples if s.labels["topic"] == TOPIC}
            for scrape in scrapes
        ]
        assert counted == [{TOPIC: 10}, {TOPIC: 10}], counter
    for latency in scrapes:
        calls = values(latency["rocketmq_rpc_latency_milliseconds"])
        assert calls["request_code"] >= {"send_message_v2", "pull_message", "heart_beat"}
        assert calls["response_code"] >= {"success"}
        assert calls["result"] == {"success"} or calls["result"] == {"success", "oneway"}


async def messages_in_and_out(
    namesrv: str, metrics_port: int, names: set[str], *, java: bool, features: bool
) -> dict[str, Family]:
    """Ten messages through a broker, and each kind of message with its own metrics; the broker's metrics
    while producer and consumer are connected."""
    consumed: list[bytes] = []

    def take(message: MessageExt) -> None:
        consumed.append(bytes(message.body))

    async with Producer("MetricsProducer", namesrv=namesrv) as producer:
        for number in range(10):
            await producer.send(Message(TOPIC, b"%d" % number))
        consumer = Consumer(GROUP, namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe(TOPIC, "*", take)
        await consumer.start()
        try:
            deadline = time.monotonic() + 60
            while len(consumed) < 10:
                assert time.monotonic() < deadline, f"{len(consumed)} of 10 messages consumed"
                await asyncio.sleep(0.1)
            if features:
                await other_kinds(namesrv, producer)
            wanted = {name for name in names if not (java and name.startswith("batonmq_"))}
            return await scraped_until(metrics_port, lambda found: wanted <= found.keys())
        finally:
            await consumer.stop()


async def other_kinds(namesrv: str, producer: Producer) -> None:
    """A timed message, a commit, a rollback, a transaction that stays undecided, popped messages that nobody
    acknowledges in time."""
    await producer.send(Message(OTHER_TOPIC, b"timed", delay=2))
    async with TransactionProducer("MetricsTransactions", namesrv, check=undecided) as transactions:
        async with transactions.transaction(Message(OTHER_TOPIC, b"committed")):
            pass
        async with transactions.transaction(Message(OTHER_TOPIC, b"rolled back")) as transaction:
            await transaction.rollback()
        await transactions.transaction(Message(OTHER_TOPIC, b"given up")).__aenter__()
        await consume_twice(namesrv)


async def consume_twice(namesrv: str) -> None:
    """Let every message be revived once, then acknowledge it."""
    consumer = SimpleConsumer(
        "MetricsPop", namesrv, invisible_duration=10, from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(OTHER_TOPIC)
    async with consumer:
        bodies: list[bytes] = []
        deadline = time.monotonic() + 90
        while sorted(bodies) != [b"committed", b"committed", b"timed", b"timed"]:
            assert time.monotonic() < deadline, bodies
            for message in await consumer.receive(wait=5):
                if message.body in bodies:
                    await consumer.ack(message)
                bodies.append(bytes(message.body))


async def undecided(message: MessageExt) -> TransactionState:
    return TransactionState.UNKNOWN
