"""How soon a program serves after it was started, and how much memory it takes while it has nothing to do."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from batonmq import Message, Producer
from batonmq.client.errors import ClientError
from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from benchmarks.clusters import make_cluster, sample

IDLE_S = 5.0
"""Rest before memory is looked at."""
FIRST_SEND_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Startup:
    """Medians over the rounds: seconds by program, MB (2^20 bytes) of anonymous memory by program."""

    ready_s: dict[str, float]
    """From exec to the line that says it serves."""
    first_send_s: float
    """From exec of the broker (new store, controller mode) to its first acknowledgement."""
    anonymous_mb: dict[str, float]
    rounds: int


async def first_ack(namesrv: str) -> float:
    """When (`time.monotonic`) the first send was acknowledged, trying without a pause."""
    deadline = time.monotonic() + FIRST_SEND_TIMEOUT_S
    async with Producer("bench_startup", namesrv) as producer:
        while True:
            try:
                await producer.send(Message("BenchStartup", b"first"))
                return time.monotonic()
            except (ClientError, NetError, MQError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.01)


def measure_startup(system: str, rounds: int, say: Callable[[str], None]) -> Startup:
    """Start a name server, a controller and one broker, each alone and on empty disks, `rounds` times."""
    ready: dict[str, list[float]] = {"namesrv": [], "controller": [], "broker": []}
    memory: dict[str, list[float]] = {"namesrv": [], "controller": [], "broker": []}
    first: list[float] = []
    for number in range(rounds):
        say(f"start {number + 1} of {rounds}")
        with TemporaryDirectory(prefix="batonmq-bench-") as directory:
            cluster = make_cluster(system, Path(directory), replicas=1)
            try:
                for program in cluster.programs:
                    began = time.monotonic()
                    program.start()
                    ready[program.verb].append(time.monotonic() - began)
                    if program.verb == "broker":
                        first.append(asyncio.run(first_ack(cluster.namesrv_address)) - began)
                time.sleep(IDLE_S)
                for program in cluster.programs:
                    memory[program.verb].append(sample(program.pid).anonymous_mb)
            finally:
                cluster.stop()
    return Startup(
        {verb: round(statistics.median(values), 3) for verb, values in ready.items()},
        round(statistics.median(first), 3),
        {verb: round(statistics.median(values), 1) for verb, values in memory.items()},
        rounds,
    )
