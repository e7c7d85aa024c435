"""Durable proposals a second in a Raft group of real processes on this machine, driven inside the leader.

    python benchmarks/bench_raft.py [--nodes 3] [--in-flight 64 256] [--seconds 5] [--bytes 128]

Prints one line for each number in flight: rate, latency percentiles, CPU a proposal in the leader.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from batonmq.net.client import RemotingClient
from batonmq.net.dispatch import Dispatcher
from batonmq.net.server import RemotingServer
from batonmq.raft.config import RaftConfig
from batonmq.raft.disk import ALLOCATE_BYTES, OsDisk
from batonmq.raft.messages import Members
from batonmq.raft.node import RaftNode
from batonmq.raft.state import Role
from batonmq.raft.storage import Storage
from batonmq.raft.transport import RemotingTransport
from batonmq.raft.worker import ThreadWorker


class Counter:
    """The cheapest state machine, so that Raft itself is measured."""

    def __init__(self) -> None:
        self.count = 0

    entry_version = 1

    def refusal(self, data: bytes) -> str | None:
        return None

    def apply(self, index: int, data: bytes) -> int:
        self.count += 1
        return self.count

    def snapshot(self) -> bytes:
        return str(self.count).encode()

    def restore(self, data: bytes) -> None:
        self.count = int(data)


async def run_node(name: str, directory: Path, members: Members, options: argparse.Namespace) -> None:
    dispatcher = Dispatcher()
    server = RemotingServer(dispatcher, "127.0.0.1", int(members.voters[name].rpartition(":")[2]))
    await server.start()
    client = RemotingClient()
    transport = RemotingTransport("bench", name, client, dispatcher)
    config = RaftConfig()
    disk = OsDisk(directory / name, allocate_bytes=ALLOCATE_BYTES)
    storage = Storage(disk, "bench", name, segment_bytes=config.segment_bytes)
    node = RaftNode(
        "bench",
        name,
        members,
        Counter(),
        storage,
        transport,
        ThreadWorker(name),
        config=config,
        rng=random.Random(),
    )
    transport.bind(node.receive)
    await node.start()
    while node.leader_id is None:
        await asyncio.sleep(0.01)
    if node.role is not Role.LEADER:
        await asyncio.sleep(3600)
    await asyncio.sleep(0.5)
    for in_flight in options.in_flight:
        await measure(node, in_flight, options)
    print("done", flush=True)
    await asyncio.sleep(3600)


async def measure(node: RaftNode, in_flight: int, options: argparse.Namespace) -> None:
    payload = bytes(options.bytes)
    latencies: list[float] = []
    end = time.perf_counter() + options.seconds

    async def propose() -> None:
        while (began := time.perf_counter()) < end:
            await node.propose(payload)
            latencies.append(time.perf_counter() - began)

    cpu = time.process_time()
    await asyncio.gather(*(propose() for _ in range(in_flight)))
    cpu = time.process_time() - cpu
    latencies.sort()
    count = len(latencies)
    percentiles = " ".join(f"p{p}={latencies[int(count * p / 100)] * 1000:.1f} ms" for p in (50, 99))
    print(
        f"in_flight={in_flight} {count / options.seconds:,.0f} proposals/s {percentiles} "
        f"leader_cpu={cpu / count * 1e6:.0f} us/proposal",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--bytes", type=int, default=128)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.name:
        members = Members({f"n{i}": address for i, address in enumerate(options.addresses)})
        uvloop.run(run_node(options.name, options.directory, members, options))
        return
    ports = []
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(options.nodes)]
    for held in sockets:
        ports.append(f"127.0.0.1:{held.getsockname()[1]}")
        held.close()
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            subprocess.Popen(
                [
                    *(sys.executable, __file__, *sys.argv[1:]),
                    *("--name", f"n{i}", "--directory", directory, "--addresses", *ports),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(options.nodes)
        ]
        try:
            follow(processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def follow(processes: list[subprocess.Popen[str]]) -> None:
    """Print what the leader says until it is done."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            selector.register(process.stdout, selectors.EVENT_READ)  # type: ignore[arg-type]
        while True:
            for key, _ in selector.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if line in ("", "done\n"):
                    return
                print(line, end="", flush=True)


if __name__ == "__main__":
    main()
