"""Controller and replication commands of `batonmq admin` against a real cluster of processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batonmq import Message, Producer
from batonmq.admin.main import admin
from batonmq.demo.cluster import LocalCluster

NAME = "broker-a"


class Admin:
    """The commands, and the cluster they go to."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.controllers = ";".join(cluster.controller_addresses)

    def run(self, *words: str, fails: bool = False) -> Any:
        given = [words[0], "-n", self.cluster.namesrv_address, *words[1:], *([] if fails else ["--json"])]
        done = CliRunner().invoke(admin, given)
        assert (done.exit_code != 0) is fails, f"{words}: {done.output}"
        return done.output if fails else json.loads(done.output)

    def controller(self, command: str, *words: str, fails: bool = False) -> Any:
        return self.run(command, "-a", self.controllers, *words, fails=fails)

    def replicas(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.controller("getSyncStateSet", "-b", NAME)
        return found

    def until_known(self) -> None:
        """A broker may be ready a moment before the controllers know it."""
        deadline = time.monotonic() + 15
        words = ["getSyncStateSet", "-a", self.controllers, "-b", NAME]
        while (done := CliRunner().invoke(admin, words)).exit_code:
            assert time.monotonic() < deadline, done.output
            time.sleep(0.05)

    def until_in_sync(self, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 15
        while True:
            rows = self.replicas()
            if sum(row["inSync"] for row in rows) == count:
                return rows
            assert time.monotonic() < deadline, rows
            time.sleep(0.05)


@pytest.fixture(scope="module")
def on_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    settings = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 5_000}
    with LocalCluster(directory, controllers=3, broker_settings=settings) as cluster:
        made = Admin(cluster)
        made.until_known()
        made.until_in_sync(2)
        yield made


def test_who_leads_the_controllers(on_cluster: Admin) -> None:
    meta = on_cluster.controller("getControllerMetaData")
    assert meta["ControllerLeaderAddress"] in on_cluster.cluster.controller_addresses
    assert len(meta["Peers"]) == 3


def test_a_slave_is_on_standby_and_no_alarm(on_cluster: Admin) -> None:
    on_cluster.until_in_sync(2)
    rows = {row["id"]: row["activated"] for row in on_cluster.run("clusterList")}
    assert rows.pop(0) == "true" and list(rows.values()) == ["standby"]


def test_what_does_not_exist_is_said_so(on_cluster: Admin) -> None:
    said = on_cluster.controller("getSyncStateSet", "-b", "nosuch", fails=True)
    assert (
        "the controllers know no broker of nosuch: check the brokerName" in said and "Traceback" not in said
    )
    for address in on_cluster.cluster.controller_addresses:
        assert f"{address} is a controller, not a name server: -n takes name servers" in on_cluster.run(
            "clusterList", "-n", address, fails=True
        )
        assert f"{address} is a controller, not a broker" in on_cluster.run(
            "brokerStatus", "-b", address, fails=True
        )


def test_controllers_configuration_is_shown_and_changed(on_cluster: Admin) -> None:
    key = "scanInactiveMasterInterval"
    on_cluster.controller("updateControllerConfig", "-k", key, "-v", "4321")
    rows = {row["key"]: row for row in on_cluster.controller("getControllerConfig")}
    assert [rows[key][address] for address in on_cluster.cluster.controller_addresses] == ["4321"] * 3
    refused = on_cluster.controller("updateControllerConfig", "-k", key, "-v", "soon", fails=True)
    assert "soon" in refused and "Traceback" not in refused


def test_a_designated_master_takes_over_and_epochs_tell_of_it(on_cluster: Admin) -> None:
    async def send(body: bytes) -> None:
        async with Producer("p", on_cluster.cluster.namesrv_address, retries=10) as producer:
            await producer.send(Message("T", body))

    asyncio.run(send(b"before"))
    before = {row["id"]: row for row in on_cluster.until_in_sync(2)}
    slave = next(number for number, row in before.items() if row["role"] == "slave")
    words = ("-b", str(slave), "-bn", NAME, "-c", "DefaultCluster")
    elected = on_cluster.controller("electMaster", *words)
    assert elected["BrokerMasterId"] == slave
    assert elected["BrokerMasterEpoch"] == before[slave]["masterEpoch"] + 1
    after = {row["id"]: row for row in on_cluster.until_in_sync(2)}
    assert after[slave]["role"] == "master" and all(row["alive"] for row in after.values())
    asyncio.run(send(b"after"))
    newest: dict[int, int] = {}
    for row in on_cluster.run("getBrokerEpoch", "-c", "DefaultCluster"):
        newest[row["id"]] = max(row["epoch"], newest.get(row["id"], 0))
    assert set(newest.values()) == {elected["BrokerMasterEpoch"]} and len(newest) == 2
    link = on_cluster.run("haStatus", "-b", elected["BrokerMasterAddr"])
    assert [row["inSync"] for row in link if row["role"] == "replicates to"] == [True]
    assert [row["peer"] for row in link if row["role"] == "master"] == ["1 of 1 slaves in sync"]
    refused = on_cluster.controller("electMaster", "-b", "9", "-bn", NAME, "-c", "DefaultCluster", fails=True)
    assert "9" in refused and "Traceback" not in refused


def test_a_replica_that_will_not_come_back_is_forgotten(on_cluster: Admin) -> None:
    rows = on_cluster.until_in_sync(2)
    (gone,) = [row for row in rows if row["role"] == "slave"]
    words = ("-b", str(gone["id"]), "-bn", NAME, "-c", "DefaultCluster")
    assert "alive" in on_cluster.controller("cleanBrokerMetadata", *words, fails=True)
    on_cluster.cluster.broker_at(gone["address"]).kill()
    on_cluster.until_in_sync(1)
    on_cluster.controller("cleanBrokerMetadata", *words)
    assert [row["id"] for row in on_cluster.replicas()] == [row["id"] for row in rows if row is not gone]
