"""Columns of encoded message properties, found in bulk: the layout of `encode_properties`."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from batonmq.protocol.message.properties import find_property
from batonmq.spark.gather import gather, windows

_EQUALS, _ENDS = 1, 2
"""Behind a name; behind a value."""


class _Entries(NamedTuple):
    """The names and values of all messages, in order: positions in the text, one an entry."""

    message: Any
    name_begin: Any
    name_end: Any
    value_end: Any


class Properties:
    """The properties of some messages, encoded, as a binary column."""

    def __init__(self, encoded: pa.Array) -> None:
        self.encoded = encoded
        """As stored, one a message."""

    def column(self, name: str) -> pa.Array:
        """The values of one property, as binary; null where it is missing or empty. As `find_property`."""
        entries, key = self._entries, name.encode()
        if entries is None:
            return self._one_by_one(key)
        wanted = np.flatnonzero(entries.name_end - entries.name_begin == len(key))
        if len(wanted):
            # Compared as strings of one size: NULs at the end would not count, and a name has none.
            found = windows(self._text, len(key))[entries.name_begin[wanted]]
            wanted = wanted[found.view(f"S{len(key)}").reshape(-1) == key]
        begins, ends = entries.name_end[wanted] + 1, entries.value_end[wanted]
        messages = entries.message[wanted]
        if (messages[1:] == messages[:-1]).any() or (begins == ends).any():
            return self._one_by_one(key)
        count = len(self.encoded)
        if len(messages) == count:
            return gather(self._text, begins, ends)
        if not len(messages):
            return pa.nulls(count, pa.binary())
        valid = np.zeros(count, bool)
        valid[messages] = True
        all_begins, all_ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        all_begins[messages], all_ends[messages] = begins, ends
        return gather(self._text, all_begins, all_ends, valid)

    def _one_by_one(self, key: bytes) -> pa.Array:
        """For a name that a message has twice or without a value, and for text of another form."""
        values = [find_property(each, key) for each in self.encoded.to_pylist()]
        return pa.array(values, pa.binary())

    @cached_property
    def _edges(self) -> Any:
        """Where each message's properties begin, and where the last ones end."""
        encoded = self.encoded
        held = np.frombuffer(encoded.buffers()[1], np.int32)
        return held[encoded.offset : encoded.offset + len(encoded) + 1].astype(np.int64)

    @cached_property
    def _text(self) -> Any:
        held = self.encoded.buffers()[2]
        return np.frombuffer(held if held is not None else b"", np.uint8)[: self._edges[-1]]

    @cached_property
    def _entries(self) -> _Entries | None:
        """None if in some message the separators do not alternate."""
        if not len(self.encoded):
            return _Entries(*(np.zeros(0, np.int64) for _ in _Entries._fields))
        edges, text = self._edges, self._text
        marks = np.flatnonzero((text == _EQUALS) | (text == _ENDS))
        first = np.searchsorted(marks, edges)
        counts = np.diff(first)
        message = np.repeat(np.arange(len(counts)), counts)
        even = (np.arange(first[0], first[-1]) - first[message]) & 1 == 0
        marks = marks[first[0] :]
        if ((text[marks] == _EQUALS) != even).any():
            return None
        some = np.flatnonzero(counts)
        begins, ends = np.empty_like(marks), np.empty_like(marks)
        begins[1:] = marks[:-1] + 1
        begins[first[some] - first[0]] = edges[some]
        ends[:-1] = marks[1:]
        # Java lets the last value end without a separator.
        ends[first[some + 1] - first[0] - 1] = edges[some + 1]
        return _Entries(message[even], begins[even], marks[even], ends[even])
