"""The columns of the readers, by name, and their types.

Spark imports this to plan a query; `decode`, which fills the columns, is imported where they are read.
"""

from __future__ import annotations

import pyarrow as pa

COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "broker": ("string", pa.string()),
    "queueId": ("int", pa.int32()),
    "queueOffset": ("bigint", pa.int64()),
    "physicalOffset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "bornTimestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "keys": ("string", pa.string()),
    "tags": ("string", pa.string()),
    "msgId": ("string", pa.string()),
    "reconsumeTimes": ("int", pa.int32()),
    "flag": ("int", pa.int32()),
    "sysFlag": ("int", pa.int32()),
    "properties": ("map<string,string>", pa.map_(pa.string(), pa.string())),
}
"""Every column of a reader: name -> (Spark type, Arrow type)."""

DEFAULT_COLUMNS = ("value", "topic", "broker", "queueId", "queueOffset", "timestamp", "keys", "tags")


def schema_ddl(include_properties: bool) -> str:
    """The schema of a reader without a user's schema."""
    names = (*DEFAULT_COLUMNS, "properties") if include_properties else DEFAULT_COLUMNS
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)
