from __future__ import annotations

from pathlib import Path

import pytest

from batonmq.common.config import ConfigError, describe
from batonmq.common.config_loader import load
from batonmq.controller.config import ControllerConfig
from batonmq.controller.service import ControllerService


def read(tmp_path: Path, text: str) -> ControllerConfig:
    path = tmp_path / "controller.conf"
    path.write_text(text)
    (config,) = load(path, ControllerConfig)
    return config


def test_dledger_family(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:9877;n1-127.0.0.1:9878\n"
        "controllerDLegerSelfId=n1\n",
    )
    topology = config.topology()
    assert topology.group == "g"
    assert topology.self_id == "n1"
    assert topology.rpc_addresses == {"n0": "127.0.0.1:9877", "n1": "127.0.0.1:9878"}
    assert topology.shared_port
    assert config.store_path.name == "DLedgerController"


def test_jraft_family(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "controllerType=jRaft\njRaftServerId=localhost:9881\njRaftElectionTimeoutMs=700\n"
        "jRaftInitConf=localhost:9880,localhost:9881\njRaftControllerRPCAddr=localhost:9770,localhost:9771\n",
    )
    topology = config.topology()
    assert topology.self_id == "localhost:9881"
    assert topology.raft_addresses["localhost:9881"] == "localhost:9881"
    assert topology.rpc_addresses["localhost:9881"] == "localhost:9771"
    assert not topology.shared_port
    assert config.j_raft_election_timeout_ms == 700
    assert config.store_path.name == "jRaftController"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("controllerDLegerSelfId=n0\n", "controllerDLegerPeers is empty"),
        ("controllerDLegerPeers=n0-h:1\ncontrollerDLegerSelfId=n9\n", "controllerDLegerSelfId=n9"),
        ("controllerDLegerPeers=n0:h:1\ncontrollerDLegerSelfId=n0\n", "expected id-host:port"),
        ("controllerDLegerPeers=n0-h:1;n0-h:2\ncontrollerDLegerSelfId=n0\n", "appears twice"),
        ("controllerDLegerPeers=n0-h\ncontrollerDLegerSelfId=n0\n", "is not an address"),
        ("controllerDLegerPeers=n0-h:70000\ncontrollerDLegerSelfId=n0\n", "is not an address"),
        ("controllerType=jRaft\njRaftServerId=x:1\n", "jRaftServerId=x:1"),
        (
            "controllerDLegerPeers=n3-h:1\ncontrollerDLegerSelfId=n3\ncontrollerJoinRunningGroup=true\n",
            "name the controllers of the running group, too",
        ),
        ("controllerType=jRaft\njRaftInitConf=localhost:9880\n", "names 3 controllers, jRaftInitConf 1"),
        ("controllerType=jRaft\njRaftInitConf=localhost\n", "is not an address"),
    ],
)
def test_a_group_that_does_not_fit_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    config = read(tmp_path, text)
    with pytest.raises(ConfigError, match=complaint):
        config.topology()


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("controllerType=Zookeeper", "controllerType=Zookeeper: expected DLedger or jRaft"),
        ("scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval=0: must be at least 10"),
        ("jRaftElectionTimeoutMs=3", "jRaftElectionTimeoutMs=3: must be at least 30"),
        ("enableElectUncleanMaster=perhaps", "enableElectUncleanMaster=perhaps: expected true or false"),
        ("heartbeatCoalesceMs=-1", "heartbeatCoalesceMs"),
    ],
)
def test_a_bad_value_is_one_clear_line(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        read(tmp_path, line)
    assert "controller.conf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_defaults_are_rocketmqs_but_for_one_and_every_key_is_described() -> None:
    infos = {info.key: info for info in describe(ControllerConfig)}
    for key, value in {
        "controllerType": "DLedger",
        "scanNotActiveBrokerInterval": 250,  # RocketMQ: 5 000, see docs/decisions/hang-3s.md
        "scanInactiveMasterInterval": 5_000,
        "electMasterMaxRetryCount": 3,
        "enableElectUncleanMaster": False,
        "notifyBrokerRoleChanged": True,
        "isProcessReadEvent": False,
        "jRaftElectionTimeoutMs": 1_000,
        "jRaftSnapshotIntervalSecs": 3_600,
        "jRaftGroupId": "jRaft-Controller",
        "jRaftControllerRPCAddr": "localhost:9770,localhost:9771,localhost:9772",
        "configBlackList": "configBlackList;configStorePath",
    }.items():
        assert infos[key].default == value, key
    assert all(info.doc for info in infos.values())


@pytest.mark.parametrize(
    ("family", "complaint"),
    [
        ("controllerType=jRaft\n", r"controllerRaftTlsEnable=true needs tls\.server\.certPath"),
        (
            "controllerDLegerPeers=n0-h:1\ncontrollerDLegerSelfId=n0\n",
            r"needs a port for Raft alone .* tls\.server\.mode=enforcing",
        ),
    ],
)
def test_certificates_on_the_raft_port_need_some_and_that_port(
    tmp_path: Path, family: str, complaint: str
) -> None:
    config = read(tmp_path, family + "controllerRaftTlsEnable=true\n")
    with pytest.raises(ConfigError, match=complaint):
        ControllerService(config)
