"""The exactly-once sink against RocketMQ's broker: single half messages, look-ups, checks. Without Spark."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batonmq import Admin, QueueReader
from batonmq.protocol.message.record import decode_records
from batonmq.spark.sink.exactly_once import write
from batonmq.spark.sink.exactly_once.cluster import BrokerCluster
from batonmq.spark.sink.exactly_once.core import Mark, Unit
from batonmq.spark.sink.exactly_once.ledger import encode_units
from batonmq.spark.sink.exactly_once.prepare import prepare_rows
from batonmq.spark.sink.options import SinkOptions, parse_sink_options
from tests.interop.conftest import Peer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
TOPIC = "Once"


def rows(first: int, count: int, keys: int = 0) -> pa.RecordBatch:
    columns: dict[str, Any] = {"value": pa.array([b"%d" % i for i in range(first, first + count)])}
    if keys:
        columns["shardingKey"] = pa.array([f"s{i % keys}" for i in range(first, first + count)])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@dataclass
class Job:
    options: SinkOptions

    @property
    def run(self) -> str:
        return write.ledger_of(self.options).run()

    async def task(self, epoch: int, *batches: pa.RecordBatch) -> write.PreparedRows:
        mark = Mark(self.run, epoch, "0.0")
        done = await asyncio.to_thread(prepare_rows, iter(batches), self.options, mark)
        return write.PreparedRows(encode_units(done.units), done.written.rows)

    async def commit(self, epoch: int, *tasks: write.PreparedRows) -> None:
        await asyncio.to_thread(write.commit, tasks, self.options, self.run, epoch)

    async def end(self, epoch: int, units: list[Unit]) -> None:
        """What a driver does before it dies."""
        async with BrokerCluster(self.options, Mark(self.run, epoch, "driver")) as brokers:
            await asyncio.gather(*map(brokers.commit, units))

    async def values(self) -> dict[int, list[int]]:
        """What consumers see, by queue."""
        found: dict[int, list[int]] = {}
        async with QueueReader(self.options.namesrv) as reader:
            for queue in await reader.queues(TOPIC):
                at, end = 0, await reader.max_offset(queue)
                values = found.setdefault(queue.queue_id, [])
                while at < end:
                    pulled = await reader.pull(queue, at)
                    values += [int(record.body) for record in decode_records(pulled.records)]
                    at = pulled.next_offset
        return found

    async def all_values(self) -> list[int]:
        return sorted(value for values in (await self.values()).values() for value in values)


async def start(peer: Peer, tmp_path: Path, **broker: object) -> tuple[Job, Any, dict[str, str]]:
    namesrv = await peer.start("namesrv")
    settings = peer.config("broker", {"namesrvAddr": namesrv.address, **broker})
    running = await peer.start("broker", settings)
    async with Admin(namesrv.address) as admin:
        async with asyncio.timeout(60):
            while not await admin.masters():
                await asyncio.sleep(0.2)
        await admin.create_topic(TOPIC, 4)
    options = parse_sink_options(
        {
            "namesrvAddr": namesrv.address,
            "topic": TOPIC,
            "deliveryGuarantee": "exactlyOnce",
            "transactionLocation": str(tmp_path / "ledger"),
            "sendTimeoutMs": "60000",
        },
        streaming=True,
    )
    return Job(options), running, settings


async def test_rows_are_there_once_through_repeats_and_a_dead_driver(peer: Peer, tmp_path: Path) -> None:
    job, _, _ = await start(peer, tmp_path)
    task = await job.task(0, rows(0, 1_000, keys=7))
    assert await job.all_values() == []
    await job.commit(0, task)
    await job.commit(0, await job.task(0, rows(0, 1_000, keys=7)))
    by_key: dict[int, list[int]] = {}
    for values in (await job.values()).values():
        for value in values:
            by_key.setdefault(value % 7, []).append(value)
    assert by_key == {key: list(range(key, 1_000, 7)) for key in range(7)}
    # A driver that decides, ends some, and dies; Spark repeats the batch.
    units = write.units_of([await job.task(1, rows(1_000, 100))])
    write.ledger_of(job.options).decide(1, units)
    await job.end(1, units[:40])
    await job.commit(1, await job.task(1, rows(1_000, 100)))
    assert await job.all_values() == list(range(1_100))


async def test_a_broker_that_is_killed_within_a_commit_delivers_once(peer: Peer, tmp_path: Path) -> None:
    job, broker, settings = await start(peer, tmp_path)
    task = await job.task(0, rows(0, 6_000))
    committing = asyncio.create_task(job.commit(0, task))
    async with asyncio.timeout(60):
        while len(await job.all_values()) < 200:
            await asyncio.sleep(0.01)
    broker.kill()
    assert not committing.done()
    await peer.start("broker", settings)
    await committing
    assert await job.all_values() == list(range(6_000))


async def test_what_is_left_over_is_rolled_back_by_checks_and_nothing_else(
    peer: Peer, tmp_path: Path
) -> None:
    job, _, _ = await start(
        peer, tmp_path, transactionCheckInterval=1_000, transactionTimeOut=1_000, transactionCheckMax=3
    )
    await job.task(0, rows(0, 20))  # an attempt that does not count
    await job.commit(0, await job.task(0, rows(0, 20)))
    for epoch in range(1, 5):
        task = await job.task(epoch, rows(20 * epoch, 20))
        await asyncio.sleep(3)  # checks of this and of earlier batches
        await job.commit(epoch, task)
    await asyncio.sleep(4)
    assert await job.all_values() == list(range(100))
