"""``format("rocketmq")``: reads and writes of RocketMQ topics in Spark (Python data source API).

Spark plans most queries in new processes, three one after the other, and each imports this module. What only
some of them need is imported where it is used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from batonmq.net.errors import NetError
from batonmq.protocol.errors import MQError
from batonmq.spark.clear_errors import clear_errors, with_clear_errors
from batonmq.spark.columns import columns_of, schema_ddl
from batonmq.spark.fetch import Fetcher, fetcher
from batonmq.spark.options import (
    ERROR_STRATEGY,
    ReadOptions,
    Times,
    parse_read_options,
)
from batonmq.spark.plan import (
    Bounds,
    Offsets,
    QueueBounds,
    QueueRange,
    backlog,
    check_end,
    check_start,
    check_times,
    covers,
    expired_before,
    keep_hidden,
    limit,
    not_before,
    not_that_late,
    resolve,
    rows_for,
    tasks,
    with_new_queues,
)
from batonmq.spark.refused_stream import RefusedStreamReader
from batonmq.spark.worker import settle

log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """What one task reads: ranges of queues, one after the other."""

    def __init__(self, wanted: tuple[QueueRange, ...]) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class RocketMQSource(DataSource):
    """Topics of a RocketMQ or BatonMQ cluster.

    Register it once per session, then read as with Kafka's connector::

        spark.dataSource.register(RocketMQSource)
        df = (spark.read.format("rocketmq")
              .option("namesrvAddr", "127.0.0.1:9876")
              .option("subscribe", "flights")
              .load())

    Columns: ``value, topic, broker, queueId, queueOffset, timestamp, keys, tags``, and ``properties`` with
    ``includeProperties=true``. Name others with ``.schema("value binary, queueOffset bigint")``: only the
    named columns are decoded; see docs/spark.md for all columns and options.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        include = str(self.options.get("includeProperties", "false")).lower() == "true"
        return schema_ddl(include)

    @with_clear_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        return RocketMQBatchReader(self._checked(streaming=False), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return RocketMQStreamReader(self._checked(streaming=True), columns_of(schema))
        except Exception as error:
            return RefusedStreamReader(error)

    @with_clear_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A wrong name server is an error here, as for readers."""
        from batonmq.spark.sink.writer import batch_writer, checked

        options = checked(dict(self.options), schema, overwrite)
        with fetcher(
            ReadOptions(namesrv=options.namesrv, topics=(), tls=options.tls, credentials=options.credentials)
        ) as fetch:
            fetch.connect()
        return batch_writer(options)

    @with_clear_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from batonmq.spark.sink.writer import checked, stream_writer

        return stream_writer(checked(dict(self.options), schema, overwrite, streaming=True))

    def _checked(self, *, streaming: bool) -> ReadOptions:
        """The options. A wrong name server is an error here, before any task starts. For one that fails later
        readers wait (``pollTimeoutMs``)."""
        options = parse_read_options(dict(self.options), streaming=streaming)
        with fetcher(options) as fetch:
            fetch.connect()
            fetch.check_filter()
        return options


def _read(
    options: ReadOptions, columns: tuple[str, ...], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):
        return  # without ranges Spark plans one empty task
    settle()
    with clear_errors(), fetcher(options) as fetch:
        for wanted in partition.wanted:
            yield from fetch.read(wanted, columns)


class RocketMQBatchReader(DataSourceReader):
    """A bounded read: its offsets are fixed when the query is planned.

    It takes no filters of Spark's (`pushFilters`): Spark 4.2 and 4.3 keep one plan for all uses of a frame in
    a session, so one use would get the rows of another one's filter. Options say what to read instead.
    """

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @with_clear_errors
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with fetcher(options) as fetch:
            bounds = fetch.bounds()
            start = _start(fetch, options, bounds)
            ends_at = options.ending_timestamp_ms
            if options.ending_timestamps is not None:
                check_times(options.ending_timestamps, bounds, name="endingOffsetsByTimestamp")
                end = fetch.offsets_at(bounds, options.ending_timestamps)
            elif ends_at is not None:
                end = fetch.offsets_at(bounds, ends_at)
            else:
                end = resolve(options.ending_offsets, bounds, name="endingOffsets")
            for named in (start, end):
                if not covers(bounds, named):
                    bounds = fetch.bounds(named)
        start = check_start(start, bounds, fail_on_data_loss=options.fail_on_data_loss)
        end = check_end(end, bounds, fail_on_data_loss=options.fail_on_data_loss)
        work = tasks(
            start,
            end,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        return [RangePartition(wanted) for wanted in work]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Its offsets are ``{topic: {"broker:queue": offset}}``; Spark's checkpoint stores them."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._target: Offsets | None = None
        self._triggered_at: float | None = None
        """When the last micro-batch with messages began, by the monotonic clock, in s."""
        self._shown: Offsets | None = None
        """What `commit` need not show again: where the stream begins, or the last offsets that it showed."""

    @with_clear_errors
    def initialOffset(self) -> Offsets:
        options = self._options
        with fetcher(options) as fetch:
            bounds = fetch.bounds()
            start = _start(fetch, options, bounds)
        self._shown = check_start(start, bounds, fail_on_data_loss=options.fail_on_data_loss)
        return self._shown

    @with_clear_errors
    def latestOffset(self, start: Offsets, limit_: ReadLimit) -> Offsets:
        """Also commits `start`: the checkpoint has the micro-batch that ends there. Spark calls `commit` only
        when there is a next micro-batch, so a stream without new messages would never show its last one."""
        self.commit(start)
        options = self._options
        with fetcher(options) as fetch:
            bounds = fetch.bounds(existed=bool(start))
        available = self._target if self._target is not None else _ends_of(bounds)
        available = self._not_back(start, keep_hidden(start, available))
        # A queue that appeared after the stream began is read from its first message.
        start_of = with_new_queues(start, bounds)
        if self._held_back(backlog(start_of, available)):
            return start
        most = limit_.max_rows if isinstance(limit_, ReadMaxRows) else None
        if options.max_bytes_per_trigger is not None and backlog(start_of, available):
            with fetcher(options) as fetch:
                rows = rows_for(options.max_bytes_per_trigger, fetch.mean_sizes(start_of, available))
            most = rows if most is None else min(most, rows)
        return available if most is None else limit(start_of, available, most)

    def _held_back(self, waiting: int) -> bool:
        """Whether a micro-batch of so many messages waits for more (``minOffsetsPerTrigger``). The first one
        after a start does not, nor do those of ``Trigger.AvailableNow``."""
        least, now = self._options.min_offsets_per_trigger, time.monotonic()
        if least is None or self._target is not None:
            return False
        delay_s = self._options.max_trigger_delay_ms / 1000
        if waiting < least and self._triggered_at is not None and now - self._triggered_at < delay_s:
            return True
        if waiting:
            self._triggered_at = now
        return False

    def _not_back(self, start: Offsets, available: Offsets) -> Offsets:
        """Right after a switch the visible end may be behind what was already read: this waits for it. If the
        end stays behind, the topic was recreated. That is data loss, or `partitions` reads the new topic from
        its first message."""
        if all(available[t][q] >= offset for t, queues in start.items() for q, offset in queues.items()):
            return available
        with fetcher(self._options) as fetch:
            bounds = fetch.bounds(start)
        if self._options.fail_on_data_loss:
            check_start(start, bounds, fail_on_data_loss=True)
        return not_before(start, available, bounds)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @with_clear_errors
    def reportLatestOffset(self) -> Offsets:
        return self._ends(existed=True)

    @with_clear_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    @with_clear_errors
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        options = self._options
        # A queue without new messages is skipped: it may be hidden at the moment.
        end = {
            topic: {q: offset for q, offset in queues.items() if offset != start.get(topic, {}).get(q)}
            for topic, queues in end.items()
        }
        known = {
            topic: {q: start[topic][q] for q in queues if q in start.get(topic, {})}
            for topic, queues in end.items()
        }
        with fetcher(options) as fetch:
            bounds = fetch.bounds(known)
        # A queue that appeared after the stream began is read from its first message.
        start = {
            topic: {q: known[topic].get(q, bounds.get(topic, {}).get(q, _NOTHING).begin) for q in queues}
            for topic, queues in end.items()
        }
        for topic, queue, begin in expired_before(known, start):
            log.warning(
                "queue %s of topic %r is new to this stream and begins at %d: earlier messages have expired",
                *(queue, topic, begin),
            )
        start = check_start(start, bounds, fail_on_data_loss=options.fail_on_data_loss, restart_at_begin=True)
        work = tasks(
            start,
            end,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        return [RangePartition(wanted) for wanted in work]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Show a group's progress at the brokers (``groupId``). Spark calls this once its checkpoint has
        `end`, which stays the only offset that counts: a failure is one line in the log."""
        group = self._options.group
        if group is None or end == self._shown:
            return
        try:
            with fetcher(self._options) as fetch:
                fetch.commit(group, end)
        except (MQError, NetError) as error:
            log.warning("offsets of group %s are not committed: %s", group, error)
        else:
            self._shown = end

    def _ends(self, *, existed: bool = False) -> Offsets:
        with fetcher(self._options) as fetch:
            return _ends_of(fetch.bounds(existed=existed))


def _ends_of(bounds: Bounds) -> Offsets:
    return {topic: {q: b.end for q, b in queues.items()} for topic, queues in bounds.items()}


def _start(fetch: Fetcher, options: ReadOptions, bounds: Bounds) -> Offsets:
    """Where reading begins, by time or by offset."""
    times: int | Times | None = options.starting_timestamp_ms
    if options.starting_timestamps is not None:
        check_times(options.starting_timestamps, bounds, name="startingOffsetsByTimestamp")
        times = options.starting_timestamps
    if times is None:
        return resolve(options.starting_offsets, bounds, name="startingOffsets")
    start = fetch.offsets_at(bounds, times)
    if options.nothing_that_late == ERROR_STRATEGY:
        not_that_late(start, bounds)
    return start


_NOTHING = QueueBounds(0, 0)
