"""A container on the test's event loop: brokers come and go by requests, and share the process."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from tests.integration.broker.rig import v2
from tests.integration.container.files import BrokerConf
from tests.integration.container.node import CLUSTER, container, name_server, refused, registered, until
from tests.integration.group import anonymous_mib
from tests.scrape import scrape

from batonmq import Message, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.ports import free_ports
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.admin import (
    GetBrokerRuntimeInfo,
)
from batonmq.protocol.message.record import decode_records
from batonmq.store.verify import read_store


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


async def test_a_container_without_brokers_waits_for_some(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container() as node:
        assert node.said == [] and node.names == []
        await node.add(a.path)
        await node.send(a)


async def test_the_containers_port_serves_no_other_request(tmp_path: Path) -> None:
    a = BrokerConf(tmp_path, "a")
    async with container(broker_config_paths=str(a.path)) as node:
        await refused(
            node.client.call(node.address, v2("T", broker_name="a"), b"x"),
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        )


async def test_a_broker_removed_under_load_has_all_it_acknowledged_and_producers_continue(
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
