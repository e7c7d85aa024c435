"""Sends to a master with one slave: classic replication beside AutoSwitch.

    python benchmarks/bench_replication.py [--passes 3] [--seconds 5] [--batch 32]

Classic: SYNC_MASTER and SLAVE without controllers, two copies for each acknowledgement. AutoSwitch:
controller mode with allAckInSyncStateSet. In each pass both groups start with empty stores, in the opposite
order of the pass before. The load is one process that prepares its frames beforehand, over one connection
with 64 requests in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from batonmq.demo.cluster import Program
from batonmq.demo.ports import free_ports
from batonmq.net import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.headers.broker.replication import GetBrokerHAStatus
from batonmq.protocol.json import decode
from benchmarks.bench_broker import QUEUES, cpu_seconds, load, send_frames
from benchmarks.clusters import OURS, running

BYTES, IN_FLIGHT, WARM_S = 1024, 64, 2.0
IN_SYNC_TIMEOUT_S = 30.0
Group = Callable[[], AbstractContextManager[tuple[Program, Program]]]
"""Master and slave, in sync."""


@dataclass(frozen=True)
class Sends:
    per_s: float
    master_us: float
    """Processor time a message."""
    slave_us: float


@contextmanager
def classic() -> Iterator[tuple[Program, Program]]:
    with tempfile.TemporaryDirectory(prefix="bench-classic-") as folder:
        directory = Path(folder)
        master_port, slave_port = free_ports(2)
        common = {
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "totalReplicas": 2,
            "inSyncReplicas": 2,
            "defaultTopicQueueNums": QUEUES,
        }
        master, slave = (
            Program(
                role,
                "broker",
                directory,
                {**common, **keys, "storePathRootDir": directory / role},
            )
            for role, keys in (
                ("SYNC_MASTER", {"brokerRole": "SYNC_MASTER", "listenPort": master_port}),
                (
                    "SLAVE",
                    {
                        "brokerRole": "SLAVE",
                        "brokerId": 1,
                        "listenPort": slave_port,
                        "haMasterAddress": f"127.0.0.1:{master_port + 1}",
                    },
                ),
            )
        )
        try:
            master.start()
            slave.start()
            asyncio.run(linked(master))
            yield master, slave
        finally:
            slave.stop()
            master.stop()


@contextmanager
def autoswitch() -> Iterator[tuple[Program, Program]]:
    with running(OURS) as cluster:
        yield cluster.brokers[0], cluster.brokers[1]


async def linked(master: Program) -> None:
    """Until the slave follows. Raises `TimeoutError`."""
    client = RemotingClient()
    try:
        async with asyncio.timeout(IN_SYNC_TIMEOUT_S):
            while True:
                try:
                    answer = await client.call(master.address, GetBrokerHAStatus())
                    if decode(bytes(answer.body), HARuntimeInfo).in_sync_slave_nums == 1:
                        return
                except NetError:
                    pass
                await asyncio.sleep(0.05)
    finally:
        await client.close()


def measure(group: Group, batch: int, seconds: float) -> Sends:
    """Raises RuntimeError if a send fails."""
    frames = send_frames(BYTES, batch)
    with group() as (master, slave), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        port = int(str(master.settings["listenPort"]))
        runner.run(load(port, frames, IN_FLIGHT, WARM_S))
        began, cpu = time.monotonic(), [cpu_seconds(each.pid) for each in (master, slave)]
        sent = runner.run(load(port, frames, IN_FLIGHT, seconds))
        wall = time.monotonic() - began
        if sent.failed:
            raise RuntimeError(f"{sent.failed} sends failed")
        messages = sent.answered * batch
        used = [
            (cpu_seconds(each.pid) - before) / messages * 1e6
            for each, before in zip((master, slave), cpu, strict=True)
        ]
        return Sends(messages / wall, *used)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", 1)[0])
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    parser.add_argument("--batch", type=int, default=32, help="messages of a batch")
    given = parser.parse_args()
    groups: dict[str, Group] = {"classic": classic, "AutoSwitch": autoswitch}
    for batch in (1, given.batch):
        found: dict[str, list[Sends]] = {name: [] for name in groups}
        for number in range(given.passes):
            for name in list(groups)[:: -1 if number % 2 else 1]:
                sends = measure(groups[name], batch, given.seconds)
                found[name].append(sends)
                progress = f"  batch {batch}, pass {number + 1}, {name}: {sends.per_s:,.0f} a second"
                print(progress, file=sys.stderr)
        for name, passes in found.items():
            rate, master, slave = (
                statistics.median(getattr(each, key) for each in passes)
                for key in ("per_s", "master_us", "slave_us")
            )
            print(f"batch {batch} {name}: {rate:,.0f} a second, {master:.1f} + {slave:.1f} us a message")
        ratios = [ours.per_s / other.per_s for ours, other in zip(*found.values(), strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"batch {batch} classic / AutoSwitch: {statistics.median(ratios):.2f} ({spread})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
