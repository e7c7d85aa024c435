"""A broker that cannot start, stops itself or cannot stop concerns no other broker of its container."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from tests.integration.container.files import BrokerConf
from tests.integration.container.node import container, refused, until

from batonmq.demo.ports import free_ports
from batonmq.protocol.codes import ResponseCode


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


async def test_a_broker_that_stops_itself_is_gone_and_the_others_continue(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = BrokerConf(tmp_path, "a"), BrokerConf(tmp_path, "b")
    async with container(broker_config_paths=f"{a.path}:{b.path}") as node:
        node.broker(a).broker.fail(OSError(5, "Input/output error"))
        await until(lambda: node.names == ["DefaultCluster_b_0"])
        assert "DefaultCluster_a_0 is gone: Input/output error; the other brokers continue" in caplog.text
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
