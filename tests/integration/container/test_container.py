"""A container on the test's event loop: brokers come and go by requests, and each has its own fate."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import v2
from tests.integration.container.files import BrokerConf
from tests.integration.group import anonymous_mib
from tests.scrape import scrape

from batonmq import Message, Producer
from batonmq.broker.service import BrokerService
from batonmq.client.errors import ClientError
from batonmq.common.config import parse_properties
from batonmq.container.config import ContainerConfig
from batonmq.container.core import BrokerIdentity
from batonmq.container.in_process import InProcess
from batonmq.container.service import ConfiguredBrokers, ContainerService
from batonmq.demo.ports import free_ports
from batonmq.namesrv.config import NamesrvConfig
from batonmq.namesrv.service import NamesrvService
from batonmq.net import RemotingClient
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import (
    GetBrokerConfig,
    GetBrokerConfigResponse,
    GetBrokerRuntimeInfo,
    UpdateBrokerConfig,
)
from batonmq.protocol.headers.broker.replication import AddBroker, RemoveBroker
from batonmq.protocol.message.record import decode_records
from batonmq.store.verify import read_store

CLUSTER = "DefaultCluster"


class Node:
    """A container in this process, and a client of it."""

    def __init__(self, config: ContainerConfig, path: Path | None) -> None:
        self.service = ContainerService(config, config_path=path)
        self.said: list[str] = []
        self.configured = ConfiguredBrokers(self.service, config.broker_config_paths, self.said.append)
        self.client = RemotingClient()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.service.port}"

    @property
    def running(self) -> dict[BrokerIdentity, BrokerService]:
        (place,) = self.service._places
        assert isinstance(place, InProcess)
        return place._running

    @property
    def names(self) -> list[str]:
        return sorted(entry.claims.identity.canonical_name for entry in self.service.container.table)

    def broker(self, conf: BrokerConf) -> BrokerService:
        return self.running[BrokerIdentity(CLUSTER, conf.name, conf.broker_id)]

    async def add(self, path: object) -> None:
        await self.client.call(self.address, AddBroker(config_path=str(path)), timeout_ms=20_000)

    async def remove(self, name: str, broker_id: int = 0, cluster: str = CLUSTER) -> None:
        header = RemoveBroker(broker_name=name, broker_cluster_name=cluster, broker_id=broker_id)
        await self.client.call(self.address, header, timeout_ms=20_000)

    async def send(self, conf: BrokerConf, body: bytes = b"x") -> None:
        await self.client.call(conf.address, v2("T"), body)


@asynccontextmanager
async def container(path: Path | None = None, **keys: Any) -> AsyncIterator[Node]:
    config = ContainerConfig(**{"listen_port": 0, "bind_address": "127.0.0.1", **keys})
    node = Node(config, path)
    await node.service.start()
    try:
        await node.configured.start()
        yield node
    finally:
        await node.configured.stop()
        await node.client.close()
        await node.service.stop()


@asynccontextmanager
async def name_server(root: Path) -> AsyncIterator[tuple[NamesrvService, str]]:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(root / "kv.json"))
    service = NamesrvService(config)
    await service.start()
    try:
        yield service, f"127.0.0.1:{service.port}"
    finally:
        await service.stop()


def registered(service: NamesrvService) -> set[str]:
    return set(service.name_server.routes.cluster_info().broker_addr_table)


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def refused(call: Any, code: ResponseCode, *words: str) -> None:
    with pytest.raises(MQError) as caught:
        await call
    assert caught.value.code == code, caught.value
    assert "\n" not in caught.value.remark
    for each in words:
        assert each in caught.value.remark


async def test_brokers_come_and_go_by_requests(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b", 1)
    async with container() as node:
        await node.add(a.path)
        await node.add(b.path)
        assert node.names == ["DefaultCluster_a_0", "DefaultCluster_b_1"]
        await node.send(a)
        assert node.broker(a).broker.client is node.broker(b).broker.client
        assert node.broker(a).broker.readers is node.broker(b).broker.readers
        await node.remove("a")
        assert node.names == ["DefaultCluster_b_1"]
        with pytest.raises(ConnectFailed):
            await node.client.call(a.address, GetBrokerRuntimeInfo())
        await node.client.call(b.address, GetBrokerRuntimeInfo())
        await node.add(a.path)
        await node.send(a)
        assert node.broker(a).broker.store.queue_bounds("T", 0).max_offset == 2


async def test_a_broker_sees_the_others_of_its_process(tmp_path: Path) -> None:
    confs = [BrokerConf(tmp_path, name) for name in "abc"]
    async with container(broker_config_paths=":".join(str(each.path) for each in confs)) as node:
        a, b, c = (node.broker(each).broker for each in confs)
        assert list(a.neighbours()) == [b, c] or list(a.neighbours()) == [c, b]
        await node.remove("b")
        assert list(a.neighbours()) == [c] and list(c.neighbours()) == [a]


@pytest.mark.parametrize("text", ["export KEY=swordfish\n", "KEY=swordfish\n", ""])
async def test_a_file_that_is_no_configuration_is_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (tmp_path / "env").write_text(text)
    async with container() as node:
        await refused(node.add(tmp_path / "env"), ResponseCode.SYSTEM_ERROR, "env is no configuration file")
    assert "env is no configuration file" in caplog.text and "swordfish" not in caplog.text


async def test_name_servers_change_while_brokers_come(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with container(broker_config_paths=str(a.path)) as node:
        first = node.broker(a).broker.settings
        async with first._changing:  # another change is written
            change = asyncio.ensure_future(node.service.container.set_name_servers("127.0.0.1:1"))
            await asyncio.sleep(0)
            await node.add(b.path)
        await change
        for conf in (a, b):
            assert node.broker(conf).broker.settings.broker.namesrv_addr == "127.0.0.1:1"


async def test_a_broker_that_writes_its_keys_keeps_no_other_from_new_name_servers(tmp_path: Path) -> None:
    confs = [BrokerConf(tmp_path, name) for name in "abc"]
    async with container(broker_config_paths=":".join(str(each.path) for each in confs)) as node:
        first, *others = (service.broker.settings for service in node.running.values())
        async with first._changing:
            change = asyncio.ensure_future(node.service.container.set_name_servers("127.0.0.1:1"))
            await until(lambda: all(each.broker.namesrv_addr for each in others), 2.0)
            assert not first.broker.namesrv_addr
        await change
        assert {each.broker.namesrv_addr for each in (first, *others)} == {"127.0.0.1:1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["addBroker config path is empty"]),
        ("missing.conf", ["addBroker properties empty", "missing.conf: cannot be read: No such file"]),
        ("../../../../../../../../dev/zero", ["addBroker properties empty", "is no file"]),
        ("/", ["addBroker properties empty", "is no file"]),
        ("a\0b", ["addBroker properties empty", "null byte"]),
        ("x" * 5000, ["addBroker properties empty", "the path is too long"]),
        ("/etc/passwd", ["addBroker properties empty: /etc/passwd is no configuration file"]),
    ],
)
async def test_a_path_that_leads_to_no_broker_file_is_refused(text: str, words: list[str]) -> None:
    async with container() as node:
        await refused(node.add(text), ResponseCode.SYSTEM_ERROR, *words)
        assert node.names == []


async def test_the_answer_shows_nothing_of_a_file_that_is_no_configuration(tmp_path: Path) -> None:
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


async def test_each_broker_exports_its_metrics_at_its_own_port(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.prometheus")
    first, second = free_ports(2)
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    prom = {"metricsExporterType": "PROM", "metricsPromExporterPort": first}
    a.write(**prom)
    b.write(**prom)
    async with container(broker_config_paths=str(a.path)) as node:
        await refused(
            node.add(b.path),
            ResponseCode.SYSTEM_ERROR,
            f"port {first} (metricsPromExporterPort) is used by DefaultCluster_a_0 (metricsPromExporterPort)",
        )
        b.write(**{**prom, "metricsPromExporterPort": second})
        await node.add(b.path)
        await node.send(a)
        for _ in range(3):
            await node.send(b)
        for port, count in ((first, 1), (second, 3)):
            shown = await asyncio.to_thread(scrape, port)
            received = [
                value
                for sample, value in shown.items()
                if sample.startswith("rocketmq_messages_in_total") and "topic=T" in sample
            ]
            assert received == [count]


async def test_removing_what_is_not_there_is_refused(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container(broker_config_paths=str(a.path)) as node:
        for name, broker_id, cluster in (
            ("b", 0, CLUSTER),
            ("a", 1, CLUSTER),
            ("a", -1, CLUSTER),
            ("a", 0, "C"),
        ):
            await refused(
                node.remove(name, broker_id, cluster), ResponseCode.BROKER_NOT_EXIST, "Broker not exist"
            )
        await node.send(a)
        twice = await asyncio.gather(node.remove("a"), node.remove("a"), return_exceptions=True)
        assert [getattr(each, "code", 0) for each in twice] == [0, ResponseCode.BROKER_NOT_EXIST]
        await refused(node.remove("a"), ResponseCode.BROKER_NOT_EXIST)


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


async def test_a_container_without_brokers_waits_for_some(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container() as node:
        assert node.said == [] and node.names == []
        await node.add(a.path)
        await node.send(a)


async def test_a_broker_whose_port_or_store_is_in_use_elsewhere_is_not_in_the_table(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container() as node:
        with socket.create_server(("127.0.0.1", a.port)):
            await refused(
                node.add(a.path),
                ResponseCode.SYSTEM_ERROR,
                f"start broker failed: cannot listen on port {a.port} (listenPort): Address already in use",
            )
        assert node.names == [] and node.running == {}
        async with container(broker_config_paths=str(a.path)):
            a.write(listenPort=free_ports(1)[0])
            await refused(node.add(a.path), ResponseCode.SYSTEM_ERROR, "start broker failed: ", "is open in")
        a.write()
        await node.add(a.path)
        await node.send(a)


async def test_a_broker_that_stops_itself_is_gone_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with container(broker_config_paths=f"{a.path}:{b.path}") as node:
        node.broker(a).broker.fail(OSError(5, "Input/output error"))
        await until(lambda: node.names == ["DefaultCluster_b_0"])
        assert "DefaultCluster_a_0 is gone: Input/output error; the other brokers go on" in caplog.text
        await node.send(b)
        await refused(node.remove("a"), ResponseCode.BROKER_NOT_EXIST)
        await node.add(a.path)
        await node.send(a)


async def test_brokers_that_wait_for_their_disks_leave_threads_for_the_others(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a", settings={"flushDiskType": "SYNC_FLUSH"})
    async with container(broker_config_paths=str(a.path)) as node:
        disk_works, loop = threading.Event(), asyncio.get_running_loop()
        waiting = [loop.run_in_executor(None, disk_works.wait) for _ in range(100)]
        try:
            await node.send(a)  # without a thread that flushes: FLUSH_DISK_TIMEOUT
        finally:
            disk_works.set()
            await asyncio.gather(*waiting)


async def test_a_removal_waits_for_a_broker_that_stops_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container(broker_config_paths=str(a.path)) as node:
        service = node.broker(a)
        stop, begun, go_on = service.stop, asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            begun.set()
            await go_on.wait()
            await stop()

        monkeypatch.setattr(service, "stop", slow)
        service.broker.fail(OSError(5, "Input/output error"))
        await begun.wait()
        removing = asyncio.create_task(node.remove("a"))
        await asyncio.sleep(0.1)
        assert not removing.done(), "its messages are not on disk yet"
        go_on.set()
        await removing
        await node.add(a.path)
        await node.send(a)


async def test_a_broker_that_is_starting_can_be_removed(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container() as node:
        adding = asyncio.create_task(node.add(a.path))
        await until(lambda: bool(node.names))
        removing = asyncio.create_task(node.remove("a"))
        await asyncio.gather(adding, removing)
        assert node.names == [] and node.running == {}


async def test_a_stop_waits_for_a_broker_that_is_starting(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container() as node:
        adding = asyncio.create_task(node.add(a.path))
        await until(lambda: bool(node.names))
    await asyncio.gather(adding, return_exceptions=True)
    assert node.running == {}
    again = BrokerConf(tmp_path, "a")  # its store is free, its port too
    again.write(listenPort=a.port)
    async with container(broker_config_paths=str(again.path)) as node:
        assert node.names == ["DefaultCluster_a_0"]


async def test_a_broker_that_cannot_stop_does_not_keep_the_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "a", 1)
    async with container(broker_config_paths=f"{a.path}:{b.path}") as node:
        slave = node.broker(b)
        stop, master = slave.stop, node.broker(a)

        async def fails() -> None:
            await stop()
            raise RuntimeError("a bug")

        monkeypatch.setattr(slave, "stop", fails)
    assert "DefaultCluster_a_1 did not stop in order: RuntimeError: a bug" in caplog.text
    assert master.broker.role.stopping and not (a.store / "abort").exists()


async def test_name_servers_of_all_brokers_change_at_once(tmp_path: Path) -> None:
    a, b, c = (BrokerConf(tmp_path, name) for name in "abc")
    a.write(namesrvAddr="127.0.0.1:1")  # the container's are used
    file = tmp_path / "container.conf"
    async with name_server(tmp_path) as (first, one), name_server(tmp_path) as (second, two):
        file.write_text(f"# mine\nnamesrvAddr={one}\n")
        keys = {"namesrv_addr": one, "broker_config_paths": f"{a.path}:{b.path}"}
        async with container(file, **keys) as node:
            assert node.service.ready_line.endswith(f" and name server is {one}")
            await until(lambda: registered(first) == {"a", "b"})
            await node.client.call(node.address, UpdateBrokerConfig(), f"namesrvAddr={two}\n".encode())
            await until(lambda: registered(second) == {"a", "b"} and not registered(first))
            await node.add(c.path)
            await until(lambda: registered(second) == {"a", "b", "c"})
            assert file.read_text() == f"# mine\nnamesrvAddr={two}\n"
            assert "namesrvAddr=127.0.0.1:1\n" in a.path.read_text()
            await refused(
                node.client.call(node.address, UpdateBrokerConfig(), b"namesrvAddr=\n"),
                ResponseCode.SYSTEM_ERROR,
                "namesrvAddr cannot become empty",
            )
            both = f"namesrvAddr={one};{two}".encode()
            await node.client.call(node.address, UpdateBrokerConfig(), both)
            await until(lambda: registered(first) == registered(second) == {"a", "b", "c"})
        assert not registered(first) and not registered(second)


async def test_the_containers_configuration_can_be_read_and_some_keys_changed(tmp_path: Path) -> None:
    file = tmp_path / "container.conf"
    file.write_text("listenPort=0\n")
    async with container(file, config_black_list="namesrvAddr") as node:
        answer = await node.client.call(node.address, GetBrokerConfig())
        assert isinstance(answer.header, GetBrokerConfigResponse)
        assert parse_properties(bytes(answer.body).decode())["configBlackList"] == "namesrvAddr"

        def change(text: bytes) -> Any:
            return node.client.call(node.address, UpdateBrokerConfig(), text)

        for key in (
            "namesrvAddr",
            "brokerConfigPaths",
            "configBlackList",
            "addBrokerDirectories",
            "rocketmqHome",
        ):
            await refused(
                change(f"{key}=x".encode()),
                ResponseCode.NO_PERMISSION,
                "Can not update config in black list.",
            )
        await refused(change(b"listenPort=1"), ResponseCode.SYSTEM_ERROR, "cannot change while")
        await refused(
            change(b"fileReservedTime=1"), ResponseCode.SYSTEM_ERROR, "unknown key fileReservedTime"
        )
        await refused(change(b"\xff\xfe"), ResponseCode.SYSTEM_ERROR, "no properties text")
        assert file.read_text() == "listenPort=0\n"


async def test_the_containers_port_serves_no_other_request(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container(broker_config_paths=str(a.path)) as node:
        await refused(
            node.client.call(node.address, v2("T", broker_name="a"), b"x"),
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        )


async def test_a_broker_removed_under_load_has_all_it_acknowledged_and_producers_go_on(
    tmp_path: Path,
) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    acked: list[bytes] = []
    async with (
        name_server(tmp_path) as (namesrv, address),
        container(namesrv_addr=address, broker_config_paths=f"{a.path}:{b.path}") as node,
        Producer("p", address, send_timeout_ms=10_000, poll_interval_ms=200) as producer,
    ):
        await until(lambda: registered(namesrv) == {"a", "b"})
        stop = asyncio.Event()
        for conf in (a, b):
            await node.send(conf)  # makes the topic

        async def send(worker: int) -> None:
            for number in range(1_000_000):
                if stop.is_set():
                    return
                body = b"%d-%d" % (worker, number)
                try:
                    await producer.send(Message("T", body))
                except (ClientError, NetError, MQError):
                    continue
                acked.append(body)

        senders = [asyncio.create_task(send(worker)) for worker in range(16)]
        await until(lambda: len(acked) > 500)
        await node.remove("a")
        removed_at = len(acked)
        await until(lambda: len(acked) > removed_at + 500)
        stop.set()
        await asyncio.gather(*senders)
    stored = {
        message.body
        for conf in (a, b)
        for _, record in read_store(conf.store)
        for message in decode_records(bytes(record), check_crc=True)
    }
    assert set(acked) <= stored
    only_a = [m.body for _, r in read_store(a.store) for m in decode_records(bytes(r))]
    assert len(only_a) > 100, "the removed broker took part"


async def test_brokers_that_come_and_go_leave_no_memory_behind(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    pid = os.getpid()
    async with container() as node:

        async def rounds(count: int) -> float:
            for _ in range(count):
                await node.add(a.path)
                await node.send(a)
                await node.remove("a")
                shutil.rmtree(a.store)
            await asyncio.sleep(1.2)  # until the collector has run
            return anonymous_mib(pid)

        await rounds(5)
        before = await rounds(5)
        assert await rounds(20) < before + 8
