"""Our Spark source and sink beside Spark's own Kafka connector and a Kafka broker, in one run.

    python -m benchmarks.bench_spark_kafka [--messages 4000000] [--size 256] [--passes 3] [--json FILE]

PySpark must have a version whose Kafka connector the Maven registry has: ``pip install pyspark==4.2.0``.

What is the same for both:

- One Spark session reads and writes everything, with ``local[2]`` and the same settings.
- Both brokers run all the time, on the machine's processors, which Spark uses too.
- Both topics have the same messages in the same partitions: Kafka's is filled with the rows of ours.
- There is one replica, its acknowledgement is waited for (Kafka: ``acks=1``), and neither waits for the disk.
- Nothing is compressed. (The Parquet files are, as Spark does it by default.)
- All writes send the same rows, from one set of Parquet files, and each write goes to a new topic.
- Each pass measures everything once, in the opposite order of the pass before. One pass before them does not
  count, so that the JVMs are warm. A ratio is that of two measurements of the same pass.
- After each measurement all rows are counted; none may be missing or too many.
- Before each measurement free memory is filled with page cache (`benchmarks.memory`), for both.

What differs:

- Our broker gives up to 4,096 messages or 4 MiB a pull, as docs/spark.md recommends. Kafka and its connector
  have their defaults, which are made for bulk; ``--kafka-option`` changes the connector's.
- Kafka's topic is filled in batches of 1,000 messages, as ours is. Its sink's batches have the default size.
- Kafka's connector cannot leave out columns. To count, our source is asked for one, Kafka's for none. Into
  Parquet go all default columns: seven of Kafka's, eight of ours.
- To count, our offline reader reads consume queues; for bodies it reads the commit log.
- All reads come before all writes, which would make the commit log longer.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import pyspark
from pyspark.sql import functions as F

from batonmq import COMPILED
from batonmq.demo.cluster import LocalCluster
from batonmq.spark.jobs.bench import Figure, as_json, text
from batonmq.spark.session import spark_session
from benchmarks.bench_spark import BATCH, TOPIC, Measured, cpu_s, fill, running
from benchmarks.clusters import OURS, create_topic
from benchmarks.kafka import KAFKA, CannotFetch, KafkaBroker, broker_jars, connector_jars
from benchmarks.memory import PageCache, page_cache

MASTER = "local[2]"
LABELS = {
    "kafka_count": "Kafka's connector: counted",
    "our_count": "our source: counted",
    "offline_count": "our offline reader: counted",
    "our_bodies": "our source: bodies",
    "offline_bodies": "our offline reader: bodies",
    "kafka_parquet": "Kafka's connector: to Parquet",
    "our_parquet": "our source: to Parquet",
    "kafka_sink": "Kafka's sink",
    "our_sink": "our sink, at least once",
    "our_sink_once": "our sink, exactly once",
}
FIGURES = {
    "kafka_count": ("rows counted", "Kafka"),
    "our_count": ("rows counted", "BatonMQ"),
    "offline_count": ("rows counted", "BatonMQ, offline reader"),
    "our_bodies": ("bodies read", "BatonMQ"),
    "offline_bodies": ("bodies read", "BatonMQ, offline reader"),
    "kafka_parquet": ("rows read and written to Parquet", "Kafka"),
    "our_parquet": ("rows read and written to Parquet", "BatonMQ"),
    "kafka_sink": ("rows written to a topic", "Kafka"),
    "our_sink": ("rows written to a topic", "BatonMQ"),
    "our_sink_once": ("rows written to a topic", "BatonMQ, exactly once"),
}
"""What was measured and of which system, for ``batonmq spark bench-report``."""
Results = Mapping[str, Sequence[Measured]]
"""By kind of read or write: one of each pass."""


@dataclass(frozen=True)
class Ratio:
    """Two kinds that are compared."""

    of: str
    to: str
    wanted: float

    def values(self, results: Results) -> list[float]:
        """One of each pass."""
        pairs = zip(results[self.of], results[self.to], strict=True)
        return [one.rows_per_s / other.rows_per_s for one, other in pairs]


RATIOS = (
    Ratio("our_count", "kafka_count", 1.2),
    Ratio("our_parquet", "kafka_parquet", 1.2),
    Ratio("offline_count", "our_count", 3.0),
    Ratio("offline_bodies", "our_bodies", 3.0),
    Ratio("our_sink", "kafka_sink", 1.0),
    Ratio("our_sink_once", "our_sink", 0.7),
)


@dataclass(frozen=True)
class Target:
    """Where one measurement writes."""

    directory: Path
    topic: str


@dataclass(frozen=True)
class Job:
    """One kind of read or write."""

    run: Callable[[Target], int | None]
    """What is measured; returns the rows if it counts them."""
    written: Callable[[Target], int] | None = None
    """Counts what `run` wrote."""
    create: Callable[[str], None] | None = None
    """Creates the topic that `run` writes to."""


class Kafka:
    """What Spark does with Kafka's topics."""

    def __init__(self, session: Any, broker: KafkaBroker, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = {"kafka.bootstrap.servers": broker.address, **options}

    def create(self, topic: str, partitions: int) -> None:
        jvm = self._session._jvm
        settings = jvm.java.util.HashMap()
        settings.put("bootstrap.servers", self._options["kafka.bootstrap.servers"])
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
        try:
            new = jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, 1)
            admin.createTopics(jvm.java.util.Collections.singleton(new)).all().get()
        finally:
            admin.close()

    def read(self, topic: str) -> Any:
        return self._session.read.format("kafka").options(**self._options, subscribe=topic).load()

    def write(self, rows: Any, topic: str, **options: str) -> None:
        writer = rows.write.format("kafka").mode("append").option("kafka.acks", "1")
        writer.options(**self._options, **options, topic=topic).save()


class Ours:
    """What Spark does with our topics."""

    def __init__(self, session: Any, cluster: LocalCluster) -> None:
        self._session = session
        self._cluster = cluster

    def create(self, topic: str, partitions: int) -> None:
        asyncio.run(create_topic(self._cluster, topic, partitions))

    def read(self, topic: str, schema: str | None = None) -> Any:
        reader = self._session.read.format("rocketmq")
        if schema:
            reader = reader.schema(schema)
        return reader.options(namesrvAddr=self._cluster.namesrv_address, subscribe=topic).load()

    def count(self, topic: str, schema: str = "queueOffset bigint") -> int:
        rows: int = self.read(topic, schema).count()
        return rows

    def count_offline(self, topic: str, schema: str = "queueOffset bigint") -> int:
        reader = self._session.read.format("rocketmq-store").schema(schema)
        rows: int = reader.option("subscribe", topic).load(str(self._cluster.store_path(0))).count()
        return rows

    def write(self, rows: Any, topic: str, **options: str) -> None:
        writer = rows.write.format("rocketmq").mode("append").options(**options)
        writer.options(namesrvAddr=self._cluster.namesrv_address, topic=topic).save()


def fill_kafka(kafka: Kafka, session: Any, rows: Path, size: int, partitions: int) -> None:
    """Kafka's topic gets our topic's rows, each queue's in its order in the partition of its number."""
    kafka.create(TOPIC, partitions)
    source = session.read.parquet(str(rows)).select("value", F.col("queueId").alias("partition"))
    batches = {"kafka.batch.size": str(BATCH * (size + 16)), "kafka.linger.ms": "100"}
    kafka.write(source, TOPIC, **batches)


def make_jobs(
    session: Any, kafka: Kafka, ours: Ours, rows: Path, partitions: int
) -> tuple[dict[str, Job], dict[str, Job]]:
    """Reads and writes, by kind; `rows`: what the writes send."""

    def parquet(read: Callable[[str], Any]) -> Job:
        def run(target: Target) -> None:
            read(TOPIC).write.parquet(str(target.directory / "out"))

        def written(target: Target) -> int:
            count: int = session.read.parquet(str(target.directory / "out")).count()
            return count

        return Job(run, written)

    def values() -> Any:
        return session.read.parquet(str(rows)).select("value")

    def exactly_once(target: Target) -> None:
        ledger = {"transactionLocation": str(target.directory), "transactionId": target.topic}
        ours.write(values(), target.topic, deliveryGuarantee="exactlyOnce", **ledger)

    def create_ours(topic: str) -> None:
        ours.create(topic, partitions)

    def written_ours(target: Target) -> int:
        return ours.count(target.topic)

    reads = {
        "kafka_count": Job(lambda _: int(kafka.read(TOPIC).count())),
        "our_count": Job(lambda _: ours.count(TOPIC)),
        "offline_count": Job(lambda _: ours.count_offline(TOPIC)),
        "our_bodies": Job(lambda _: ours.count(TOPIC, "value binary")),
        "offline_bodies": Job(lambda _: ours.count_offline(TOPIC, "value binary")),
        "kafka_parquet": parquet(kafka.read),
        "our_parquet": parquet(ours.read),
    }
    writes = {
        "kafka_sink": Job(
            lambda target: kafka.write(values(), target.topic),
            lambda target: int(kafka.read(target.topic).count()),
            lambda topic: kafka.create(topic, partitions),
        ),
        "our_sink": Job(lambda target: ours.write(values(), target.topic), written_ours, create_ours),
        "our_sink_once": Job(exactly_once, written_ours, create_ours),
    }
    return reads, writes


def timed(job: Job, topic: str, messages: int, brokers: list[int], memory: PageCache) -> Measured:
    """Raises RuntimeError if it did not read or write each row once."""
    if job.create is not None:
        job.create(topic)
    memory.fill()
    with TemporaryDirectory(prefix="batonmq-bench-") as directory:
        target = Target(Path(directory), topic)
        before, began = cpu_s(brokers), time.perf_counter()
        rows = job.run(target)
        took, after = time.perf_counter() - began, cpu_s(brokers)
        if job.written is not None:
            rows = job.written(target)
    if rows != messages:
        raise RuntimeError(f"{rows:,} of {messages:,} rows")
    cost = {kind: (used - before.get(kind, 0.0)) / messages * 1e6 for kind, used in after.items()}
    return Measured(messages / took, cost)


def measure(
    jobs: Mapping[str, Job], messages: int, passes: int, brokers: list[int], memory: PageCache
) -> Results:
    """Each of `jobs` once in each pass, after a pass that does not count."""
    results: dict[str, list[Measured]] = {kind: [] for kind in jobs}
    for number in range(passes + 1):
        for kind in list(jobs)[:: -1 if number % 2 else 1]:
            measured = timed(jobs[kind], f"{kind}-{number}", messages, brokers, memory)
            title = f"pass {number}" if number else "warm-up"
            cost = ", ".join(f"{name} {us:.1f}" for name, us in measured.cpu_us.items())
            click.echo(
                f"{title}: {LABELS[kind]}: {measured.rows_per_s:,.0f} rows/s; CPU us a row: {cost}", err=True
            )
            if number:
                results[kind].append(measured)
    return results


def spread(values: Sequence[float], form: str) -> str:
    return text(statistics.median(values), min(values), max(values), form)


def tables(results: Results) -> str:
    """Rates and ratios, as Markdown."""
    lines = ["| | 1,000 rows/s | processor time a row |", "| --- | ---: | ---: |"]
    for kind, passes in results.items():
        rate = spread([each.rows_per_s / 1000 for each in passes], ",.0f")
        cost = statistics.median(sum(each.cpu_us.values()) for each in passes)
        lines.append(f"| {LABELS[kind]} | {rate} | {cost:.1f} µs |")
    lines += ["", "| ratio | wanted | measured |", "| --- | ---: | ---: |"]
    for ratio in RATIOS:
        title = f"{LABELS[ratio.of]} / {LABELS[ratio.to]}"
        lines.append(f"| {title} | {ratio.wanted:.1f} | {spread(ratio.values(results), '.2f')} |")
    return "\n".join(lines)


def figures_of(results: Results, run: str) -> list[Figure]:
    """`run`: what runs must have in common to be compared."""
    found = []
    for kind, passes in results.items():
        title, system = FIGURES[kind]
        for figure, unit, values in (
            (title, "rows/s", [each.rows_per_s for each in passes]),
            (f"{title}: processor time a row", "µs", [sum(each.cpu_us.values()) for each in passes]),
        ):
            found.append(Figure(benchmark=run, figure=figure, unit=unit, system=system, passes=values))
    return found


def compare(
    session: Any, messages: int, size: int, partitions: int, passes: int, options: Mapping[str, str]
) -> Results:
    """Start both brokers, fill both topics, measure."""
    with (
        TemporaryDirectory(prefix="batonmq-bench-") as place,
        running(OURS, bulk=True) as cluster,
        KafkaBroker(Path(place) / "kafka") as broker,
        page_cache(say) as memory,
    ):
        kafka, ours, rows = Kafka(session, broker, options), Ours(session, cluster), Path(place) / "rows"
        ours.create(TOPIC, partitions)
        asyncio.run(fill(cluster.namesrv_address, messages, size, partitions))
        ours.read(TOPIC, "value binary, queueId int").write.parquet(str(rows))
        fill_kafka(kafka, session, rows, size, partitions)
        click.echo(f"filled both with {messages:,} x {size} B in {partitions} partitions", err=True)
        brokers = [cluster.brokers[0].pid, broker.pid]
        reads, writes = make_jobs(session, kafka, ours, rows, partitions)
        return {
            **measure(reads, messages, passes, brokers, memory),
            **measure(writes, messages, passes, brokers, memory),
        }


def say(text: str) -> None:
    click.echo(text, err=True)


def pairs(given: Sequence[str]) -> dict[str, str]:
    return dict(item.split("=", 1) for item in given)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", type=click.IntRange(1), default=4_000_000, show_default=True)
@click.option("--size", type=click.IntRange(1), default=256, show_default=True, help="Bytes a body.")
@click.option("--partitions", type=click.IntRange(1), default=8, show_default=True, help="Of each topic.")
@click.option("--passes", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this file.")
@click.option(
    "--kafka-option", multiple=True, metavar="KEY=VALUE", help="Of Spark's Kafka connector; repeatable."
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark setting; may be given again.")
def main(
    messages: int,
    size: int,
    partitions: int,
    passes: int,
    json_file: Path | None,
    kafka_option: tuple[str, ...],
    conf: tuple[str, ...],
) -> None:
    """Our Spark source and sink beside Spark's Kafka connector and a Kafka broker."""
    if shutil.which("java") is None:
        raise click.ClickException("there is no java on PATH; Spark and Kafka need a JRE >= 17")
    try:
        jars = connector_jars(pyspark.__version__)
        broker_jars()
    except CannotFetch as error:
        raise click.ClickException(str(error)) from None
    settings = {"spark.jars": ",".join(str(jar) for jar in jars), **pairs(conf)}
    session = spark_session("bench_spark_kafka", master=MASTER, settings=settings)
    try:
        results = compare(session, messages, size, partitions, passes, pairs(kafka_option))
    finally:
        session.stop()
    what = (
        f"{messages:,} messages of {size} B in {partitions} partitions, {passes} passes; "
        f"Spark {pyspark.__version__} with {MASTER}, Kafka {KAFKA}, "
        f"BatonMQ {'with' if COMPILED else 'without'} compiled modules"
    )
    click.echo(f"{what}. Medians (least … most):\n\n{tables(results)}")
    if json_file is not None:
        same = f"bench_spark_kafka, {messages:,} messages of {size} B in {partitions} partitions"
        written = {"run": what, **as_json(figures_of(results, same))}
        json_file.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
