"""The bodies of messages as columns, by a schema from a file: JSON and Avro."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from batonmq.spark.options import ClearError

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FORMATS: Final = ("json", "avro", "protobuf")
AVRO_CLASS: Final = "org.apache.spark.sql.avro.AvroDataToCatalyst"
AVRO_PACKAGE: Final = "org.apache.spark:spark-avro_2.13"


class BodySchema(Protocol):
    """How to read bodies."""

    def column(self, session: SparkSession, value: Column) -> Column:
        """`value` decoded, a struct; null where it is not as the schema says. Raises `SchemaError`."""


class SchemaError(ClearError):
    """A schema that cannot be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """How to read bodies in JSON or Avro."""

    format: str
    """``json`` or ``avro``."""
    text: str
    """Avro: the schema as JSON. JSON: columns as in SQL (``id BIGINT, name STRING``), or Spark's own JSON of
    a schema (``df.schema.json()``)."""
    source: str = ""
    """The file it is from, for errors."""

    @classmethod
    def load(cls, path: Path, kind: str) -> ValueSchema:
        """Raises `SchemaError`."""
        try:
            return cls(kind, path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(f"schema {path}: {error}") from None

    def column(self, session: SparkSession, value: Column) -> Column:
        """As `BodySchema`."""
        return self._avro(session, value) if self.format == "avro" else self._json(value)

    def _json(self, value: Column) -> Column:
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        text = self.text.strip()
        try:
            as_json = text.startswith("{")
            schema = StructType.fromJson(json.loads(text)) if as_json else StructType.fromDDL(text)
            if not isinstance(schema, StructType) or not schema.names:
                raise ValueError("it names no column")
        except (PySparkException, ValueError, KeyError) as error:
            raise SchemaError(
                f"schema {self.source}: neither columns such as 'id BIGINT, name STRING' nor the JSON of a "
                f"Spark schema: {str(error).strip().splitlines()[0]}"
            ) from None
        return _if_any(F.from_json(value.cast("string"), schema), schema.names)

    def _avro(self, session: SparkSession, value: Column) -> Column:
        from pyspark.sql.avro.functions import from_avro

        if not _has_class(session, AVRO_CLASS):
            raise SchemaError(
                "Spark's package for Avro is missing. Repeat the command with --conf spark.jars.packages="
                f"{AVRO_PACKAGE}:{session.version}, which Spark fetches from Maven Central. Without access "
                f"to that, copy spark-avro_2.13-{session.version}.jar to this machine and give --conf "
                "spark.jars=PATH"
            )
        try:
            record = json.loads(self.text)
        except ValueError as error:
            raise SchemaError(f"schema {self.source}: not an Avro schema in JSON: {error}") from None
        if not isinstance(record, dict) or record.get("type") != "record" or not record.get("fields"):
            raise SchemaError(f"schema {self.source}: the bodies' Avro schema must be a record")
        decoded = from_avro(value, self.text, {"mode": "PERMISSIVE"})
        return _if_any(decoded, [field["name"] for field in record["fields"]])


def _if_any(decoded: Column, names: list[str]) -> Column:
    """Spark makes a struct of nulls of a body that it cannot read; this makes it null."""
    from pyspark.sql import functions as F

    some = F.lit(False)
    for name in names:
        some = some | decoded[name].isNotNull()
    return F.when(some, decoded)


def _has_class(session: SparkSession, name: str) -> bool:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        return False
    return True
