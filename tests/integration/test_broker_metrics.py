"""A broker that is scraped: real sockets and files, a message in and out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker.rig import v2
from tests.scrape import scrape

from batonmq.broker.config import BrokerConfig
from batonmq.broker.service import BrokerService
from batonmq.common.metrics_config import MetricsExporterType
from batonmq.demo.ports import free_ports
from batonmq.ha.config import HAConfig
from batonmq.net.client import RemotingClient
from batonmq.protocol.codes import PullSysFlag
from batonmq.protocol.headers.broker.pull import PullMessage
from batonmq.store.config import StoreConfig

COMMON = {
    "node_type": "broker",
    "cluster": "DefaultCluster",
    "node_id": "b",
    "otel_scope_name": "broker-meter",
}


def broker(root: Path, **keys: Any) -> BrokerService:
    config: dict[str, Any] = {
        "broker_name": "b",
        "broker_ip1": "127.0.0.1",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "metrics_exporter_type": MetricsExporterType.PROM,
        "metrics_prom_exporter_port": 0,
    }
    store = StoreConfig(store_path_root_dir=str(root), mapped_file_size_commit_log=1 << 20)
    return BrokerService(BrokerConfig(**{**config, **keys}), store, HAConfig())


@asynccontextmanager
async def running(service: BrokerService) -> AsyncIterator[Callable[..., Any]]:
    """`service`, and a function that calls it."""
    await service.start()
    client = RemotingClient()
    try:
        yield lambda header, body=b"": client.call(f"127.0.0.1:{service.port}", header, body)
    finally:
        await client.close()
        await service.stop()


async def test_a_broker_shows_what_came_in_and_what_went_out(tmp_path: Path) -> None:
    service = broker(tmp_path)
    async with running(service) as call:
        for _ in range(3):
            await call(v2("T"), b"x" * 100)
        await call(
            PullMessage(
                consumer_group="g",
                topic="T",
                queue_id=0,
                queue_offset=0,
                max_msg_nums=2,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
            )
        )
        stored = service.broker.store.max_offset
        assert service.metrics is not None
        samples = await asyncio.to_thread(scrape, service.metrics.port, without=COMMON)
    incoming, outgoing = (
        "is_system=false,message_type=normal,topic=T",
        "consumer_group=g,is_system=false,topic=T",
    )
    assert samples[f"rocketmq_messages_in_total{{{incoming}}}"] == 3
    assert samples[f"rocketmq_throughput_in_total{{{incoming}}}"] == stored
    assert samples[f"rocketmq_messages_out_total{{{outgoing}}}"] == 2
    assert samples[f"rocketmq_throughput_out_total{{{outgoing}}}"] == stored / 3 * 2
    answered = (
        "is_long_polling=false,protocol_type=remoting,request_code={},response_code=success,result=success"
    )
    latency = "rocketmq_rpc_latency_milliseconds_count{{{}}}"
    assert samples[latency.format(answered.format("send_message_v2"))] == 3
    assert samples[latency.format(answered.format("pull_message"))] == 1
    assert samples["batonmq_broker_is_master{}"] == 1
    assert samples["rocketmq_storage_dispatch_behind_bytes{storage_medium=disk,storage_type=local}"] == 0
    assert samples["rocketmq_storage_size_bytes{storage_medium=disk,storage_type=local}"] > stored


async def test_a_taken_port_stops_the_start_and_leaves_nothing_behind(tmp_path: Path) -> None:
    first = broker(tmp_path / "first")
    async with running(first):
        assert first.metrics is not None
        (port,) = free_ports(1)
        refused = broker(tmp_path / "second", listen_port=port, metrics_prom_exporter_port=first.metrics.port)
        with pytest.raises(OSError, match="metricsPromExporterPort"):
            await refused.start()
        async with running(broker(tmp_path / "second", listen_port=port)) as call:
            await call(v2("T"), b"x")


async def test_a_broker_without_metrics_watches_nothing(tmp_path: Path) -> None:
    service = broker(tmp_path, metrics_exporter_type=MetricsExporterType.DISABLE)
    async with running(service) as call:
        await call(v2("T"), b"x")
        assert service.metrics is not None and service.metrics.port == 0
