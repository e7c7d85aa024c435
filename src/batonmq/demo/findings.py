"""The findings of the demonstration: Spark compares the history of sends with the archive and the topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from batonmq.demo import load
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.round_trip import Outcome, Trip, sum_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from batonmq.spark.jobs.audit import AuditReport

Phase = Callable[[str, str], AbstractContextManager[None]]
"""Announces a step, and about how long it takes."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of all comparisons."""

    audited: AuditReport
    """The history of sends against the archive."""
    counts: Outcome
    """The second topic against the first one."""
    replicas_equal: bool
    archived_rows: int
    live_rows: int
    live_rate: float
    """Rows a second at which Spark read the topic."""
    delays: list[tuple[str, int, float]]
    """Carrier, flights, mean delay."""
    hours: int
    gap_ms: int | None
    """Longest time without a message in the log; None: none that counts as a gap."""

    @property
    def passed(self) -> bool:
        whole = self.archived_rows == self.live_rows == self.audited.in_log
        return self.audited.ok and self.replicas_equal and whole and self.counts.right

    def rows(self, *, acks_per_second: float, outage_s: float, trip: Trip) -> list[tuple[str, str]]:
        """The table at the end. `outage_s`: from the kill to the next acknowledged send."""
        audited = self.audited
        return [
            ("flights sent", f"{audited.sent:,}"),
            ("acknowledged", f"{audited.acked:,}"),
            ("acknowledged and lost", f"{audited.lost:,}"),
            ("out of order", f"{audited.reordered:,}"),
            ("outcome unknown to the sender", f"{audited.sent - audited.acked:,}"),
            ("stored again: resent, as the kill cut off the answer", f"{audited.copies:,}"),
            ("acknowledged sends a second, mean", f"{acks_per_second:,.0f}"),
            ("kill -9 to the next acknowledged send", f"{outage_s * 1000:,.0f} ms"),
            (
                "longest gap in the log (Spark)",
                f"{self.gap_ms:,} ms" if self.gap_ms is not None else "under 100 ms",
            ),
            ("replicas' commit logs", "byte-equal" if self.replicas_equal else "DIFFER"),
            ("rows in the topic", rows_in_topic(self.live_rows, audited.copies)),
            ("rows archived, over two runs of the job", f"{self.archived_rows:,}"),
            ("Spark reads the topic", f"{self.live_rate:,.0f} rows/s"),
            ("hours and carriers in the rollup", f"{self.hours:,}"),
            ("rows counted into a second topic, exactly once", f"{self.counts.counted:,}"),
            ("batches of that job before its kill", f"{trip.batches_before:,}"),
            *(("WRONG in the second topic", text) for text in self.counts.wrong[:10]),
        ]


def find(
    session: SparkSession, cluster: LocalCluster, archive: Path, history: Path, trip: Trip, phase: Phase
) -> Findings:
    """Compare everything. `archive` is complete; `history`: the sends, as Parquet."""
    from batonmq.spark.jobs import audit, rollup
    from batonmq.spark.jobs.replicas import compare

    with phase("Spark compares what was acknowledged with archive and topic", "30 s"):
        log = session.read.parquet(str(archive)).cache()
        archived_rows = log.count()
        counts = sum_up(trip.bodies, dict(map(tuple, log.groupBy("tags").count().collect())))
        audited = audit.audit(session.read.parquet(str(history)), log)
        live = (
            session.read.format("rocketmq")
            .schema("queueOffset bigint")
            .options(namesrvAddr=cluster.namesrv_address, subscribe=load.TOPIC)
            .load()
        )
        began = time.monotonic()
        live_rows = live.count()
        live_rate = live_rows / (time.monotonic() - began)
    with phase("Spark finds the delays by carrier and the gaps in service", "20 s"):
        delays = [
            (r["carrier"], r["flights"], r["mean_arr_delay"]) for r in rollup.delay_by_carrier(log).collect()
        ]
        hours = rollup.by_hour_and_carrier(log).count()
        gap = rollup.gaps(log.select("timestamp")).first()
    replicas = compare([cluster.store_path(i) for i in range(cluster.replicas)])
    return Findings(
        audited=audited,
        counts=counts,
        replicas_equal=replicas.equal,
        archived_rows=archived_rows,
        live_rows=live_rows,
        live_rate=live_rate,
        delays=delays,
        hours=hours,
        gap_ms=gap["milliseconds"] if gap else None,
    )


def rows_in_topic(rows: int, copies: int) -> str:
    """How many, and why they may be more than the flights."""
    return f"{rows:,} = {rows - copies:,} flights + {copies:,} stored again" if copies else f"{rows:,}"
