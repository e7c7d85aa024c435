"""The sink's classes for Spark (Python data source API): what tasks do, and what the driver is left to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from batonmq.spark.clear_errors import clear_errors
from batonmq.spark.options import OptionError
from batonmq.spark.sink.encode import check_columns
from batonmq.spark.sink.options import SinkOptions, parse_sink_options
from batonmq.spark.sink.send import Written, write_rows
from batonmq.spark.tls import tls_context


@dataclass
class Committed(WriterCommitMessage):
    """What a task reports to the driver."""

    written: Written


def checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    """The options of a write. Raises `OptionError` for what cannot be written so."""
    if overwrite:
        raise OptionError(
            "messages cannot be overwritten: use mode('append'), or outputMode('append') for a stream"
        )
    parsed = parse_sink_options(options)
    tls_context(parsed.tls)  # a missing file shows here
    check_columns([(f.name, f.dataType.simpleString()) for f in schema.fields], topic=parsed.topic)
    return parsed


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
