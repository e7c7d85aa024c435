"""The demonstration's round trip: topic → Spark → another topic, exactly once, through two kills.

A streaming job counts the flights by carrier and writes what it counted to a second topic. After its first
batches the master is killed with SIGKILL, then the job itself, with its JVM and its Python workers. A second
run continues from the checkpoint. At the end the counts in the second topic are added up: a row that is
missing or there twice changes the sum.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonmq.client.admin import Admin
from batonmq.client.reader import QueueReader
from batonmq.common import plural
from batonmq.demo import load
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "flights-by-carrier"
QUEUES = 4
BATCHES = 6
"""Micro-batches that the job needs for all flights, about."""
KILL_AFTER = 1
"""Batches that are complete when the master is killed."""
JOB_TIMEOUT_S = 180.0
RETURN_TIMEOUT_S = 60.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Trip:
    """What was done."""

    bodies: list[list[bytes]]
    """Of all messages of the second topic, by queue, in order."""
    batches_before: int
    """Batches that the first run finished before it was killed."""
    seconds: float


@dataclass
class Outcome:
    """What the second topic holds, against the first one."""

    flights: int = 0
    """Flights in the first topic."""
    counted: int = 0
    """The sum of all counts in the second topic."""
    rows: int = 0
    wrong: list[str] = field(default_factory=list)
    """Carriers whose counts are wrong, each in a few words."""

    @property
    def right(self) -> bool:
        return not self.wrong and self.counted == self.flights


def counted(flights: DataFrame) -> DataFrame:
    """Counts of a stream of flights (``tags``: the carrier), as ``carrier string, flights long, total long``:
    a row a carrier and micro-batch, with the number in that batch and the total so far."""
    import pandas as pd
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

    def add(
        key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        found = sum(len(frame) for frame in frames)
        total = (state.get[0] if state.exists else 0) + found
        state.update((total,))
        yield pd.DataFrame({"carrier": [key[0]], "flights": [found], "total": [total]})

    return flights.groupBy("tags").applyInPandasWithState(
        add,
        "carrier string, flights long, total long",
        "total long",
        "append",
        GroupStateTimeout.NoTimeout,
    )


def count_all(namesrv: str, checkpoint: str, rows_a_batch: int, master: str | None) -> None:
    """The job: count what is in the topic of flights now, and end."""
    from pyspark.sql import functions as F

    from batonmq.spark.session import spark_session

    # A task that a kill of its broker fails may run again.
    session = spark_session(
        "batonmq demo: round trip",
        master=master or "local[*,4]",
        settings={"spark.sql.shuffle.partitions": "2"},
    )
    flights = (
        session.readStream.format("rocketmq")
        .schema("tags string")
        .options(namesrvAddr=namesrv, subscribe=load.TOPIC, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", rows_a_batch)
        .load()
    )
    query = (
        counted(flights)
        .select(
            F.to_json(F.struct("carrier", "flights", "total")).alias("value"), F.col("carrier").alias("key")
        )
        .writeStream.format("rocketmq")
        .options(namesrvAddr=namesrv, topic=TOPIC, deliveryGuarantee="exactlyOnce")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


def sum_up(bodies: Iterable[Iterable[bytes]], stored: Mapping[str, int]) -> Outcome:
    """Compare the second topic, queue by queue, with the flights in the first one by carrier."""
    outcome = Outcome(flights=sum(stored.values()))
    counts: dict[str, int] = defaultdict(int)
    for queue in bodies:
        for body in queue:
            row = json.loads(body)
            carrier = row["carrier"]
            counts[carrier] += row["flights"]
            outcome.rows += 1
            outcome.counted += row["flights"]
            # All rows of a carrier are in one queue, so each total includes all counts before it.
            if row["total"] != counts[carrier]:
                outcome.wrong.append(f"{carrier}: total {row['total']:,} after counts of {counts[carrier]:,}")
    for carrier in sorted(stored.keys() | counts.keys()):
        number, known = counts.get(carrier, 0), stored.get(carrier, 0)
        if number != known:
            outcome.wrong.append(f"{carrier}: {number:,} counted, {known:,} in the topic")
    return outcome


class RoundTrip:
    """Runs the job beside a cluster whose first topic is complete. `say` gets what happens."""

    def __init__(
        self, cluster: LocalCluster, directory: Path, master: str | None, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._checkpoint = directory / "round-trip"
        self._log = directory / "round-trip.log"
        self._master = master
        self._say = say

    async def run(self, flights: int) -> Trip:
        """`flights`: messages in the first topic, about. Raises `RuntimeError` if the job fails twice."""
        began = time.monotonic()
        cluster = self._cluster
        group = Group(cluster.controller_addresses, cluster.broker_name)
        async with Admin(cluster.namesrv_address) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        rows_a_batch = max(1, flights // BATCHES)
        try:
            job = self._start(rows_a_batch)
            try:
                await self._until(job, lambda: self._done() >= KILL_AFTER)
                victim = await self._kill_master(group)
                await self._until(job, lambda: False, 1.0)
                before = self._done()
            finally:
                kill_group(job)
            self._say(f"the job is killed after {_batches(before)} and started again")
            await self._finish(rows_a_batch)
            cluster.broker_at(victim).start(wait=False)
            await group.wait_for(
                lambda s: len(s.sync_state_set) == 2, RETURN_TIMEOUT_S, "return of the broker"
            )
        finally:
            await group.close()
        return Trip(await self._read(), before, time.monotonic() - began)

    def _start(self, rows_a_batch: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "batonmq.demo.round_trip", self._cluster.namesrv_address]
        command += [str(self._checkpoint), str(rows_a_batch), *([self._master] if self._master else [])]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _done(self) -> int:
        """Batches whose rows are all visible."""
        ledger = self._checkpoint / "rocketmq-sink"
        return sum(1 for path in ledger.glob("*.done"))

    async def _until(
        self, job: subprocess.Popen[bytes], reached: Callable[[], bool], timeout_s: float = JOB_TIMEOUT_S
    ) -> None:
        """Wait for a condition, the end of the job or the timeout."""
        for _ in range(int(timeout_s / POLL_S)):
            if reached() or job.poll() is not None:
                return
            await asyncio.sleep(POLL_S)

    async def _kill_master(self, group: Group) -> str:
        state = await group.state()
        if state is None or state.master_address is None:
            raise RuntimeError("the broker set has no master before the round trip's kill")
        self._cluster.broker_at(state.master_address).kill()
        self._say(
            f"the job has written {_batches(self._done())}; kill -9 of the master {state.master_address}"
        )
        return state.master_address

    async def _finish(self, rows_a_batch: int) -> None:
        """Run the job to its end; once more if it fails while the other replica takes over."""
        for _ in range(2):
            job = self._start(rows_a_batch)
            try:
                await self._until(job, lambda: False)
                if job.poll() == 0:
                    return
            finally:
                kill_group(job)
        raise RuntimeError(f"the round trip's job failed twice: see {self._log}")

    async def _read(self) -> list[list[bytes]]:
        """The bodies of the second topic, by queue, as any client reads them."""
        found: dict[int, list[bytes]] = defaultdict(list)
        async with QueueReader(self._cluster.namesrv_address) as reader:
            async for message in reader.messages(TOPIC):
                found[message.queue_id].append(bytes(message.body))
        return list(found.values())


def _batches(count: int) -> str:
    return plural.counted(count, "batch", "batches")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of a process that leads its group, and of all its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main(namesrv: str, checkpoint: str, rows_a_batch: str, master: str | None = None) -> None:
    count_all(namesrv, checkpoint, int(rows_a_batch), master)


if __name__ == "__main__":
    main(*sys.argv[1:])
