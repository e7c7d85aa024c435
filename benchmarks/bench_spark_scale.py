"""How Spark's reads grow: planning of many queues, and a large store read without its broker.

    python -m benchmarks.bench_spark_scale [--queues 1000] [--messages 100000000] [--size 32]

Two parts, each on a cluster of one broker of ours:

- A topic with `--queues` queues: how long Spark takes to plan a query over it, and to run it.
- A topic with `--messages` messages in 8 queues: counted from the store directory with one and with two
  cores, and, for comparison, from the broker. The JVM has a heap of 512 MiB. Memory is anonymous memory, each
  shared page counted once, at its peak: of the JVM with the Python workers of its tasks, which is what an
  executor has, and of the driver's Python processes, which plan.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from batonmq import MessageQueue, Producer
from batonmq.client.message import EncodedBatch
from batonmq.protocol.message.batch import BatchItem, encode_batch
from batonmq.protocol.message.properties import encode_properties
from batonmq.spark.session import spark_session
from benchmarks.bench_spark import TOPIC, fill, running, spark_processes
from benchmarks.clusters import OURS, create_topic

HEAP = "512m"
BATCH = 2_000
LOOK_S = 0.2
NEEDED = "queueOffset bigint"
WITH_BODIES = "value binary"


class Peak:
    """Largest anonymous memory, MiB, of each kind of process together, and of an executor."""

    def __init__(self) -> None:
        self.mib: dict[str, float] = {}
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            now = {"JVM": 0.0, "workers": 0.0, "planners": 0.0}
            for pid, kind in spark_processes().items():
                with contextlib.suppress(OSError):  # it has just ended
                    if kind == "Python":
                        kind = "workers" if b"pyspark.worker" in command_of(pid) else "planners"
                    now[kind] += anonymous_mib(pid)
            now["executor"] = now["JVM"] + now["workers"]
            for kind, mib in now.items():
                self.mib[kind] = max(self.mib.get(kind, 0.0), mib)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def anonymous_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) / 1024
    return 0.0  # it has just ended


def session_with(cores: int) -> Any:
    return spark_session(
        "bench_spark_scale", master=f"local[{cores}]", settings={"spark.driver.memory": HEAP}
    )


def plan(namesrv: str, queues: int) -> dict[str, float]:
    """Seconds to plan and to run a query over a topic of so many queues; the first query warms up."""
    session = session_with(os.cpu_count() or 1)

    def rows() -> Any:
        options = {"namesrvAddr": namesrv, "subscribe": TOPIC}
        return session.read.format("rocketmq").options(**options).schema(NEEDED).load()

    found: dict[str, list[float]] = {"planned": [], "counted": []}
    for _ in range(6):
        began = time.perf_counter()
        partitions = rows().rdd.getNumPartitions()
        found["planned"].append(time.perf_counter() - began)
        began = time.perf_counter()
        counted = rows().count()
        found["counted"].append(time.perf_counter() - began)
        assert partitions and counted == queues, (partitions, counted)
    session.stop()
    return {f"{name}, {how}": choose(times[1:]) for name, times in found.items() for how, choose in SUMMARY}


SUMMARY: list[tuple[str, Callable[[list[float]], float]]] = [
    ("median", lambda times: sorted(times)[len(times) // 2]),
    ("longest", max),
]


def count(source: str, where: str, schema: str, cores: int, messages: int) -> dict[str, float]:
    """Count the topic: rows/s and memory. `where`: the store (offline) or the name server (online)."""
    session = session_with(cores)
    if source == "offline":
        rows = session.read.format("rocketmq-store").option("subscribe", TOPIC).schema(schema).load(where)
    else:
        options = {"namesrvAddr": where, "subscribe": TOPIC}
        rows = session.read.format("rocketmq").options(**options).schema(schema).load()
    session.range(1_000).count()
    peak = Peak()
    began = time.perf_counter()
    with peak.watching():
        if schema == NEEDED:
            counted = rows.count()
        else:
            counted = rows.selectExpr("count(octet_length(value))").first()[0]
    took = time.perf_counter() - began
    session.stop()
    assert counted == messages, f"read {counted:,} of {messages:,} messages"
    return {"rows/s": messages / took, **{f"MiB {kind}": mib for kind, mib in peak.mib.items()}}


async def fill_many(namesrv: str, messages: int, size: int, queues: int) -> None:
    """Send `messages` of `size` bytes, evenly over the queues. All batches have the same body: to encode each
    message would take longer than to store it."""
    item = BatchItem(body=bytes(size), properties=encode_properties({"TAGS": "t", "UNIQ_KEY": "0" * 32}))
    counts = [BATCH] * (messages // BATCH) + [messages % BATCH] * (messages % BATCH > 0)
    bodies = {count: encode_batch([item] * count) for count in set(counts)}
    sends = iter(enumerate(counts))

    async def worker() -> None:
        for number, count in sends:
            queue = MessageQueue(TOPIC, "broker-a", number % queues)
            await producer.send(EncodedBatch(TOPIC, bodies[count], count), queue=queue)

    async with (
        Producer("bench", namesrv, send_timeout_ms=30_000, retries=20) as producer,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(4):
            group.create_task(worker())


def fresh(what: str, *arguments: object) -> dict[str, float]:
    """Run a part in a process with its own JVM."""
    command = [sys.executable, "-m", __spec__.name, "--part", what, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=dict[str, float])


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--queues", type=click.IntRange(0), default=1_000, show_default=True, help="0: no planning.")
@click.option(
    "--messages", type=click.IntRange(0), default=100_000_000, show_default=True, help="0: no store."
)
@click.option("--size", type=click.IntRange(1), default=32, show_default=True, help="Bytes a body.")
@click.option("--passes", type=click.IntRange(1), default=1, show_default=True)
@click.option("--part", hidden=True, type=click.Choice(["plan", "count"]))
@click.argument("arguments", nargs=-1)
def main(
    queues: int, messages: int, size: int, passes: int, part: str | None, arguments: tuple[str, ...]
) -> None:
    """Planning of many queues, and large stores."""
    if part == "plan":
        click.echo(msgspec.json.encode(plan(arguments[0], int(arguments[1]))))
        return
    if part == "count":
        source, where, schema, cores, expected = arguments
        click.echo(msgspec.json.encode(count(source, where, schema, int(cores), int(expected))))
        return
    if queues:
        with running(OURS, bulk=True) as cluster:
            asyncio.run(create_topic(cluster, TOPIC, queues))
            asyncio.run(fill(cluster.namesrv_address, queues, size, queues, batch=1))
            for name, seconds in fresh("plan", cluster.namesrv_address, queues).items():
                click.echo(f"{queues:,} queues {name:16} {seconds:8.2f} s")
    if messages:
        with running(OURS, bulk=True) as cluster:
            asyncio.run(create_topic(cluster, TOPIC, 8))
            began = time.perf_counter()
            asyncio.run(fill_many(cluster.namesrv_address, messages, size, 8))
            click.echo(f"filled with {messages:,} x {size} B in {time.perf_counter() - began:.0f} s")
            places = {"offline": str(cluster.store_path(0)), "online": cluster.namesrv_address}
            for number in range(passes):
                for source, schema, number_of_cores in RUNS[:: 1 if number % 2 == 0 else -1]:
                    found = fresh("count", source, places[source], schema, number_of_cores, messages)
                    memory = ", ".join(
                        f"{name.removeprefix('MiB ')} {mib:,.0f}"
                        for name, mib in found.items()
                        if name.startswith("MiB ")
                    )
                    click.echo(
                        f"{source:8} {schema.split()[0]:12} {number_of_cores} cores "
                        f"{found['rows/s']:12,.0f} rows/s; "
                        f"most anonymous memory, MiB: {memory}"
                    )


RUNS = [
    ("offline", NEEDED, 1),
    ("offline", NEEDED, 2),
    ("offline", WITH_BODIES, 1),
    ("offline", WITH_BODIES, 2),
    ("online", NEEDED, 2),
]

if __name__ == "__main__":
    main()
