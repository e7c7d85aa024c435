"""`batonmq spark failover-report`: each election, and what producers saw of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from batonmq.common.plots import BLUE, GREEN, RED
from batonmq.common.plural import counted
from batonmq.spark import report
from batonmq.spark.command import DIRECTORY, Number, one_line, session_for, spark_options
from batonmq.spark.report import duration, moment

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

    from batonmq.spark.jobs.failover import Election, Epoch, Event, Served
    from batonmq.spark.jobs.outages import Outage

PATH = click.Path(exists=True, path_type=Path)
AROUND_US = 5_000_000
"""Time before the first and after the last election in plots."""
EVENT_FILES, LOG_FILES, HISTORY_FILES = "events.jsonl*", "*broker*.log*", "history*.parquet"
"""What is looked for below --dir, with directories that have an epoch file."""


@dataclass
class Sources:
    """Files to read."""

    events: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    stores: list[Path] = field(default_factory=list)
    histories: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Findings:
    """What the report shows."""

    elections: list[Election]
    outages: list[Outage]
    events: list[Event]
    wrong: list[str]
    notes: list[str]


@click.command("failover-report")
@click.option(
    "--dir",
    "directories",
    multiple=True,
    type=DIRECTORY,
    help="Find all of the following below this directory.",
)
@click.option(
    "--events",
    multiple=True,
    type=PATH,
    help="A controller's events.jsonl, or its controllerStorePath; may be repeated.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=PATH,
    help="Log file of a broker, ours or RocketMQ's; may be repeated.",
)
@click.option(
    "--store", "stores", multiple=True, type=DIRECTORY, help="Store directory of a broker; may be repeated."
)
@click.option(
    "--history",
    "histories",
    multiple=True,
    type=PATH,
    help="A producer's history of sends, Parquet; may be repeated.",
)
@click.option("--broker-name", "names", multiple=True, help="Only this broker set; may be repeated.")
@click.option(
    "--window",
    type=Number(0.1),
    default=30.0,
    show_default=True,
    help="Seconds after an election in which a gap counts as its consequence.",
)
@click.option(
    "--max-gap", type=Number(0), help="Exit code 1 if producers waited longer than this, in seconds."
)
@click.option(
    "--log-zone", help="Time zone of the brokers' logs, e.g. Europe/Berlin; default: this machine's."
)
@click.option("--out", type=DIRECTORY, help="Directory for a page with plots, report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@spark_options
def failover_report(
    directories: tuple[Path, ...],
    events: tuple[Path, ...],
    logs: tuple[Path, ...],
    stores: tuple[Path, ...],
    histories: tuple[Path, ...],
    names: tuple[str, ...],
    window: float,
    max_gap: float | None,
    log_zone: str | None,
    out: Path | None,
    as_json: bool,
    master: str | None,
    conf: tuple[str, ...],
) -> None:
    """Show each election, and how long producers waited.

    \b
      batonmq spark failover-report --dir /var/lib/batonmq --history history.parquet --out report
      batonmq spark failover-report --events /data/controller-0 --events /data/controller-1 \\
        --log broker-0.log --log broker-1.log --history history.parquet

    For each election it shows when and why it was held, the masters and SyncStateSets before and after, when
    the new master served, and when the SyncStateSet was complete again. For each producer it shows the
    longest time without an acknowledgement, failed sends and the slowest send. Times of different machines
    are compared: their clocks must agree. The exit code is 1 if an election was unclean, if a gap is longer
    than --max-gap, or if replicas disagree about where an epoch begins.
    """
    from batonmq.spark.jobs.audit import check_history

    sources = find(directories, events, logs, stores, histories)
    zone = None
    if log_zone is not None:
        try:
            zone = ZoneInfo(log_zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise click.BadParameter(f"there is no time zone {log_zone!r}") from None
    if out is not None:
        report.new_figure()  # it fails now if the libraries for plots are missing
    with one_line():
        for path in sources.histories:
            check_history(path)
    session = session_for("failover-report", master, conf)
    with one_line():
        findings = _findings(session, sources, names, window, max_gap, zone)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "elections": [election.as_dict() for election in findings.elections],
                    "outages": [outage.as_dict() for outage in findings.outages],
                    "wrong": findings.wrong,
                    "notes": findings.notes,
                }
            )
        )
    tables = _tables(findings)
    verdict = "; ".join(findings.wrong) if findings.wrong else _verdict(findings)
    if not as_json:
        report.show(tables)
        click.echo(verdict)
    for note in findings.notes:
        click.echo(f"note: {note}", err=True)
    if out is not None:
        plots = _plots(session, sources, findings)
        page = report.Page(
            "Failovers",
            verdict,
            not findings.wrong,
            tables,
            plots,
            " ".join(f"{note}." for note in findings.notes),
        )
        click.echo(f"the report is {report.write(page, out)}", err=True)
    if findings.wrong:
        raise SystemExit(1)


def find(
    directories: Sequence[Path],
    events: Sequence[Path],
    logs: Sequence[Path],
    stores: Sequence[Path],
    histories: Sequence[Path],
) -> Sources:
    """The given files, and those found below `directories`. Raises `click.UsageError` if nothing tells of
    elections."""
    from batonmq.spark.store.directory import EPOCH_FILE

    found = Sources(logs=list(logs), stores=list(stores), histories=list(histories))
    for path in events:
        files = sorted(path.glob(EVENT_FILES)) if path.is_dir() else [path]
        if not files:
            raise click.UsageError(f"{path} has no events.jsonl: give the controllerStorePath, or the file")
        found.events += files
    for directory in directories:
        found.events += sorted(directory.rglob(EVENT_FILES))
        found.logs += sorted(path for path in directory.rglob(LOG_FILES) if path.is_file())
        found.stores += sorted(path.parent for path in directory.rglob(EPOCH_FILE))
        found.histories += sorted(directory.rglob(HISTORY_FILES))
    if not (found.events or found.logs or found.stores):
        raise click.UsageError(
            "no source of elections: give --events, --log or --store, or a --dir that has them"
        )
    return found


def _findings(
    session: SparkSession,
    sources: Sources,
    names: Sequence[str],
    window_s: float,
    max_gap_s: float | None,
    zone: ZoneInfo | None,
) -> Findings:
    from batonmq.spark.jobs import failover, outages

    def wanted(name: str) -> bool:
        return not names or name in names

    all_events, damaged = _read_events(session, sources.events)
    events = [event for event in all_events if wanted(event.broker_set)]
    served: list[Served] = []
    for path in sources.logs:
        served += failover.served_of(_lines(path), zone)
    epochs = [epoch for store in sources.stores for epoch in _read_epochs(store) if wanted(epoch.broker_set)]
    elections = failover.elections_of(
        events, [each for each in served if not each.broker_set or wanted(each.broker_set)], epochs
    )
    seen: list[Outage] = []
    if sources.histories:
        rows = outages.read_histories(session, sources.histories)
        seen = outages.measure(session, rows, outages.windows_of(elections, window_s))
    wrong = [
        f"the election of epoch {e.master_epoch} of {e.broker_set} was unclean"
        for e in elections
        if e.unclean
    ]
    wrong += failover.disagreements(epochs)
    if max_gap_s is not None:
        wrong += [
            f"{o.producer} waited {duration(o.gap_ms / 1000)} at epoch {o.master_epoch} of {o.broker_set}"
            for o in seen
            if o.gap_ms > 1000 * max_gap_s
        ]
    notes = (
        [counted(damaged, "line of the events is", "lines of the events are") + " damaged and left out"]
        if damaged
        else []
    )
    missing = sum(not election.recorded for election in elections)
    if missing and sources.events:
        notes.append(
            f"{counted(missing, 'election is', 'elections are')} in no events.jsonl: "
            "it was rotated away, or its last lines were lost"
        )
    return Findings(elections, seen, events, wrong, notes)


def _read_events(session: SparkSession, paths: Sequence[Path]) -> tuple[list[Event], int]:
    """Events about elections, and the number of damaged lines."""
    from pyspark.sql import functions as F

    from batonmq.spark.jobs import failover

    if not paths:
        return [], 0
    reader = session.read.schema(failover.EVENT_SCHEMA).option("columnNameOfCorruptRecord", "damaged")
    rows = reader.json([str(path.absolute()) for path in paths]).cache()
    try:
        damaged = rows.where(F.col("damaged").isNotNull()).count()
        kinds = ("election", "sync-state-set", "replica-up", "replica-down")
        chosen = rows.where(F.col("damaged").isNull() & F.col("event").isin(*kinds)).collect()
    finally:
        rows.unpersist()
    events = [failover.event_of(row.asDict()) for row in chosen]
    return [event for event in events if event is not None], damaged


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def _read_epochs(store: Path) -> list[Epoch]:
    from batonmq.common.config import ConfigError
    from batonmq.ha.autoswitch.epoch_file import EpochFile
    from batonmq.spark.jobs.failover import Epoch
    from batonmq.spark.store.directory import EPOCH_FILE, broker_name

    try:
        entries = EpochFile.load(store / EPOCH_FILE).cache.entries
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    name = broker_name(store, None)
    return [Epoch(name, entry.epoch, entry.start_offset, str(store)) for entry in entries]


def _verdict(findings: Findings) -> str:
    if not findings.elections:
        return "No election."
    from batonmq.spark.jobs.outages import ALL

    gaps = [outage.gap_ms for outage in findings.outages if outage.producer == ALL]
    longest = f"; the longest gap of all producers together is {duration(max(gaps) / 1000)}" if gaps else ""
    return f"{counted(len(findings.elections), 'election')}, none unclean{longest}."


def _ids(ids: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, ids)) + "}"


def _tables(findings: Findings) -> list[report.Table]:
    def after(election: Election, at_ms: int | None) -> str:
        """A later moment, as time since the election."""
        if at_ms is None or election.time_ms is None:
            return ""
        return duration((at_ms - election.time_ms) / 1000)

    rows = []
    for e in findings.elections:
        masters = f"{e.old_master or 'none'} → {e.new_master or 'none'}" if e.recorded else "?"
        sets = f"{_ids(e.before)} → {_ids(e.after)}" if e.recorded else "?"
        rows.append(
            (
                _clock(e.time_ms),
                e.broker_set,
                str(e.master_epoch),
                e.cause + (", unclean" if e.unclean else ""),
                masters,
                sets,
                after(e, e.served_ms) if e.recorded else "",
                after(e, e.whole_ms),
                "" if e.start_offset is None else f"{e.start_offset:,}",
            )
        )
    tables = [
        report.Table(
            "Elections",
            (
                *("time, UTC", "broker set", "epoch", "cause", "master", "SyncStateSet"),
                *("served after", "whole after", "log offset"),
            ),
            rows,
        )
    ]
    if findings.outages:
        times = {(e.broker_set, e.master_epoch): e.time_ms for e in findings.elections}
        tables.append(
            report.Table(
                "Producers: the longest time without an acknowledgement at each election",
                ("time, UTC", "broker set", "epoch", "producer", "gap", "failed sends", "slowest send"),
                [
                    (
                        _clock(times[o.broker_set, o.master_epoch]),
                        o.broker_set,
                        str(o.master_epoch),
                        o.producer,
                        duration(o.gap_ms / 1000) + ("" if o.acked_again else " (no acknowledgement since)"),
                        f"{o.failed:,}",
                        duration(o.slowest_ms / 1000),
                    )
                    for o in findings.outages
                ],
            )
        )
    return tables


def _clock(time_ms: int | None) -> str:
    """A time with ms, for readers."""
    return "?" if time_ms is None else f"{moment(time_ms).removesuffix(' UTC')}.{time_ms % 1000:03}"


def _plots(session: SparkSession, sources: Sources, findings: Findings) -> list[Figure]:
    from batonmq.spark.jobs import outages

    times = [election.time_ms for election in findings.elections if election.time_ms is not None]
    if not times:
        return []
    start_us, end_us = min(times) * 1000 - AROUND_US, max(times) * 1000 + AROUND_US
    plots = []
    if sources.histories:
        rows = outages.read_histories(session, sources.histories)
        bucket_s, counts = outages.acks_over_time(rows, start_us, end_us)
        plots.append(_acks(findings, counts, bucket_s, start_us, end_us))
    return [*plots, *_masters(findings, start_us, end_us)]


def _acks(
    findings: Findings, counts: Sequence[tuple[str, int, int]], bucket_s: float, start_us: int, end_us: int
) -> Figure:
    """Acknowledgements a second of each producer, with the elections."""
    figure = report.new_figure()
    axes = figure.subplots()
    buckets = int((end_us - start_us) / 1e6 / bucket_s) + 1
    names = sorted({producer for producer, _, _ in counts})
    lines = {name: [0.0] * buckets for name in names}
    for name, bucket, acks in counts:
        lines[name][bucket] = acks / bucket_s
    seconds = [bucket * bucket_s for bucket in range(buckets)]
    if lines:  # else nobody was acknowledged in this time
        axes.stackplot(seconds, *lines.values(), labels=names, step="post", linewidth=0)
    for election in findings.elections:
        if election.time_ms is not None:
            axes.axvline((election.time_ms * 1000 - start_us) / 1e6, color=RED, linewidth=1)
    axes.set(title="Acknowledged messages a second; red: elections", xlabel="seconds", xlim=(0, seconds[-1]))
    if 1 < len(names) <= 12:
        axes.legend(fontsize=7, ncols=4, frameon=False)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def _masters(findings: Findings, start_us: int, end_us: int) -> Iterator[Figure]:
    """For each broker set: which replica was master, and which were in the SyncStateSet."""
    from batonmq.spark.jobs.failover import states_of

    def at(time_ms: int) -> float:
        return (min(max(time_ms * 1000, start_us), end_us) - start_us) / 1e6

    for name in dict.fromkeys(election.broker_set for election in findings.elections):
        states = states_of(name, findings.events)
        ids = sorted({member for state in states for member in state.members})
        if not ids:
            continue
        figure = report.new_figure(1.2 + 0.3 * len(ids))
        axes = figure.subplots()
        ends = [state.time_ms for state in states[1:]] + [end_us // 1000]
        for state, end_ms in zip(states, ends, strict=True):
            left, right = at(state.time_ms), at(end_ms)
            for member in state.members:
                is_master = member == state.master
                axes.barh(
                    ids.index(member),
                    right - left,
                    left=left,
                    height=0.7 if is_master else 0.35,
                    color=BLUE if is_master else GREEN,
                )
        axes.set_yticks(range(len(ids)), [f"broker {member}" for member in ids])
        axes.set(
            title=f"{name}: blue is the master, green is in the SyncStateSet",
            xlabel="seconds",
            xlim=(0, (end_us - start_us) / 1e6),
        )
        yield figure
