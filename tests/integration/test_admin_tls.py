"""`batonmq admin` on a cluster that speaks TLS only and demands certificates, programs of every kind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.certificates import Authority, authority

from batonmq.access.tls import CONFIG_VARIABLE
from batonmq.admin.main import admin
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.demo.ports import free_ports

SMALL = {"mappedFileSizeCommitLog": 16 << 20, "maxHashSlotNum": 1_000, "maxIndexNum": 5_000}


@dataclass
class Secured:
    """The cluster, other controllers for it, and the authority of all their certificates."""

    cluster: LocalCluster
    other: Program
    ca: Authority

    @property
    def words(self) -> list[str]:
        certificate, key = map(str, self.ca.issue("operator"))
        return ["--tls-trust", str(self.ca.certificate), "--tls-cert", certificate, "--tls-key", key]

    def run(self, *words: str) -> Any:
        done = CliRunner().invoke(admin, [*words, *self.words, "--json"])
        assert done.exit_code == 0, f"{words}: {done.output}"
        return json.loads(done.stdout)

    def until_in_sync(self, controller: str, count: int) -> None:
        deadline = time.monotonic() + 30
        words = ["getSyncStateSet", "-a", controller, "-b", self.cluster.broker_name, "--json", *self.words]
        while True:
            found = CliRunner().invoke(admin, words)
            if found.exit_code == 0 and sum(row["inSync"] for row in json.loads(found.stdout)) == count:
                return
            assert time.monotonic() < deadline, found.output
            time.sleep(0.1)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    ca = authority(directory / "ca")
    cluster = LocalCluster(directory / "cluster", broker_settings=SMALL)
    (port,) = free_ports(1)
    keys = {
        "controllerDLegerGroup": "other",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": directory / "other-store",
    }
    other = Program("other", "controller", directory, keys, port=port)
    for program in (*cluster.programs, other):
        program.settings = {**program.settings, **ca.mutual(program.name)}
    with cluster:
        other.start()
        made = Secured(cluster, other, ca)
        made.until_in_sync(cluster.controller_addresses[0], 2)
        yield made
        other.stop()


def test_every_kind_of_program_is_asked(secured: Secured) -> None:
    namesrv, broker = secured.cluster.namesrv_address, secured.cluster.brokers[0].address
    (controller,) = secured.cluster.controller_addresses
    assert len(secured.run("clusterList", "-n", namesrv)) == 2
    assert secured.run("getNamesrvConfig", "-n", namesrv)
    secured.run("updateTopic", "-n", namesrv, "-b", broker, "-t", "T", "-r", "1", "-w", "1")
    (sent,) = secured.run("sendMessage", "-n", namesrv, "-t", "T", "-p", "hello")
    assert sent["queueOffset"] == 0
    assert len(secured.run("topicStatus", "-n", namesrv, "-t", "T")) == 1
    assert secured.run("getControllerMetaData", "-a", controller)["ControllerLeaderAddress"] == controller
    assert secured.run("getControllerMembers", "-a", controller)


def test_a_file_for_mqadmin_does_instead_of_options(secured: Secured, tmp_path: Path) -> None:
    certificate, key = secured.ca.issue("operator")
    file = tmp_path / "tls.properties"
    file.write_text(
        f"tls.client.authServer=true\ntls.client.trustCertPath={secured.ca.certificate}\n"
        f"tls.client.certPath={certificate}\ntls.client.keyPath={key}\n"
    )
    ask = ["clusterList", "-n", secured.cluster.namesrv_address]
    assert CliRunner().invoke(admin, [*ask, "--tls-config", str(file)]).exit_code == 0
    assert CliRunner().invoke(admin, ask, env={CONFIG_VARIABLE: str(file)}).exit_code == 0


def test_who_is_refused_learns_which_options_are_missing(secured: Secured, tmp_path: Path) -> None:
    stranger = authority(tmp_path / "stranger")
    plain = LocalCluster(tmp_path / "plain", replicas=0, controllers=0).namesrv
    plain.start()
    addresses = [
        ("clusterList", "-n", secured.cluster.namesrv_address),
        ("brokerStatus", "-b", secured.cluster.brokers[0].address),
        ("getControllerMetaData", "-a", secured.cluster.controller_addresses[0]),
    ]
    try:
        for ask in addresses:
            for words, complaint in (
                ([], "if it speaks TLS only (tls.server.mode=enforcing), give --tls"),
                (["--tls"], "give --tls-cert and --tls-key"),
                (["--tls-trust", str(stranger.certificate)], "certificate verify failed"),
            ):
                done = CliRunner().invoke(admin, [*ask, *words])
                assert done.exit_code == 1 and complaint in done.output, done.output
        done = CliRunner().invoke(admin, ["clusterList", "-n", plain.address, "--tls"])
        assert done.exit_code == 1 and "perhaps it speaks plain text only" in done.output, done.output
    finally:
        plain.stop()


def test_a_set_moves_between_controllers_that_demand_certificates(secured: Secured) -> None:
    """The last: afterwards the cluster has other controllers."""
    (source,) = secured.cluster.controller_addresses
    cluster = secured.cluster
    words = ["-n", cluster.namesrv_address, "-c", cluster.cluster_name, "-a", source]
    (row,) = secured.run("moveControllers", *words, "-t", secured.other.address, "--patience", "20")
    assert row["inSync"] == "1,2" and row["epochAfter"] > row["epochBefore"]
    secured.until_in_sync(secured.other.address, 2)
