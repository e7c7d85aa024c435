"""Consume queues, index files, timers, epochs and the state of the files of store directories as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from batonmq.broker.timer import layout
from batonmq.ha.autoswitch.epoch_file import EpochFile
from batonmq.spark.store.columns import TABLE_COLUMNS, batch_of
from batonmq.spark.store.directory import EPOCH_FILE, QueueFile, StoreLog, broker_name, read_at
from batonmq.spark.store.options import CONSUME_QUEUES, EPOCHS, FILES, INDEX, TIMERS
from batonmq.store.config import UNIT_SIZE
from batonmq.store.consumequeue import FILLER_SIZE
from batonmq.store.dtypes import UNIT_ROW
from batonmq.store.errors import StoreError

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_INDEX_HEAD = np.dtype(
    [
        ("begin_ms", ">i8"),
        ("end_ms", ">i8"),
        ("begin", ">i8"),
        ("end", ">i8"),
        ("slots", ">i4"),
        ("count", ">i4"),
    ]
)
_ENTRIES = np.dtype([("hash", ">i4"), ("physical", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_ROWS = 1 << 18
"""Rows of one batch."""


def units_of(file: QueueFile, broker: str, root: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The units of one consume queue file, fillers left out."""
    for begin in range(0, file.units, _ROWS):
        data = read_at(file.path, begin * UNIT_SIZE, min(_ROWS, file.units - begin) * UNIT_SIZE)
        units = np.frombuffer(data[: len(data) // UNIT_SIZE * UNIT_SIZE], UNIT_ROW)
        ended = units["size"] <= 0
        count = int(np.argmax(ended)) if ended.any() else len(units)
        numbers = np.arange(count, dtype=np.int64)
        numbers = numbers[units["size"][:count] != FILLER_SIZE]
        found = units[numbers]
        yield batch_of(
            TABLE_COLUMNS[CONSUME_QUEUES],
            columns,
            len(numbers),
            {
                "topic": file.topic,
                "queueId": np.full(len(numbers), file.queue_id, np.int32),
                "queueOffset": file.first + begin + numbers,
                "physicalOffset": found["offset"].astype(np.int64),
                "size": found["size"].astype(np.int32),
                "tagsCode": found["code"].astype(np.int64),
                "broker": broker,
                "store": root,
            },
        )
        if count < len(units):
            return


def index_files(root: Path) -> list[str]:
    """The index files of a store, oldest first."""
    return [str(path) for path in sorted((root / "index").glob("*")) if path.name.isdigit()]


def entries_of(
    path: str, slots: int | None, broker: str, root: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The entries of one index file. Raises `StoreError` if the file has no room for what its header says."""
    size = Path(path).stat().st_size
    head_data = read_at(path, 0, _INDEX_HEAD.itemsize)
    if len(head_data) < _INDEX_HEAD.itemsize:
        raise StoreError(f"{path}: {size} bytes are too few for an index file")
    head = np.frombuffer(head_data, _INDEX_HEAD)[0]
    # RocketMQ's defaults, 5 million slots and 20 million entries, and every file of that proportion.
    slots = slots if slots is not None else (size - _INDEX_HEAD.itemsize) // 84
    first = _INDEX_HEAD.itemsize + slots * 4
    count = int(head["count"])
    if first + count * _ENTRIES.itemsize > size:
        raise StoreError(
            f"{path}: no room for {count} entries behind {slots} slots; give the broker's maxHashSlotNum as "
            "option"
        )
    for begin in range(1, count, _ROWS):  # entry 0 is not used
        rows = min(_ROWS, count - begin)
        found = np.frombuffer(
            read_at(path, first + begin * _ENTRIES.itemsize, rows * _ENTRIES.itemsize), _ENTRIES
        )
        stored = int(head["begin_ms"]) + found["seconds"].astype(np.int64) * 1000
        yield batch_of(
            TABLE_COLUMNS[INDEX],
            columns,
            rows,
            {
                "file": path,
                "entry": np.arange(begin, begin + rows, dtype=np.int32),
                "keyHash": found["hash"].astype(np.int32),
                "physicalOffset": found["physical"].astype(np.int64),
                "timestamp": pa.array(stored * 1000).cast(_TIMESTAMP),
                "previous": found["previous"].astype(np.int32),
                "broker": broker,
                "store": root,
            },
        )


def timer_files(root: Path) -> list[tuple[str, int | None]]:
    """The files of a store's timer log, oldest first, and up to which time (ms) the timer had delivered.

    Raises `StoreError` for a broken checkpoint; without one the time is None."""
    files = [str(path) for path in sorted((root / "timerlog").glob("*")) if path.name.isdigit()]
    checkpoint = root / "config" / "timercheck"
    try:
        read_ms: int | None = layout.decode_checkpoint(checkpoint.read_bytes()).read_ms
    except FileNotFoundError:
        read_ms = None
    except ValueError as error:
        raise StoreError(f"{checkpoint}: {error}") from None
    return [(path, read_ms) for path in files]


def timers_of(
    path: str, read_ms: int | None, broker: str, root: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The units of one file of the timer log."""
    unit, base, size = layout.UNIT.size, int(Path(path).name), Path(path).stat().st_size
    for begin in range(0, size // unit, _ROWS):
        data = read_at(path, begin * unit, min(_ROWS * unit, size - begin * unit))
        units = np.frombuffer(data[: len(data) // unit * unit], layout.UNIT_DTYPE)
        ended = (
            (units["size"] != unit)
            | (units["magic"] & ~layout.MAGIC_MASK != 0)
            | (units["length"] <= 0)
            | (units["physical"] < 0)
        )
        count = int(np.argmax(ended)) if ended.any() else len(units)
        found = units[:count]
        written = found["written"].astype(np.int64)
        due = written + found["delay"]
        kinds = np.where(found["magic"] & layout.MAGIC_DELETE, "recall", "deliver")
        kinds = np.where(found["magic"] & layout.MAGIC_ROLL, "roll", kinds)
        yield batch_of(
            TABLE_COLUMNS[TIMERS],
            columns,
            count,
            {
                "position": base + (begin + np.arange(count, dtype=np.int64)) * unit,
                "kind": pa.array(kinds.tolist(), pa.string()),
                "slotTime": pa.array(due * 1000).cast(_TIMESTAMP),
                "written": pa.array(written * 1000).cast(_TIMESTAMP),
                "passed": pa.nulls(count, pa.bool_()) if read_ms is None else pa.array(due < read_ms),
                "physicalOffset": found["physical"].astype(np.int64),
                "size": found["length"].astype(np.int32),
                "topicHash": found["topic"].astype(np.int32),
                "previous": found["previous"].astype(np.int64),
                "broker": broker,
                "store": root,
            },
        )
        if count < len(units):
            return


def epochs_of(root: Path, broker: str | None, columns: Sequence[str]) -> pa.RecordBatch:
    """The epoch file; no rows without one. Raises `ConfigError` for a broken one."""
    entries = EpochFile.load(root / EPOCH_FILE).cache.entries
    starts = [entry.start_offset for entry in entries]
    return batch_of(
        TABLE_COLUMNS[EPOCHS],
        columns,
        len(entries),
        {
            "epoch": np.array([entry.epoch for entry in entries], np.int32),
            "startOffset": np.array(starts, np.int64),
            "endOffset": pa.array([*starts[1:], None] if starts else [], pa.int64()),
            "broker": broker_name(root, broker),
            "store": str(root),
        },
    )


def files_of(log: StoreLog, columns: Sequence[str]) -> pa.RecordBatch:
    """One row per commit log file, and one per missing file."""
    problems: list[str | None] = []
    for file in log.files:
        torn = log.torn if file.base <= log.end < file.end or file is log.files[-1] else None
        problems.append(torn)
    count = len(log.files) + len(log.missing)
    gone = [None] * len(log.missing)
    ends = [max(f.base, min(f.end, log.end)) for f in log.files]
    return batch_of(
        TABLE_COLUMNS[FILES],
        columns,
        count,
        {
            "file": pa.array([f.path for f in log.files] + list(log.missing), pa.string()),
            "baseOffset": pa.array([f.base for f in log.files] + [int(Path(p).name) for p in log.missing]),
            "size": pa.array([f.size for f in log.files] + gone, pa.int64()),
            "endOffset": pa.array(ends + gone, pa.int64()),
            "confirmOffset": np.full(count, log.confirm, np.int64),
            "problem": pa.array(problems + ["the file is missing"] * len(log.missing), pa.string()),
            "broker": log.broker,
            "store": log.root,
        },
    )
