"""The columns of the readers, by name, and their types.

Spark imports this to plan a query; `decode`, which fills the columns, is imported where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from batonmq.spark.options import OptionError

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
    return as_ddl({name: COLUMNS[name][0] for name in names})


def as_ddl(columns: Mapping[str, str]) -> str:
    """Columns and their types as a schema. "timestamp" alone would depend on a setting of the session
    (``spark.sql.timestampType``)."""
    return ", ".join(f"{name} {of.replace('timestamp', 'timestamp_ltz')}" for name, of in columns.items())


def columns_of(schema: StructType, known: Mapping[str, tuple[str, pa.DataType]] = COLUMNS) -> tuple[str, ...]:
    """The columns of a schema, checked. Raises `OptionError` for an unknown name or another type, and for a
    name that occurs twice or is NOT NULL: Spark reports these in the words of Arrow. A schema needs a
    column, because Spark gets rows as columns and could not count rows that have none."""
    if not schema.fields:
        raise OptionError(f"the schema has no column; there are: {', '.join(known)}")
    for field in schema.fields:
        if field.name not in known:
            raise OptionError(f"no column {field.name!r}; there are: {', '.join(known)}")
        given = field.dataType.simpleString()
        if given != known[field.name][0]:
            raise OptionError(f"column {field.name!r} is of type {known[field.name][0]}, not {given}")
        if not field.nullable:
            raise OptionError(f"column {field.name!r} is NOT NULL in the schema; leave that out")
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) < len(names):
        raise OptionError(f"the schema has a column twice: {', '.join(names)}")
    return names
