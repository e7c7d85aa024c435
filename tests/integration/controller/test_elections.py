"""A controller elects masters, sends notices of it and writes it down."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

from tests.integration.controller.group import CLUSTER, Group, brokers, until

from batonmq.protocol.headers import controller as wire


async def test_a_closed_connection_elects_within_milliseconds_and_notifies_all_replicas(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        elected = await first.elect(address)
        assert (elected.master_broker_id, elected.master_epoch) == (1, 1)
        await first.alter(address, 1, (1, 2), 1)
        started = time.monotonic()
        await first.drop_connections()
        await until(lambda: service.machine.broker_sets["s"].master_id == 2, "the second is master", 1)
        assert time.monotonic() - started < 0.5
        await until(lambda: any(h.master_epoch == 2 for h, _ in second.notices), "the second is notified")
        header, body = second.notices[-1]
        assert (header.master_broker_id, header.master_address) == (2, second.address)
        assert body.sync_state_set == (2,) and body.sync_state_set_epoch == 3
    finally:
        await first.stop()
        await second.stop()


async def test_a_silent_master_is_replaced_by_the_scan(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        deadline = time.monotonic() + 6
        while service.machine.broker_sets["s"].master_id != 2:
            assert time.monotonic() < deadline
            await second.beat(address)
            await asyncio.sleep(0.1)
    finally:
        await first.stop()
        await second.stop()


async def test_notices_are_repeated_until_a_heartbeat_shows_the_epoch(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await until(lambda: len(second.notices) >= 2, "the second is notified again", 5)
        for broker in (first, second):
            broker.epoch = 1
            await broker.beat(address)
        await until(lambda: service.notices.pending == 0, "no notice is pending", 5)
    finally:
        await first.stop()
        await second.stop()


async def test_a_replica_that_does_not_answer_delays_nobody(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.server.stop()  # its address refuses connections from now on
        deaf = socket.socket()
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)  # accepts, and never answers
        await first.drop_connections()
        await until(lambda: 1 not in service.machine.broker_sets["s"].live, "the first is seen to be gone")
        await first.client.call(
            address,
            wire.RegisterBrokerToController(CLUSTER, "s", 1, f"127.0.0.1:{deaf.getsockname()[1]}"),
        )
        await first.beat(address)
        started = time.monotonic()
        await first.elect(address)
        await until(lambda: second.notices, "the second is notified")
        assert time.monotonic() - started < 1.0
        deaf.close()
    finally:
        await first.stop()
        await second.stop()


async def test_elections_are_written_down(one: Group) -> None:
    service = await one.leader()
    address = one.address(service)
    first, second = await brokers(address)
    try:
        await first.elect(address)
        await first.alter(address, 1, (1, 2), 1)
        await first.drop_connections()
        await until(lambda: service.leadership.elections == 2, "two elections")
    finally:
        await first.stop()
        await second.stop()
    await one.stop_all()
    path = Path(one.configs[0].controller_store_path) / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    elections = [line for line in lines if line["event"] == "election" and line["result"] == "new-master"]
    assert [(e["cause"], e["old_master"], e["new_master"], e["candidates"]) for e in elections] == [
        ("broker", None, 1, []),
        ("channel-closed", 1, 2, [1, 2]),
    ]
    assert all(line["time_ms"] > 1_600_000_000_000 and line["node"] == "n0" for line in lines)
