"""Files that a container is asked to load: wrong ones and clashing ones are refused, alone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.integration.container.files import BrokerConf
from tests.integration.container.node import container, refused

from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError


@pytest.mark.parametrize("text", ["export KEY=swordfish\n", "KEY=swordfish\n", ""])
async def test_a_file_that_is_not_a_configuration_is_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "env").write_text(text)
    async with container() as node:
        await refused(
            node.add(tmp_path / "env"), ResponseCode.SYSTEM_ERROR, "env is not a configuration file"
        )
    assert "env is not a configuration file" in caplog.text and "swordfish" not in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["addBroker config path is empty"]),
        ("missing.conf", ["addBroker properties empty", "missing.conf: cannot be read: No such file"]),
        ("../../../../../../../../dev/zero", ["addBroker properties empty", "is not a file"]),
        ("/", ["addBroker properties empty", "is not a file"]),
        ("a\0b", ["addBroker properties empty", "null byte"]),
        ("x" * 5000, ["addBroker properties empty", "the path is too long"]),
        ("/etc/passwd", ["addBroker properties empty: /etc/passwd is not a configuration file"]),
    ],
)
async def test_a_path_that_leads_to_no_broker_file_is_refused(text: str, words: list[str]) -> None:
    async with container() as node:
        await refused(node.add(text), ResponseCode.SYSTEM_ERROR, *words)
        assert node.names == []


async def test_the_answer_shows_nothing_of_a_file_that_is_not_a_configuration(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("my secret words\n")
    async with container() as node:
        with pytest.raises(MQError) as caught:
            await node.add(secret)
        assert "words" not in caught.value.remark


async def test_clashing_brokers_are_refused_one_by_one(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with container(broker_config_paths=str(a.path)) as node:
        await refused(
            node.add(a.path),
            ResponseCode.SYSTEM_ERROR,
            "DefaultCluster_a_0 has already been added to current broker container",
        )
        b.write(listenPort=a.port)
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR, f"port {a.port} (listenPort) is used by")
        b.write(haListenPort=a.port + 1)
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR, "(haListenPort) is used by")
        b.write(listenPort=node.service.port)
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR)
        b.write(storePathRootDir=a.store)
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR, f"{a.store} is a store of")
        b.write(storePathRootDir=a.store / "commitlog" / "b")
        inside = f"{a.store}/commitlog/b lies in {a.store}/commitlog, a store of DefaultCluster_a_0"
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR, f"DefaultCluster_b_0: its store {inside}")
        b.write(brokerRole="SLAVE")
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR, "slave broker id must be > 0")
        b.write(minInSyncReplicas=3)
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR, f"{b.path}: minInSyncReplicas=3")
        b.write(brokerName="a", brokerId=1, brokerRole="SLAVE", listenPort=b.port)
        await node.add(b.path)
        assert node.names == ["DefaultCluster_a_0", "DefaultCluster_a_1"]
        await node.send(a)


async def test_of_two_files_that_claim_one_port_the_first_gets_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    confs = [BrokerConf(tmp_path, name) for name in "abcdef"]
    for conf in confs[1:]:
        conf.write(listenPort=confs[0].port, haListenPort=conf.port + 1)
    # A file that takes longer to read keeps its place.
    confs[0].path.write_text(confs[0].path.read_text() + "# as long as a file may be\n" * 10_000)
    async with container(broker_config_paths=":".join(str(conf.path) for conf in confs)) as node:
        assert node.names == ["DefaultCluster_a_0"]
        assert node.said == ["Broker [a-0] boot success. serializeType=JSON"]
    assert "1 of the 6 brokers of brokerConfigPaths serve" in caplog.text


async def test_only_some_directories_may_be_allowed(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    allowed.mkdir()
    other.mkdir()
    a, b, c = BrokerConf(allowed, "a"), BrokerConf(other, "b"), BrokerConf(other, "c")
    keys = {"add_broker_directories": str(allowed), "broker_config_paths": str(c.path)}
    async with container(**keys) as node:
        await node.add(a.path)
        for path in (b.path, allowed / ".." / "other" / b.path.name):
            await refused(node.add(path), ResponseCode.NO_PERMISSION, "is outside of addBrokerDirectories")
        await node.remove("c")
        await node.add(c.path)
        assert node.names == ["DefaultCluster_a_0", "DefaultCluster_c_0"]


async def test_a_broken_and_a_missing_file_among_ten_leave_eight_brokers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    confs = [BrokerConf(tmp_path, f"b{n}") for n in range(10)]
    confs[3].path.write_text("<broker/>\n")
    confs[7].path.unlink()
    async with container(broker_config_paths=":".join(str(each.path) for each in confs)) as node:
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(errors) == 3 and "Traceback" not in caplog.text
        assert errors[2] == "8 of the 10 brokers of brokerConfigPaths serve"
        assert sum(str(confs[3].path) in each for each in errors) == 1
        assert sum(f"{confs[7].path}: cannot be read: No such file" in each for each in errors) == 1
        assert len(node.names) == 8
        assert sorted(node.said) == sorted(
            f"Broker [{each.name}-0] boot success. serializeType=JSON"
            for each in confs
            if each not in (confs[3], confs[7])
        )
        confs[3].write()
        await node.add(confs[3].path)
        await node.send(confs[3])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("brokerIP1=no-address", "'no-address' does not appear to be an IPv4 or IPv6 address"),
        (f"bindAddress={'a' * 70}", "label too long"),
        ("storePathRootDir=a\\u0000b", "storePathRootDir or storePathCommitLog: embedded null byte"),
        ("storePathCommitLog=loop/x", "storePathRootDir or storePathCommitLog: Symlink loop"),
        (f"brokerClusterName={'c' * 40_000}", "properties take"),
    ],
)
async def test_a_value_that_no_broker_can_start_with_does_not_concern_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    with b.path.open("a") as file:
        file.write(f"{value}\n")
    async with container(broker_config_paths=f"{a.path}:{b.path}") as node:
        assert node.names == ["DefaultCluster_a_0"]
        assert f"broker not started: {b.path}: " in caplog.text and said in caplog.text
        await refused(node.add(b.path), ResponseCode.SYSTEM_ERROR, said)
        await node.send(a)
        b.write()
        await node.add(b.path)
        await node.send(b)
