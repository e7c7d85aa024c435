"""`moveControllers` between two groups of our controllers; with RocketMQ's: tests/interop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from batonmq.admin.main import admin
from batonmq.admin.operations.moving import Move
from batonmq.admin.session import Admin
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.demo.ports import free_ports

SMALL = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 5_000}


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Program]:
    """A controller that knows nothing yet."""
    (port,) = free_ports(1)
    keys = {
        "controllerDLegerGroup": "other",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": tmp_path / "other-store",
    }
    program = Program("other", "controller", tmp_path, keys, port=port)
    program.start()
    yield program
    program.stop()


def run(*words: str) -> Result:
    return CliRunner().invoke(admin, list(words))


def replicas(controller: str, name: str) -> list[dict[str, Any]]:
    found = run("getSyncStateSet", "-a", controller, "-b", name, "--json")
    rows: list[dict[str, Any]] = json.loads(found.stdout) if found.exit_code == 0 else []
    return rows


def until_in_sync(cluster: LocalCluster, count: int) -> None:
    deadline = time.monotonic() + 20
    (controller,) = cluster.controller_addresses
    while sum(row["inSync"] for row in replicas(controller, cluster.broker_name)) < count:
        assert time.monotonic() < deadline, "the replicas do not come into sync"
        time.sleep(0.1)
    # The master registers at the name server after the controllers know it.
    while cluster.broker_name not in run("clusterList", "-n", cluster.namesrv_address, "--json").output:
        assert time.monotonic() < deadline, "the name server does not know the cluster"
        time.sleep(0.1)


def move(cluster: LocalCluster, target: Program) -> Result:
    (source,) = cluster.controller_addresses
    words = ["-n", cluster.namesrv_address, "-c", cluster.cluster_name, "-a", source, "-t", target.address]
    return run("moveControllers", *words, "--patience", "20", "--json")


async def begin(cluster: LocalCluster, source: str, target: str, steps: int) -> None:
    async with Admin(cluster.namesrv_address) as session:
        move = Move(
            session,
            source,
            target,
            cluster.cluster_name,
            cluster.broker_name,
            patience_s=20,
            say=lambda text: None,
        )
        plan = await move.plan()
        assert len(plan.steps) == 3, "the copy, the slave, the master"
        for step in plan.steps[:steps]:
            await step()


@pytest.mark.parametrize("count", [1, 2])
def test_a_set_of_so_many_replicas_moves(tmp_path: Path, other: Program, count: int) -> None:
    with LocalCluster(tmp_path / "cluster", replicas=count, broker_settings=SMALL) as cluster:
        until_in_sync(cluster, count)
        done = move(cluster, other)
        assert done.exit_code == 0, done.output
        (row,) = json.loads(done.stdout)
        assert (row["broker"], row["master"]) == (cluster.broker_name, 1)
        assert row["inSync"] == ",".join(map(str, range(1, count + 1)))
        assert row["epochAfter"] > row["epochBefore"]
        now = replicas(other.address, cluster.broker_name)
        assert [(each["id"], each["alive"], each["address"]) for each in now] == [
            (number, True, broker.address) for number, broker in enumerate(cluster.brokers, 1)
        ], "no more replicas than there are, at their own addresses"
        for broker in cluster.brokers:
            assert f"controllerAddr={other.address}" in broker.config_path.read_text()

        again = move(cluster, other)
        assert again.exit_code == 0, "what is done is not done again"
        assert json.loads(again.stdout)[0]["epochAfter"] == row["epochAfter"]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_move_that_was_broken_off_continues(tmp_path: Path, other: Program, steps: int) -> None:
    """After the copy; when the slave has its new controllers; when the master has."""
    with LocalCluster(tmp_path / "cluster", replicas=2, broker_settings=SMALL) as cluster:
        until_in_sync(cluster, 2)
        (source,) = cluster.controller_addresses
        asyncio.run(begin(cluster, source, other.address, steps))
        done = move(cluster, other)
        assert done.exit_code == 0, done.output
        (row,) = json.loads(done.stdout)
        assert (row["master"], row["inSync"]) == (1, "1,2")


def test_a_move_that_was_broken_off_can_be_given_up(tmp_path: Path, other: Program) -> None:
    """Nobody should be advised to remove the set from the controllers that have its master."""
    with LocalCluster(tmp_path / "cluster", replicas=2, broker_settings=SMALL) as cluster:
        until_in_sync(cluster, 2)
        (source,) = cluster.controller_addresses
        asyncio.run(begin(cluster, source, other.address, 2))
        words = ["-n", cluster.namesrv_address, "-c", cluster.cluster_name, "-a", other.address, "-t", source]
        refused = run("moveControllers", *words)
        assert refused.exit_code == 1
        assert f"broker-a has its master under {source}" in refused.output
        for told in (
            f"updateBrokerConfig -b {cluster.brokers[1].address} -k controllerAddr -v '{source}'",
            f"cleanBrokerMetadata -a '{other.address}' -c {cluster.cluster_name} -bn broker-a",
        ):
            assert told in refused.output

        address = cluster.brokers[1].address
        assert run("updateBrokerConfig", "-b", address, "-k", "controllerAddr", "-v", source).exit_code == 0
        until_in_sync(cluster, 2)
        deadline = time.monotonic() + 20
        clean = ["-a", other.address, "-c", cluster.cluster_name, "-bn", "broker-a"]
        while (cleaned := run("cleanBrokerMetadata", *clean)).exit_code != 0:
            assert time.monotonic() < deadline, cleaned.output
            time.sleep(0.1)
        assert move(cluster, other).exit_code == 0, "and it can begin again"


def test_a_set_that_the_new_controllers_know_is_refused(tmp_path: Path, other: Program) -> None:
    with LocalCluster(tmp_path / "cluster", replicas=1, broker_settings=SMALL) as cluster:
        until_in_sync(cluster, 1)
        settings = {**SMALL, "controllerAddr": other.address, "namesrvAddr": cluster.namesrv_address}
        stranger = LocalCluster(tmp_path / "stranger", replicas=2, controllers=0, broker_settings=settings)
        try:
            for broker in stranger.brokers:
                broker.start()
            deadline = time.monotonic() + 20
            while sum(row["inSync"] for row in replicas(other.address, stranger.broker_name)) < 2:
                assert time.monotonic() < deadline, "the strangers do not come into sync"
                time.sleep(0.1)
            refused = move(cluster, other)
            assert refused.exit_code == 1
            assert "know broker-a already" in refused.output and "cleanBrokerMetadata" in refused.output
        finally:
            for broker in stranger.brokers:
                broker.stop()


def test_a_move_to_the_controllers_of_now_is_refused(tmp_path: Path) -> None:
    """They know the set, and nobody should be advised to remove it there."""
    with LocalCluster(tmp_path / "cluster", replicas=1, broker_settings=SMALL) as cluster:
        until_in_sync(cluster, 1)
        (controller,) = cluster.controller_programs
        refused = move(cluster, controller)
        assert refused.exit_code == 1
        assert "the same controllers" in refused.output and "cleanBrokerMetadata" not in refused.output


def test_a_set_with_a_replica_down_is_refused(tmp_path: Path, other: Program) -> None:
    with LocalCluster(tmp_path / "cluster", replicas=2, broker_settings=SMALL) as cluster:
        until_in_sync(cluster, 2)
        cluster.brokers[1].kill()
        (controller,) = cluster.controller_addresses
        deadline = time.monotonic() + 20
        while all(row["alive"] for row in replicas(controller, cluster.broker_name)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        refused = move(cluster, other)
        assert refused.exit_code == 1
        assert "replicas [2] of broker-a are down" in refused.output
        assert not replicas(other.address, cluster.broker_name), "nothing was copied"
