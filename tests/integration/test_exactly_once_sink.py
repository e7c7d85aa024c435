"""What tasks and driver of the exactly-once sink do at a real broker; without a Spark session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.transaction_rig import QUICK, Rig, Starter, start, until

pa = pytest.importorskip("pyarrow")

from batonmq import Admin  # noqa: E402
from batonmq.namesrv.config import NamesrvConfig  # noqa: E402
from batonmq.namesrv.service import NamesrvService  # noqa: E402
from batonmq.protocol.codes import RequestCode  # noqa: E402
from batonmq.protocol.message.record import decode_records  # noqa: E402
from batonmq.protocol.names import TRANS_HALF_TOPIC  # noqa: E402
from batonmq.spark.sink.exactly_once import cluster, write  # noqa: E402
from batonmq.spark.sink.exactly_once.core import Mark, Unit  # noqa: E402
from batonmq.spark.sink.exactly_once.ledger import encode_units  # noqa: E402
from batonmq.spark.sink.exactly_once.prepare import prepare_rows  # noqa: E402
from batonmq.spark.sink.options import SinkOptions, parse_sink_options  # noqa: E402

__all__ = ["start"]
PLAIN = "RocketMQ's requests only"


def rows(first: int, count: int, keys: int = 0) -> Any:
    numbers = range(first, first + count)
    columns: dict[str, Any] = {"value": pa.array([b"%d" % i for i in numbers], pa.binary())}
    if keys:
        columns["shardingKey"] = pa.array([f"s{i % keys}" for i in numbers])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


@dataclass
class Job:
    """A stream into topic T of one broker. `epoch` is its current batch."""

    rig: Rig
    options: SinkOptions

    @property
    def run(self) -> str:
        return write.ledger_of(self.options).run()

    async def task(self, epoch: int, *batches: Any) -> write.PreparedRows:
        mark = Mark(self.run, epoch, "0.0")
        done = await asyncio.to_thread(prepare_rows, iter(batches), self.options, mark)
        return write.PreparedRows(encode_units(done.units), done.written.rows)

    async def commit(self, epoch: int, *tasks: write.PreparedRows) -> None:
        await asyncio.to_thread(write.commit, tasks, self.options, self.run, epoch)

    async def abort(self, epoch: int, *tasks: write.PreparedRows | None) -> None:
        await asyncio.to_thread(write.abort, tasks, self.options, self.run, epoch)

    def values(self) -> list[list[int]]:
        """What consumers see, by queue."""
        store = self.rig.service.broker.store
        found = []
        for queue in range(4):
            values: list[int] = []
            while (result := store.get("T", queue, len(values), 32)).buffers:
                values += [int(r.body) for view in result.buffers for r in decode_records(view)]
            found.append(values)
        return found

    def all_values(self) -> list[int]:
        return sorted(value for queue in self.values() for value in queue)


def without_extension(rig: Rig) -> None:
    """A broker that knows RocketMQ's requests only."""
    for code in (RequestCode.PREPARE_BATCH, RequestCode.END_TRANSACTIONS):
        rig.service._dispatcher.handlers.pop(int(code))


@pytest.fixture(params=["batches", PLAIN])
async def job(request: pytest.FixtureRequest, start: Starter, tmp_path: Path) -> AsyncIterator[Job]:
    namesrv = NamesrvService(
        NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    address = f"127.0.0.1:{namesrv.port}"
    rig = await start(namesrv_addr=address, **{**QUICK, "transaction_time_out": 500})
    if request.param == PLAIN:
        without_extension(rig)
    async with Admin(address) as admin:
        await admin.create_topic("T", 4)
    options = parse_sink_options(
        {
            "namesrvAddr": address,
            "topic": "T",
            "deliveryGuarantee": "exactlyOnce",
            "transactionLocation": str(tmp_path / "ledger"),
            "maxBatchRows": "7",
            "sendTimeoutMs": "10000",
        },
        streaming=True,
    )
    yield Job(rig, options)
    await namesrv.stop()


async def test_rows_are_seen_once_their_batch_is_committed(job: Job) -> None:
    one = await job.task(0, rows(0, 50), rows(50, 50))
    two = await job.task(0, rows(100, 20, keys=3))
    assert job.all_values() == []
    await job.commit(0, one, two)
    assert job.all_values() == list(range(120))
    await job.commit(1, await job.task(1, rows(120, 5)))
    assert job.all_values() == list(range(125))


async def test_rows_of_a_key_keep_their_order(job: Job) -> None:
    await job.commit(0, await job.task(0, rows(0, 300, keys=5)))
    by_key: dict[int, list[int]] = {}
    for queue in job.values():
        for value in queue:
            by_key.setdefault(value % 5, []).append(value)
    assert by_key == {key: list(range(key, 300, 5)) for key in range(5)}


async def test_a_repeated_batch_changes_nothing(job: Job) -> None:
    await job.commit(0, await job.task(0, rows(0, 30)))
    await job.commit(0, await job.task(0, rows(0, 30)))
    await job.commit(0, await job.task(0, rows(30, 3)))  # other rows: the first decision holds
    assert job.all_values() == list(range(30))


async def test_a_failed_batch_leaves_nothing(job: Job) -> None:
    await job.abort(0, await job.task(0, rows(0, 30)), None)
    await job.commit(0, await job.task(0, rows(0, 30)))
    assert job.all_values() == list(range(30))


async def test_a_driver_that_died_after_its_decision_continues(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "SETTLE_S", 0.1)
    units = write.units_of([await job.task(0, rows(0, 40))])
    write.ledger_of(job.options).decide(0, units)
    await end_some(job, units)
    assert 0 < len(job.all_values()) < 40
    await job.abort(0, write.PreparedRows(encode_units(units), 40))  # what Spark does first
    await job.commit(0, await job.task(0, rows(0, 40)))
    assert job.all_values() == list(range(40))


async def end_some(job: Job, units: list[Unit]) -> None:
    """The driver's ends, until it died."""
    async with cluster.BrokerCluster(job.options, Mark(job.run, 0, "driver")) as brokers:
        for unit in units[: len(units) // 2]:
            await brokers.commit(unit)


async def test_what_an_attempt_left_over_is_rolled_back_while_the_next_batch_is_written(job: Job) -> None:
    await job.task(0, rows(0, 10))  # this attempt does not count
    await job.commit(0, await job.task(0, rows(0, 10)))
    window = job.rig.term.window
    stop = asyncio.Event()

    async def later() -> None:
        while not stop.is_set():
            await job.task(1, rows(10, 1))

    writing = asyncio.create_task(later())
    first = 10 if window.end > 10 else 4
    await until(lambda: job.rig.offset(TRANS_HALF_TOPIC) >= first, timeout_s=10)
    stop.set()
    await writing
    assert job.all_values() == list(range(10))


async def test_a_second_job_with_the_same_id_writes_nothing(job: Job) -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from batonmq.spark.sink.writer import batch_writer, checked

    raw = {
        "namesrvAddr": job.options.namesrv,
        "topic": "T",
        "deliveryGuarantee": "exactlyOnce",
        "transactionLocation": f"file://{job.options.ledger}",
        "transactionId": "load-7",
    }
    schema = StructType([StructField("value", BinaryType())])
    for _ in range(2):
        writer = batch_writer(checked(raw, schema, False))
        prepared = await asyncio.to_thread(writer.write, iter([rows(0, 20)]))
        await asyncio.to_thread(writer.commit, [prepared])
    assert job.all_values() == list(range(20))


async def test_a_name_server_that_is_gone_is_a_clear_error_and_the_batch_stays_decided(job: Job) -> None:
    task = await job.task(0, rows(0, 10))
    write.ledger_of(job.options).decide(0, write.units_of([task]))
    await job.rig.service.stop()
    hurried = replace(job.options, send_timeout_ms=300)
    with pytest.raises(Exception, match=r"batch 0 is decided, but .* start the query again"):
        await asyncio.to_thread(write.commit, [], hurried, job.run, 0)
    assert write.ledger_of(job.options).unfinished() == [0]
