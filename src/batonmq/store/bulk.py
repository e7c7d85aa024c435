"""Many records at once: what the index needs of a long piece of log, as arrays. No I/O.

The index is built from megabytes of records after a burst of sends, on a slave that has just caught up, and
while a query or an orderly stop waits for it. Arrays take 1.3 µs of processor time for a record,
`read_records` and `keys_of` take 3.4. Arrays cost some 300 µs whatever is in them, so they are only for long
pieces. The results are the same: records that are not plain (IPv6 hosts, long topics, repeated properties,
other text than ASCII) go through `read_records` and `keys_of`.

Consume queue units are not made this way: 2.0 µs of compiled or plain code became 1.3 in pieces of 4 MiB, but
8 in pieces of 64 KiB, as a socket brings them.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.java_hash import java_hash
from batonmq.protocol.message.layout import BODY_POSITION_V4, FIELDS, MAGIC_V1, POSITIONS
from batonmq.protocol.message.properties import PROPERTY_KEYS, PROPERTY_UNIQUE_KEY
from batonmq.store.dtypes import NUMPY_TYPES
from batonmq.store.index import Ints, Keys, key_hashes, keys_of
from batonmq.store.scan import Record, read_records, record_starts

Bools: TypeAlias = npt.NDArray[np.bool_]
Bytes: TypeAlias = npt.NDArray[np.uint8]

LEAST_RECORDS: Final = 200
"""Pieces with fewer are read record by record."""
MOST_RECORDS: Final = 4096
_MOST_TOPICS: Final = 32
"""Each costs a comparison with all records; a piece with more of them is read record by record."""
_LONGEST: Final = 1024
"""Bytes of a value; a longer one is not plain."""

_HOSTS_V6: Final = int(MessageSysFlag.HOSTS_V6)
_TRANSACTION_MASK: Final = int(MessageSysFlag.TRANSACTION_MASK)
_ROLLBACK: Final = int(MessageSysFlag.TRANSACTION_ROLLBACK)
_UNIQUE, _KEYS = PROPERTY_UNIQUE_KEY.encode(), PROPERTY_KEYS.encode()
_31: Final = np.uint32(31)
_BLANK: Final = 0x20
"""Separates the keys of a message."""


@dataclass(slots=True)
class Piece:
    """Records of a log, one row each, in order."""

    end: int
    """Where the last one ends in the data."""
    physical: Ints
    sizes: Ints
    queue_ids: Ints
    queue_offsets: Ints
    sys_flags: Ints
    times: Ints
    """Store times, ms."""
    topics: list[str]
    topic_of: Ints
    """Row -> index in `topics`."""
    properties: bytes
    """Encoded, of all rows."""
    property_ends: Ints
    """Row -> where its properties end."""
    odd: dict[int, Record]
    """Rows that are not plain, read one by one."""

    def properties_of(self, row: int) -> bytes:
        begin = int(self.property_ends[row - 1]) if row else 0
        return self.properties[begin : int(self.property_ends[row])]


def scan(data: bytes | mmap.mmap, begin: int, end: int, most: int = MOST_RECORDS) -> Piece | None:
    """The first of the records that `read_records` would give, at most `most`. None if arrays would not help:
    too few records, or too many topics."""
    starts = record_starts(data, begin, end, most)
    if len(starts) <= min(LEAST_RECORDS, most):
        return None
    chunk = np.frombuffer(data, np.uint8, starts[-1] - begin, begin)
    edges = np.array(starts, np.int64) - begin
    first, after = edges[:-1], edges[1:]
    places = len(chunk) - BODY_POSITION_V4 + 1

    def column(field: str) -> Ints:
        """A field of all rows: every place of the piece is seen as the begin of a record."""
        all_places = np.ndarray((places,), NUMPY_TYPES[FIELDS[field]], data, begin + POSITIONS[field], (1,))
        return all_places[first].astype(np.int64)

    body_sizes, sys_flags = column("body_size"), column("sys_flag")
    topic_at = first + BODY_POSITION_V4 + body_sizes
    plain = (column("magic") == MAGIC_V1) & (sys_flags & _HOSTS_V6 == 0)
    plain &= (body_sizes >= 0) & (topic_at < after)
    topic_at[~plain] = first[~plain]
    topic_sizes = chunk[topic_at].astype(np.int64)
    property_at = topic_at + 1 + topic_sizes + 2
    plain &= property_at <= after
    odd: dict[int, Record] = {}
    for row in np.flatnonzero(~plain).tolist():
        record = next(read_records(data, starts[row], starts[row + 1]), None)
        if record is None:  # `read_records` ends here
            return None
        odd[row] = record
    found = _topics(chunk, topic_at, topic_sizes, plain, odd)
    if found is None:
        return None
    topics, topic_of = found
    spans = zip((property_at + begin).tolist(), starts[1:], strict=True)
    if odd:
        pieces = [odd[row].properties if row in odd else data[a:b] for row, (a, b) in enumerate(spans)]
        property_sizes = np.array([len(each) for each in pieces], np.int64)
    else:
        pieces = [data[a:b] for a, b in spans]
        property_sizes = after - property_at
    piece = Piece(
        end=starts[-1],
        physical=column("physical_offset"),
        sizes=after - first,
        queue_ids=column("queue_id"),
        queue_offsets=column("queue_offset"),
        sys_flags=sys_flags,
        times=column("store_timestamp"),
        topics=topics,
        topic_of=topic_of,
        properties=b"".join(pieces),
        property_ends=np.cumsum(property_sizes),
        odd=odd,
    )
    for row, record in odd.items():
        piece.times[row] = record.store_timestamp
    return piece


def _topics(
    chunk: Bytes, at: Ints, sizes: Ints, plain: Bools, odd: dict[int, Record]
) -> tuple[list[str], Ints] | None:
    """The topics, and which row has which; None if there are too many."""
    topic_of = np.full(len(at), -1, np.int64)
    index: dict[str, int] = {}
    for row, record in odd.items():
        topic_of[row] = index.setdefault(record.topic, len(index))
    rows = np.flatnonzero(plain)
    if len(rows):
        width = np.arange(int(sizes[rows].max()))
        # Behind a shorter topic come other bytes of the chunk; they do not count.
        at_byte = np.minimum(at[rows, None] + 1 + width, len(chunk) - 1)
        texts = np.where(width < sizes[rows, None], chunk[at_byte], 0)
        texts_sizes = sizes[rows]
        left = np.arange(len(rows))
        while len(left):
            if len(index) >= _MOST_TOPICS:
                return None
            row = left[0]
            same = texts_sizes[left] == texts_sizes[row]
            same &= (texts[left] == texts[row]).all(axis=1)
            topic = texts[row, : texts_sizes[row]].tobytes().decode("utf-8", "replace")
            topic_of[rows[left[same]]] = index.setdefault(topic, len(index))
            left = left[~same]
    return list(index), topic_of


@dataclass(slots=True)
class _Values:
    """One property of the rows that have it."""

    rows: Ints
    begins: Ints
    sizes: Ints
    unclear: Ints
    """Rows where it is not plain: repeated, empty, long, or without end."""


class _Properties:
    """The properties of a piece's rows, by name."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self.bytes = np.frombuffer(piece.properties, np.uint8)
        self._separators = np.flatnonzero(self.bytes == 1)
        self._ends = np.flatnonzero(self.bytes == 2)

    def find(self, name: bytes) -> _Values:
        """Where a row has the property `name`."""
        text, ends, piece = self.bytes, self._ends, self._piece
        at = self._separators
        at = at[at >= len(name)]
        for back, byte in enumerate(reversed(name), 1):
            at = at[text[at - back] == byte]
        rows = np.searchsorted(piece.property_ends, at, side="right")
        row_begins = np.concatenate(([0], piece.property_ends))[rows]
        name_at = at - len(name)
        valid = (name_at == row_begins) | ((name_at > row_begins) & (text[name_at - 1] == 2))
        at, rows = at[valid], rows[valid]
        row_ends = piece.property_ends[rows]
        place = np.searchsorted(ends, at)
        stops = np.where(
            place < len(ends), ends[np.minimum(place, len(ends) - 1)] if len(ends) else 0, 1 << 62
        )
        sizes = np.minimum(stops, row_ends) - at - 1
        again = np.zeros(len(rows), bool)
        again[1:] = rows[1:] == rows[:-1]
        again[:-1] |= again[1:]
        clear = ~again & (sizes > 0) & (sizes <= _LONGEST)
        return _Values(rows[clear], at[clear] + 1, sizes[clear], np.unique(rows[~clear]))


def _hashes(
    text: Bytes, begins: Ints, sizes: Ints, seeds: npt.NDArray[np.uint32], stop: int = -1
) -> tuple[npt.NDArray[np.uint32], Bools]:
    """Java's hash of each text behind its seed, the hash of what comes before; and which are not ASCII, or
    contain the byte `stop`: their hashes mean nothing."""
    result = np.zeros(len(begins), np.uint32)
    strange = np.zeros(len(begins), bool)
    order = np.argsort(sizes, kind="stable")
    edges = np.flatnonzero(np.diff(sizes[order], prepend=-1, append=-1))
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        some = order[low:high]
        columns = text[begins[some] + np.arange(int(sizes[some[0]]))[:, None]]
        value = seeds[some].copy()
        for column in columns:
            value *= _31
            value += column
        result[some] = value
        strange[some] = (columns >= 0x80).any(axis=0) | (columns == stop).any(axis=0)
    return result, strange


def index_keys(piece: Piece) -> Keys:
    """What the index holds of all rows, as `index.keys_of`."""
    properties = _Properties(piece)
    unique, keys = properties.find(_UNIQUE), properties.find(_KEYS)
    prefixes = np.array([java_hash(f"{topic}#") & 0xFFFFFFFF for topic in piece.topics], np.uint32)
    hashes, rows, unclear = [], [], {*unique.unclear.tolist(), *keys.unclear.tolist()}
    for found, stop in (unique, -1), (keys, _BLANK):
        seeds = prefixes[piece.topic_of[found.rows]]
        some, strange = _hashes(properties.bytes, found.begins, found.sizes, seeds, stop)
        unclear.update(found.rows[strange].tolist())
        hashes.append(some.view(np.int32).astype(np.int64))
        rows.append(found.rows)
    none = piece.sys_flags & _TRANSACTION_MASK == _ROLLBACK
    if unclear:
        none[list(unclear)] = True
    kept = [~none[each] for each in rows]
    all_rows = np.concatenate([each[keep] for each, keep in zip(rows, kept, strict=True)])
    values = np.abs(np.concatenate([each[keep] for each, keep in zip(hashes, kept, strict=True)]))
    values[values == 1 << 31] = 0
    if unclear:
        texts = [(key, row) for row in sorted(unclear) for key in keys_of(_record(piece, row))]
        values = np.concatenate([values, key_hashes([key for key, _ in texts])])
        all_rows = np.concatenate([all_rows, np.array([row for _, row in texts], np.int64)])
    order = np.argsort(all_rows, kind="stable")  # of a row the unique key is first
    all_rows = all_rows[order]
    return Keys(values[order], piece.physical[all_rows], piece.times[all_rows])


def _record(piece: Piece, row: int) -> Record:
    return Record(
        int(piece.physical[row]),
        int(piece.sizes[row]),
        piece.topics[int(piece.topic_of[row])],
        int(piece.queue_ids[row]),
        int(piece.queue_offsets[row]),
        int(piece.sys_flags[row]),
        int(piece.times[row]),
        piece.properties_of(row),
    )
