"""The sink's classes for Spark (Python data source API): what tasks do, and what the driver is left to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from batonmq.spark.clear_errors import clear_errors
from batonmq.spark.options import OptionError
from batonmq.spark.sink.encode import check_columns
from batonmq.spark.sink.exactly_once import write as exactly_once
from batonmq.spark.sink.exactly_once.core import BATCH_EPOCH
from batonmq.spark.sink.exactly_once.ledger import BATCH_JOB
from batonmq.spark.sink.options import SinkOptions, parse_sink_options
from batonmq.spark.sink.send import Written, write_rows
from batonmq.spark.tls import tls_context

log = logging.getLogger(__name__)


@dataclass
class Committed(WriterCommitMessage):
    """What a task reports to the driver."""

    written: Written


def checked(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool = False
) -> SinkOptions:
    """The options of a write. Raises `OptionError` for what cannot be written so."""
    if overwrite:
        raise OptionError(
            "messages cannot be overwritten: use mode('append'), or outputMode('append') for a stream"
        )
    parsed = parse_sink_options(options, streaming=streaming)
    tls_context(parsed.tls)  # a missing file shows here
    check_columns(
        [(f.name, f.dataType.simpleString()) for f in schema.fields],
        topic=parsed.topic,
        exactly_once=parsed.exactly_once,
    )
    return parsed


def batch_writer(options: SinkOptions) -> DataSourceArrowWriter:
    """The writer of a batch job."""
    return ExactlyOnceWriter(options) if options.exactly_once else RocketMQWriter(options)


def stream_writer(options: SinkOptions) -> DataSourceStreamArrowWriter:
    """The writer of a stream. Spark makes one for each micro-batch and one for its commit."""
    return ExactlyOnceStreamWriter(options) if options.exactly_once else RocketMQStreamWriter(options)


class RocketMQWriter(DataSourceArrowWriter):
    """A batch write, at least once: when it has ended, every row is acknowledged; a task that is repeated
    sends its rows again."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with clear_errors():
            return Committed(write_rows(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: the messages are visible already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Messages that were sent stay."""


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """A stream's micro-batches, at least once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with clear_errors():
            return Committed(write_rows(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: the messages are visible already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Messages that were sent stay; the micro-batch is repeated."""


class ExactlyOnceWriter(DataSourceArrowWriter):
    """A batch job with an id. Once it is decided, another run of it writes nothing."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        ledger = exactly_once.ledger_of(options)
        ledger.claim(BATCH_JOB)
        self._run = ledger.run()
        complete = ledger.is_done(BATCH_EPOCH)
        self._decided = complete or ledger.decided(BATCH_EPOCH) is not None
        if complete:
            log.warning("the job of the ledger %s is complete: this run of it writes nothing", options.ledger)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with clear_errors():
            rows = iter(()) if self._decided else iterator
            return exactly_once.prepare(rows, self._options, self._run, BATCH_EPOCH)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with clear_errors():
            exactly_once.commit(messages, self._options, self._run, BATCH_EPOCH)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with clear_errors():
            exactly_once.abort(messages, self._options, self._run, BATCH_EPOCH)


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):
    """A stream's micro-batches, each visible once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = exactly_once.ledger_of(options).run()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with clear_errors():
            return exactly_once.prepare(iterator, self._options, self._run, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with clear_errors():
            exactly_once.commit(messages, self._options, self._run, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with clear_errors():
            exactly_once.abort(messages, self._options, self._run, batchId)
