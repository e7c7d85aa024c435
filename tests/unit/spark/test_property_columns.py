"""Columns of properties, found in bulk, against the reader of one message's properties."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batonmq.protocol.message.properties import encode_properties, find_property
from batonmq.spark.gather import gather
from batonmq.spark.property_columns import Properties

NAMES = ("KEYS", "TAGS", "UNIQ_KEY", "a", "SYEK")
regular = st.dictionaries(st.sampled_from((*NAMES, "XKEYS", "ü")), st.text("ab ü\0", min_size=1, max_size=15))
any_bytes = st.lists(st.sampled_from([b"KEYS", b"TAGS", b"\x01", b"\x02", b"a", b"\0"]), max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.lists(regular.map(encode_properties) | any_bytes.map(b"".join), max_size=12), st.integers(0, 3))
@example([b"KEYS\x01v"], 0)
@example([b"KEYS\x01v", b"", b"TAGS\x01w\x02"], 0)
@example([b"", b""], 0)
@example([b"KEYS\x01\x02", b"KEYS\x01a\x02KEYS\x01b\x02"], 0)
@example([b"KEYS\x01a=b\x02", b"\x02KEYS\x01c\x02"], 1)
@example([b"KEY\0\x01a\x02KEYS\x01c\x02"], 0)
def test_columns_equal_the_reader_of_one_message(encoded: list[bytes], left_out: int) -> None:
    properties = Properties(pa.array(encoded, pa.binary())[left_out:])
    for name in NAMES:
        expected = [find_property(each, name.encode()) for each in encoded[left_out:]]
        assert properties.column(name).to_pylist() == expected, name
        properties.column(name).validate(full=True)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.data())
def test_slices_are_gathered_whatever_their_sizes(data: bytes, draw: st.DataObject) -> None:
    edges = draw.draw(st.lists(st.tuples(st.integers(0, len(data)), st.integers(0, 20)), max_size=8))
    begins = np.array([begin for begin, _ in edges], np.int64)
    ends = np.minimum(begins + np.array([size for _, size in edges], np.int64), len(data))
    valid = np.array(draw.draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges))), bool)
    expected = [data[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    found = gather(data, begins, ends)
    found.validate(full=True)
    assert found.to_pylist() == expected
    some = gather(data, begins, ends, valid)
    some.validate(full=True)
    assert some.to_pylist() == [v if keep else None for v, keep in zip(expected, valid.tolist(), strict=True)]


def test_slices_of_one_size_are_gathered() -> None:
    begins = np.array([0, 3, 3, 1], np.int64)
    for size in (0, 1, 2):
        found = gather(b"abcde", begins, begins + size)
        found.validate(full=True)
        assert found.to_pylist() == [b"abcde"[at : at + size] for at in begins.tolist()]
