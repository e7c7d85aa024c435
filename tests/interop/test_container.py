"""Broker containers beside RocketMQ's: its tools and clients on ours, both containers in one cluster, and the
same requests to both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batonmq.net import RemotingClient
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetBrokerConfig, UpdateBrokerConfig
from batonmq.protocol.headers.broker.replication import AddBroker, RemoveBroker
from batonmq.protocol.registry import Header
from tests.integration.container.files import BrokerConf
from tests.integration.container.processes import Nodes, log
from tests.interop.conftest import JavaProcess, Peer, free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

JAVA = Path(__file__).with_name("java")
FOR_JAVA = {
    "storePathCommitLog": "",
    "mapedFileSizeCommitLog": 1 << 20,
    "mapedFileSizeConsumeQueue": 20 * 50_000,
    "timerWheelEnable": "false",
    "brokerIP2": "127.0.0.1",
}


def conf(directory: Path, name: str, broker_id: int = 0, **settings: object) -> BrokerConf:
    """A broker's file that both containers take."""
    made = BrokerConf(directory, name, broker_id)
    made.settings = {**FOR_JAVA, "storePathCommitLog": made.store / "commitlog", **settings}
    made.write()
    return made


@asynccontextmanager
async def nodes(made: Nodes) -> AsyncIterator[Nodes]:
    try:
        await made.up()
        yield made
    finally:
        await made.close()


async def java_container(peer: Peer, namesrv: str, *confs: BrokerConf) -> JavaProcess:
    """RocketMQ's container; returns when all of its brokers serve."""
    paths = ":".join(str(each.path) for each in confs)
    config = {"listenPort": free_port(), "namesrvAddr": namesrv}
    process = await peer.start("container", {**config, **({"brokerConfigPaths": paths} if paths else {})})
    for each in confs:
        await process.wait_for(f"Broker [{each.name}-{each.broker_id}] boot success")
    return process


async def test_quick_mqadmin_adds_and_removes_brokers_of_our_container(peer: Peer, tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with nodes(Nodes(tmp_path, [[a]])) as made:
        (container,) = made.containers
        where = ("-c", container.address, "-b")
        await peer.admin_until(a.address, "clusterList", "-n", made.namesrv.address)
        said = await peer.admin("addBroker", *where, str(b.path))
        assert f"add broker to {container.address} success" in said
        await peer.admin_until(b.address, "clusterList", "-n", made.namesrv.address)
        assert await made.send("b", 5) == 0
        said = await peer.admin("addBroker", *where, str(b.path))
        assert "DefaultCluster_b_0 has already been added to current broker container" in said
        said = await peer.admin("addBroker", *where, str(tmp_path / "missing.conf"))
        assert "addBroker properties empty" in said
        said = await peer.admin("getBrokerConfig", "-b", container.address)
        assert "brokerConfigPaths" in said and str(a.path) in said
        said = await peer.admin("removeBroker", *where, "DefaultCluster:b:0")
        assert f"remove broker from {container.address} success" in said
        assert b.address not in await peer.admin("clusterList", "-n", made.namesrv.address)
        said = await peer.admin("removeBroker", *where, "DefaultCluster:b:0")
        assert "CODE: 211" in said and "Broker not exist" in said


@pytest.mark.parametrize("processes", [1, 2])
async def test_java_clients_send_to_and_consume_from_our_container(
    peer: Peer, tmp_path: Path, processes: int
) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with nodes(Nodes(tmp_path, [[a, b]], containerProcesses=processes)) as made:
        await peer.admin_until(b.address, "clusterList", "-n", made.namesrv.address)
        said = await peer.admin(
            "updateTopic", "-n", made.namesrv.address, "-c", "DefaultCluster", "-t", "JavaInContainer"
        )
        assert "success" in said
        output = await peer.java(
            JAVA / "SendAndConsume.java", made.namesrv.address, "JavaInContainer", "60", timeout_s=240
        )
        assert "complete=true" in output and "foreign=0" in output, output
        assert "batch_ids=10" in output


def bad_requests(directory: Path, present: BrokerConf) -> list[tuple[Header, bytes, str]]:
    """Requests that are refused, and the words that both say."""
    slave = conf(directory, "no-id", brokerRole="SLAVE", brokerId=0)
    replicas = conf(directory, "replicas", inSyncReplicas=3, totalReplicas=2)
    same = "has already been added to current broker container"

    def remove(name: str, broker_id: int, cluster: str = "DefaultCluster") -> RemoveBroker:
        return RemoveBroker(broker_name=name, broker_cluster_name=cluster, broker_id=broker_id)

    return [
        (AddBroker(config_path=""), b"", "addBroker config path is empty"),
        (AddBroker(), b"", "addBroker config path is empty"),
        (AddBroker(config_path=f"{directory}/missing"), b"", "addBroker properties empty"),
        (AddBroker(config_path=str(slave.path)), b"", "slave broker id must be > 0"),
        (AddBroker(config_path=str(replicas.path)), b"", ""),
        (AddBroker(config_path=str(present.path)), b"", same),
        (remove("nobody", 0), b"", "Broker not exist"),
        (remove(present.name, 1), b"", "Broker not exist"),
        (remove(present.name, 0, "OtherCluster"), b"", "Broker not exist"),
        (UpdateBrokerConfig(), b"brokerConfigPaths=x\n", "Can not update config in black list."),
        (UpdateBrokerConfig(), b"configBlackList=x\n", "Can not update config in black list."),
    ]


async def outcomes(address: str, directory: Path, present: BrokerConf) -> list[tuple[int, str]]:
    """Code and the words, or the whole remark if it has other ones."""
    client = RemotingClient()
    found = []
    try:
        for header, body, words in bad_requests(directory, present):
            try:
                await client.call(address, header, body, timeout_ms=20_000)
            except MQError as error:
                found.append((int(error.code), words if words in error.remark else error.remark))
            else:
                found.append((0, ""))
        # All brokers are as they were.
        await client.call(address, GetBrokerConfig())
    finally:
        await client.close()
    return found


async def test_both_containers_refuse_the_same_requests_with_the_same_codes_and_words(
    peer: Peer, tmp_path: Path
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for each in (ours, theirs):
        each.mkdir()
    a = conf(ours, "a")
    async with nodes(Nodes(ours, [[a]])) as made:
        our = await outcomes(made.containers[0].address, ours, a)
        b = conf(theirs, "a")
        java = await java_container(peer, made.namesrv.address, b)
        their = await outcomes(java.address, theirs, b)
    assert our == their
    assert {code for code, _ in our} == {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.BROKER_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
    }


def lines_of(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if "boot success" in line)


async def test_both_containers_print_the_same_lines_when_they_serve(peer: Peer, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for each in (ours, theirs):
        each.mkdir()
    async with nodes(Nodes(ours, [[conf(ours, "a"), conf(ours, "b", 1)]])) as made:
        java = await java_container(peer, made.namesrv.address, conf(theirs, "a"), conf(theirs, "b", 1))
        assert lines_of(log(made.containers[0])) == lines_of(java.output)


async def test_a_node_of_ours_and_one_of_rocketmqs_hold_two_broker_sets_crosswise(
    peer: Peer, tmp_path: Path
) -> None:
    """Each node has the master of one set and the slave of the other; then ours is killed and comes back."""
    settings: dict[str, Any] = {
        "brokerRole": "SYNC_MASTER",
        "totalReplicas": 2,
        "inSyncReplicas": 2,
        "minInSyncReplicas": 1,
        "enableAutoInSyncReplicas": "true",
        "enableSlaveActingMaster": "true",
        "slaveReadEnable": "true",
    }
    slave = {**settings, "brokerRole": "SLAVE"}
    java = {"skipPreOnline": "true"}
    a0, b0 = conf(tmp_path, "a", **settings), conf(tmp_path, "b", **settings, **java)
    a1, b1 = conf(tmp_path, "a", 1, **slave, **java), conf(tmp_path, "b", 1, **slave)
    (tmp_path / "ours").mkdir()
    async with nodes(Nodes(tmp_path / "ours", [[a0, b1]])) as made:
        (ours,) = made.containers
        await java_container(peer, made.namesrv.address, b0, a1)
        for each in (a0, a1, b0, b1):
            await peer.admin_until(each.address, "clusterList", "-n", made.namesrv.address)
        said = await peer.admin(
            "updateTopic",
            "-n",
            made.namesrv.address,
            "-c",
            "DefaultCluster",
            "-t",
            "Kept",
            "-w",
            "1",
            "-r",
            "1",
        )
        assert "success" in said, said
        await sent(made, "a")
        await sent(made, "b")
        await followed(made, a0, a1)
        await followed(made, b0, b1)
        ours.kill()
        assert await made.bodies(a1.address) == made.acked["a"], "RocketMQ's slave has all of our master"
        await sent(made, "b")
        await made.start(ours)
        await followed(made, b0, b1)
        await sent(made, "a")
        assert await made.bodies(b1.address) == made.acked["b"], "our slave has all of RocketMQ's master"
        assert await asyncio.to_thread(ours.stop) == 0


async def sent(made: Nodes, name: str, count: int = 30) -> None:
    before = len(made.acked.setdefault(name, []))
    for _ in range(5):
        await made.send(name, count - (len(made.acked[name]) - before), timeout_ms=5_000)
        if len(made.acked[name]) - before >= count:
            return
    pytest.fail(f"{name} takes no messages")


async def followed(made: Nodes, master: BrokerConf, slave: BrokerConf) -> None:
    """Until the slave gives what the master gives. A Java slave copies topics once a minute."""
    for _ in range(450):
        try:
            if await made.bodies(slave.address) == made.acked[master.name]:
                return
        except MQError:
            pass
        await asyncio.sleep(0.2)
    pytest.fail(f"the slave of {master.name} does not follow")
