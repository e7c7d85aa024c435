"""The bodies of messages as columns: Protocol Buffers, by a set of descriptors from a file.

Spark's own `from_protobuf` needs a package in the JVM. This needs Python's `protobuf` where tasks run. Column
types are those of Spark's package, with two exceptions: unsigned numbers get a type that holds all of them. A
field that is not set has its default, unless its schema tells "not set" from the default (`has_presence`). A
field whose message has no fields, such as `google.protobuf.Empty`, has no column.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from batonmq.spark.jobs.values import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message
    from pyspark.sql import Column, SparkSession

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_MOST_MICROSECONDS: Final = (1 << 63) - 1
"""Spark counts times in 64 bits."""
_MOST_LEVELS: Final = 64
"""Arrow sends no column of more levels. A struct and a list have one, a map two."""
_MOST_COLUMNS: Final = 10_000
"""Of all levels together. A few messages that contain each other twice make millions."""
Convert = Callable[[Any], Any]
"""A value of a field to what Arrow takes for its column."""


@dataclass(frozen=True, slots=True)
class ProtobufSchema:
    """How to read bodies: the message `name` of a set of descriptors."""

    descriptors: bytes
    """A `FileDescriptorSet`, as ``protoc --include_imports --descriptor_set_out`` writes it."""
    name: str

    @classmethod
    def load(cls, path: Path, name: str | None) -> ProtobufSchema:
        """`name`: that of the message with its package; None: the only one of the last file. Raises
        `SchemaError`."""
        try:
            import pyarrow  # noqa: F401 - types of columns are its
            from google.protobuf.descriptor_pb2 import FileDescriptorSet
            from google.protobuf.message import DecodeError
        except ModuleNotFoundError as error:
            raise SchemaError(
                f"{error}; install what is missing with: pip install 'batonmq[spark]'"
            ) from None
        try:
            descriptors = path.read_bytes()
            files = FileDescriptorSet.FromString(descriptors).file
        except (OSError, DecodeError) as error:
            raise SchemaError(f"schema {path}: {error}; {_HOW}") from None
        if not files:
            raise SchemaError(f"schema {path}: not a set of descriptors; {_HOW}")
        try:
            if name is None:
                prefix = f"{files[-1].package}." if files[-1].package else ""
                names = [prefix + message.name for message in files[-1].message_type]
                if len(names) != 1:
                    listed = ", ".join(names) or "none"
                    raise SchemaError(
                        f"which message are the bodies? Say it with --message; there are: {listed}"
                    )
                (name,) = names
            descriptor = _descriptor(descriptors, name)
        except KeyError:
            raise SchemaError(
                f"schema {path}: no message {name!r}; give its package too, as in 'shop.Order'"
            ) from None
        except TypeError as error:  # a file that another one imports is missing
            raise SchemaError(f"schema {path}: {' '.join(str(error).split())}; {_HOW}") from None
        if _columns(descriptor, {}) > _MOST_COLUMNS:
            raise SchemaError(f"message {name} has more than {_MOST_COLUMNS:,} columns")
        _struct(descriptor, ())
        return cls(descriptors, name)

    def column(self, session: SparkSession, value: Column) -> Column:
        """`value` decoded, a struct; null where it is not as the schema says."""
        from pyspark.sql.pandas.functions import ArrowUDFType, arrow_udf

        kind = _struct(_message_class(self.descriptors, self.name).DESCRIPTOR, ())
        decode = partial(_decode, self.descriptors, self.name)

        def decoded(bodies: pa.Array) -> pa.Array:
            return decode(bodies)

        with warnings.catch_warnings():
            # Spark prefers types that it can look up at run time; pyarrow is not imported for that.
            warnings.simplefilter("ignore", UserWarning)
            function = arrow_udf(decoded, kind.spark, ArrowUDFType.SCALAR)
        column: Column = function(value)
        return column


_HOW: Final = "write it with 'protoc --include_imports --descriptor_set_out=FILE'"


def _descriptor(descriptors: bytes, name: str) -> Descriptor:
    """Raises `KeyError` for a message that is not there, `TypeError` for a file that is missing."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(descriptors).file:
        pool.AddSerializedFile(file.SerializeToString())
    found: Descriptor = pool.FindMessageTypeByName(name)
    return found


@lru_cache(maxsize=8)
def _message_class(descriptors: bytes, name: str) -> type[Message]:
    """Of a message that `_struct` accepts: of one that is nested too deep, Python makes no class."""
    from google.protobuf.message_factory import GetMessageClass

    found: type[Message] = GetMessageClass(_descriptor(descriptors, name))
    return found


# -- types


def _columns(message: Descriptor, known: dict[str, int], level: int = 0) -> int:
    """How many columns a message has, at least; `known`: those of messages. What `_struct` refuses counts as
    one."""
    found = known.get(message.full_name)
    if found is None:
        known[message.full_name] = found = 1
        if level < _MOST_LEVELS:
            inner = (field.message_type for field in message.fields)
            found = sum(1 if of is None else _columns(of, known, level + 1) for of in inner)
            known[message.full_name] = found
    return found


class _Kind(NamedTuple):
    """The type of a column."""

    spark: str
    """As in SQL."""
    arrow: pa.DataType


def _struct(message: Descriptor, outer: tuple[str, ...]) -> _Kind:
    """`outer`: the messages, lists and maps that this one is in. Raises `SchemaError`."""
    import pyarrow as pa

    if message.full_name in outer:
        raise SchemaError(f"message {message.full_name} contains itself: it has no columns")
    fields = _fields(message)
    if not fields:
        raise SchemaError(f"message {message.full_name} has no columns")
    kinds = {field.name: _type(field, (*outer, message.full_name)) for field in fields}
    names: dict[str, str] = {}
    for name in kinds:
        # Otherwise Spark refuses to write the files, after it has started.
        if (other := names.setdefault(name.lower(), name)) != name:
            raise SchemaError(f"message {message.full_name}: {other!r} and {name!r} are one name for Spark")
    columns = ", ".join(f"`{name}`: {kind.spark}" for name, kind in kinds.items())
    return _Kind(f"struct<{columns}>", pa.struct([(name, kind.arrow) for name, kind in kinds.items()]))


def _fields(message: Descriptor) -> list[FieldDescriptor]:
    """Those that have columns. Spark's own package leaves out messages without fields, too."""
    found = []
    for field in message.fields:
        entry = _map_entry(field)
        value = field if entry is None else entry.fields_by_name.get("value", field)
        if value.message_type is None or _columns(value.message_type, {}):
            found.append(field)
    return found


def _type(field: FieldDescriptor, outer: tuple[str, ...]) -> _Kind:
    import pyarrow as pa

    entry = _map_entry(field)
    if entry is not None:
        for name in ("key", "value"):
            if name not in entry.fields_by_name:
                raise SchemaError(f"field {field.full_name} is not a map: it has no {name!r}")
        inner = (*outer, field.full_name, entry.full_name)
        key, value = (_one(entry.fields_by_name[name], inner) for name in ("key", "value"))
        return _Kind(f"map<{key.spark}, {value.spark}>", pa.map_(key.arrow, value.arrow))
    if not field.is_repeated:
        return _one(field, outer)
    one = _one(field, (*outer, field.full_name))
    return _Kind(f"array<{one.spark}>", pa.list_(one.arrow))


def _one(field: FieldDescriptor, outer: tuple[str, ...]) -> _Kind:
    import pyarrow as pa

    if len(outer) >= _MOST_LEVELS:
        raise SchemaError(
            f"field {field.full_name} is nested too deep: Arrow has at most {_MOST_LEVELS} levels"
        )
    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return _Kind("timestamp", pa.timestamp("us", tz="UTC"))
        if message.full_name == DURATION:
            return _Kind("interval day to second", pa.duration("us"))
        return _struct(message, outer)
    if field.type == field.TYPE_BYTES:
        return _Kind("binary", pa.binary())
    kinds = {
        field.CPPTYPE_INT32: _Kind("int", pa.int32()),
        field.CPPTYPE_UINT32: _Kind("bigint", pa.int64()),
        field.CPPTYPE_INT64: _Kind("bigint", pa.int64()),
        field.CPPTYPE_UINT64: _Kind("decimal(20, 0)", pa.decimal128(20, 0)),
        field.CPPTYPE_FLOAT: _Kind("float", pa.float32()),
        field.CPPTYPE_DOUBLE: _Kind("double", pa.float64()),
        field.CPPTYPE_BOOL: _Kind("boolean", pa.bool_()),
        field.CPPTYPE_ENUM: _Kind("string", pa.string()),
        field.CPPTYPE_STRING: _Kind("string", pa.string()),
    }
    return kinds[field.cpp_type]


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    message = field.message_type
    return message if message is not None and message.GetOptions().map_entry else None


# -- values


def _decode(descriptors: bytes, name: str, bodies: pa.Array) -> pa.Array:
    """In a task."""
    import pyarrow as pa
    from google.protobuf.message import DecodeError

    message_class = _message_class(descriptors, name)
    convert = _of_message(message_class.DESCRIPTOR)

    def row(body: bytes) -> dict[str, Any] | None:
        try:
            message = message_class.FromString(body)
            return convert(message) if message_class.IsInitialized(message) else None
        except (DecodeError, OverflowError, UnicodeDecodeError):
            return None

    rows = [None if body is None else row(body) for body in bodies.to_pylist()]
    return pa.array(rows, _struct(message_class.DESCRIPTOR, ()).arrow)


def _of_message(message: Descriptor) -> Convert:
    fields = [(field.name, field.has_presence, _of_field(field)) for field in _fields(message)]

    def convert(value: Message) -> dict[str, Any]:
        has_field = type(value).HasField  # a field may have this name too
        return {
            name: None if optional and not has_field(value, name) else of_field(getattr(value, name))
            for name, optional, of_field in fields
        }

    return convert


def _of_field(field: FieldDescriptor) -> Convert:
    entry = _map_entry(field)
    if entry is not None:
        key, value = (_of_one(entry.fields_by_name[name]) for name in ("key", "value"))
        return lambda found: [(key(k), value(found[k])) for k in found]
    one = _of_one(field)
    return (lambda found: [one(each) for each in found]) if field.is_repeated else one


def _of_one(field: FieldDescriptor) -> Convert:
    if field.message_type is not None:
        if field.message_type.full_name in (TIMESTAMP, DURATION):
            return _microseconds
        return _of_message(field.message_type)
    if field.enum_type is not None:
        # Of several names for one number the first counts, as in Java.
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return lambda number: names.get(number, str(number))
    if field.type == field.TYPE_STRING:
        return _text
    return Decimal if field.cpp_type == field.CPPTYPE_UINT64 else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _text(value: str | bytes) -> str:
    """Text that is not UTF-8 is left as bytes in proto2. Raises `UnicodeDecodeError`."""
    return value if isinstance(value, str) else value.decode()


def _microseconds(value: Any) -> int:
    """Of a `Timestamp` or `Duration`. Raises `OverflowError`."""
    found = int(value.seconds) * 1_000_000 + int(value.nanos) // 1_000
    if abs(found) > _MOST_MICROSECONDS:
        raise OverflowError
    return found
