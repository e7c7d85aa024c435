"""Real PySpark against a real cluster: one Spark session and one two-replica cluster for all these tests.

Every test creates its topics. A test that kills brokers starts a separate cluster (`cluster_of`).
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from batonmq import Admin, Message, MessageQueue
from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import Group
from batonmq.sync import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_names = itertools.count()
BROKER = "broker-a"


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the run, on two cores."""
    java = shutil.which("java")
    if java is None or subprocess.run([java, "-version"], capture_output=True, check=False).returncode:
        pytest.skip("Spark needs a JRE >= 17, and there is no java on PATH")
    from batonmq.spark.session import spark_session

    made = spark_session(
        "tests",
        master="local[2]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield made
    made.stop()


class Topics:
    """Topics of one cluster: made, filled and read."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv

    def make(self, name: str | None = None, queues: int = 2) -> str:
        name = name or f"topic-{next(_names)}"

        async def create() -> None:
            async with Admin(self.namesrv) as admin:
                await admin.create_topic(name, queues)

        asyncio.run(create())
        return name

    def delete(self, name: str) -> None:
        async def delete() -> None:
            async with Admin(self.namesrv) as admin:
                await admin.delete_topic(name)

        asyncio.run(delete())

    def fill(
        self,
        topic: str,
        queues: Mapping[int, Iterable[bytes | Message]],
        *,
        batch: int = 500,
        **producer: Any,
    ) -> None:
        """Append to each queue; a body becomes a message with the body as key."""
        with Producer("filler", self.namesrv, send_timeout_ms=20_000, **producer) as p:
            for queue_id, items in queues.items():
                messages = [as_message(topic, item) for item in items]
                for i in range(0, len(messages), batch):
                    p.send(one_or_many(messages[i : i + batch]), queue=MessageQueue(topic, BROKER, queue_id))

    def options(self, topic: str | None, **options: object) -> dict[str, str]:
        named = {} if topic is None else {"subscribe": topic}
        return {"namesrvAddr": self.namesrv, **named, **{k: str(v) for k, v in options.items()}}

    def read(
        self, session: SparkSession, topic: str | None, schema: str | None = None, **options: object
    ) -> DataFrame:
        reader: DataFrameReader = session.read.format("rocketmq")
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**self.options(topic, **options)).load()


def as_message(topic: str, item: bytes | Message) -> Message:
    return item if isinstance(item, Message) else Message(topic, item, keys=item.decode())


def one_or_many(messages: Sequence[Message]) -> Message | Sequence[Message]:
    return messages[0] if len(messages) == 1 else messages


def bodies(prefix: str, count: int, first: int = 0) -> list[bytes]:
    return [f"{prefix}{i}".encode() for i in range(first, first + count)]


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row["value"]) for row in frame.select("value").collect()]


ClusterOf = Callable[..., LocalCluster]


@pytest.fixture
def cluster_of(tmp_path: Path) -> Iterator[ClusterOf]:
    """Starts clusters with given broker settings; they are stopped after the test."""
    with ExitStack() as stack:

        def start(**settings: object) -> LocalCluster:
            made = LocalCluster(tmp_path / f"cluster-{next(_names)}", broker_settings=settings)
            return stack.enter_context(made)

        yield start


async def whole_group(cluster: LocalCluster) -> Any:
    """The broker set's state, once both replicas are in its SyncStateSet."""
    group = Group(cluster.controller_addresses, cluster.broker_name)
    try:
        return await group.wait_for(
            lambda s: s.master_address is not None and len(s.sync_state_set) == 2, 30, "whole group"
        )
    finally:
        await group.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two replicas, up for the whole run; not to be killed."""
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def topics(cluster: LocalCluster) -> Topics:
    return Topics(cluster.namesrv_address)
