"""What a run measured, in the shape that ``batonmq spark bench-report`` reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from batonmq.spark.jobs.bench import Figure
from benchmarks.catchup import CatchUp
from benchmarks.failover import TITLES, Failover
from benchmarks.kinds import Timers
from benchmarks.load import Throughput
from benchmarks.report import CATCHUPS, LATENESS, LOADS, TIMED, Figures
from benchmarks.startup import Startup

Value = tuple[str, str, Sequence[float]]
"""What it is, its unit, one value of each pass."""


def figures_of(figures: Figures) -> list[Figure]:
    """Runs with the same number of replicas are comparable."""
    return [
        Figure(
            benchmark=f"benchmarks, {figures.replicas} replicas",
            figure=title.replace("`", ""),
            unit=unit,
            system=system,
            passes=[float(each) for each in passes],
        )
        for system, (title, unit, passes) in _values(figures)
        if passes
    ]


def _values(figures: Figures) -> Iterator[tuple[str, Value]]:
    for part, sent in figures.throughput.items():
        for system, throughput in sent.items():
            yield from ((system, value) for value in _throughput(LOADS[part], throughput))
    for timed in figures.timers.values():
        for system, timers in timed.items():
            yield from ((system, value) for value in _timers(timers))
    for part, lost in figures.failover.items():
        for system, failover in lost.items():
            yield from ((system, value) for value in _failover(TITLES[part], failover))
    for system, startup in figures.startup.items():
        yield from ((system, value) for value in _startup(startup))
    for system, kinds in figures.catchup.items():
        for kind, rounds in kinds.items():
            yield from ((system, value) for value in _catchup(kind, rounds))


def _throughput(title: str, found: Throughput) -> Iterator[Value]:
    yield f"{title}: messages", "messages/s", found.rounds or found.rates
    for name, latency in (("p50", found.p50_ms), ("p99", found.p99_ms)):
        if latency is not None:
            yield f"{title}: latency, {name}", "ms", [latency]
    if found.cpu_us:
        yield f"{title}: processor time a message, all brokers", "µs", [sum(found.cpu_us.values())]


def _timers(found: Timers) -> Iterator[Value]:
    yield TIMED, "messages/s", found.rates
    for name, late in (("p50", found.p50_ms), ("p99", found.p99_ms), ("max", found.max_ms)):
        yield f"{LATENESS}, {name}", "ms", late
    costs = [sum(each.values()) for each in found.cpu_us if each]
    yield "timed messages: processor time a message, all brokers", "µs", costs


def _failover(title: str, found: Failover) -> Iterator[Value]:
    yield title, "ms", found.outages_ms
    yield f"{title}: longest time between two acknowledgements", "ms", found.gaps_ms


def _startup(found: Startup) -> Iterator[Value]:
    yield "broker: exec → first acknowledged send", "s", [found.first_send_s]
    for verb, ready_s in found.ready_s.items():
        yield f"{verb}: exec → serving", "s", [ready_s]
    for verb, anonymous_mb in found.anonymous_mb.items():
        yield f"{verb}, idle: anonymous memory", "MB", [anonymous_mb]


def _catchup(kind: str, rounds: Sequence[CatchUp]) -> Iterator[Value]:
    title = CATCHUPS[kind]
    yield f"{title}: copied", "MB/s", [each.mb_per_s for each in rounds]
    if kind != "plain":
        yield f"{title}: start → SyncStateSet", "s", [each.started_to_in_sync_s for each in rounds]
    yield f"{title}: sends meanwhile, p50", "ms", [each.p50_ms for each in rounds]
    yield f"{title}: sends meanwhile, p99", "ms", [each.p99_ms for each in rounds]
