"""The figures of a run: a table for the terminal, JSON, and the table of docs/performance.md."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.table import Table

from batonmq.spark.jobs.bench import text
from benchmarks.catchup import CatchUp
from benchmarks.clusters import JAVA, OURS, SYSTEMS
from benchmarks.failover import TITLES, Failover, percentile
from benchmarks.kinds import Timers
from benchmarks.load import BATCH, THREADS, Throughput
from benchmarks.startup import Startup

BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
"""Each run with `--page` replaces what stands between them in the page."""


@dataclass
class Figures:
    """Everything measured, by system."""

    replicas: int = 2
    throughput: dict[str, dict[str, Throughput]] = field(default_factory=dict)
    """By part, then by system."""
    timers: dict[str, dict[str, Timers]] = field(default_factory=dict)
    """By part, then by system."""
    failover: dict[str, dict[str, Failover]] = field(default_factory=dict)
    """By part, then by system."""
    startup: dict[str, Startup] = field(default_factory=dict)
    catchup: dict[str, dict[str, list[CatchUp]]] = field(default_factory=dict)
    """By system, then by kind of catch-up."""
    took_s: float = 0.0

    def as_json(self) -> dict[str, object]:
        """What `load` needs; `figures_of` has what others read."""
        return {
            "machine": machine(),
            "took_s": round(self.took_s),
            "replicas": self.replicas,
            "kept": msgspec.to_builtins(self),
        }

    @classmethod
    def load(cls, path: Path, replicas: int) -> Figures:
        """What earlier runs wrote to `path`, to be added to; nothing if there is no such file yet. Raises
        `ValueError` if it has the figures of groups of another size."""
        if not path.exists():
            return cls(replicas)
        found = msgspec.convert(json.loads(path.read_text())["kept"], cls)
        if found.replicas != replicas:
            raise ValueError(f"{path} has figures of {found.replicas} replicas: name another file")
        return found

    def ratios(self) -> dict[str, float]:
        """How many times Java's rate ours is, where both were measured; by part."""
        both = {part: each for part, each in self.throughput.items() if JAVA in each and OURS in each}
        timed = {part: each for part, each in self.timers.items() if JAVA in each and OURS in each}
        return {
            **{part: each[OURS].by(each[JAVA]) for part, each in both.items()},
            **{part: each[OURS].by(each[JAVA]) for part, each in timed.items()},
        }


def machine() -> dict[str, str]:
    """Where and with what was measured."""
    cpu = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", cpu, re.M)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "processors": f"{os.cpu_count()} × {model[1] if model else platform.machine()}",
        "memory": f"{memory} GB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "uvloop": version("uvloop"),
        "java": java.splitlines()[0] if java else "none",
        "batonmq": version("batonmq"),
    }


def _rate(result: Throughput) -> str:
    return _rates(result.rates)


def _rates(rates: Sequence[int]) -> str:
    median, least, most = (value / 1000 for value in (statistics.median(rates), min(rates), max(rates)))
    return f"{text(median, least, most, ',.1f')} k/s"


def _cost(result: Throughput) -> str:
    return " + ".join(f"{cost:.1f}" for cost in (result.cpu_us or {}).values()) + " µs"


def _outages(result: Failover) -> str:
    return f"{_percentiles(result.outages_ms)} ({len(result.outages_ms)} rounds)"


def _gaps(result: Failover) -> str:
    return _percentiles(result.gaps_ms)


def _percentiles(values_ms: list[float]) -> str:
    return " / ".join(f"{percentile(values_ms, percent):.0f}" for percent in (50, 99, 100)) + " ms"


LOADS = {
    "send": f"send, 1 KiB, {THREADS} in flight",
    "batch": f"send, 1 KiB, batches of {BATCH}, {THREADS} in flight",
    "consume": "push consume of a backlog, 1 KiB",
    "transaction": f"transactions, 1 KiB, {THREADS} in flight, each committed",
    "trace": f"send with message trace, 1 KiB, {THREADS} in flight",
    "ordered": "ordered push consume of a backlog, 1 KiB",
    "pop": "push consume by pop, each message acknowledged, 1 KiB",
    "sql": "push consume with an SQL92 filter that 1 % pass, 1 KiB, messages passed over included",
}
"""Parts that measure messages a second."""
TIMED = "timed messages stored, 256 B, due within a minute"
LATENESS = "timed messages: delivered after their time"
CATCHUPS = {
    "afresh": "a new replica copies the log, 4 KiB messages",
    "back": "a replica that was down catches up",
    "plain": "two plain processes copy as much as fast, no replica",
}


class _Median:
    """Medians over the rounds of one kind of catch-up."""

    def __init__(self, rounds: Sequence[CatchUp]) -> None:
        self._rounds = rounds

    def of(self, name: str) -> float:
        return statistics.median(float(getattr(each, name)) for each in self._rounds)

    def joined(self) -> str:
        return f"{self.of('started_to_in_sync_s'):.1f} s ({self.of('copied_mb'):,.0f} MB)"

    def latency(self, which: str) -> str:
        return f"{self.of(f'{which}p50_ms'):.1f} / {self.of(f'{which}p99_ms'):.1f} ms"


def rows(figures: Figures) -> list[tuple[str, dict[str, str]]]:
    """What was measured and, by system, how it came out."""
    found: list[tuple[str, dict[str, str]]] = []

    def add(label: str, values: Mapping[str, str]) -> None:
        if values:
            found.append((label, dict(values)))

    ratios = figures.ratios()
    for part, measured in figures.throughput.items():
        add(f"{LOADS[part]}: messages", {s: _rate(r) for s, r in measured.items()})
        if part in ratios:
            add("· times Java's, medians of all rounds", {OURS: f"{ratios[part]:.2f}"})
        sends = {s: r for s, r in measured.items() if r.p99_ms is not None}
        add("· latency, p50 / p99", {s: f"{r.p50_ms:.1f} / {r.p99_ms:.1f} ms" for s, r in sends.items()})
        costs = {s: r for s, r in measured.items() if r.cpu_us}
        add("· processor time a message, each broker", {s: _cost(r) for s, r in costs.items()})
        add("· failed requests", {s: str(r.failed) for s, r in sends.items()})
    for part, timed in figures.timers.items():
        _add_timers(add, timed, ratios.get(part))
    for part, results in figures.failover.items():
        add(f"{TITLES[part]}: p50 / p99 / max", {s: _outages(r) for s, r in results.items()})
        add("· longest time between two acknowledgements", {s: _gaps(r) for s, r in results.items()})
        add("· sends that failed, of one after the other", {s: str(r.unknown) for s, r in results.items()})
    for kind, title in CATCHUPS.items():
        caught = {s: _Median(r[kind]) for s, r in figures.catchup.items() if r.get(kind)}
        add(f"{title}: copied", {s: f"{r.of('mb_per_s'):.0f} MB/s" for s, r in caught.items()})
        if kind != "plain":
            add(
                "· from its start to its place in the SyncStateSet",
                {s: r.joined() for s, r in caught.items()},
            )
        add("· sends meanwhile, p50 / p99", {s: r.latency("") for s, r in caught.items()})
        add("· the same before", {s: r.latency("before_") for s, r in caught.items()})
    starts = figures.startup.items()
    add("broker: exec → first acknowledged send", {s: f"{r.first_send_s:.2f} s" for s, r in starts})
    for verb in ("broker", "namesrv", "controller"):
        add(f"{verb}: exec → serving", {s: f"{r.ready_s[verb]:.2f} s" for s, r in starts})
        add(f"{verb}, idle: anonymous memory", {s: f"{r.anonymous_mb[verb]:.0f} MB" for s, r in starts})
    return found


def _add_timers(
    add: Callable[[str, Mapping[str, str]], None], timed: Mapping[str, Timers], ratio: float | None
) -> None:
    """Rows of timed messages; lateness by the rounds' medians."""
    add(TIMED, {s: _rates(r.rates) for s, r in timed.items()})
    if ratio is not None:
        add("· times Java's", {OURS: f"{ratio:.2f}"})
    late = {
        s: " / ".join(f"{statistics.median(each):.0f}" for each in (r.p50_ms, r.p99_ms, r.max_ms))
        for s, r in timed.items()
    }
    add("· delivered after their time, p50 / p99 / max", {s: f"{text} ms" for s, text in late.items()})
    add(
        "· refused / missing / early",
        {s: f"{r.failed} / {r.missing} / {r.early}" for s, r in timed.items()},
    )
    costs = {
        s: " + ".join(f"{statistics.median(e[name] for e in r.cpu_us):.1f}" for name in r.cpu_us[0]) + " µs"
        for s, r in timed.items()
        if r.cpu_us and r.cpu_us[0]
    }
    add("· processor time a message, stored and delivered, each broker", costs)


def table(figures: Figures) -> Table:
    shown = Table(title=f"{figures.replicas} replicas; median (least … most)")
    shown.add_column("", ratio=1)
    for system in SYSTEMS:
        shown.add_column(system, justify="right", no_wrap=True)
    for label, values in rows(figures):
        shown.add_row(label.replace("`", ""), *(values.get(system, "–") for system in SYSTEMS))
    return shown


def markdown(figures: Figures) -> str:
    lines = [f"| | {JAVA} | {OURS} |", "| --- | ---: | ---: |"]
    for label, values in rows(figures):
        lines.append(f"| {label} | " + " | ".join(values.get(system, "–") for system in SYSTEMS) + " |")
    lines += ["", f"{figures.replicas} replicas. {measured_on()} The run took {figures.took_s / 60:.0f} min."]
    return "\n".join(lines) + "\n"


def write_page(page: Path, figures: Figures) -> None:
    """Replace the figures in `page`, whose text stays. Raises `ValueError` if it has no place for them."""
    put(page, markdown(figures))


def put(page: Path, text: str) -> None:
    """Replace what stands between the two marks of `page`. Raises `ValueError` if they are not there."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}{END}{after}")


def measured_on() -> str:
    """One line: where and with what was measured."""
    where = machine()
    return (
        f"Measured on {where['date']}: {where['processors']}, {where['memory']}, Linux {where['kernel']}; "
        f"Python {where['python']} with uvloop {where['uvloop']}; {where['java']}."
    )
