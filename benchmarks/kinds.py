"""Every other kind of message and consumption, with RocketMQ's own Java client: `java/Bench.java`.

Transactions, sends with message trace, ordered consumption, pop with acknowledgement, an SQL92 filter that
one message in a hundred passes, and timers. The client is the same for both clusters.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from dataclasses import dataclass, field
from functools import partial

from batonmq import Admin
from batonmq.admin.operations import groups
from batonmq.admin.session import Admin as AdminSession
from batonmq.client.reader import QueueReader
from batonmq.demo.cluster import LocalCluster
from batonmq.protocol.bodies.clients import MessageRequestMode
from benchmarks.clusters import create_topic
from benchmarks.load import (
    BATCH,
    BYTES,
    QUEUES,
    THREADS,
    CostMeter,
    Driver,
    DriverFailed,
    Say,
    Throughput,
    measure_consume,
    measure_send,
    warm_up,
)

SENDS = {"transaction": "transaction", "trace": "trace"}
"""Part -> kind of send, as Bench.java names it."""
CONSUMED = {"ordered": "ordered", "pop": "pop", "sql": "sql"}
TIMER_BYTES = 256
COMMIT_TIMEOUT_S = 30.0
"""Until every transaction that was committed is in its topic; commits are oneway."""
BACKLOG_TOPIC = "BenchKinds"


@dataclass(frozen=True)
class Work:
    """How much is measured."""

    warm: int = 60
    """Seconds of load before the first part."""
    send_warm: int = 15
    send_measure: int = 6
    rounds: int = 3
    backlog: dict[str, int] = field(
        default_factory=lambda: {"ordered": 400_000, "pop": 200_000, "sql": 3_200_000}
    )
    """Messages of the backlog that each part reads: some seconds of work."""
    rest: int = 60
    """Seconds between storing the backlog and reading it: index and disk catch up."""
    timers: int = 100_000
    timer_warm: int = 20
    timer_lead: int = 40
    """Seconds until the first is due: all must be stored by then."""
    timer_span: int = 60


QUICK = Work(3, 3, 3, 1, {"ordered": 40_000, "pop": 20_000, "sql": 40_000}, 0, 5_000, 3, 10, 5)


@dataclass(frozen=True)
class Timers:
    """Timed messages: how fast they were stored, and how late they were delivered; one figure a round."""

    rates: list[int] = field(default_factory=list)
    """Sends a second, without the first tenth."""
    p50_ms: list[int] = field(default_factory=list)
    p99_ms: list[int] = field(default_factory=list)
    max_ms: list[int] = field(default_factory=list)
    failed: int = 0
    """Sends that were not acknowledged."""
    missing: int = 0
    """Messages that were not delivered within a minute."""
    early: int = 0
    slow: int = 0
    """Rounds in which the first messages were due before all were stored."""
    cpu_us: list[dict[str, float]] = field(default_factory=list)
    """Microseconds of processor time a message from its send until all were delivered, by broker."""

    def by(self, other: Timers) -> float:
        """How many times the rate of `other`."""
        its = statistics.median(other.rates)
        return statistics.median(self.rates) / its if its else math.inf

    def joined(self, other: Timers) -> Timers:
        return Timers(
            self.rates + other.rates,
            self.p50_ms + other.p50_ms,
            self.p99_ms + other.p99_ms,
            self.max_ms + other.max_ms,
            self.failed + other.failed,
            self.missing + other.missing,
            self.early + other.early,
            self.slow + other.slow,
            self.cpu_us + other.cpu_us,
        )


def number(value: object) -> int:
    return int(float(str(value)))


async def stored_in(cluster: LocalCluster, topic: str) -> int:
    """Messages of a topic that consumers can read."""
    async with QueueReader(cluster.namesrv_address) as reader:
        return sum([await reader.max_offset(queue) for queue in await reader.queues(topic)])


def wait_for_commits(cluster: LocalCluster, topic: str, committed: int) -> None:
    """Raises `DriverFailed` unless all messages become visible: half messages alone are not transactions."""
    end = time.monotonic() + COMMIT_TIMEOUT_S
    while (stored := asyncio.run(stored_in(cluster, topic))) < committed:
        if time.monotonic() > end:
            raise DriverFailed(f"{committed} transactions were committed, {topic} has {stored} messages")
        time.sleep(0.2)


async def let_pop(cluster: LocalCluster, topic: str, group: str) -> None:
    """The group's clients pop the topic, as `mqadmin setConsumeMode` sets it."""
    async with Admin(cluster.namesrv_address) as admin:
        masters = await admin.masters()
    async with AdminSession(cluster.namesrv_address) as session:
        await groups.set_mode(session, masters.values(), topic, group, MessageRequestMode.POP)


def measure_kinds(
    cluster: LocalCluster, parts: set[str], work: Work, say: Say, *, warm: bool
) -> tuple[dict[str, Throughput], dict[str, Timers]]:
    """What `parts` names, on a running cluster; `warm`: its programs had a minute of load already."""
    found: dict[str, Throughput] = {}
    if not warm:
        asyncio.run(create_topic(cluster, "BenchWarm", QUEUES))
        with Driver("send", cluster.namesrv_address, "BenchWarm", THREADS, BYTES, 1, "plain") as driver:
            warm_up(driver, "BenchWarm", work.warm, say)
    for part, kind in SENDS.items():
        if part in parts:
            topic = f"Bench-{part}"
            found[part] = measure_send(
                cluster, topic, 1, work.send_warm, work.send_measure, work.rounds, say, kind
            )
            if part == "transaction":
                committed = sum(found[part].rates)  # at least; warm-up comes on top
                wait_for_commits(cluster, topic, committed)
    if parts & CONSUMED.keys():
        fill(cluster, max(work.backlog[part] for part in CONSUMED if part in parts), say)
        say(f"waiting {work.rest} s for the index and the disk")
        time.sleep(work.rest)
    for part, kind in CONSUMED.items():
        if part in parts:
            prepare = partial(_let_pop_now, cluster) if part == "pop" else None
            count = work.backlog[part]
            found[part] = measure_consume(cluster, BACKLOG_TOPIC, count, work.rounds, say, kind, prepare)
    timers: dict[str, Timers] = {}
    if "timer" in parts:
        timers["timer"] = measure_timers(cluster, work, say)
    return found, timers


def _let_pop_now(cluster: LocalCluster, group: str) -> None:
    asyncio.run(let_pop(cluster, BACKLOG_TOPIC, group))


def fill(cluster: LocalCluster, count: int, say: Say) -> None:
    """Store the backlog. Raises `DriverFailed`."""
    say(f"storing {count} messages")
    asyncio.run(create_topic(cluster, BACKLOG_TOPIC, QUEUES))
    with Driver("fill", cluster.namesrv_address, BACKLOG_TOPIC, THREADS, BYTES, BATCH, count) as driver:
        stored = number(driver.result()["stored"])
    if stored < count:
        raise DriverFailed(f"{stored} of {count} messages were stored")


def measure_timers(cluster: LocalCluster, work: Work, say: Say) -> Timers:
    """Messages that are due evenly within a minute, after as many seconds of other timers."""
    warm_topic = "BenchTimedWarm"
    asyncio.run(create_topic(cluster, warm_topic, QUEUES))
    with Driver("send", cluster.namesrv_address, warm_topic, THREADS, TIMER_BYTES, 1, "timed") as driver:
        warm_up(driver, warm_topic, work.timer_warm, say)
    topic = f"BenchTimers{time.time_ns()}"
    asyncio.run(create_topic(cluster, topic, QUEUES))
    say(f"timers: {work.timers} due in {work.timer_span} s")
    meter = CostMeter(cluster.brokers)
    with Driver(
        *("timers", cluster.namesrv_address, topic, THREADS, TIMER_BYTES),
        *(work.timers, work.timer_lead, work.timer_span),
    ) as driver:
        result = driver.result(meter.on_line)
    return Timers(
        [number(result["sends_s"])],
        [number(result["p50_ms"])],
        [number(result["p99_ms"])],
        [number(result["max_ms"])],
        number(result["failed"]),
        number(result["missing"]),
        number(result["early"]),
        int(bool(result["slow"])),
        [meter.cpu_us],
    )
