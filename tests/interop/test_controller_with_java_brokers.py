"""Our controllers lead two Java brokers: register, elect, kill -9, re-elect, rejoin, and mqadmin on top."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService
from batonmq.net.client import RemotingClient
from batonmq.protocol.headers import controller as wire

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]

CLUSTER = "DefaultCluster"
NAME = "group-a"


async def until(condition: Any, what: str, timeout_s: float = 60) -> float:
    """Waits for a condition; returns how long it took, s."""
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > timeout_s:
            pytest.fail(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(0.005)
    return time.monotonic() - started


def broker_config(namesrv: str, controllers: str, home: Path) -> dict[str, object]:
    return {
        "brokerClusterName": CLUSTER,
        "brokerName": NAME,
        "brokerId": -1,
        "namesrvAddr": namesrv,
        "enableControllerMode": "true",
        "controllerAddr": controllers,
        "storePathRootDir": home / "store",
        "storePathCommitLog": home / "store" / "commitlog",
        "storePathEpochFile": home / "store" / "epoch",
        "storePathBrokerIdentity": home / "store" / "identity",
        "allAckInSyncStateSet": "true",
    }


def controllers_on(ports: list[int], root: Path) -> list[ControllerService]:
    """One group of controllers, not started."""
    peers = ";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(ports))
    return [
        ControllerService(
            ControllerConfig(
                controller_d_leger_group="interop",
                controller_d_leger_peers=peers,
                controller_d_leger_self_id=f"n{i}",
                controller_store_path=str(root / f"controller-{i}"),
                bind_address="127.0.0.1",
            )
        )
        for i in range(len(ports))
    ]


async def test_quick_register_elect_kill_reelect(peer: Any, tmp_path: Path) -> None:
    port = peer.free_port()
    (controller,) = controllers_on([port], tmp_path)
    await controller.start()
    try:
        await until(lambda: controller.leading, "a leading controller")
        sets = controller.machine.broker_sets
        namesrv = await peer.start("namesrv")
        configs = [
            broker_config(namesrv.address, f"127.0.0.1:{port}", tmp_path / name)
            | {"listenPort": peer.free_port(), "haListenPort": peer.free_port()}
            for name in ("first", "second")
        ]
        first = await peer.start("broker", configs[0])
        await until(lambda: NAME in sets and sets[NAME].master_id == 1, "the first broker is master")
        await peer.start("broker", configs[1])
        await until(lambda: sets[NAME].sync_state_set == (1, 2), "the second broker is in sync")
        first.kill()
        took_s = await until(lambda: sets[NAME].master_id == 2, "the second broker is master", 5)
        assert took_s < 1.0 and sets[NAME].master_epoch == 2
        await peer.start("broker", configs[0])
        await until(lambda: sets[NAME].sync_state_set == (1, 2), "the old master is in sync as slave")
        assert sets[NAME].master_id == 2 and sets[NAME].master_epoch == 2
    finally:
        await controller.stop()


async def test_java_brokers_live_under_our_controllers(peer: Any, tmp_path: Path) -> None:
    ports = [peer.free_port() for _ in range(3)]
    services = controllers_on(ports, tmp_path)
    for service in services:
        await service.start()
    client = RemotingClient()
    try:
        await until(lambda: any(service.leading for service in services), "a leading controller")
        leader = next(service for service in services if service.leading)
        sets = leader.machine.broker_sets
        controllers = ";".join(f"127.0.0.1:{port}" for port in ports)
        # mqadmin reads metadata from the address it is given, and goes to the leader with the rest.
        any_controller = f"127.0.0.1:{ports[0]}"

        namesrv = await peer.start("namesrv")
        first_config = broker_config(namesrv.address, controllers, tmp_path / "first")
        first_config |= {"listenPort": peer.free_port(), "haListenPort": peer.free_port()}
        first = await peer.start("broker", first_config)
        await until(lambda: NAME in sets and sets[NAME].master_id == 1, "the first broker is master")
        assert sets[NAME].master_epoch == 1
        second = await peer.start("broker", broker_config(namesrv.address, controllers, tmp_path / "second"))
        await until(lambda: sets[NAME].sync_state_set == (1, 2), "the second broker is in sync")

        text = await peer.admin("getSyncStateSet", "-a", any_controller, "-b", NAME)
        assert re.search(r"MasterBrokerId.*1", text), text
        assert text.count("InSyncReplica:") == 2 and "alive=true" in text, text
        assert first.address in text and second.address in text, text
        text = await peer.admin("getControllerMetaData", "-a", any_controller)
        leader_address = leader.topology.rpc_addresses[leader.topology.self_id]
        assert leader_address in text and leader.topology.self_id in text, text
        text = await peer.admin("getControllerConfig", "-a", any_controller)
        assert "scanNotActiveBrokerInterval" in text, text
        text = await peer.admin(
            "updateControllerConfig", "-a", leader_address, "-k", "scanNotActiveBrokerInterval", "-v", "1000"
        )
        assert "success" in text, text
        assert leader.config.scan_not_active_broker_interval == 1000
        text = await peer.admin("getBrokerEpoch", "-n", namesrv.address, "-b", NAME)
        assert re.search(r"Epoch.*1", text, re.IGNORECASE), text

        # kill -9: the closed connection elects the other replica within milliseconds
        first.kill()
        took_s = await until(lambda: sets[NAME].master_id == 2, "the second broker is master", 5)
        print(f"kill -9 -> elected: {took_s * 1000:.0f} ms")
        assert took_s < 1.0
        assert sets[NAME].master_epoch == 2

        # the old master rejoins as slave and gets back into the set
        again = await peer.start("broker", first_config)
        await until(lambda: sets[NAME].sync_state_set == (1, 2), "the old master is in sync as slave")
        assert sets[NAME].master_id == 2 and sets[NAME].master_epoch == 2

        # the operator hands the role back
        text = await peer.admin("electMaster", "-a", any_controller, "-c", CLUSTER, "-bn", NAME, "-b", "1")
        assert sets[NAME].master_id == 1 and sets[NAME].master_epoch == 3, text
        assert again.address in text, text
        await until(lambda: sets[NAME].sync_state_set == (1, 2), "both in sync under the third master")
        await until(lambda: leader.notices.pending == 0, "both replicas follow in the third epoch", 60)

        # the leading controller goes: the brokers follow the next one, and no master changes by that
        await leader.stop()
        rest = [service for service in services if service is not leader]
        await until(lambda: any(service.leading for service in rest), "another leading controller")
        heir = next(service for service in rest if service.leading)
        heir_sets = heir.machine.broker_sets
        began = heir.leader_now_ms()
        await until(
            lambda: all(live.updated_ms > began for live in heir_sets[NAME].live.values()),
            "heartbeats reach the next leader",
        )
        assert heir_sets[NAME].master_id == 1 and heir_sets[NAME].master_epoch == 3
        again.kill()
        await until(lambda: heir_sets[NAME].master_id == 2, "the next leader elects too", 5)

        address = heir.topology.rpc_addresses[heir.topology.self_id]
        text = await peer.admin("cleanBrokerMetadata", "-a", address, "-bn", NAME, "-c", CLUSTER)
        assert NAME in heir_sets, f"a set with a master was cleaned: {text}"
        text = await peer.admin("cleanBrokerMetadata", "-a", address, "-bn", NAME, "-c", CLUSTER, "-b", "1")
        assert 1 not in heir_sets[NAME].replicas, text
        reply = await client.call(address, wire.GetReplicaInfo(NAME))
        assert isinstance(reply.header, wire.GetReplicaInfoReply)
        assert reply.header.master_broker_id == 2
    finally:
        await client.close()
        for service in services:
            await service.stop()
