"""Sends and consumption through RocketMQ's own Java client, the same for both clusters: `java/Bench.java`."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile

from batonmq.demo.cluster import LocalCluster, Program
from benchmarks.clusters import PEER, create_topic, sample

BENCH = Path(__file__).with_name("java") / "Bench.java"
THREADS, BYTES, BATCH, QUEUES = 64, 1024, 32, 8
BACKLOG = 1_000_000
CONSUME_RUNS = 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class Durations:
    """Seconds: Java compiles what runs long, so it must run long before it is measured."""

    warm: int = 35
    measure: int = 15
    batch_warm: int = 12
    batch_measure: int = 12


QUICK = Durations(5, 5, 3, 5)


@dataclass(frozen=True)
class Throughput:
    """Messages a second: one figure for each second (or run) measured; what a message cost the brokers."""

    rates: list[int]
    p50_ms: float | None = None
    p99_ms: float | None = None
    failed: int = 0
    cpu_us: dict[str, float] | None = None
    """Microseconds of processor time a message, by broker."""

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    def as_json(self) -> dict[str, object]:
        return {"median": self.median, "min": min(self.rates), "max": max(self.rates), **asdict(self)}


class DriverFailed(RuntimeError):
    """The Java client ended without a result; the text has the end of what it said."""


def run_driver(*arguments: object, heard: Callable[[str], None] | None = None) -> dict[str, object]:
    """One run of Bench.java; its last line, decoded. `heard` is given each line when it comes."""
    command = [str(PEER), "java", str(BENCH), *map(str, arguments)]
    last = ""
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as driver,
    ):
        assert driver.stdout is not None
        for line in driver.stdout:
            last = line.strip()
            if heard is not None:
                heard(last)
        if driver.wait() or not last.startswith("{"):
            errors.seek(0)
            said = errors.read()[-2000:]
            raise DriverFailed(f"{' '.join(command)}: exit code {driver.returncode}\n{said}")
    result: dict[str, object] = json.loads(last)
    return result


class CostMeter:
    """Processor time of the brokers between the driver's words "measuring" and "measured COUNT"."""

    def __init__(self, brokers: list[Program]) -> None:
        self._brokers = brokers
        self._before: dict[str, float] = {}
        self.cpu_us: dict[str, float] = {}
        """Microseconds a message, by broker."""

    def hear(self, line: str) -> None:
        word, _, count = line.partition(" ")
        if word == "measuring":
            self._before = {broker.name: sample(broker.pid).cpu_s for broker in self._brokers}
        elif word == "measured" and int(count):
            for broker in self._brokers:
                used_s = sample(broker.pid).cpu_s - self._before[broker.name]
                self.cpu_us[broker.name] = round(used_s / int(count) * 1e6, 1)


def measure_send(cluster: LocalCluster, topic: str, batch: int, warm: int, seconds: int) -> Throughput:
    """Synchronous sends of 1 KiB by 64 threads, `batch` messages in each."""
    asyncio.run(create_topic(cluster, topic, QUEUES))
    meter = CostMeter(cluster.brokers)
    result = run_driver(
        *("send", cluster.namesrv_address, topic, THREADS, BYTES, batch, warm, seconds), heard=meter.hear
    )
    return Throughput(
        [int(rate) for rate in list_of(result["rates"])],
        float(str(result["p50_ms"])),
        float(str(result["p99_ms"])),
        int(str(result["failed"])),
        meter.cpu_us,
    )


def list_of(value: object) -> list[int]:
    assert isinstance(value, list)
    return value


def measure_consume(cluster: LocalCluster, topic: str, count: int, runs: int) -> Throughput:
    """A push consumer reads the first `count` messages of a backlog; each run is a new group and client. One
    run more than is measured warms the brokers up."""
    rates = []
    for run in range(runs + 1):
        result = run_driver("consume", cluster.namesrv_address, topic, f"bench_{run}", count)
        rates.append(int(str(result["messages_s"])))
    return Throughput(rates[1:])


def measure_load(
    cluster: LocalCluster, parts: set[str], durations: Durations, say: Say
) -> dict[str, Throughput]:
    """Those of send, batch and consume that `parts` names, on a running cluster."""
    results = {}
    if "send" in parts:
        say(f"send, 1 KiB each, {THREADS} in flight")
        results["send"] = measure_send(cluster, "BenchSend", 1, durations.warm, durations.measure)
    if "batch" in parts or "consume" in parts:
        say(f"send in batches of {BATCH}")
        warm = durations.batch_warm if "send" in parts else durations.warm
        results["batch"] = measure_send(cluster, "BenchBatch", BATCH, warm, durations.batch_measure)
    if "consume" in parts:
        say("consume the backlog")
        # The batches sent are the backlog; a quarter less than they surely are.
        sent = int(results["batch"].median * durations.batch_measure * 0.75)
        runs = 1 if durations is QUICK else CONSUME_RUNS
        results["consume"] = measure_consume(cluster, "BenchBatch", min(BACKLOG, sent), runs)
    return results
