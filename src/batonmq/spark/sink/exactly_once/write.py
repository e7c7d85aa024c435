"""The steps of an exactly-once write as Spark calls them: in tasks, and in a process of the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from batonmq.spark.sink.exactly_once.cluster import BrokerCluster
from batonmq.spark.sink.exactly_once.core import NO_EPOCH, Mark, Unit
from batonmq.spark.sink.exactly_once.ledger import Ledger, decode_units, encode_units
from batonmq.spark.sink.exactly_once.prepare import prepare_rows
from batonmq.spark.sink.exactly_once.settle import abort_batch, commit_batch
from batonmq.spark.sink.options import SinkOptions

BATCH_ID_KEY = "streaming.sql.batchId"
"""Local property of Spark's tasks: the number of the micro-batch (`MicroBatchExecution.BATCH_ID_KEY`)."""

QUERY_ID_KEY = "sql.streaming.queryId"
"""Local property of Spark's tasks: the id of the query, which is kept in its checkpoint
(`StreamExecution.QUERY_ID_KEY`)."""


@dataclass
class PreparedRows(WriterCommitMessage):
    """What a task reports to the driver."""

    units: bytes
    """`encode_units`."""
    rows: int
    query: str = ""
    """Id of the streaming query; empty in a batch job."""


def ledger_of(options: SinkOptions) -> Ledger:
    assert options.ledger is not None
    return Ledger(Path(options.ledger))


def prepare(
    iterator: Iterator[pa.RecordBatch], options: SinkOptions, run: str, epoch: int | None
) -> PreparedRows:
    """In a task: store its rows as half messages. `epoch`: None for a stream; its task reads it from
    Spark."""
    context = TaskContext.get()
    query = ""
    if epoch is None:
        text = None if context is None else context.getLocalProperty(BATCH_ID_KEY)
        epoch = int(text) if text is not None and text.isdigit() else NO_EPOCH
        query = (None if context is None else context.getLocalProperty(QUERY_ID_KEY)) or ""
    attempt = "" if context is None else f"{context.partitionId()}.{context.taskAttemptId()}"
    prepared = prepare_rows(iterator, options, Mark(run, epoch, attempt))
    return PreparedRows(encode_units(prepared.units), prepared.written.rows, query)


def commit(
    messages: Sequence[WriterCommitMessage | None], options: SinkOptions, run: str, epoch: int
) -> None:
    """In the driver: make a batch visible. Raises `NotEnded`, `LedgerError`, `NetError`."""
    ledger = ledger_of(options)
    for query in {one.query for one in messages if isinstance(one, PreparedRows) and one.query}:
        ledger.claim(query)
    ledger.check_last(epoch)
    ledger.use_group(options.group)

    async def work() -> None:
        async with BrokerCluster(options, Mark(run, epoch, "driver")) as cluster:
            await commit_batch(
                ledger,
                cluster,
                epoch,
                units_of(messages),
                timeout_s=options.send_timeout_ms / 1000,
            )

    asyncio.run(work())


def abort(messages: Sequence[WriterCommitMessage | None], options: SinkOptions, run: str, epoch: int) -> None:
    """In the driver: roll back what the tasks of a failed batch have prepared, unless the batch is
    decided."""
    units = units_of(messages)
    if not units:
        return

    async def work() -> None:
        async with BrokerCluster(options, Mark(run, epoch, "driver")) as cluster:
            await abort_batch(ledger_of(options), cluster, epoch, units)

    asyncio.run(work())


def units_of(messages: Sequence[WriterCommitMessage | None]) -> list[Unit]:
    """The half messages that tasks report; None for a failed task."""
    return [unit for one in messages if isinstance(one, PreparedRows) for unit in decode_units(one.units)]
