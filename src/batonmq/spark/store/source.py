"""``format("rocketmq-store")``: batch reads of store directories in Spark (Python data source API).

Spark plans most queries in new processes, three one after the other, and each imports this module. What only
some of them need is imported where it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from batonmq.common.files import reason
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.layout import MAGIC_V1, MAGIC_V2, POSITIONS, SIZE_MAGIC
from batonmq.spark.clear_errors import clear_errors, with_clear_errors
from batonmq.spark.columns import DEFAULT_COLUMNS, as_ddl, columns_of
from batonmq.spark.store.columns import STORE_COLUMNS, TABLE_COLUMNS
from batonmq.spark.store.directory import (
    StoreLog,
    beginnings,
    broker_name,
    inspect,
    queue_files,
    read_at,
    store_roots,
    topics_of,
)
from batonmq.spark.store.options import (
    CONSUME_QUEUES,
    EPOCHS,
    FILES,
    INDEX,
    MESSAGES,
    TIMERS,
    StoreOptions,
    parse_store_options,
)
from batonmq.spark.store.pieces import Piece, Selection, cut, cut_points, in_time, selection_of
from batonmq.spark.worker import settle
from batonmq.store.errors import StoreError

log = logging.getLogger(__name__)
_PLACE_AT = POSITIONS["physical_offset"]


@contextmanager
def _file_errors() -> Iterator[None]:
    """What the file system refuses is a `StoreError`: permissions, a link that leads nowhere, a bad disk."""
    try:
        yield
    except OSError as error:
        raise StoreError(reason(error)) from error


class Task(InputPartition):
    """What one task reads: a piece of a log, or a file of a table."""

    def __init__(self, work: Any) -> None:
        super().__init__(work)
        self.work = work


class RocketMQStoreSource(DataSource):
    """Store directories of BatonMQ and Apache RocketMQ brokers: running, stopped, copied.

    Register it once per session::

        spark.dataSource.register(RocketMQStoreSource)
        df = spark.read.format("rocketmq-store").option("subscribe", "flights").load("/backup/broker-a")

    The columns are those of ``format("rocketmq")``, and ``store``, the directory. With the option ``table``
    it shows consume queues, index files, timers, epochs or the state of the files instead. See docs/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    @with_clear_errors
    def schema(self) -> str:
        options = parse_store_options(dict(self.options))
        if options.table != MESSAGES:
            return as_ddl({name: kind for name, (kind, _) in TABLE_COLUMNS[options.table].items()})
        names = (*DEFAULT_COLUMNS, "properties") if options.include_properties else DEFAULT_COLUMNS
        return as_ddl({name: STORE_COLUMNS[name][0] for name in names})

    @with_clear_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_store_options(dict(self.options))
        known = STORE_COLUMNS if options.table == MESSAGES else TABLE_COLUMNS[options.table]
        columns = columns_of(schema, known)
        if options.table != MESSAGES:
            return TableReader(options, columns)
        return StoreReader(options, columns)


class StoreReader(DataSourceReader):
    """Messages. What is read is fixed when the query is planned. It takes no filters of Spark's, as
    `batonmq.spark.source.RocketMQBatchReader`."""

    def __init__(self, options: StoreOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._selection = selection_of(options)

    @with_clear_errors
    @_file_errors()
    def partitions(self) -> Sequence[InputPartition]:
        options, pieces = self._options, []
        roots = store_roots(options.paths)
        _report_unknown(options.topics or (), roots)
        for root in roots:
            found = inspect(root, options.broker_name)
            _report(found, options.fail_on_data_loss)
            end = found.end if options.include_unconfirmed else found.confirm
            at = beginnings(root, cut_points(found, end, options.max_partition_bytes))
            pieces += _touching(cut(found, end, at), self._selection)
        return [Task(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Task):
            settle()
            with clear_errors(), _file_errors():
                yield from self._rows(partition.work)

    def _rows(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        from batonmq.spark.store.queues import batches_of, queues_suffice, units_of_piece
        from batonmq.spark.store.read import read_piece

        wanted, columns = self._selection, self._columns
        units = units_of_piece(piece) if queues_suffice(columns, wanted) else None
        if units is not None:
            yield from batches_of(piece, units, wanted, columns)
        else:
            yield from read_piece(piece, wanted, columns, fail_on_data_loss=self._options.fail_on_data_loss)


class TableReader(DataSourceReader):
    """Consume queues, index files, timers, epochs, the state of the files."""

    def __init__(self, options: StoreOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @with_clear_errors
    @_file_errors()
    def partitions(self) -> Sequence[InputPartition]:
        from batonmq.spark.store import tables

        options = self._options
        work: list[tuple[Any, str, str]] = []
        for root in store_roots(options.paths):
            broker = broker_name(root, options.broker_name)
            if options.table == CONSUME_QUEUES:
                work += [(file, broker, str(root)) for files in queue_files(root) for file in files]
            elif options.table == INDEX:
                work += [(path, broker, str(root)) for path in tables.index_files(root)]
            elif options.table == TIMERS:
                work += [(found, broker, str(root)) for found in tables.timer_files(root)]
            else:
                work.append((str(root), broker, str(root)))
        # One task a file would be too many for thousands of queues.
        tasks = min(len(work), 64)
        return [Task(work[number::tasks]) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Task):
            settle()
            with clear_errors(), _file_errors():
                for what, broker, root in partition.work:
                    try:
                        yield from self._read(what, broker, root)
                    except FileNotFoundError as error:  # a broker that runs deletes old files
                        log.warning("%s was deleted; left out: the rest of it", error.filename)

    def _read(self, what: Any, broker: str, root: str) -> Iterator[pa.RecordBatch]:
        from batonmq.spark.store import tables

        options, columns = self._options, self._columns
        if options.table == CONSUME_QUEUES:
            yield from tables.units_of(what, broker, root, columns)
        elif options.table == INDEX:
            yield from tables.entries_of(what, options.max_hash_slot_num, broker, root, columns)
        elif options.table == TIMERS:
            path, read_ms = what
            yield from tables.timers_of(path, read_ms, broker, root, columns)
        elif options.table == EPOCHS:
            yield tables.epochs_of(Path(root), broker, columns)
        elif options.table == FILES:
            yield tables.files_of(inspect(Path(root), broker), columns)


def _report_unknown(topics: Iterable[str], roots: Sequence[Path]) -> None:
    """One line for each topic that no store has, which may be a misspelt one."""
    known = [topics_of(root) for root in roots]
    if all(known):  # else consume queues are missing, and only the log says what there is
        for topic in sorted(set(topics).difference(*known)):
            stores = ", ".join(map(str, roots))
            log.warning("topic %r has no consume queue in %s: no message of it is read", topic, stores)


def _report(found: StoreLog, fail_on_data_loss: bool) -> None:
    """One line for a torn end; an error, or one line, for a missing file."""
    if found.torn is not None:
        log.warning("%s", found.torn)
    for path in found.missing:
        if fail_on_data_loss:
            raise StoreError(
                f"{path} is missing between other files; copy it too, or set failOnDataLoss=false to read "
                "what is there"
            )
        log.warning("%s is missing: its messages are left out", path)


def _touching(pieces: list[Piece], wanted: Selection) -> list[Piece]:
    """The pieces that may hold wanted records, by commit log offset and store time."""
    low, high = wanted.min_physical, wanted.max_physical
    pieces = [
        piece
        for piece in pieces
        if (low is None or piece.end > low) and (high is None or piece.begin <= high)
    ]
    if wanted.min_time_ms is None and wanted.max_time_ms is None:
        return pieces
    return in_time(pieces, [_first_time(piece) for piece in pieces], wanted)


def _first_time(piece: Piece) -> int | None:
    """Store time of the piece's first record; None if there is none, or its place depends on IPv6
    addresses."""
    try:
        head = read_at(piece.file.path, piece.begin - piece.file.base, POSITIONS["store_timestamp"] + 8)
    except FileNotFoundError:  # `read_piece` says whether that is an error
        return None
    if len(head) < POSITIONS["store_timestamp"] + 8:
        return None
    place = int.from_bytes(head[_PLACE_AT : _PLACE_AT + 8], "big")
    if SIZE_MAGIC.unpack_from(head)[1] not in (MAGIC_V1, MAGIC_V2) or place != piece.begin:
        return None
    flags = int.from_bytes(head[POSITIONS["sys_flag"] : POSITIONS["sys_flag"] + 4], "big", signed=True)
    if flags & MessageSysFlag.BORN_HOST_V6:
        return None
    return int.from_bytes(head[POSITIONS["store_timestamp"] :], "big", signed=True)
