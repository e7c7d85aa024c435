"""Reads one piece of a commit log: raw bytes in, Arrow batches of the wanted records out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import MIN_RECORD_SIZE, SIZE_MAGIC
from batonmq.spark.decode import Decoder, Records, frame_starts, with_tags
from batonmq.spark.store.directory import read_at
from batonmq.spark.store.pieces import Piece, Selection, within
from batonmq.store.errors import StoreError
from batonmq.store.scan import NO_UNIT, SECTOR, Damage, blank_size, check_record

log = logging.getLogger(__name__)

CHUNK = 4 << 20
"""Bytes read and decoded at a time."""
MOST_RECORD = 1 << 30
"""A record of more bytes is damage: no store accepts it."""


def read_piece(
    piece: Piece, wanted: Selection, columns: Sequence[str], *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The wanted records of a piece. Raises `StoreError` that names file and offset for bytes that are no
    record."""
    decoder = Decoder(columns, topic=None, broker=piece.broker, constants={"store": piece.root})
    position, size = piece.begin, CHUNK
    while position < piece.end:
        # Records that begin before the end belong to this piece, and may continue behind it.
        try:
            data = read_at(piece.file.path, position - piece.file.base, _to_sector_end(piece, position, size))
        except FileNotFoundError:  # a broker that runs deletes old files
            _left_out(f"{piece.file.path} was deleted", position, piece, fail_on_data_loss)
            return
        starts, whole = frame_starts(data)
        if whole == 0:
            size = _missing(piece, position, data, fail_on_data_loss)
            if size == 0:
                return
            continue
        size = CHUNK
        starts = starts[: int(np.searchsorted(starts, piece.end - position))]
        records, damage = _records(piece, position, data, starts)
        position += whole
        records = select(records, wanted)
        yield from decoder.batches(records)
        if damage is not None:
            at = damage.physical_offset
            _left_out(f"{piece.file.path}: no record at {at}: {damage.reason}", at, piece, fail_on_data_loss)
            return


def _to_sector_end(piece: Piece, position: int, size: int) -> int:
    """How many bytes from `position` on are at least `size` and whole sectors, or the rest of the file."""
    end = position - piece.file.base + size
    return min(size - end % -SECTOR, piece.file.end - position)


def _damage(piece: Piece, position: int, data: bytes, starts: Sequence[int]) -> Damage | None:
    """The first of the records at `starts` that is wrong. `data` was read from `position` on."""
    # Whether zeros are a lost write depends on where sectors begin in the file.
    before = (position - piece.file.base) % SECTOR
    aligned = bytes(before) + data
    for at in starts:
        found = check_record(aligned, before + at, len(aligned), position + at, crc=False)
        if isinstance(found, Damage):
            return found
    return None


def _records(piece: Piece, position: int, data: bytes, starts: Any) -> tuple[Records, Damage | None]:
    """The records before the first that is wrong, and what is wrong with it."""
    try:
        records = Records(data, starts)
    except MessageFormatError:
        records = None
    if records is not None and (records.heads["physical_offset"] == position + starts).all():
        return records, None
    damage = _damage(piece, position, data, starts.tolist())
    if damage is None:
        raise AssertionError("one of the records was wrong")
    whole = int(np.searchsorted(starts, damage.physical_offset - position))
    return Records(data, starts[:whole]), damage


def _missing(piece: Piece, position: int, data: bytes, fail_on_data_loss: bool) -> int:
    """No whole record begins at `position`. Returns how many bytes to read instead, 0 at an ordinary end.
    Raises `StoreError` where there should be one."""
    if blank_size(data, 0, len(data)):
        return 0
    left = piece.file.end - position
    if len(data) >= SIZE_MAGIC.size and len(data) < left:
        size = SIZE_MAGIC.unpack_from(data)[0]
        if len(data) < size <= min(left, MOST_RECORD):
            return int(size)
    damage = _damage(piece, position, data, [0])
    reason = "its parts do not add up to its size" if damage is None else damage.reason
    if left < MIN_RECORD_SIZE and not any(data):
        return 0
    _left_out(f"{piece.file.path}: no record at {position}: {reason}", position, piece, fail_on_data_loss)
    return 0


def _left_out(problem: str, position: int, piece: Piece, fail_on_data_loss: bool) -> None:
    """The piece cannot be read from `position` on. Raises `StoreError`, if that is an error."""
    if fail_on_data_loss:
        raise StoreError(
            f"{problem}, but the log continues to {piece.end}; restore the file from another replica, or set "
            "failOnDataLoss=false to read what is there"
        )
    log.warning("%s; left out: everything from %d to %d", problem, position, piece.end)


def select(records: Records, wanted: Selection) -> Records:
    """Those that are wanted. Cheap conditions come first."""
    heads = records.heads
    keep = within(heads["store_timestamp"], wanted.min_time_ms, wanted.max_time_ms)
    keep &= within(heads["physical_offset"], wanted.min_physical, wanted.max_physical)
    keep &= within(heads["queue_offset"], wanted.min_queue_offset, wanted.max_queue_offset)
    if wanted.queue_ids is not None:
        keep &= np.isin(heads["queue_id"], np.array(sorted(wanted.queue_ids), np.int64))
    if not wanted.system_topics:
        kind = heads["sys_flag"] & MessageSysFlag.TRANSACTION_MASK
        keep &= ~np.isin(kind, np.array(NO_UNIT, np.int64))
    records = records.take(keep)
    if len(records):
        records = records.take(_wanted_topics(records, wanted))
    return records if wanted.tags is None else with_tags(records, wanted.tags)


def _wanted_topics(records: Records, wanted: Selection) -> Any:
    """Which records are of a topic that is wanted."""
    if wanted.topics is None and wanted.pattern is None and wanted.system_topics:
        return np.ones(len(records), bool)
    topics = records.topics().dictionary_encode()
    answers = [wanted.wants_topic(name.decode("utf-8", "replace")) for name in topics.dictionary.to_pylist()]
    return np.array(answers, bool)[np.asarray(topics.indices)]
