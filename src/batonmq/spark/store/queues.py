"""Rows from consume queues instead of the commit log.

A consume queue has 20 bytes a message and the log has all of it. If a query asks only for what consume queues
know, a task reads their units. The log decides which records there are: units count only if they cover each
byte of the task's piece once. Else a queue lags, is damaged, was deleted, or the piece has records without a
unit, and the task reads the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from batonmq.protocol.message.layout import SIZE_MAGIC
from batonmq.protocol.names import LIGHT_PREFIX
from batonmq.spark.store.columns import STORE_COLUMNS, batch_of
from batonmq.spark.store.directory import QueueFile, Units, queue_files, read_at
from batonmq.spark.store.pieces import Piece, Selection, within
from batonmq.store.config import UNIT_SIZE
from batonmq.store.dtypes import UNIT_ROW
from batonmq.store.scan import blank_size

QUEUE_COLUMNS: Final = frozenset({"topic", "broker", "store", "queueId", "queueOffset", "physicalOffset"})
"""What consume queues know of a message."""
_PIECE_BYTES_A_QUEUE: Final = 1 << 20
"""A piece with less log for each queue is read from the log: finding the piece's units in a queue takes as
long as reading half a megabyte."""
_MOST_UNITS: Final = 2_000_000
"""A piece with more units is read from the log, in steps: at about 60 bytes each they would fill a worker's
memory. With the default `maxPartitionBytes` a piece has at most 1.5 million."""


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """Units of one consume queue that point into a piece."""

    topic: str
    queue_id: int
    first: int
    """Queue offset of the first."""
    units: Any
    """Array of `UNIT_ROW`."""


@dataclass(frozen=True, slots=True)
class _Span:
    """Units of one file, by their numbers in it."""

    file: QueueFile
    begin: int
    end: int

    def read(self) -> QueueUnits:
        count = self.end - self.begin
        data = read_at(self.file.path, self.begin * UNIT_SIZE, count * UNIT_SIZE)
        first = self.file.first + self.begin
        units = np.frombuffer(data[: len(data) // UNIT_SIZE * UNIT_SIZE], UNIT_ROW)
        return QueueUnits(self.file.topic, self.file.queue_id, first, units)


def queues_suffice(columns: Collection[str], wanted: Selection) -> bool:
    """Whether consume queues have all that a query asks for."""
    needs_record = wanted.tags is not None or (wanted.min_time_ms, wanted.max_time_ms) != (None, None)
    return QUEUE_COLUMNS.issuperset(columns) and not needs_record


def units_of_piece(piece: Piece) -> list[QueueUnits] | None:
    """The units of all records of a piece; None unless they cover it. Raises `OSError`."""
    queues = [files for files in queue_files(Path(piece.root)) if not files[0].topic.startswith(LIGHT_PREFIX)]
    if len(queues) * _PIECE_BYTES_A_QUEUE > piece.end - piece.begin:
        return None
    try:
        spans = [span for files in queues for span in _spans(files, piece.begin, piece.end)]
        if sum(span.end - span.begin for span in spans) > _MOST_UNITS:
            return None
        found = [span.read() for span in spans]
        return found if covers(piece, found) else None
    except FileNotFoundError:  # a broker that runs deletes old files
        return None


def _spans(files: list[QueueFile], begin: int, end: int) -> Iterator[_Span]:
    """Which units of one consume queue point to ``[begin, end)``, file by file."""
    firsts = [_first_physical(file) for file in files]
    for number, file in enumerate(files):
        follows = firsts[number + 1] if number + 1 < len(files) else end
        if firsts[number] >= end:
            return
        if follows < begin:
            continue
        units = Units(file)
        try:
            low, high = bisect_left(units, begin), bisect_left(units, end)
        finally:
            units.close()
        if low < high:
            yield _Span(file, low, high)


def _first_physical(file: QueueFile) -> int:
    units = Units(file)
    try:
        return units[0] if len(units) else 1 << 63
    finally:
        units.close()


def covers(piece: Piece, found: Sequence[QueueUnits]) -> bool:
    """Whether the units cover each byte of the piece once, but for the filler at a file's end."""
    if not found:
        return False
    begins = np.sort(np.concatenate([each.units["offset"].astype(np.int64) for each in found]))
    sizes = [each.units["size"].astype(np.int64) for each in found]
    ends = np.sort(
        np.concatenate([each.units["offset"] + size for each, size in zip(found, sizes, strict=True)])
    )
    if min(int(size.min()) for size in sizes) <= 0 or begins[0] != piece.begin:
        return False
    # Each record ends behind its beginning, and no two begin together: so sorted beginnings that equal the
    # sorted ends before them leave no gap, and overlap nowhere.
    if (begins[1:] != ends[:-1]).any():
        return False
    end = int(ends[-1])
    if end >= piece.end:
        return end == piece.end
    rest = read_at(piece.file.path, end - piece.file.base, SIZE_MAGIC.size)
    return piece.end == piece.file.end and blank_size(rest, 0, len(rest)) > 0


def batches_of(
    piece: Piece, found: Sequence[QueueUnits], wanted: Selection, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The wanted ones of the units that `units_of_piece` found, as rows with these columns."""
    for queue in found:
        if wanted.queue_ids is not None and queue.queue_id not in wanted.queue_ids:
            continue
        if not wanted.wants_topic(queue.topic):
            continue
        physical = queue.units["offset"].astype(np.int64)
        offsets = np.arange(queue.first, queue.first + len(physical))
        keep = within(physical, wanted.min_physical, wanted.max_physical)
        keep &= within(offsets, wanted.min_queue_offset, wanted.max_queue_offset)
        if not keep.all():
            physical, offsets = physical[keep], offsets[keep]
        if len(physical):
            values = {
                "topic": queue.topic,
                "broker": piece.broker,
                "store": piece.root,
                "queueId": np.full(len(physical), queue.queue_id, np.int32),
                "queueOffset": offsets,
                "physicalOffset": physical,
            }
            yield batch_of(STORE_COLUMNS, columns, len(physical), values)
