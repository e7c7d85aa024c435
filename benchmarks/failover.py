"""Time without service when the master changes, as our own Python client sees it: after `kill -9`, after
SIGSTOP (a machine that hangs), and when an operator asks for another master (`electMaster`).

The client is the same for both clusters, with its shipped defaults: it sends 256 bytes at a time, one after
the other, without a pause. A round is over when both brokers are in the SyncStateSet again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from batonmq import Message, Producer
from batonmq.client.errors import ClientError
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import BrokerReplicasInfo
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import decode
from benchmarks.clusters import create_topic, in_sync, wait_for_group

log = logging.getLogger(__name__)

TOPIC = "BenchFailover"
SETTLE_S = 0.5
"""Load on the group before each fault, and after service is back."""
OUTAGE_LIMIT_S = 30.0


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-percent * len(ordered) // 100) - 1)]


@dataclass(frozen=True)
class Failover:
    """Milliseconds until the first send that another broker acknowledged, by round."""

    outages_ms: list[float]
    gaps_ms: list[float]
    """The longest time between two acknowledgements, whoever gave them, in each round."""
    unknown: int
    """Sends that ended in an error; none is lost, the sender got the error."""


class Sender:
    """Sends without a pause; knows who acknowledged last."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.unknown = 0
        self.last_port = 0
        """Port of the broker that acknowledged last."""
        self.last_ack = 0.0
        self.longest_gap_s = 0.0
        """Between two acknowledgements, since this was last set."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        body = b"x" * 256
        while True:
            try:
                result = await self._producer.send(Message(TOPIC, body))
            except (ClientError, NetError, MQError) as error:
                log.info("send: %s", error)
                self.unknown += 1
                continue
            # The broker's message id begins with its address: 4 bytes and 4 bytes of port, in hexadecimal.
            self.last_port = int(result.offset_message_id[8:16], 16)
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self.last_ack)
            self.last_ack = now
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


class Fault:
    """One way to lose a master, and how it comes back. `strike` returns when the clock is to start."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster

    async def strike(self, master: Program) -> float:
        raise NotImplementedError

    async def mend(self, master: Program) -> None:
        """After the round: nothing to do unless said otherwise."""

    async def close(self) -> None:
        """After the last round."""


class Kill(Fault):
    """`kill -9`."""

    async def strike(self, master: Program) -> float:
        began = time.monotonic()
        master.kill()
        return began

    async def mend(self, master: Program) -> None:
        await asyncio.to_thread(master.start)


class Hang(Fault):
    """SIGSTOP: connections stay open, nobody answers."""

    async def strike(self, master: Program) -> float:
        began = time.monotonic()
        _signal_all(master, signal.SIGSTOP)
        return began

    async def mend(self, master: Program) -> None:
        _signal_all(master, signal.SIGCONT)


class Switch(Fault):
    """`mqadmin electMaster` for the slave."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self._client = RemotingClient()

    async def strike(self, master: Program) -> float:
        controller, name = self.cluster.controller_addresses[0], self.cluster.broker_name
        answer = await self._client.call(controller, wire.GetSyncStateData(), msgspec.json.encode([name]))
        info = decode(bytes(answer.body), BrokerReplicasInfo).replicas_info_table[name]
        slave = next(r.broker_id for r in info.in_sync_replicas if r.broker_address != master.address)
        demand = wire.ElectMaster(self.cluster.cluster_name, name, slave, True, int(time.time() * 1000))
        began = time.monotonic()
        await self._client.call(controller, demand)
        return began

    async def close(self) -> None:
        await self._client.close()


def _signal_all(program: Program, number: signal.Signals) -> None:
    """Java's broker is a child of the script that starts it: the whole process group."""
    os.killpg(program.pid, number)


FAULTS: dict[str, Callable[[LocalCluster], Fault]] = {"failover": Kill, "hang": Hang, "switch": Switch}
"""Parts of the benchmark, and what happens to the master in each."""
TITLES = {
    "failover": "`kill -9` of the master → first acknowledged send",
    "hang": "SIGSTOP of the master → first acknowledged send",
    "switch": "`electMaster` → first acknowledged send",
}
ROUNDS = {"failover": 50, "hang": 10, "switch": 30}
ROUNDS_JAVA = 3
"""One of its rounds takes up to half a minute."""


async def measure_failover(
    cluster: LocalCluster, part: str, rounds: int, say: Callable[[str], None]
) -> Failover:
    """Lose the master `rounds` times in a running `cluster`. Raises `TimeoutError` when service does not
    come back."""
    await create_topic(cluster, TOPIC)
    outages: list[float] = []
    gaps: list[float] = []
    fault = FAULTS[part](cluster)
    async with Producer("bench_failover", cluster.namesrv_address) as producer:
        sender = Sender(producer)
        sending = asyncio.create_task(sender.run())
        try:
            for number in range(rounds):
                state = await wait_for_group(cluster, in_sync(cluster.replicas))
                await asyncio.sleep(SETTLE_S)
                await sender.acked_by_another(0)
                assert state.master_address is not None
                master = cluster.broker_at(state.master_address)
                watching = asyncio.ensure_future(sender.acked_by_another(port_of(master)))
                sender.longest_gap_s = 0.0
                began = await fault.strike(master)
                outages.append((await watching - began) * 1000)
                await asyncio.sleep(SETTLE_S)
                gaps.append(sender.longest_gap_s * 1000)
                say(f"{part} {number + 1} of {rounds}: {outages[-1]:.0f} ms, gap {gaps[-1]:.0f} ms")
                await fault.mend(master)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await fault.close()
    return Failover(outages, gaps, sender.unknown)
