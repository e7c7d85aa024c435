"""Sends and consumption through RocketMQ's own Java client, the same for all clusters: `java/Bench.java`.

One cluster at a time: Java's programs are busy when nobody asks anything of them, and the other cluster would
pay for it. The speed of a shared machine changes within minutes, so there are several passes, each in the
order opposite to that of the one before.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from batonmq.demo.cluster import LocalCluster, Program
from benchmarks.clusters import PEER, create_topic, sample

BENCH = Path(__file__).with_name("java") / "Bench.java"
THREADS, BYTES, BATCH, QUEUES = 64, 1024, 32, 8
BACKLOG = 1_000_000
CONSUME_RUNS = 3
AGAIN_S = 1
"""Load before each round counts."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Durations:
    """Seconds: Java compiles what runs long, so it must run long before it is measured."""

    warm: int = 60
    measure: int = 10
    batch_warm: int = 12
    batch_measure: int = 5
    rounds: int = 3


QUICK = Durations(5, 4, 3, 3, 2)


@dataclass(frozen=True)
class Throughput:
    """Messages a second: one figure for each second (or run) measured; what a message cost the brokers."""

    rates: list[int]
    rounds: list[float] = field(default_factory=list)
    """The median of each round."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    failed: int = 0
    cpu_us: dict[str, float] | None = None
    """Microseconds of processor time a message, by broker."""

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    def by(self, other: Throughput) -> float:
        """How many times the rate of `other`: medians over all rounds."""
        its = statistics.median(other.rounds)
        return statistics.median(self.rounds) / its if its else math.inf

    def joined(self, other: Throughput) -> Throughput:
        """With what another pass of the same part found."""
        both = self.cpu_us and other.cpu_us

        def mean(own: float | None, its: float | None) -> float | None:
            return None if own is None or its is None else (own + its) / 2

        return Throughput(
            self.rates + other.rates,
            self.rounds + other.rounds,
            mean(self.p50_ms, other.p50_ms),
            mean(self.p99_ms, other.p99_ms),
            self.failed + other.failed,
            {name: (own + (other.cpu_us or {})[name]) / 2 for name, own in (self.cpu_us or {}).items()}
            if both
            else None,
        )


@dataclass
class _Rounds:
    """What the rounds of one system came to."""

    results: list[dict[str, object]] = field(default_factory=list)
    cpu_us: list[dict[str, float]] = field(default_factory=list)

    def throughput(self) -> Throughput:
        def median(key: str) -> float:
            return statistics.median(float(str(result[key])) for result in self.results)

        rates = [list_of(result["rates"]) for result in self.results]
        costs = [cost for cost in self.cpu_us if cost]  # none where nothing was acknowledged
        return Throughput(
            [rate for each in rates for rate in each],
            [statistics.median(each) for each in rates],
            median("p50_ms"),
            median("p99_ms"),
            sum(int(str(result["failed"])) for result in self.results),
            {name: statistics.median(cost[name] for cost in costs) for name in (costs[0] if costs else ())},
        )


class DriverFailed(RuntimeError):
    """The Java client ended without a result; the text has the end of what it said."""


class Driver:
    """One process of Bench.java, which lives until it is left."""

    def __init__(self, *arguments: object) -> None:
        self._command = [str(PEER), "java", str(BENCH), *map(str, arguments)]
        self._stack = ExitStack()
        self._errors: IO[str] = self._stack.enter_context(TemporaryFile("w+"))  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.wait()
        self._stack.close()

    def order(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def result(self, on_line: Callable[[str], None] | None = None) -> dict[str, object]:
        """The next result; `on_line` is given each line before it. Raises `DriverFailed`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, object] = json.loads(line)
                return found
            if on_line is not None:
                on_line(line.strip())
        self._errors.seek(0)
        said = self._errors.read()[-2000:]
        raise DriverFailed(f"{' '.join(self._command)}: exit code {self._process.wait()}\n{said}")


class CostMeter:
    """Processor time of the brokers between the driver's words "measuring" and "measured COUNT"."""

    def __init__(self, brokers: list[Program]) -> None:
        self._brokers = brokers
        self._before: dict[str, float] = {}
        self.cpu_us: dict[str, float] = {}
        """Microseconds a message, by broker."""

    def on_line(self, line: str) -> None:
        word, _, count = line.partition(" ")
        if word == "measuring":
            self._before = {broker.name: sample(broker.pid).cpu_s for broker in self._brokers}
        elif word == "measured" and int(count):
            for broker in self._brokers:
                used_s = sample(broker.pid).cpu_s - self._before[broker.name]
                self.cpu_us[broker.name] = round(used_s / int(count) * 1e6, 1)


def list_of(value: object) -> list[int]:
    assert isinstance(value, list)
    return value


Clusters = Mapping[str, LocalCluster]
"""Running clusters, by system."""


def measure_send(
    cluster: LocalCluster,
    topic: str,
    batch: int,
    warm: int,
    seconds: int,
    rounds: int,
    say: Say,
    kind: str = "plain",
) -> Throughput:
    """Synchronous sends of 1 KiB by 64 threads, `batch` messages in each; `kind`: see Bench.java."""
    found = _Rounds()
    asyncio.run(create_topic(cluster, topic, QUEUES))
    with Driver("send", cluster.namesrv_address, topic, THREADS, BYTES, batch, kind) as driver:
        warm_up(driver, topic, warm, say)
        for number in range(rounds):
            say(f"{topic}: round {number + 1} of {rounds}")
            meter = CostMeter(cluster.brokers)
            driver.order(AGAIN_S, seconds)
            found.results.append(driver.result(meter.on_line))
            found.cpu_us.append(meter.cpu_us)
    return found.throughput()


def warm_up(driver: Driver, topic: str, seconds: int, say: Say) -> None:
    """Load that is not measured."""
    say(f"{topic}: warming up for {seconds} s")
    driver.order(seconds - 1, 1)
    driver.result()


def measure_consume(
    cluster: LocalCluster,
    topic: str,
    count: int,
    runs: int,
    say: Say,
    kind: str = "plain",
    prepare: Callable[[str], None] | None = None,
) -> Throughput:
    """A push consumer reads the first `count` messages of a backlog; each run is a new group and client.
    One run more than is measured warms the brokers up. `kind`: see Bench.java; `prepare` gets each group."""
    rates: list[int] = []
    costs: list[dict[str, float]] = []
    for run in range(runs + 1):
        say(f"consume {kind}: round {run} of {runs}")
        group = f"bench_{kind}_{run}"
        if prepare is not None:
            prepare(group)
        meter = CostMeter(cluster.brokers)
        with Driver("consume", cluster.namesrv_address, topic, group, count, kind) as driver:
            rates.append(int(str(driver.result(meter.on_line)["messages_s"])))
        costs.append(meter.cpu_us)
    cpu_us = {name: statistics.median(cost[name] for cost in costs[1:]) for name in costs[0]}
    return Throughput(rates[1:], [float(rate) for rate in rates[1:]], cpu_us=cpu_us)


def measure_load(
    cluster: LocalCluster, parts: set[str], durations: Durations, say: Say
) -> dict[str, Throughput]:
    """Those of send, batch and consume that `parts` names, on a running cluster."""
    found = {}
    rounds = durations.rounds
    if "send" in parts:
        found["send"] = measure_send(cluster, "BenchSend", 1, durations.warm, durations.measure, rounds, say)
    if "batch" in parts or "consume" in parts:
        warm = durations.batch_warm if "send" in parts else durations.warm
        seconds = durations.batch_measure
        found["batch"] = measure_send(cluster, "BenchBatch", BATCH, warm, seconds, rounds, say)
    if "consume" in parts:
        # The batches sent are the backlog; a quarter less than they surely are.
        count = min(BACKLOG, int(sum(found["batch"].rates) * 0.75))
        runs = 1 if durations is QUICK else CONSUME_RUNS
        found["consume"] = measure_consume(cluster, "BenchBatch", count, runs, say)
    return found
