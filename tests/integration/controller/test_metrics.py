"""Controllers that are scraped: real sockets, a real Raft group, Prometheus' own parser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.scrape import scrape

from batonmq.common.metrics_config import MetricsExporterType
from batonmq.controller.config import ControllerConfig
from batonmq.controller.metrics import size_of_files
from batonmq.controller.service import ControllerService
from batonmq.demo.ports import free_ports
from batonmq.net.client import RemotingClient
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.codes import RequestCode, ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.frame import Command
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode

CLUSTER, NAME = "c", "set"


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within 10 s: {what}")
        await asyncio.sleep(0.005)


@asynccontextmanager
async def controllers(folder: Path, count: int, **keys: Any) -> AsyncIterator[list[ControllerService]]:
    ports = free_ports(count)
    made = [
        ControllerService(
            ControllerConfig(
                controller_d_leger_group="g",
                controller_d_leger_peers=";".join(f"n{i}-127.0.0.1:{port}" for i, port in enumerate(ports)),
                controller_d_leger_self_id=f"n{number}",
                controller_store_path=str(folder / f"n{number}"),
                bind_address="127.0.0.1",
                j_raft_election_timeout_ms=300,
                metrics_exporter_type=MetricsExporterType.PROM,
                metrics_prom_exporter_port=0,
                **keys,
            )
        )
        for number in range(count)
    ]
    started: list[ControllerService] = []
    try:
        for service in made:
            await service.start()
            started.append(service)
        await until(lambda: any(service.leading for service in made), "a leader")
        yield made
    finally:
        for service in started:
            await service.stop()


def address(service: ControllerService) -> str:
    return service.topology.rpc_addresses[service.topology.self_id]


async def bring_up(client: RemotingClient, controller: str) -> None:
    """A set of two living replicas, the first of them master; then both in sync, and two refusals."""
    for broker_id in (1, 2):
        at = f"127.0.0.1:{broker_id}"
        await client.call(controller, wire.ApplyBrokerId(NAME, broker_id, f"{at};1", CLUSTER))
        await client.call(controller, wire.RegisterBrokerToController(CLUSTER, NAME, broker_id, at))
        await client.call(controller, BrokerHeartbeat(CLUSTER, at, NAME, broker_id, 0, 0, 0, 60_000, 100))
    await client.call(controller, wire.ElectMaster(CLUSTER, NAME, 1))
    with pytest.raises(MQError, match="STILL_EXIST"):
        await client.call(controller, wire.ElectMaster(CLUSTER, NAME, 1))
    both = encode(SyncStateSetBody((1, 2), 1))
    with pytest.raises(MQError, match="FENCED"):
        await client.call(controller, wire.AlterSyncStateSet(NAME, 1, 7), both)
    await client.call(controller, wire.AlterSyncStateSet(NAME, 1, 1), both)


async def test_one_controller_counts_what_it_did(tmp_path: Path) -> None:
    async with controllers(tmp_path, 1, metrics_label="zone:a") as (service,):
        common = {
            "address": address(service),
            "group": "g",
            "peer_id": "n0",
            "zone": "a",
            "otel_scope_name": "controller",
        }
        client = RemotingClient()
        try:
            await bring_up(client, address(service))
            await client.call(address(service), wire.GetReplicaInfo(NAME))
            bad = await client.invoke(address(service), Command(RequestCode.CONTROLLER_GET_REPLICA_INFO, {}))
            assert bad.code == ResponseCode.SYSTEM_ERROR
            handed_in = service.node.applied_index
            # While the brokers are connected: their death would be an election more.
            samples = await asyncio.to_thread(scrape, service.metrics.port, without=common)
            stored = size_of_files(tmp_path / "n0")
        finally:
            await client.close()
    assert samples["role{}"] == 3
    assert 0 < samples["dledger_disk_usage_bytes{}"] <= stored
    assert samples["active_broker_num{broker_set=set,cluster=c}"] == 2
    counted = {
        name.removeprefix("request_total{request_handle_status="): value
        for name, value in samples.items()
        if name.startswith("request_total")
    }
    assert counted == {
        "success,request_type=CONTROLLER_APPLY_BROKER_ID}": 2,
        "success,request_type=CONTROLLER_REGISTER_BROKER}": 2,
        "success,request_type=CONTROLLER_BROKER_HEARTBEAT}": 2,
        "success,request_type=CONTROLLER_ELECT_MASTER}": 2,
        "success,request_type=CONTROLLER_ALTER_SYNC_STATE_SET}": 2,
        "success,request_type=CONTROLLER_GET_REPLICA_INFO}": 1,
        "failed,request_type=CONTROLLER_GET_REPLICA_INFO}": 1,
    }
    assert samples["request_latency_microseconds_count{request_type=CONTROLLER_BROKER_HEARTBEAT}"] == 2
    assert samples["request_latency_microseconds_sum{request_type=CONTROLLER_BROKER_HEARTBEAT}"] > 0
    assert {name: value for name, value in samples.items() if name.startswith("election_total")} == {
        "election_total{broker_set=set,cluster=c,election_result=new_master_elected}": 1,
        "election_total{broker_set=set,cluster=c,election_result=keep_current_master}": 1,
    }
    appended = "dLedger_operation_status=success,dledger_operation=append"
    # One entry was not given to the log but written by it: the leader's own, with which its term begins.
    assert samples[f"dledger_op_total{{{appended}}}"] == handed_in - 1 >= 9
    assert samples[f"dledger_op_latency_microseconds_count{{{appended}}}"] == handed_in - 1


async def test_followers_show_their_role_and_who_lives_but_only_the_leader_counts_elections(
    tmp_path: Path,
) -> None:
    async with controllers(tmp_path, 3) as services:
        leader = next(service for service in services if service.leading)
        follower = next(service for service in services if not service.leading)
        client = RemotingClient()
        try:
            await bring_up(client, address(leader))
            with pytest.raises(MQError, match="NOT_LEADER"):
                await client.call(address(follower), wire.GetReplicaInfo(NAME))
            level = leader.node.applied_index
            await until(lambda: follower.node.applied_index == level, "a follower that is up to date")
            led = await asyncio.to_thread(scrape, leader.metrics.port)
            followed = await asyncio.to_thread(scrape, follower.metrics.port)
        finally:
            await client.close()

    def sums(samples: dict[str, float]) -> dict[str, float]:
        totals: dict[str, float] = {}
        for sample, value in samples.items():
            name = sample.partition("{")[0]
            totals[name] = totals.get(name, 0) + value
        return totals

    assert sums(led)["role"] == 3 and sums(followed)["role"] == 2
    assert sums(led)["active_broker_num"] == sums(followed)["active_broker_num"] == 2
    assert sums(led)["election_total"] == 2 and sums(followed)["election_total"] == 0
    # Raft's own messages, on the same port, are not requests.
    assert sums(led)["request_total"] == 10
    assert sums(followed)["request_total"] == 1


async def test_a_taken_port_stops_the_start_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with controllers(tmp_path / "first", 1) as (running,):
        (port,) = free_ports(1)
        keys: dict[str, Any] = {
            "controller_d_leger_peers": f"n0-127.0.0.1:{port}",
            "controller_d_leger_self_id": "n0",
            "controller_store_path": str(tmp_path / "second"),
            "bind_address": "127.0.0.1",
            "metrics_exporter_type": MetricsExporterType.PROM,
        }
        refused = ControllerService(ControllerConfig(metrics_prom_exporter_port=running.metrics.port, **keys))
        with pytest.raises(OSError, match="metricsPromExporterPort"):
            await refused.start()
        again = ControllerService(ControllerConfig(metrics_prom_exporter_port=0, **keys))
        await again.start()
        try:
            await until(lambda: again.leading, "a leader on the same port and directory")
        finally:
            await again.stop()


async def test_tokens_for_the_collector_are_not_shown_to_whoever_asks(tmp_path: Path) -> None:
    async with controllers(tmp_path, 1, metrics_grpc_exporter_header="authorization:Bearer t0ken") as (
        service,
    ):
        client = RemotingClient()
        try:
            reply = await client.call(address(service), wire.GetControllerConfig())
        finally:
            await client.close()
    text = bytes(reply.body).decode()
    assert "metricsExporterType=PROM\n" in text and "t0ken" not in text
