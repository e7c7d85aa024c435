"""Time without service when the master is killed (`kill -9`), as our own Python client sees it.

The client is the same for both clusters: it sends 256 bytes at a time, one after the other, without a pause.
A round is over when the killed broker is back and in the SyncStateSet again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from batonmq import Message, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from benchmarks.clusters import create_topic, in_sync, wait_for_group

TOPIC = "BenchFailover"
SETTLE_S = 0.5
"""Load on the group before each kill."""
OUTAGE_LIMIT_S = 30.0


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-percent * len(ordered) // 100) - 1)]


@dataclass(frozen=True)
class Failover:
    """Milliseconds from `kill -9` to the first send that another broker acknowledged, by round."""

    outages_ms: list[float]
    unknown: int
    """Sends that ended in an error; none is lost, the sender was told."""

    def as_json(self) -> dict[str, object]:
        return {
            "outages_ms": [round(value) for value in self.outages_ms],
            "p50_ms": round(percentile(self.outages_ms, 50)),
            "p99_ms": round(percentile(self.outages_ms, 99)),
            "max_ms": round(max(self.outages_ms)),
            "unknown": self.unknown,
        }


class Sender:
    """Sends without a pause; knows who acknowledged last."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.unknown = 0
        self.last_port = 0
        """Port of the broker that acknowledged last."""
        self.last_ack = 0.0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        body = b"x" * 256
        while True:
            try:
                result = await self._producer.send(Message(TOPIC, body))
            except (ClientError, NetError, MQError):
                self.unknown += 1
                continue
            # The broker's message id begins with its address: 4 bytes and 4 bytes of port, in hexadecimal.
            self.last_port = int(result.offset_message_id[8:16], 16)
            self.last_ack = time.monotonic()
            self._changed.set()

    async def acked_by_another(self, port: int) -> float:
        """When (`time.monotonic`) the next send is acknowledged by another broker than the one at `port`."""
        async with asyncio.timeout(OUTAGE_LIMIT_S):
            while True:
                self._changed.clear()
                await self._changed.wait()
                if self.last_port != port:
                    return self.last_ack


def port_of(program: Program) -> int:
    return int(str(program.settings["listenPort"]))


async def measure_failover(cluster: LocalCluster, rounds: int, say: Callable[[str], None]) -> Failover:
    """Kill the master `rounds` times in a running `cluster`. Raises `TimeoutError` when service does not
    come back."""
    await create_topic(cluster, TOPIC)
    outages: list[float] = []
    async with Producer("bench_failover", cluster.namesrv_address, send_timeout_ms=30_000) as producer:
        sender = Sender(producer)
        sending = asyncio.create_task(sender.run())
        try:
            for number in range(rounds):
                state = await wait_for_group(cluster, in_sync(cluster.replicas))
                await asyncio.sleep(SETTLE_S)
                await sender.acked_by_another(0)
                assert state.master_address is not None
                victim = cluster.broker_at(state.master_address)
                began = time.monotonic()
                victim.kill()
                again = await sender.acked_by_another(port_of(victim))
                outages.append((again - began) * 1000)
                say(f"failover {number + 1} of {rounds}: {outages[-1]:.0f} ms")
                if number + 1 < rounds:
                    await asyncio.to_thread(victim.start)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return Failover(outages, sender.unknown)
