"""Containers as processes: what they print, two nodes with two broker sets crosswise, worker processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.certificates import authority
from tests.integration.container.files import BrokerConf
from tests.integration.container.processes import Nodes, log, running, until, workers

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.routes import ClusterInfo
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import GetBrokerRuntimeInfo, UpdateBrokerConfig
from batonmq.protocol.headers.namesrv import GetBrokerClusterInfo
from batonmq.protocol.json import decode


@asynccontextmanager
async def nodes(made: Nodes) -> AsyncIterator[Nodes]:
    try:
        await made.up()
        yield made
    finally:
        await made.close()


def batonmq(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "batonmq", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def program(directory: Path, **settings: object) -> Program:
    values = {"listenPort": free_ports(1)[0], "bindAddress": "127.0.0.1", **settings}
    return Program("container", "container", directory, values)


async def test_a_container_prints_what_rocketmqs_prints_and_ends_with_0(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b", 1)
    made = Nodes(tmp_path, [[a, b]])
    async with nodes(made):
        (container,) = made.containers
        lines = log(container).splitlines()
        own = (
            f"The broker container boot success. serializeType=JSON and name server is {made.namesrv.address}"
        )
        assert next(line for line in lines if "boot success" in line) == own
        for each in ("a-0", "b-1"):
            assert lines.count(f"Broker [{each}] boot success. serializeType=JSON") == 1
        assert any("[DefaultCluster_a_0] " in line for line in lines)
        assert any("[DefaultCluster_b_1] " in line for line in lines)
        assert await asyncio.to_thread(container.stop) == 0
        assert "Traceback" not in log(container)


def test_option_b_names_the_brokers_and_p_prints_all_keys(tmp_path: Path) -> None:
    file = tmp_path / "c.conf"
    file.write_text("listenPort=20811\nbrokerConfigPaths=/x.conf\nfetchNamesrvAddrInterval=10000\n")
    done = batonmq("container", "-c", str(file), "-b", "/a.conf:/b.conf", "-n", "10.0.0.1:9876", "-p")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert {"listenPort=20811", "brokerConfigPaths=/a.conf:/b.conf", "namesrvAddr=10.0.0.1:9876"} <= {*lines}
    assert "containerProcesses=1" in lines
    assert "fetchNamesrvAddrInterval has no effect here" in done.stderr


async def test_our_tools_add_and_remove_brokers(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    container = program(tmp_path, brokerConfigPaths=a.path)
    await asyncio.to_thread(container.start)

    async def admin(*words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(batonmq, "admin", *words)

    try:
        where = ("-c", container.address, "-b")
        done = await admin("addBroker", *where, str(b.path))
        assert (done.returncode, done.stdout) == (0, f"add broker to {container.address} success\n")
        done = await admin("addBroker", *where, str(b.path), "--json")
        assert done.returncode == 1 and "DefaultCluster_b_0 has already been added" in done.stderr
        done = await admin("removeBroker", *where, "DefaultCluster:b:0", "--json")
        assert json.loads(done.stdout) == {
            "result": f"remove broker from {container.address} success",
            "container": container.address,
            "broker": "DefaultCluster:b:0",
        }
        done = await admin("removeBroker", *where, "DefaultCluster:b:0")
        assert done.returncode == 1 and "BROKER_NOT_EXIST (211): Broker not exist" in done.stderr
        for words in ("b", "DefaultCluster:b", "DefaultCluster:b:-1", "DefaultCluster:b:x", f"c:b:{1 << 63}"):
            done = await admin("removeBroker", *where, words)
            assert done.returncode == 1 and "write clusterName:brokerName:brokerId" in done.stderr
        done = await admin("addBroker", "-c", a.address, "-b", str(b.path))
        assert done.returncode == 1 and f"{a.address} is not a broker container" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        done = await admin("getBrokerConfig", "-b", container.address, "--json")
        assert done.returncode == 0 and str(a.path) in done.stdout
    finally:
        assert await asyncio.to_thread(container.stop) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("listenPort=70000", "listenPort=70000: must be at most 65535"),
        ("containerProcesses=0", "containerProcesses=0: must be at least 1"),
        ("namesrvAddr=nowhere", "namesrvAddr=nowhere: 'nowhere' is not an address"),
        ("tls.server.mode=enforcing", "tls.server.mode=enforcing needs tls.server.certPath"),
    ],
)
def test_a_bad_value_of_the_containers_file_stops_it_with_one_line(
    tmp_path: Path, line: str, said: str
) -> None:
    file = tmp_path / "c.conf"
    file.write_text(f"brokerContainerIP=127.0.0.1\n{line}\n")
    done = batonmq("container", "-c", str(file))
    assert done.returncode == 1 and done.stdout == ""
    (error,) = done.stderr.splitlines()
    assert error.startswith(f"container: {file}: ") and said in error


@pytest.mark.parametrize("processes", [1, 2])
def test_a_taken_port_of_the_container_stops_it_with_one_line(tmp_path: Path, processes: int) -> None:
    a = BrokerConf(tmp_path, "a")
    first = program(tmp_path, brokerConfigPaths=a.path, containerProcesses=processes)
    first.start()
    try:
        done = batonmq("container", "-c", str(first.config_path))
        assert done.returncode == 1
        port = first.settings["listenPort"]
        assert done.stderr.splitlines()[-1] == (
            f"container: cannot listen on port {port} (listenPort): Address already in use"
        )
    finally:
        assert first.stop() == 0


def crosswise(tmp_path: Path) -> tuple[list[list[BrokerConf]], BrokerConf, BrokerConf]:
    """Two nodes, each with the master of one broker set and the slave of the other."""
    settings: dict[str, object] = {
        "brokerRole": "SYNC_MASTER",
        "totalReplicas": 2,
        "inSyncReplicas": 2,
        "minInSyncReplicas": 1,
        "enableAutoInSyncReplicas": "true",
        "enableSlaveActingMaster": "true",
        "slaveReadEnable": "true",
    }
    slave = {**settings, "brokerRole": "SLAVE"}
    a0, a1 = BrokerConf(tmp_path, "a", 0, settings), BrokerConf(tmp_path, "a", 1, slave)
    b0, b1 = BrokerConf(tmp_path, "b", 0, settings), BrokerConf(tmp_path, "b", 1, slave)
    return [[a0, b1], [b0, a1]], a0, b0


@pytest.mark.parametrize("processes", [1, 2])
async def test_two_nodes_crosswise_lose_nothing_when_one_is_killed(tmp_path: Path, processes: int) -> None:
    confs, a0, b0 = crosswise(tmp_path)
    a1, b1 = confs[1][1], confs[0][1]
    async with nodes(Nodes(tmp_path, confs, containerProcesses=processes)) as made:
        left, right = made.containers
        for master in (a0, b0):
            await made.in_sync(master)
        assert await made.send("a", 50) == await made.send("b", 50) == 0

        await made.kill(left)
        # The other node has every message of both broker sets, and takes new ones for its own.
        assert await made.bodies(a1.address) == made.acked["a"]
        assert await made.send("b", 30) == 0
        assert await made.bodies(b0.address) == made.acked["b"]

        await made.start(left)
        for master in (a0, b0):
            await made.in_sync(master)
        assert await made.send("a", 20) == await made.send("b", 20) == 0
        for master, slave, name in ((a0, a1, "a"), (b0, b1, "b")):
            await made.in_sync(master)
            assert await made.bodies(master.address) == made.acked[name]
            assert await made.bodies(slave.address) == made.acked[name]

        await made.kill(right)
        assert await made.bodies(b1.address) == made.acked["b"]
        assert await made.send("a", 20) == 0
        await made.start(right)
        for master in (a0, b0):
            await made.in_sync(master)
        assert await made.bodies(a1.address) == made.acked["a"]
        for container in made.containers:
            assert await asyncio.to_thread(container.stop) == 0
            assert "Traceback" not in log(container)


async def test_brokers_removed_from_a_node_and_added_again_miss_nothing(tmp_path: Path) -> None:
    """First a slave, while its master goes on; then a master, while its slave serves reads."""
    confs, a0, b0 = crosswise(tmp_path)
    a1 = confs[1][1]
    async with nodes(Nodes(tmp_path, confs)) as made:
        left, right = made.containers
        await made.in_sync(a0)
        assert await made.send("a", 20) == 0
        await made.remove(right, "a", 1)
        assert await made.send("a", 20) == await made.send("b", 20) == 0
        await made.add(right, a1.path)
        await made.registered(a1)
        await made.in_sync(a0)
        assert await made.bodies(a1.address) == made.acked["a"]

        await made.remove(left, "a")
        assert await made.bodies(a1.address) == made.acked["a"]
        await made.add(left, a0.path)
        await made.registered(a0)
        await made.in_sync(a0)
        assert await made.send("a", 20) == await made.send("b", 20) == 0
        for conf, name in ((a0, "a"), (b0, "b")):
            assert await made.bodies(conf.address) == made.acked[name]
        await made.in_sync(a0)
        assert await made.bodies(a1.address) == made.acked["a"]


async def test_another_node_takes_over_at_once_when_a_master_is_removed(tmp_path: Path) -> None:
    (controller_port,) = free_ports(1)
    controller = Program(
        "controller",
        "controller",
        tmp_path,
        {
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-127.0.0.1:{controller_port}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": tmp_path / "controller",
        },
        port=controller_port,
    )
    settings: dict[str, object] = {
        "enableControllerMode": "true",
        "controllerAddr": controller.address,
        "allAckInSyncStateSet": "true",
        "controllerHeartBeatTimeoutMills": 20_000,
    }
    first, second = (BrokerConf(tmp_path / each, "a", 0, settings) for each in ("left", "right"))
    made = Nodes(tmp_path, [[first], [second]])
    await asyncio.to_thread(controller.start)
    try:
        async with nodes(made):
            await made.in_sync(first)
            assert await made.send("a", 30) == 0
            began = time.monotonic()
            await made.remove(made.containers[0], "a")
            assert await made.send("a", 1) == 0
            assert time.monotonic() - began < 5, "the controller did not wait for the timeout"
            assert await made.bodies(second.address) == made.acked["a"]
            await made.add(made.containers[0], first.path)
            await made.in_sync(second)
            assert await made.send("a", 5) == 0
    finally:
        await asyncio.to_thread(controller.stop)


async def test_a_worker_that_dies_comes_back_with_its_brokers_and_the_others_continue(tmp_path: Path) -> None:
    a, b, c, d = (BrokerConf(tmp_path, name) for name in "abcd")
    async with nodes(Nodes(tmp_path, [[a, b]], containerProcesses=2)) as made:
        (container,) = made.containers
        assert len(workers(container)) == 2
        await made.add(container, c.path)  # after a: in the first worker
        await made.add(container, d.path)
        await made.remove(container, "d")
        for name in "abc":
            assert await made.send(name, 20) == 0
        victim, other = workers(container)
        os.kill(victim, signal.SIGKILL)
        assert await made.send("b", 20) == 0
        await until(lambda: "worker-1 is back brokers=2" in log(container), lambda: log(container))
        assert other in workers(container) and victim not in workers(container)
        assert "worker-1 ended (SIGKILL); it starts again" in log(container)
        for name, conf in (("a", a), ("b", b), ("c", c)):
            assert await made.send(name, 20) == 0
            assert await made.bodies(conf.address) == made.acked[name]
        with pytest.raises(NetError):
            await made.client.call(d.address, GetBrokerRuntimeInfo())

        await made.remove(container, "c")
        with pytest.raises(MQError) as caught:
            await made.remove(container, "c")
        assert caught.value.code == ResponseCode.BROKER_NOT_EXIST
        pids = workers(container)
        assert await asyncio.to_thread(container.stop) == 0
        assert not any(running(pid) for pid in pids)
        for conf in (a, b, c):
            assert not (conf.store / "abort").exists(), "it was stopped in order"
        assert "Traceback" not in log(container)


async def test_a_broker_that_cannot_start_again_is_gone_and_the_worker_continues(tmp_path: Path) -> None:
    a, b, c = (BrokerConf(tmp_path, name) for name in "abc")
    async with nodes(Nodes(tmp_path, [[a, b, c]], containerProcesses=2)) as made:
        (container,) = made.containers
        a.path.write_text("nonsense\n")
        killed = workers(container)  # the first broker that serves decides which worker has it
        for worker in killed:
            os.kill(worker, signal.SIGKILL)
        await until(lambda: log(container).count(" is back brokers=") == len(killed), lambda: log(container))
        assert "DefaultCluster_a_0 is gone: it did not start again" in log(container)
        assert await made.send("c", 5) == await made.send("b", 5) == 0
        a.write()
        await made.add(container, a.path)
        assert await made.send("a", 5) == 0


async def test_errors_of_a_worker_come_back_with_the_answer(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with nodes(Nodes(tmp_path, [[a]], containerProcesses=2)) as made:
        (container,) = made.containers
        broken = BrokerConf(tmp_path, "c", settings={"metricsExporterType": "PROM"})
        broken.write(storePathRootDir="/proc/no/store")
        for conf, words in ((broken, "start broker failed: /proc/no"), (a, "has already been added")):
            with pytest.raises(MQError) as caught:
                await made.add(container, conf.path)
            assert caught.value.code == ResponseCode.SYSTEM_ERROR and words in caught.value.remark
        await made.add(container, b.path)
        assert await made.send("b", 5) == 0


async def test_workers_follow_a_change_of_the_name_servers(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    (port,) = free_ports(1)
    keys = {"listenPort": port, "bindAddress": "127.0.0.1", "kvConfigPath": tmp_path / "kv2.json"}
    other = Program("other", "namesrv", tmp_path, keys)
    await asyncio.to_thread(other.start)
    try:
        async with nodes(Nodes(tmp_path, [[a, b]], containerProcesses=2)) as made:
            (container,) = made.containers

            async def registered(names: set[str]) -> None:
                found: set[str] = set()
                for _ in range(200):
                    answer = await made.client.call(other.address, GetBrokerClusterInfo())
                    found = set(decode(bytes(answer.body), ClusterInfo).broker_addr_table)
                    if found == names:
                        return
                    await asyncio.sleep(0.05)
                pytest.fail(f"{found} are registered")

            change = f"namesrvAddr={other.address}\n".encode()
            await made.client.call(container.address, UpdateBrokerConfig(), change)
            await registered({"a", "b"})
            assert f"namesrvAddr={other.address}" in container.config_path.read_text()
            # A worker that starts again does so with the new ones, and a new broker gets them, too.
            os.kill(workers(container)[0], signal.SIGKILL)
            await until(lambda: "worker-1 is back brokers=1" in log(container), lambda: log(container))
            await made.remove(container, "b")
            await registered({"a"})
            await made.add(container, b.path)
            await registered({"a", "b"})
    finally:
        await asyncio.to_thread(other.stop)


async def test_all_brokers_speak_tls_as_their_container_does(tmp_path: Path) -> None:
    ca = authority(tmp_path / "ca")
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    container = program(tmp_path, brokerConfigPaths=a.path, containerProcesses=2, **ca.mutual("node"))
    certificate, key = map(str, ca.issue("operator"))
    words = ["--tls-trust", str(ca.certificate), "--tls-cert", certificate, "--tls-key", key]
    await asyncio.to_thread(container.start)
    try:
        added = await asyncio.to_thread(
            batonmq, "admin", "addBroker", "-c", container.address, "-b", str(b.path), *words
        )
        assert added.returncode == 0, added.stderr
        await until(lambda: "Broker [a-0] boot success" in log(container), lambda: log(container))
        for each in (a, b):
            status = await asyncio.to_thread(batonmq, "admin", "brokerStatus", "-b", each.address, *words)
            assert status.returncode == 0, status.stderr
        plain = await asyncio.to_thread(batonmq, "admin", "brokerStatus", "-b", b.address)
        assert plain.returncode == 1 and "give --tls" in plain.stderr
    finally:
        assert await asyncio.to_thread(container.stop) == 0


async def test_workers_end_when_their_container_is_killed(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with nodes(Nodes(tmp_path, [[a, b]], containerProcesses=2)) as made:
        (container,) = made.containers
        assert await made.send("a", 20) == await made.send("b", 20) == 0
        await made.kill(container)
        await made.start(container)
        for name, conf in (("a", a), ("b", b)):
            assert await made.bodies(conf.address) == made.acked[name]


async def test_a_signal_to_the_whole_group_stops_a_container_in_order(tmp_path: Path) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with nodes(Nodes(tmp_path, [[a, b]], containerProcesses=2)) as made:
        (container,) = made.containers
        assert await made.send("a", 20) == 0
        os.killpg(container.pid, signal.SIGINT)  # as Ctrl-C in a terminal
        assert container.process is not None
        assert await asyncio.to_thread(container.process.wait, 20) == 0
        assert not (a.store / "abort").exists() and not (b.store / "abort").exists()
        assert "it starts again" not in log(container)
