"""The columns of the offline reader and of the tables of a store's files, and their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from batonmq.spark.columns import COLUMNS
from batonmq.spark.store.options import CONSUME_QUEUES, EPOCHS, FILES, INDEX, TIMERS

STORE_COLUMNS = {**COLUMNS, "store": ("string", pa.string())}
"""Columns of the offline reader: name -> (Spark type, Arrow type)."""

TABLE_COLUMNS: Final[dict[str, dict[str, tuple[str, pa.DataType]]]] = {
    CONSUME_QUEUES: {
        "topic": ("string", pa.string()),
        "queueId": ("int", pa.int32()),
        "queueOffset": ("bigint", pa.int64()),
        "physicalOffset": ("bigint", pa.int64()),
        "size": ("int", pa.int32()),
        "tagsCode": ("bigint", pa.int64()),
        "broker": ("string", pa.string()),
        "store": ("string", pa.string()),
    },
    INDEX: {
        "file": ("string", pa.string()),
        "entry": ("int", pa.int32()),
        "keyHash": ("int", pa.int32()),
        "physicalOffset": ("bigint", pa.int64()),
        "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
        "previous": ("int", pa.int32()),
        "broker": ("string", pa.string()),
        "store": ("string", pa.string()),
    },
    TIMERS: {
        "position": ("bigint", pa.int64()),
        "kind": ("string", pa.string()),
        "slotTime": ("timestamp", pa.timestamp("us", tz="UTC")),
        "written": ("timestamp", pa.timestamp("us", tz="UTC")),
        "passed": ("boolean", pa.bool_()),
        "physicalOffset": ("bigint", pa.int64()),
        "size": ("int", pa.int32()),
        "topicHash": ("int", pa.int32()),
        "previous": ("bigint", pa.int64()),
        "broker": ("string", pa.string()),
        "store": ("string", pa.string()),
    },
    EPOCHS: {
        "epoch": ("int", pa.int32()),
        "startOffset": ("bigint", pa.int64()),
        "endOffset": ("bigint", pa.int64()),
        "broker": ("string", pa.string()),
        "store": ("string", pa.string()),
    },
    FILES: {
        "file": ("string", pa.string()),
        "baseOffset": ("bigint", pa.int64()),
        "size": ("bigint", pa.int64()),
        "endOffset": ("bigint", pa.int64()),
        "confirmOffset": ("bigint", pa.int64()),
        "problem": ("string", pa.string()),
        "broker": ("string", pa.string()),
        "store": ("string", pa.string()),
    },
}
"""Table -> its columns: name -> (Spark type, Arrow type)."""


def batch_of(
    kinds: Mapping[str, tuple[str, pa.DataType]], columns: Sequence[str], rows: int, values: Mapping[str, Any]
) -> pa.RecordBatch:
    """A batch with these columns, whose types `kinds` has; a text stands for a column of it."""
    arrays = []
    for name in columns:
        value = values[name]
        if isinstance(value, str):
            arrays.append(pa.repeat(pa.scalar(value, pa.string()), rows))
        else:
            arrays.append(value if isinstance(value, pa.Array) else pa.array(value, kinds[name][1]))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, kinds[name][1]) for name in columns]))
