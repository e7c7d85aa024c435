"""How fast a replica that was away catches up, and what the master's clients feel of it meanwhile.

The master's log is filled with messages of 4 KiB; then the second replica starts, the first time with an
empty disk, later with the log it had when it was stopped. Clients send all along, at a fixed rate, to a group
that acknowledges with its whole SyncStateSet; until the replica has caught up that is the master alone. What
is compared is their latency before the replica starts and while it copies; and, since any copy of so much
takes processors, memory and the disk from a machine, while two plain processes copy the same files as fast.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from batonmq import Message, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import GroupState
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker import replication as wire
from batonmq.protocol.json import decode
from benchmarks import bench_broker
from benchmarks.clusters import create_topic, in_sync, make_cluster, wait_for_group
from benchmarks.failover import percentile
from benchmarks.memory import PageCache, page_cache

BODY = 4096
FILL_BATCH, FILL_FRAMES, FILL_IN_FLIGHT = 32, 100, 16
SENDS_PER_S = 200
TOPIC = "BenchCatchup"
QUIET_S = 10.0
"""How long latency is measured before each catch-up."""
SETTLE_S = 5.0
"""For what the filling leaves to be written to disk."""
POLL_S = 0.02
LEVEL_BYTES = 1_000_000
"""So little behind counts as caught up: as much as is always on its way."""
LIMIT_S = 300.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class CatchUp:
    """One catch-up. MB are 10^6 bytes, times of sends in ms."""

    copied_mb: float
    took_s: float
    """From the first byte that the replica acknowledged to the moment it had all but what was just sent."""
    started_to_in_sync_s: float
    """From exec of the replica to its place in the SyncStateSet; of a plain copy to its end."""
    before_p50_ms: float
    before_p99_ms: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    sends: int
    failed: int

    @property
    def mb_per_s(self) -> float:
        return self.copied_mb / self.took_s


class SteadyLoad:
    """Sends at a fixed rate, whatever the answers do; each latency with the moment it began."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.sent: list[tuple[float, float]] = []
        """`time.monotonic` at which a send began, and what it took in ms."""
        self.failed = 0
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            task = loop.create_task(self._send())
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            due += 1 / SENDS_PER_S
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _send(self) -> None:
        began = time.monotonic()
        try:
            await self._producer.send(Message(TOPIC, b"x" * BODY))
        except (ClientError, NetError, MQError):
            self.failed += 1
        else:
            self.sent.append((began, (time.monotonic() - began) * 1000))

    async def done(self) -> None:
        """Wait for the answers under way."""
        await asyncio.gather(*self._under_way)

    def between(self, first: float, last: float) -> list[float]:
        return [took for began, took in self.sent if first <= began <= last]


def fill(port: int, size: int) -> int:
    """Send messages of 4 KiB in batches until they are `size` bytes or a little more; how many bytes."""
    frames = bench_broker.send_frames(BODY, FILL_BATCH, FILL_FRAMES)
    sent = 0
    while sent < size:
        result = uvloop.run(bench_broker.load(port, frames, FILL_IN_FLIGHT, 0.5))
        if result.failed or not result.answered:
            raise RuntimeError(f"the master took {sent} bytes and then refused {result.failed} batches")
        sent += result.answered * FILL_BATCH * BODY
    return sent


async def measure_return(cluster: LocalCluster, say: Say) -> CatchUp:
    """Start the second replica of `cluster`, whose first is master, and watch it catch up."""
    master, replica = cluster.brokers

    async def copy() -> tuple[float, float, int]:
        client = RemotingClient()
        try:
            say("the replica starts")
            await asyncio.to_thread(replica.start, wait=False)
            found = await _copied(client, master.address)
            await wait_for_group(cluster, in_sync(2))
            return found
        finally:
            await client.close()

    return await _measure(cluster, copy, say)


async def measure_plain(cluster: LocalCluster, like: CatchUp, say: Say) -> CatchUp:
    """Copy as much of the master's log, as fast, without any replica (`plain_copy`)."""
    log = cluster.store_path(0) / "commitlog"
    target = cluster.directory / "plain-copy"
    what = [str(like.copied_mb), str(like.mb_per_s), str(target), *map(str, sorted(log.iterdir()))]

    async def copy() -> tuple[float, float, int]:
        say("a plain copy of as much begins")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.plain_copy", *what, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        first = time.monotonic()
        copied, _ = (await process.stdout.readline()).split()
        last = time.monotonic()
        if await process.wait():
            raise RuntimeError("the plain copy failed")
        return first, last, int(copied)

    try:
        return await _measure(cluster, copy, say)
    finally:
        target.unlink(missing_ok=True)


async def _measure(
    cluster: LocalCluster, copy: Callable[[], Awaitable[tuple[float, float, int]]], say: Say
) -> CatchUp:
    """Latency before and during `copy`, which returns when its first and its last byte went, and how many."""
    await create_topic(cluster, TOPIC)
    async with Producer("bench_catchup", cluster.namesrv_address) as producer:
        load = SteadyLoad(producer)
        sending = asyncio.create_task(load.run())
        try:
            say("latency before")
            await asyncio.sleep(1.0)  # the first send fetches the route
            quiet_from = time.monotonic()
            await asyncio.sleep(QUIET_S)
            started = time.monotonic()
            first, last, copied = await copy()
            joined = time.monotonic()
            say(f"{copied / 1e6:,.0f} MB in {last - first:.1f} s")
            await asyncio.sleep(0.5)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await load.done()
    before, during = load.between(quiet_from, started), load.between(first, last)
    return CatchUp(
        copied_mb=copied / 1e6,
        took_s=last - first,
        started_to_in_sync_s=joined - started,
        before_p50_ms=percentile(before, 50),
        before_p99_ms=percentile(before, 99),
        p50_ms=percentile(during, 50),
        p99_ms=percentile(during, 99),
        worst_ms=max(during),
        sends=len(during),
        failed=load.failed,
    )


async def _copied(client: RemotingClient, master: str) -> tuple[float, float, int]:
    """When (`time.monotonic`) the replica's first ack came, when it was as good as level; bytes between."""
    first: tuple[float, int] | None = None
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await client.call(master, wire.GetBrokerHAStatus())
            now, info = time.monotonic(), decode(bytes(answer.body), HARuntimeInfo)
            for slave in info.ha_connection_info:
                if first is None and slave.slave_ack_offset >= 0:
                    first = now, slave.slave_ack_offset
                behind = info.master_commit_log_max_offset - slave.slave_ack_offset
                if first is not None and behind < LEVEL_BYTES:
                    return first[0], now, slave.slave_ack_offset - first[1]
            await asyncio.sleep(POLL_S)


def measure_catchup(system: str, size_mb: int, rounds: int, say: Say) -> dict[str, list[CatchUp]]:
    """By "afresh" and "back": `rounds` times a log of `size_mb` copied to an empty disk, and as often half
    as much that was sent while the replica was down; "plain": the latter's bytes copied by others."""
    found: dict[str, list[CatchUp]] = {"afresh": [], "back": [], "plain": []}
    with TemporaryDirectory(prefix="batonmq-bench-") as directory, page_cache(say) as memory:
        cluster = make_cluster(system, Path(directory))
        master = cluster.brokers[0]
        try:
            for program in (cluster.namesrv, *cluster.controller_programs, master):
                program.start()
            asyncio.run(wait_for_group(cluster, in_sync(1)))
            _fill(master.address, size_mb, say)
            for number in range(rounds):
                if number:
                    shutil.rmtree(cluster.store_path(1))
                found["afresh"].append(_round(measure_return(cluster, say), memory))
                _stop(cluster, say)
                _fill(master.address, size_mb // 2, say)
                back = _round(measure_return(cluster, say), memory)
                found["back"].append(back)
                _stop(cluster, say)
                found["plain"].append(_round(measure_plain(cluster, back, say), memory))
        finally:
            cluster.stop()
    return found


def _round(measure: Coroutine[Any, Any, CatchUp], memory: PageCache) -> CatchUp:
    memory.fill()
    time.sleep(SETTLE_S)
    return uvloop.run(measure)


def _fill(address: str, size_mb: int, say: Say) -> None:
    say(f"the master's log is filled with {size_mb:,} MB")
    fill(int(address.rpartition(":")[2]), size_mb * 1_000_000)


def _stop(cluster: LocalCluster, say: Say) -> None:
    """Stop the second replica, and wait until the SyncStateSet is without it."""
    say("the replica is stopped")
    cluster.brokers[1].stop()

    def alone(state: GroupState) -> bool:
        return state.master_address == cluster.brokers[0].address and len(state.sync_state_set) == 1

    asyncio.run(wait_for_group(cluster, alone))
