"""How fast Spark reads a topic (counting only, all default columns, and into Parquet), reads the broker's
store directory without the broker (the same three), and writes to a topic.

    python -m benchmarks.bench_spark [--messages 4000000] [--size 256] [--only ours] [--pull-defaults]

Fills a topic of one broker through our client, then reads all of it with ``local[*]``, so broker, Python
workers and JVM share the machine's cores. By default the brokers give up to 4,096 messages or 4 MiB a pull,
as in the demonstration; --pull-defaults leaves them at RocketMQ's 32 messages or 256 KiB. Each read is done
--rounds times after one that warms up; the best is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from pyspark.sql import functions as F

from batonmq import Message, MessageQueue, Producer
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.main import BROKER_SETTINGS
from batonmq.spark.session import spark_session
from benchmarks.clusters import JAVA, OURS, create_topic, in_sync, make_cluster, sample, wait_for_group

TOPIC, SINK_TOPIC = "bench", "sink"
BATCH, IN_FLIGHT = 1_000, 4


@contextmanager
def running(system: str, *, bulk: bool) -> Iterator[LocalCluster]:
    """One broker of `system`; `bulk`: it lets readers have thousands of messages a pull."""
    with TemporaryDirectory(prefix="batonmq-bench-") as directory:
        cluster = make_cluster(system, Path(directory), replicas=1)
        if bulk:
            for broker in cluster.brokers:
                broker.settings = {**broker.settings, **BROKER_SETTINGS}
        with cluster:
            asyncio.run(wait_for_group(cluster, in_sync(1)))
            yield cluster


async def fill(namesrv: str, messages: int, size: int, queues: int, batch: int = BATCH) -> None:
    """Send `messages` of `size` random bytes, evenly over the queues, in batches of `batch`."""
    noise = random.Random(1).randbytes(size + BATCH)
    bodies = [noise[i : i + size] for i in range(BATCH)]
    batches = iter([min(batch, messages - i) for i in range(0, messages, batch)])
    turn = 0

    async def worker() -> None:
        nonlocal turn
        for count in batches:
            turn += 1
            queue = MessageQueue(TOPIC, "broker-a", turn % queues)
            await producer.send([Message(TOPIC, body, tags="t") for body in bodies[:count]], queue=queue)

    async with (
        Producer("bench", namesrv, send_timeout_ms=30_000, retries=20) as producer,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(IN_FLIGHT):
            group.create_task(worker())


@dataclass(frozen=True)
class Measured:
    """One kind of read."""

    rows_per_s: float
    cpu_us: dict[str, float]
    """CPU time a row of each kind of process, us."""


def spark_processes() -> dict[int, str]:
    """Pid -> kind of every process below this one that belongs to Spark."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for pid, parent in parents.items():
        above = parent
        while above and above != os.getpid():
            above = parents.get(above, 0)
        command = Path(f"/proc/{pid}/cmdline").read_bytes() if above else b""
        if b"pyspark.daemon" in command:
            found[pid] = "Python"
        elif b"org.apache.spark" in command:
            found[pid] = "JVM"
    return found


def cpu_s(brokers: list[int]) -> dict[str, float]:
    """CPU seconds so far: of the brokers, and of Spark's JVM and Python workers."""
    total: dict[str, float] = {}
    for pid, kind in (spark_processes() | dict.fromkeys(brokers, "broker")).items():
        total[kind] = total.get(kind, 0.0) + sample(pid).cpu_s
    return total


def measure(
    session: Any, cluster: LocalCluster, messages: int, rounds: int, kinds: Sequence[str]
) -> dict[str, Measured]:
    """Every kind of read and write, or those of `kinds`; the fastest of `rounds`."""
    options = {"namesrvAddr": cluster.namesrv_address, "subscribe": TOPIC}

    def read(schema: str | None = None) -> Any:
        reader = session.read.format("rocketmq").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def count(_: Path) -> None:
        rows = read("queueOffset bigint").count()
        assert rows == messages, f"read {rows:,} of {messages:,} messages"

    def columns(_: Path) -> None:
        read().write.format("noop").mode("overwrite").save()

    def parquet(directory: Path) -> None:
        read().write.parquet(str(directory / "out"))

    def store(schema: str | None = None) -> Any:
        reader = session.read.format("rocketmq-store").option("subscribe", TOPIC)
        return (reader.schema(schema) if schema else reader).load(str(cluster.store_path(0)))

    def offline_count(_: Path) -> None:
        rows = store("queueOffset bigint").count()
        assert rows == messages, f"read {rows:,} of {messages:,} messages"

    def offline_columns(_: Path) -> None:
        store().write.format("noop").mode("overwrite").save()

    def offline_parquet(directory: Path) -> None:
        store().write.parquet(str(directory / "out"))

    def sink(_: Path) -> None:
        rows = session.read.parquet(str(filled))
        rows.write.format("rocketmq").mode("append").options(
            namesrvAddr=cluster.namesrv_address, topic=SINK_TOPIC
        ).save()

    def sink_by_key(_: Path) -> None:
        rows = session.read.parquet(str(filled)).withColumn("shardingKey", F.hex(F.substring("value", 1, 1)))
        rows.write.format("rocketmq").mode("append").options(
            namesrvAddr=cluster.namesrv_address, topic=SINK_TOPIC
        ).save()

    def sink_once(directory: Path) -> None:
        rows = session.read.parquet(str(filled))
        rows.write.format("rocketmq").mode("append").options(
            namesrvAddr=cluster.namesrv_address,
            topic=SINK_TOPIC,
            deliveryGuarantee="exactlyOnce",
            transactionLocation=str(directory),
            transactionId="bench",
        ).save()

    def timed(job: Callable[[Path], None]) -> Measured:
        with TemporaryDirectory(prefix="batonmq-bench-") as directory:
            before = cpu_s([broker.pid for broker in cluster.brokers])
            began = time.perf_counter()
            job(Path(directory))
            took = time.perf_counter() - began
            after = cpu_s([broker.pid for broker in cluster.brokers])
            if job in (parquet, offline_parquet):
                rows = session.read.parquet(f"{directory}/out").count()
                assert rows == messages, f"wrote {rows:,} of {messages:,} messages"
        cost = {kind: (used - before.get(kind, 0.0)) / messages * 1e6 for kind, used in after.items()}
        return Measured(messages / took, cost)

    jobs = [count, columns, parquet, offline_count, offline_columns, offline_parquet]
    jobs += [sink, sink_by_key, sink_once]
    with TemporaryDirectory(prefix="batonmq-bench-") as directory:
        filled = Path(directory) / "rows"
        count(Path())
        read("value binary").write.parquet(str(filled))
        return {
            job.__name__: max((timed(job) for _ in range(rounds)), key=lambda m: m.rows_per_s)
            for job in jobs
            if not kinds or job.__name__ in kinds
        }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", type=click.IntRange(1), default=4_000_000, show_default=True)
@click.option("--size", type=click.IntRange(1), default=256, show_default=True, help="Bytes a body.")
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--only", type=click.Choice(["java", "ours"]), help="Measure one of the two.")
@click.option("--pull-defaults", is_flag=True, help="Brokers give 32 messages a pull, RocketMQ's default.")
@click.option("--kind", "kinds", multiple=True, help="Measure only this, e.g. offline_count; repeatable.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be given again.")
def main(
    messages: int,
    size: int,
    queues: int,
    rounds: int,
    only: str | None,
    pull_defaults: bool,
    kinds: tuple[str, ...],
    conf: tuple[str, ...],
) -> None:
    """Rows a second that Spark reads from, and writes to, a topic of our broker and of Apache RocketMQ's."""
    systems = {"ours": [OURS], "java": [JAVA], None: [OURS, JAVA]}[only]
    if only is None and shutil.which("java") is None:
        raise click.ClickException("there is no java on PATH; Spark needs a JRE >= 17")
    settings = dict(item.split("=", 1) for item in conf)
    session = spark_session("bench_spark", settings=settings)
    for system in systems:
        with running(system, bulk=not pull_defaults) as cluster:
            namesrv = cluster.namesrv_address
            asyncio.run(create_topic(cluster, TOPIC, queues))
            asyncio.run(create_topic(cluster, SINK_TOPIC, queues))
            began = time.perf_counter()
            asyncio.run(fill(namesrv, messages, size, queues))
            click.echo(
                f"{system}: filled with {messages:,} x {size} B in {time.perf_counter() - began:.0f} s"
            )
            for name, read in measure(session, cluster, messages, rounds, kinds).items():
                cost = ", ".join(f"{kind} {us:.1f}" for kind, us in read.cpu_us.items())
                click.echo(f"{system}: {name:15} {read.rows_per_s:10,.0f} rows/s; CPU us a row: {cost}")
    session.stop()


if __name__ == "__main__":
    main()
