"""How fast Spark reads a topic: counting only, all default columns, and into Parquet.

    python -m benchmarks.bench_spark [--messages 4000000] [--size 256] [--only ours] [--pull-defaults]

Fills a topic of one broker through our client, then reads all of it with ``local[*]``, so broker, Python
workers and JVM share the machine's cores. By default the brokers give up to 4,096 messages or 4 MiB a pull,
as in the demonstration; --pull-defaults leaves them at RocketMQ's 32 messages or 256 KiB. Each read is done
--rounds times after one that warms up; the best is printed.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from batonmq import Message, MessageQueue, Producer
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.main import BROKER_SETTINGS
from batonmq.spark.session import spark_session
from benchmarks.clusters import JAVA, OURS, create_topic, in_sync, make_cluster, wait_for_group

TOPIC = "bench"
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


async def fill(namesrv: str, messages: int, size: int, queues: int) -> None:
    """Send `messages` of `size` random bytes, evenly over the queues, in batches."""
    noise = random.Random(1).randbytes(size + BATCH)
    bodies = [noise[i : i + size] for i in range(BATCH)]
    batches = iter([min(BATCH, messages - i) for i in range(0, messages, BATCH)])
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


def measure(session: Any, namesrv: str, messages: int, rounds: int) -> dict[str, float]:
    """Rows a second of each kind of read, the best of `rounds`."""
    options = {"namesrvAddr": namesrv, "subscribe": TOPIC}

    def read(schema: str | None = None) -> Any:
        reader = session.read.format("rocketmq").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def count() -> float:
        began = time.perf_counter()
        rows = read("queueOffset bigint").count()
        took = time.perf_counter() - began
        assert rows == messages, f"read {rows:,} of {messages:,} messages"
        return took

    def columns() -> float:
        began = time.perf_counter()
        read().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def parquet() -> float:
        with TemporaryDirectory(prefix="batonmq-bench-") as directory:
            began = time.perf_counter()
            read().write.parquet(f"{directory}/out")
            took = time.perf_counter() - began
            rows = session.read.parquet(f"{directory}/out").count()
            assert rows == messages, f"wrote {rows:,} of {messages:,} messages"
            return took

    count()
    return {job.__name__: messages / min(job() for _ in range(rounds)) for job in (count, columns, parquet)}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", type=click.IntRange(1), default=4_000_000, show_default=True)
@click.option("--size", type=click.IntRange(1), default=256, show_default=True, help="Bytes a body.")
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True)
@click.option("--only", type=click.Choice(["java", "ours"]), help="Measure one of the two.")
@click.option("--pull-defaults", is_flag=True, help="Brokers give 32 messages a pull, RocketMQ's default.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be given again.")
def main(
    messages: int,
    size: int,
    queues: int,
    rounds: int,
    only: str | None,
    pull_defaults: bool,
    conf: tuple[str, ...],
) -> None:
    """Rows a second that Spark reads from a topic of our broker and of Apache RocketMQ's."""
    systems = {"ours": [OURS], "java": [JAVA], None: [OURS, JAVA]}[only]
    if only is None and shutil.which("java") is None:
        raise click.ClickException("there is no java on PATH; Spark needs a JRE >= 17")
    settings = dict(item.split("=", 1) for item in conf)
    session = spark_session("bench_spark", settings=settings)
    for system in systems:
        with running(system, bulk=not pull_defaults) as cluster:
            namesrv = cluster.namesrv_address
            asyncio.run(create_topic(cluster, TOPIC, queues))
            began = time.perf_counter()
            asyncio.run(fill(namesrv, messages, size, queues))
            click.echo(
                f"{system}: filled with {messages:,} x {size} B in {time.perf_counter() - began:.0f} s"
            )
            for name, rate in measure(session, namesrv, messages, rounds).items():
                click.echo(f"{system}: {name:8} {rate:10,.0f} rows/s")
    session.stop()


if __name__ == "__main__":
    main()
