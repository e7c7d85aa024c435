"""A live replica group goes from RocketMQ's controllers to ours and back, under load, with nothing lost."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from batonmq.demo.cluster import LocalCluster, Program
from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from tests.interop.conftest import Peer
from tests.interop.live_group import NODES, Group, Load, start_controllers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


def our_controllers(directory: Path) -> list[Program]:
    directory.mkdir()
    ports = free_ports(NODES)
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
    return [
        Program(
            f"controller-{number}",
            "controller",
            directory,
            {
                "controllerDLegerGroup": "controllers",
                "controllerDLegerPeers": peers,
                "controllerDLegerSelfId": f"n{number}",
                "controllerStorePath": directory / f"store-{number}",
            },
            port=port,
        )
        for number, port in enumerate(ports)
    ]


async def start_ours(directory: Path) -> list[Program]:
    programs = our_controllers(directory)
    for program in programs:
        program.start(wait=False)
    for program in programs:
        await asyncio.to_thread(program.wait_ready)
    return programs


async def move(cluster: str, name: str, source: list[str], target: list[str]) -> str:
    """As an operator does it; returns what was printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "batonmq", "admin", "moveControllers", "-c", cluster, "-b", name,
        "-a", ";".join(source), "-t", ";".join(target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.parametrize("kind", ["DLedger", "jRaft"])
async def test_our_brokers_go_to_our_controllers_and_back(peer: Peer, tmp_path: Path, kind: str) -> None:
    theirs = list(await start_controllers(peer, kind))
    programs = await start_ours(tmp_path / "controllers")
    ours = [program.address for program in programs]
    cluster = LocalCluster(
        tmp_path / "ours",
        replicas=2,
        controllers=0,
        broker_settings={"controllerAddr": ";".join(theirs), "mappedFileSizeCommitLog": 16 << 20},
    )
    client = RemotingClient()
    old, new = (Group(cluster.broker_name, addresses, client) for addresses in (theirs, ours))
    load = Load(cluster.namesrv_address)
    try:
        await old.leader()
        await asyncio.to_thread(cluster.start)
        await old.until(lambda _, __, members: members == (1, 2), "both in sync")
        async with load.running():
            await load.grows("at the beginning")
            print(await move(cluster.cluster_name, cluster.broker_name, theirs, ours))
            _, before, _ = await old.state()
            master, epoch, members = await new.state()
            assert (master, members) == (1, (1, 2)) and epoch > before
            await load.grows("under our controllers")
            for broker in cluster.brokers:
                # The move wrote it into the brokers' files; LocalCluster rewrites these at each start.
                assert f"controllerAddr={';'.join(ours)}" in broker.config_path.read_text()
                broker.settings = {**broker.settings, "controllerAddr": ";".join(ours)}
            cluster.brokers[0].kill()
            await new.until(lambda master, _, __: master == 2, "ours elect the slave")
            await load.grows("after kill -9")
            await asyncio.to_thread(cluster.brokers[0].start)
            await new.until(lambda _, __, members: members == (1, 2), "both in sync under ours")

            empty = list(await start_controllers(peer, kind))
            # Three starting JVMs may keep a broker from its heartbeats for seconds.
            await new.until(lambda _, __, members: members == (1, 2), "still in sync")
            moving, _, _ = await new.state()
            back = Group(cluster.broker_name, empty, client)
            await back.leader()
            print(await move(cluster.cluster_name, cluster.broker_name, ours, empty))
            master, epoch_back, members = await back.state()
            assert (master, members) == (moving, (1, 2)) and epoch_back > epoch
            await load.grows("under RocketMQ's controllers again")
            cluster.brokers[moving - 1].kill()
            await back.until(lambda master, _, __: master == 3 - moving, "theirs elect the slave")
            await load.grows("after the second kill -9")
        await load.check()
    finally:
        await client.close()
        await asyncio.to_thread(cluster.stop)
        for program in programs:
            program.kill()


async def test_rocketmqs_brokers_go_to_our_controllers(peer: Peer, tmp_path: Path) -> None:
    """They look at a changed controllerAddr every two minutes."""
    theirs = list(await start_controllers(peer, "DLedger"))
    programs = await start_ours(tmp_path / "controllers")
    ours = [program.address for program in programs]
    client = RemotingClient()
    old, new = (Group("java-group", addresses, client) for addresses in (theirs, ours))
    try:
        await old.leader()
        namesrv = await peer.start("namesrv")
        brokers = []
        for number in (1, 2):
            store = tmp_path / f"java-store-{number}"
            keys = {
                "brokerName": "java-group",
                "brokerId": -1,
                "namesrvAddr": namesrv.address,
                "enableControllerMode": "true",
                "controllerAddr": ";".join(theirs),
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
                "storePathEpochFile": store / "epoch",
                "storePathBrokerIdentity": store / "identity",
                "allAckInSyncStateSet": "true",
            }
            brokers.append(await peer.start("broker", keys))
            await old.until(lambda master, _, members, n=number: master == 1 and len(members) == n, "in sync")
        load = Load(namesrv.address)
        async with load.running():
            await load.grows("at the beginning")
            print(await move("DefaultCluster", "java-group", theirs, ours))
            master, _, members = await new.state()
            assert (master, members) == (1, (1, 2))
            await load.grows("under our controllers")
            brokers[0].kill()
            await new.until(lambda master, _, __: master == 2, "ours elect the slave")
            await load.grows("after kill -9")
        await load.check()
    finally:
        await client.close()
        for program in programs:
            program.kill()
