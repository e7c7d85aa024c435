"""Kills everything around a stream that writes exactly once, and looks at what an independent reader finds.

``python -m tests.spark.kill_matrix --kills 200 --rows 1000000`` copies a topic into another one by Spark,
while ``kill -9`` ends, at random: Python workers of tasks, the driver, the master, all brokers, the leader of
the controllers. What was killed is started again. Meanwhile a reader follows the target; `visibility.py` says
what it must not see. Exit code 1 if a row is missing, or there twice, or if the reader saw what it must not.
With ``--java`` the broker is RocketMQ's, one without replicas; with ``--java-replicas`` its name server, its
controller and two of its brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from batonmq import Admin, Message, MessageQueue
from batonmq.demo.cluster import LocalCluster, Program
from batonmq.demo.group import Group
from batonmq.spark.sink.options import LEDGER_DIRECTORY
from batonmq.sync import Producer
from tests.interop.conftest import HEAPS, SCRIPT, JavaProcess, Peer
from tests.spark import visibility
from tests.spark.processes import Job, kill
from tests.spark.visibility import CHUNK, source_place

FROM, TO = "matrix-from", "matrix-to"
QUEUES = 4
JAVA_START_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 90.0
OURS, JAVA, JAVA_REPLICAS = "ours", "java", "java-replicas"
PROGRESS_KILLS = 20
PAUSE_S = (0.5, 4.0)
"""Seconds between a kill and the next one."""
VICTIMS = {"worker": 6, "driver": 2, "master": 4, "brokers": 1, "controller": 2}
"""What is killed, and how often in proportion."""


class JavaCluster:
    """RocketMQ's name server and one broker; a context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._peer = Peer(directory)
        self._broker: JavaProcess | None = None

    def __enter__(self) -> Self:
        try:
            namesrv = asyncio.run(self._peer.start("namesrv"))
            self.namesrv_address = namesrv.address
            self._settings = self._peer.config("broker", {"namesrvAddr": namesrv.address})
            self.start()
        except BaseException:
            self._peer.stop_all()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._peer.stop_all()

    def start(self) -> None:
        """Start the broker, and return once the name server knows it."""
        self._broker = asyncio.run(self._peer.start("broker", self._settings))

        async def registered() -> None:
            async with Admin(self.namesrv_address) as admin, asyncio.timeout(60):
                while not await admin.masters():
                    await asyncio.sleep(0.2)

        asyncio.run(registered())

    def kill(self) -> None:
        assert self._broker is not None
        self._broker.kill()


def cluster_of(brokers: str, directory: Path) -> LocalCluster | JavaCluster:
    """Not started yet."""
    if brokers == JAVA:
        return JavaCluster(directory)
    cluster = LocalCluster(directory)
    if brokers == JAVA_REPLICAS:
        for program in cluster.programs:
            # Each program gets its own home directory, for files that no key moves.
            home = f"PEER_USER_HOME={directory / program.name}"
            program.command = ("env", home, f"PEER_HEAP={HEAPS[program.verb]}", str(SCRIPT))
            program.start_timeout_s = JAVA_START_TIMEOUT_S
        for broker in cluster.brokers:
            ha_port = int(str(broker.settings["listenPort"])) + 1
            broker.settings = {**broker.settings, "haListenPort": ha_port}
    return cluster


@dataclass
class Matrix:
    """One run. `counts` is what was killed."""

    cluster: LocalCluster | JavaCluster
    job: Job
    rng: random.Random
    pause_s: tuple[float, float]
    ledger: Path
    """Nothing is killed before the job has made it: its first batch has begun then."""
    counts: Counter[str] = field(default_factory=Counter)
    broker_kills: list[tuple[float, float]] = field(default_factory=list)
    """Begin and end of each kill of a broker, `time.monotonic`."""

    def strike(self) -> None:
        """Kill one thing, and start it again."""
        what = self.rng.choices(list(VICTIMS), weights=list(VICTIMS.values()))[0]
        cluster = self.cluster
        if what == "worker":
            workers = self.job.workers()
            if not workers:
                return
            kill(self.rng.choice(workers))
        elif what == "driver":
            self.job.kill()
            self.job.start()
        elif isinstance(cluster, JavaCluster):
            what = "broker"
            self._kill_brokers(cluster)
            time.sleep(self.rng.uniform(0, 2))
            cluster.start()
        elif what == "controller":
            (controller,) = cluster.controller_programs
            controller.kill()
            time.sleep(self.rng.uniform(0, 1))
            controller.start()
        else:
            brokers = cluster.brokers if what == "brokers" else [master_of(cluster)]
            self._kill_brokers(*brokers)
            time.sleep(self.rng.uniform(0, 2))
            for broker in brokers:
                broker.start()
        self.counts[what] += 1
        if not self.counts.total() % PROGRESS_KILLS:
            print(
                f"{self.counts.total()} kills, {self.job.failures} jobs failed", file=sys.stderr, flush=True
            )

    def _kill_brokers(self, *brokers: Program | JavaCluster) -> None:
        began = time.monotonic()
        for broker in brokers:
            broker.kill()
        self.broker_kills.append((began, time.monotonic()))

    def run(self, kills: int, deadline: float) -> None:
        """Until the job has copied all. It is started again when a kill has failed it."""
        next_kill = time.monotonic() + self.rng.uniform(*self.pause_s)
        while time.monotonic() < deadline:
            assert self.job.process is not None
            code = self.job.process.poll()
            if code == 0:
                return
            if code is not None:
                self.job.failures += 1
                self.job.start()
            if self.counts.total() < kills and time.monotonic() > next_kill and self.ledger.exists():
                self.strike()
                next_kill = time.monotonic() + self.rng.uniform(*self.pause_s)
            time.sleep(0.05)
        raise TimeoutError(f"the job did not end in time; see {self.job.log}")


def master_of(cluster: LocalCluster) -> Program:
    """The program of the master."""

    async def find() -> str:
        group = Group(cluster.controller_addresses, cluster.broker_name)
        try:
            state = await group.wait_for(lambda s: s.master_address is not None, 90, "a master")
            assert state.master_address is not None
            return state.master_address
        finally:
            await group.close()

    return cluster.broker_at(asyncio.run(find()))


@dataclass
class Outcome:
    rows: int
    missing: int
    doubled: int
    foreign: int
    kills: Counter[str]
    starts: int
    seconds: float
    seen: visibility.Findings
    """What the reader saw meanwhile."""
    whole_at_once: bool
    """Whether batches in part were looked for; RocketMQ's brokers show them."""

    @property
    def right(self) -> bool:
        return not self.missing and not self.doubled and not self.foreign and not self.seen.wrong

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items())) or "none"
        in_part = (
            f"{self.seen.partial} batches in part after the kill of a broker, {len(self.seen.torn)} without, "
            if self.whole_at_once
            else ""
        )
        return (
            f"{self.rows} rows in {self.seconds:.0f} s: {self.missing} missing, {self.doubled} twice, "
            f"{self.foreign} foreign; kills: {self.kills.total()} ({kills}); "
            f"the job was started {self.starts} times; the reader saw {self.seen.states} states, "
            f"{in_part}{len(self.seen.undecided)} batches before they were decided, "
            f"{len(self.seen.overtaken)} before their predecessor was whole, "
            f"{len(self.seen.taken_back)} taken back"
        )


def fill(namesrv: str, rows: int) -> None:
    """Topic FROM: the numbers from 0 on."""

    async def create() -> str:
        async with Admin(namesrv) as admin:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not await admin.masters():
                    await asyncio.sleep(0.2)
            await admin.create_topic(FROM, QUEUES)
            await admin.create_topic(TO, QUEUES)
            return next(iter(await admin.masters()))

    broker = asyncio.run(create())
    with Producer("filler", namesrv, send_timeout_ms=20_000) as producer:
        for at in range(0, rows, CHUNK):
            batch = [Message(FROM, b"%d" % number) for number in range(at, min(rows, at + CHUNK))]
            queue = MessageQueue(FROM, broker, source_place(at, QUEUES)[0])
            producer.send(batch if len(batch) > 1 else batch[0], queue=queue)


def run(
    directory: Path,
    *,
    rows: int,
    kills: int,
    seed: int,
    rows_a_batch: int,
    pause_s: tuple[float, float] = PAUSE_S,
    timeout_s: float = 600,
    brokers: str = OURS,
) -> Outcome:
    """One run below `directory`."""
    began = time.monotonic()
    checkpoint = directory / "checkpoint"
    ledger = checkpoint / LEDGER_DIRECTORY
    with cluster_of(brokers, directory / "cluster") as cluster:
        namesrv = cluster.namesrv_address
        fill(namesrv, rows)
        reader = visibility.Watcher(namesrv, TO, ledger)
        reader.start()
        command = [sys.executable, "-m", "tests.spark.exactly_once_job", namesrv, FROM, TO]
        command += [str(checkpoint), str(rows_a_batch)]
        job = Job(command, directory / "job.log")
        matrix = Matrix(cluster, job, random.Random(seed), pause_s, ledger)
        job.start()
        try:
            matrix.run(kills, began + timeout_s)
        finally:
            job.kill()
        reader.finish.set()
        reader.join(120)
        if reader.is_alive():
            raise TimeoutError("the reader did not reach the end of the topic")
    seen = visibility.counted(reader.rows)
    ends = visibility.batch_ends(checkpoint, FROM, QUEUES)
    batches = [[visibility.batch_of(number, ends) for number in queue] for queue in reader.rows]
    return Outcome(
        rows,
        missing=sum(number not in seen for number in range(rows)),
        doubled=sum(count > 1 for count in seen.values()),
        foreign=sum(not 0 <= number < rows for number in seen),
        kills=matrix.counts,
        starts=job.starts,
        seconds=time.monotonic() - began,
        seen=visibility.check(reader.states, batches, matrix.broker_kills, whole_at_once=brokers == OURS),
        whole_at_once=brokers == OURS,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rows-a-batch", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pause",
        type=float,
        nargs=2,
        default=PAUSE_S,
        metavar=("FROM", "TO"),
        help="seconds between kills; a job that never has time to start copies nothing (default: 0.5 4)",
    )
    parser.add_argument("--timeout", type=float, default=7_200, help="seconds")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--java", action="store_const", dest="brokers", const=JAVA, help="RocketMQ's broker, one"
    )
    which.add_argument(
        "--java-replicas",
        action="store_const",
        dest="brokers",
        const=JAVA_REPLICAS,
        help="two, and its controller",
    )
    parser.set_defaults(brokers=OURS)
    parser.add_argument("--keep", action="store_true", help="keep the directory with logs and stores")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kill-matrix-"))
    outcome = run(
        directory,
        rows=given.rows,
        kills=given.kills,
        seed=given.seed,
        rows_a_batch=given.rows_a_batch,
        pause_s=tuple(given.pause),
        timeout_s=given.timeout,
        brokers=given.brokers,
    )
    print(outcome)
    for text in outcome.seen.wrong[:20]:
        print(text)
    if outcome.right and not given.keep:
        shutil.rmtree(directory)
    else:
        print(f"logs: {directory}")
    return 0 if outcome.right else 1


if __name__ == "__main__":
    sys.exit(main())
