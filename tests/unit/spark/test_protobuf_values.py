"""Bodies in Protocol Buffers: which columns they become, and what is in them. No Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import duration_pb2, empty_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from batonmq.spark.jobs import protobuf_values
from batonmq.spark.jobs.protobuf_values import ProtobufSchema
from batonmq.spark.jobs.values import SchemaError

SCALARS = {
    "i32": (Field.TYPE_SINT32, "int", -5),
    "u32": (Field.TYPE_UINT32, "bigint", 4_294_967_295),
    "i64": (Field.TYPE_INT64, "bigint", -(1 << 62)),
    "u64": (Field.TYPE_FIXED64, "decimal(20, 0)", (1 << 64) - 1),
    "f": (Field.TYPE_FLOAT, "float", 1.5),
    "d": (Field.TYPE_DOUBLE, "double", 2.25),
    "b": (Field.TYPE_BOOL, "boolean", True),
    "s": (Field.TYPE_STRING, "string", "ü"),
    "raw": (Field.TYPE_BYTES, "binary", b"\xff"),
}
"""Field -> its type, that of its column, a value."""


def orders() -> FileDescriptorSet:
    """``shop.Order``, with fields of all kinds."""
    file = FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
    order = file.message_type.add(name="Order")
    for number, (name, (kind, _, _)) in enumerate(SCALARS.items(), 1):
        order.field.add(name=name, number=number, type=kind, label=Field.LABEL_OPTIONAL)
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    line = order.nested_type.add(name="Line")
    line.field.add(name="item", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="PricesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_UINT64, label=Field.LABEL_OPTIONAL)
    for number, name, kind, label, of in (
        (20, "state", Field.TYPE_ENUM, Field.LABEL_OPTIONAL, ".shop.Order.State"),
        (21, "first", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".shop.Order.Line"),
        (22, "lines", Field.TYPE_MESSAGE, Field.LABEL_REPEATED, ".shop.Order.Line"),
        (23, "prices", Field.TYPE_MESSAGE, Field.LABEL_REPEATED, ".shop.Order.PricesEntry"),
        (24, "at", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
        (25, "took", Field.TYPE_MESSAGE, Field.LABEL_OPTIONAL, ".google.protobuf.Duration"),
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=of)
    order.oneof_decl.add(name="_maybe")
    maybe = order.field.add(name="maybe", number=26, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    maybe.proto3_optional, maybe.oneof_index = True, 0
    found = FileDescriptorSet()
    for known in (timestamp_pb2, duration_pb2):
        known.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


def schema(tmp_path: Path, descriptors: FileDescriptorSet, name: str | None = None) -> ProtobufSchema:
    (tmp_path / "orders.desc").write_bytes(descriptors.SerializeToString())
    return ProtobufSchema.load(tmp_path / "orders.desc", name)


def message_of(one: ProtobufSchema) -> Any:
    return protobuf_values._message_class(one.descriptors, one.name)()


def decoded(one: ProtobufSchema, *bodies: bytes | None) -> list[Any]:
    return protobuf_values._decode(one.descriptors, one.name, pa.array(bodies, pa.binary())).to_pylist()


def test_fields_of_all_kinds_become_columns(tmp_path: Path) -> None:
    one = schema(tmp_path, orders())
    assert one.name == "shop.Order"
    kind = protobuf_values._struct(message_of(one).DESCRIPTOR, ())
    assert [field.name for field in kind.arrow] == list(message_of(one).DESCRIPTOR.fields_by_name)
    kinds = {name: kind for name, (_, kind, _) in SCALARS.items()} | {
        "state": "string",
        "first": "struct<`item`: string>",
        "lines": "array<struct<`item`: string>>",
        "prices": "map<string, decimal(20, 0)>",
        "at": "timestamp",
        "took": "interval day to second",
        "maybe": "int",
    }
    assert kind.spark == f"struct<{', '.join(f'`{name}`: {of}' for name, of in kinds.items())}>"


def test_values_are_those_of_the_message(tmp_path: Path) -> None:
    one = schema(tmp_path, orders(), "shop.Order")
    order = message_of(one)
    for name, (_, _, value) in SCALARS.items():
        setattr(order, name, value)
    order.state = 1
    order.first.item = "a"
    order.lines.add(item="b")
    order.lines.add()
    order.prices["x"] = (1 << 64) - 1
    order.at.seconds, order.at.nanos = 1_700_000_000, 123_456_789
    order.took.seconds, order.took.nanos = -1, -500_000_000
    order.maybe = 0
    (row,) = decoded(one, order.SerializeToString())
    expected = {name: value for name, (_, _, value) in SCALARS.items()}
    assert {name: row[name] for name in SCALARS} == expected | {"u64": Decimal((1 << 64) - 1)}
    assert (row["state"], row["first"], row["maybe"]) == ("PAID", {"item": "a"}, 0)
    assert row["lines"] == [{"item": "b"}, {"item": ""}]
    assert row["prices"] == [("x", Decimal((1 << 64) - 1))]
    assert row["at"] == datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    assert row["took"] == timedelta(seconds=-1.5)


def test_what_is_not_set_has_its_default_or_is_null(tmp_path: Path) -> None:
    one = schema(tmp_path, orders())
    (row,) = decoded(one, b"")
    assert {name: row[name] for name in SCALARS} == {
        "i32": 0, "u32": 0, "i64": 0, "u64": 0, "f": 0, "d": 0, "b": False, "s": "", "raw": b""
    }  # fmt: skip
    assert (row["state"], row["lines"], row["prices"]) == ("NEW", [], [])
    assert row["first"] is row["at"] is row["took"] is row["maybe"] is None


def test_bodies_that_are_no_such_message_are_null(tmp_path: Path) -> None:
    one = schema(tmp_path, orders())
    late = message_of(one)
    late.at.seconds = 1 << 62
    unknown = message_of(one)
    unknown.state = 77
    rows = decoded(one, b"\xff\xff", None, late.SerializeToString(), unknown.SerializeToString())
    assert rows[:3] == [None, None, None]
    assert rows[3]["state"] == "77"


def test_times_beyond_64_bits_are_null(tmp_path: Path) -> None:
    one = schema(tmp_path, orders())
    bodies = []
    for field in ("at", "took"):
        for sign in (1, -1):
            order = message_of(one)
            time = getattr(order, field)
            time.seconds, time.nanos = sign * 9_223_372_036_853, sign * 2_147_483_647
            bodies.append(order.SerializeToString())
    assert decoded(one, *bodies) == [None] * 4


def proto2() -> FileDescriptorSet:
    """``old.Order``, of the syntax that has required fields and does not look at the bytes of strings."""
    file = FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=Field.TYPE_INT32, label=Field.LABEL_REQUIRED)
    order.field.add(name="name", number=2, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="NotesEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    states = order.enum_type.add(name="State")
    states.options.allow_alias = True
    for name, value in (("NEW", 1), ("FRESH", 1), ("PAID", 2), ("DONE", 2)):
        states.value.add(name=name, number=value)
    for number, name, kind, of in (
        (3, "names", Field.TYPE_STRING, None),
        (4, "notes", Field.TYPE_MESSAGE, ".old.Order.NotesEntry"),
        (5, "states", Field.TYPE_ENUM, ".old.Order.State"),
    ):
        order.field.add(name=name, number=number, type=kind, label=Field.LABEL_REPEATED, type_name=of)
    found = FileDescriptorSet()
    found.file.append(file)
    return found


def test_bodies_with_text_that_is_not_utf_8_are_null(tmp_path: Path) -> None:
    one = schema(tmp_path, proto2())
    texts = [b"\x12\x01\xff", b"\x1a\x01\xff", b"\x22\x03\x0a\x01\xff", b"\x22\x03\x12\x01\xff"]
    rows = decoded(one, *(b"\x08\x01" + text for text in texts), b"\x08\x01\x12\x02\xc3\xbc")
    assert rows[:4] == [None] * 4
    assert rows[4]["name"] == "ü"


def test_bodies_without_a_required_field_are_null(tmp_path: Path) -> None:
    one = schema(tmp_path, proto2())
    rows = decoded(one, b"", b"\x12\x01a", b"\x08\x00")
    assert rows[:2] == [None, None]
    assert (rows[2]["id"], rows[2]["name"]) == (0, None)


def test_of_several_names_for_one_number_the_first_counts(tmp_path: Path) -> None:
    (row,) = decoded(schema(tmp_path, proto2()), b"\x08\x01\x28\x01\x28\x02")
    assert row["states"] == ["NEW", "PAID"]


def nested(deep: int) -> FileDescriptorSet:
    """``deep.M0`` with ``M1`` and so on; the last one has a list."""
    file = FileDescriptorProto(name="deep.proto", package="deep", syntax="proto3")
    for level in range(deep):
        message = file.message_type.add(name=f"M{level}")
        if level + 1 < deep:
            of = f".deep.M{level + 1}"
            message.field.add(
                name="m", number=1, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL, type_name=of
            )
    file.message_type[-1].field.add(name="list", number=1, type=Field.TYPE_INT32, label=Field.LABEL_REPEATED)
    found = FileDescriptorSet()
    found.file.append(file)
    return found


def test_messages_nested_as_deep_as_arrow_sends_them(tmp_path: Path) -> None:
    one = schema(tmp_path, nested(62), "deep.M0")
    kind = protobuf_values._struct(message_of(one).DESCRIPTOR, ()).arrow
    column = protobuf_values._decode(one.descriptors, one.name, pa.array([b""], pa.binary()))
    assert column.type == kind
    with pa.ipc.new_stream(pa.BufferOutputStream(), pa.schema([("decoded", kind)])) as stream:
        stream.write_batch(pa.record_batch([column], ["decoded"]))


def names_in_two_cases() -> FileDescriptorSet:
    found = orders()
    line = found.file[-1].message_type[0].nested_type[0]
    line.field.add(name="ITEM", number=2, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    return found


def map_without_values() -> FileDescriptorSet:
    found = orders()
    found.file[-1].message_type[0].nested_type[1].field[1].name = "worth"
    return found


def two_messages() -> FileDescriptorSet:
    found = orders()
    found.file[-1].message_type.add(name="Other")
    return found


def without_imports() -> FileDescriptorSet:
    found = orders()
    del found.file[:2]
    return found


def recursive() -> FileDescriptorSet:
    found = orders()
    line = found.file[-1].message_type[0].nested_type[0]
    line.field.add(
        name="order", number=2, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL, type_name=".shop.Order"
    )
    return found


@pytest.mark.parametrize(
    ("descriptors", "name", "problem"),
    [
        (FileDescriptorSet(), None, "not a set of descriptors; write it with 'protoc --include_imports"),
        (two_messages(), None, "--message; there are: shop.Order, shop.Other"),
        (two_messages(), "shop.Other", "message shop.Other has no columns"),
        (orders(), "Order", "no message 'Order'; give its package too"),
        (without_imports(), None, "write it with 'protoc --include_imports"),
        (recursive(), None, "message shop.Order contains itself"),
        (nested(63), "deep.M0", "field deep.M62.list is nested too deep: Arrow has at most 64 levels"),
        (nested(2_000), "deep.M0", "is nested too deep: Arrow has at most 64 levels"),
        (names_in_two_cases(), None, "message shop.Order.Line: 'item' and 'ITEM' are one name for Spark"),
        (map_without_values(), None, "field shop.Order.prices is not a map: it has no 'value'"),
    ],
)
def test_schemas_that_cannot_be_used_are_named(
    tmp_path: Path, descriptors: FileDescriptorSet, name: str | None, problem: str
) -> None:
    with pytest.raises(SchemaError, match=problem):
        schema(tmp_path, descriptors, name)


def with_empty_messages() -> FileDescriptorSet:
    """`shop.Order` with fields of messages that have no field, themselves or further in."""
    found = orders()
    found.file.insert(0, FileDescriptorProto())
    empty_pb2.DESCRIPTOR.CopyToProto(found.file[0])
    file = found.file[-1]
    file.dependency.append("google/protobuf/empty.proto")
    order = file.message_type[0]
    wrapper = file.message_type.add(name="Wrapper")
    entry = order.nested_type.add(name="SeenEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    for message, name, number, label, of in (
        (wrapper, "nothing", 1, Field.LABEL_OPTIONAL, ".google.protobuf.Empty"),
        (entry, "value", 2, Field.LABEL_OPTIONAL, ".google.protobuf.Empty"),
        (order, "done", 40, Field.LABEL_OPTIONAL, ".google.protobuf.Empty"),
        (order, "marks", 41, Field.LABEL_REPEATED, ".shop.Wrapper"),
        (order, "seen", 42, Field.LABEL_REPEATED, ".shop.Order.SeenEntry"),
    ):
        message.field.add(name=name, number=number, type=Field.TYPE_MESSAGE, label=label, type_name=of)
    return found


def test_messages_without_fields_have_no_column(tmp_path: Path) -> None:
    one = schema(tmp_path, with_empty_messages(), "shop.Order")
    order = message_of(one)
    order.i32 = 5
    order.done.SetInParent()
    order.marks.add()
    order.seen["x"].SetInParent()
    (row,) = decoded(one, order.SerializeToString())
    plain = schema(tmp_path, orders(), "shop.Order")
    assert row == decoded(plain, order.SerializeToString())[0]
    with pytest.raises(SchemaError, match=r"message shop\.Wrapper has no columns"):
        schema(tmp_path, with_empty_messages(), "shop.Wrapper")


def test_a_file_that_is_not_a_set_of_descriptors_is_named(tmp_path: Path) -> None:
    (tmp_path / "orders.proto").write_text('syntax = "proto3";')
    with pytest.raises(SchemaError, match=r"orders\.proto: .*write it with 'protoc"):
        ProtobufSchema.load(tmp_path / "orders.proto", None)


@pytest.mark.parametrize("missing", ["google.protobuf.descriptor_pb2", "pyarrow"])
def test_missing_packages_are_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders.desc").write_bytes(orders().SerializeToString())
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SchemaError, match=rf"{missing}.*pip install 'batonmq\[spark\]'"):
        ProtobufSchema.load(tmp_path / "orders.desc", None)


def test_messages_that_contain_each_other_twice_are_refused_at_once(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="wide.proto", syntax="proto3")
    for level in range(40):
        message = file.message_type.add(name=f"L{level}")
        for number, name in enumerate(("a", "b"), 1):
            field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
            field.type, field.type_name = Field.TYPE_MESSAGE, f".L{level + 1}"
    last = file.message_type.add(name="L40")
    last.field.add(name="x", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    with pytest.raises(SchemaError, match="message L0 has more than 10,000 columns"):
        schema(tmp_path, FileDescriptorSet(file=[file]), "L0")


def test_a_field_may_have_the_name_of_a_method(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="odd.proto", syntax="proto3")
    odd = file.message_type.add(name="Odd")
    odd.field.add(name="HasField", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    inner = odd.field.add(name="inner", number=2, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL)
    inner.type_name = ".Inner"
    file.message_type.add(name="Inner").field.add(
        name="x", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL
    )
    one = schema(tmp_path, FileDescriptorSet(file=[file]), "Odd")
    assert decoded(one, b"\x08\x05", b"\x12\x00") == [
        {"HasField": 5, "inner": None},
        {"HasField": 0, "inner": {"x": 0}},
    ]
