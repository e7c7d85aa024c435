"""``python -m benchmarks.controller``: how fast controllers are, ours beside Java's, and at scale."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import click
import uvloop

from batonmq.spark.jobs.bench import as_json
from benchmarks.controller import load, page, scale
from benchmarks.controller.figures import figures_of
from benchmarks.controller.group import BARE, DLEDGER, JRAFT, OURS, OURS_LEASE, running
from benchmarks.failover import percentile

PARTS = ("load", "curve", "deaths", "kill", "hang", "restart")
SYSTEMS = {"ours": OURS, "dledger": DLEDGER, "jraft": JRAFT, "leases": OURS_LEASE, "bare": BARE}


def say(text: str) -> None:
    click.echo(f"  {text}", err=True)


def compare(kinds: list[str], sets: int, seconds: float, rounds: int) -> dict[str, Any]:
    measured = load.measure(kinds, sets, seconds, rounds, say)
    found: dict[str, dict[str, Any]] = {
        kind: {name: each.as_json() for name, each in phases.items()} for kind, phases in measured.items()
    }
    for name in load.PHASES:
        for kind, phases in found.items():
            rate = phases[name]
            used = " ".join(f"{percent:.0f}" for percent in rate["processor_percent"])
            each = " ".join(f"{one['per_s']:,.0f}" for one in rate["rounds"])
            click.echo(
                f"{kind:13} {name:10} {rate['per_s']:9,.0f}/s  p50 {rate['p50_ms']:.2f}  "
                f"p99 {rate['p99_ms']:.2f} ms  processor {used} %  refused {rate['refused'] or 'none'}  "
                f"({each})"
            )
    return found


def curve(points: list[int], seconds: float, sharing: int, interval_ms: int) -> list[dict[str, Any]]:
    found = []
    for sets in points:
        beating = scale.measure_beating(sets, seconds, sharing=sharing, interval_ms=interval_ms)
        found.append(beating.as_json())
        followers = " ".join(f"{percent:.0f}" for percent in beating.follower_percent)
        click.echo(
            f"{sets:6} sets  {beating.beats_per_s:7,.0f} beats/s  leader {beating.leader_percent:.0f} %  "
            f"followers {followers} %  brokers {beating.brokers_percent:.0f} %  {beating.leader_mb:.0f} MB  "
            f"late {beating.late_ms:.0f} ms  silent {beating.silent}"
        )
    return found


def leader_loss(sets: int, rounds: int, *, hang: bool) -> dict[str, Any]:
    with running(OURS) as group:
        lost = uvloop.run(scale.measure_leader_loss(group, sets, rounds, hang=hang, say=say))
    click.echo(
        f"leader {lost.signal} -> next write: "
        f"p50 {percentile(lost.ms, 50):.0f}  p99 {percentile(lost.ms, 99):.0f}  "
        f"max {max(lost.ms):.0f} ms ({rounds} rounds, election timeout {lost.election_timeout_ms} ms)"
    )
    return lost.as_json()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("parts", nargs=-1, type=click.Choice(PARTS), metavar="[PART]...")
@click.option("--system", "systems", multiple=True, type=click.Choice(list(SYSTEMS)), help="For load; all.")
@click.option("--sets", default=0, help="Broker sets; each part has its own default.")
@click.option("--points", default="500,1000,2000,5000", show_default=True, help="Broker sets, for curve.")
@click.option("--sharing", default=1, show_default=True, help="Brokers a connection, for curve.")
@click.option(
    "--interval",
    "interval_ms",
    default=scale.INTERVAL_MS,
    show_default=True,
    help="brokerHeartbeatInterval, ms, for curve.",
)
@click.option("--doomed", default=1000, show_default=True, help="Masters that die, for deaths.")
@click.option("--rounds", default=0, help="Of load (5), kill and hang (20) or restart (5).")
@click.option("--seconds", default=5.0, show_default=True, help="Of each measurement.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Write the figures to this file; parts it has and this run does not are kept.",
)
@click.option("--page", "to_page", is_flag=True, help="Put what --json has into the report in docs/.")
def main(
    parts: tuple[str, ...],
    systems: tuple[str, ...],
    sets: int,
    points: str,
    sharing: int,
    interval_ms: int,
    doomed: int,
    rounds: int,
    seconds: float,
    json_path: Path | None,
    to_page: bool,
) -> None:
    """Measure groups of three controllers on this machine.

    PART is load (the same requests for all kinds, in turn, round by round), curve (heartbeats of ever more
    sets), deaths (many masters die at once), kill or hang (the leader is lost under load) or restart (from a
    snapshot); default: all.
    """
    logging.basicConfig(level=logging.ERROR)  # lost connections are the point here
    found: dict[str, Any] = {}
    if json_path is not None and json_path.exists():
        found = {part: each for part, each in json.loads(json_path.read_text()).items() if part in PARTS}
    for part in parts or PARTS:
        click.echo(f"-- {part}")
        if part == "load":
            kinds = [SYSTEMS[name] for name in systems] or list(SYSTEMS.values())
            found[part] = {**found.get(part, {}), **compare(kinds, sets or 64, seconds, rounds or 5)}
        elif part == "curve":
            found[part] = curve([int(each) for each in points.split(",")], seconds, sharing, interval_ms)
        elif part == "deaths":
            deaths = scale.measure_deaths(sets or 5000, doomed, seconds, say)
            found[part] = deaths.as_json()
            shown = (
                f"p50 {percentile(deaths.ms, 50):.0f}  p99 {percentile(deaths.ms, 99):.0f} ms"
                if deaths.ms
                else ""
            )
            notified = f"{len(deaths.ms)} slaves notified that they are master, {deaths.not_notified} not"
            click.echo(f"{notified}: {shown}")
            if not deaths.leader_kept:
                click.echo("the controllers changed their leader meanwhile: was the machine too full?")
        elif part in ("kill", "hang"):
            found[part] = leader_loss(sets or 64, rounds or 20, hang=part == "hang")
        else:
            restart = scale.measure_restart(sets or 10_000, rounds or 5, say)
            found[part] = restart.as_json()
            click.echo(
                f"{restart.sets} sets, snapshot of {restart.snapshot_bytes:,} bytes: one controller "
                f"{max(restart.one_s):.2f} s, the whole group {max(restart.all_s):.2f} s at most"
            )
        if json_path is not None:
            written = {**found, **as_json(figures_of(found))}
            json_path.write_text(json.dumps(written, indent=2) + "\n")
    if to_page:
        page.write(found)


if __name__ == "__main__":
    main()
