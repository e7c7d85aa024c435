"""Stored records to Arrow columns, in bulk.

Record boundaries are walked, or found at once where many records of one size follow each other. The fixed
fields of all records are then taken with one strided copy and read as numpy columns. Bodies, topics and
properties are gathered in bulk (`gather`). Properties are parsed only for columns that were asked for. The
layout is that of `protocol.message.layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.compression import CompressionError, decompress
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.layout import (
    BODY_POSITION_V4,
    HOST_V6_EXTRA,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    SIZE_MAGIC,
)
from batonmq.protocol.message.properties import (
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
)
from batonmq.protocol.message.record import decode_record
from batonmq.spark.columns import COLUMNS
from batonmq.spark.gather import gather, windows
from batonmq.spark.options import ClearError
from batonmq.spark.property_columns import Properties
from batonmq.store.dtypes import RECORD_HEAD

_SIZE_MAGIC = np.dtype([("size", ">i4"), ("magic", ">i4")])
_V6 = MessageSysFlag.HOSTS_V6
_MOST_LENGTH: Final = 32_767
"""Of a topic, and of properties: records have their lengths as signed 16-bit numbers."""


# -- boundaries

_SAME_BEFORE_BULK = 4
"""Records of one size in a row before the next ones are compared with that size in bulk."""
_FIRST_BULK, _MOST_BULK = 64, 1 << 16


def frame_starts(data: bytes) -> tuple[Any, int]:
    """Where the whole records at the beginning of `data` begin, as an array, and where the last one ends.

    Agrees with `scan_frames`: stops before a record that is cut short or has another magic."""
    end, unpack = len(data), SIZE_MAGIC.unpack_from
    last = end - MIN_RECORD_SIZE
    found: list[Any] = []
    single: list[int] = []
    position = previous = same = 0
    patience, bulk = _SAME_BEFORE_BULK, _FIRST_BULK
    while position <= last:
        size, magic = unpack(data, position)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < MIN_RECORD_SIZE or position + size > end:
            break
        same = same + 1 if size == previous else 0
        previous = size
        if same >= patience:
            count = _equal_run(data, position, size, min(bulk, (end - position) // size))
            found += [np.array(single, np.int64), position + np.arange(count, dtype=np.int64) * size]
            single = []
            position += count * size
            # A long run makes the next attempt larger; a short one makes it rarer.
            bulk = min(bulk * 4, _MOST_BULK) if count == bulk else _FIRST_BULK
            patience = _SAME_BEFORE_BULK if count >= 16 else min(patience * 2, 256)
            same = patience if count > 1 and bulk > _FIRST_BULK else 0
            continue
        single.append(position)
        position += size
    found.append(np.array(single, np.int64))
    return np.concatenate(found), position


def _equal_run(data: bytes, position: int, size: int, most: int) -> int:
    """How many records of `size` follow each other from `position` on, where one is; at most `most`."""
    heads = np.ndarray((most,), _SIZE_MAGIC, data, position, (size,))
    equal = (heads["size"] == size) & ((heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2))
    return most if equal.all() else int(np.argmin(equal))


# -- columns

INFLATED_BYTES: Final = 64 << 20
"""Bytes of bodies in a batch that has compressed ones: 4 MiB may inflate to more than a column can hold."""


class Records:
    """Whole records of one buffer, and columns of them. Raises `MessageFormatError` for a record whose parts
    do not add up to its size."""

    def __init__(self, data: bytes, starts: Any) -> None:
        self.data, self.starts = data, starts
        self.heads = _heads(data, starts)
        self.body_starts = starts + BODY_POSITION_V4
        body_sizes = self.heads["body_size"].astype(np.int64)
        v6 = (self.heads["sys_flag"] & _V6) != 0
        if v6.any():
            _shift_for_v6(data, starts, self.heads, self.body_starts, body_sizes, v6)
        self.body_ends = self.body_starts + body_sizes
        self._find_tails()

    def __len__(self) -> int:
        return len(self.starts)

    def _find_tails(self) -> None:
        """Where topics and properties are: a topic's length has 1 byte, or 2 in V2."""
        heads, buffer = self.heads, np.frombuffer(self.data, np.uint8)
        ends = self.starts + heads["size"]
        short = (self.body_ends < self.body_starts) | (self.body_ends + 3 > ends)
        if short.any():
            raise self._wrong(short)
        long_topic = heads["magic"] == MAGIC_V2
        topic_size = buffer[self.body_ends].astype(np.int64)
        if long_topic.any():
            topic_size[long_topic] = (topic_size[long_topic] << 8) | buffer[self.body_ends[long_topic] + 1]
        self.topic_starts = self.body_ends + np.where(long_topic, 2, 1)
        self.topic_ends = self.topic_starts + topic_size
        short = (topic_size > _MOST_LENGTH) | (self.topic_ends + 2 > ends)
        if short.any():
            raise self._wrong(short)
        sizes = (buffer[self.topic_ends].astype(np.int64) << 8) | buffer[self.topic_ends + 1]
        self.properties_starts = self.topic_ends + 2
        self.properties_ends = self.properties_starts + sizes
        short = (sizes > _MOST_LENGTH) | (self.properties_ends != ends)
        if short.any():
            raise self._wrong(short)

    def _wrong(self, which: Any) -> MessageFormatError:
        at = int(self.starts[np.argmax(which)])
        return MessageFormatError(f"record at {at}: its parts do not add up to its size")

    def take(self, keep: Any) -> Records:
        """Those where `keep`, a boolean array, is true."""
        return self if keep.all() else self._some(keep)

    def part(self, begin: int, end: int) -> Records:
        """Those with the numbers ``[begin, end)``."""
        return self._some(slice(begin, end))

    def _some(self, which: Any) -> Records:
        taken = object.__new__(Records)
        taken.data = self.data
        for name in _ARRAYS:
            setattr(taken, name, getattr(self, name)[which])
        return taken

    def topics(self) -> pa.Array:
        """The topics, as binary."""
        return gather(self.data, self.topic_starts, self.topic_ends)

    def properties(self) -> Properties:
        """The encoded properties, and columns of them."""
        return Properties(gather(self.data, self.properties_starts, self.properties_ends))


_ARRAYS = (
    *("starts", "heads", "body_starts", "body_ends", "topic_starts", "topic_ends"),
    *("properties_starts", "properties_ends"),
)


class Decoder:
    """Decodes records into record batches with the requested columns, in that order.

    `topic`: that of all records; None where records of several topics are mixed. `constants`: further columns
    with one value for all records."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        topic: str | None,
        broker: str,
        constants: dict[str, str] | None = None,
    ) -> None:
        self._columns = tuple(columns)
        self._topic = topic
        self._constants = {"broker": broker, **(constants or {})}
        if topic is not None:
            self._constants["topic"] = topic
        self.schema = pa.schema(
            [(name, COLUMNS[name][1] if name in COLUMNS else pa.string()) for name in columns]
        )

    def decode(self, data: bytes, first_offset: int, end_offset: int) -> tuple[Iterator[pa.RecordBatch], int]:
        """Records of one queue in `data` with ``first_offset <= queue offset < end_offset``.

        Returns their `batches` and the next queue offset. Raises `MessageFormatError` on bytes that are no
        records, `OffsetGap` if a message is missing between `first_offset` and the last one."""
        starts, _ = frame_starts(data)
        if not len(starts):
            return iter(()), first_offset
        records = Records(data, starts)
        offsets = records.heads["queue_offset"].astype(np.int64)
        keep = (offsets >= first_offset) & (offsets < end_offset)
        if not keep.all():
            records, offsets = records.take(keep), offsets[keep]
        if not len(offsets):
            return iter(()), first_offset
        if offsets[0] != first_offset or offsets[-1] - offsets[0] + 1 != len(offsets):
            wanted = np.arange(first_offset, first_offset + len(offsets))
            raise OffsetGap(int(wanted[np.argmax(offsets != wanted)]))
        return self.batches(records), int(offsets[-1]) + 1

    def decode_selected(
        self, data: bytes, first_offset: int, end_offset: int, tags: frozenset[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """As `decode`, for records of which a broker has left out some. `tags`: only records with one of
        these."""
        starts, end = frame_starts(data)
        if end != len(data):
            raise MessageFormatError(f"{len(data) - end} bytes behind the last record are none")
        if not len(starts):
            return iter(())
        records = Records(data, starts)
        offsets = records.heads["queue_offset"]
        records = records.take((offsets >= first_offset) & (offsets < end_offset))
        return self.batches(records if tags is None else with_tags(records, tags))

    def batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        """All of `records`: one batch, or more if compressed bodies inflate to more than `INFLATED_BYTES`."""
        if not len(records):
            return
        compressed = (records.heads["sys_flag"] & MessageSysFlag.COMPRESSED) != 0
        if "value" not in self._columns or not compressed.any():
            yield self._batch(records, lambda: gather(records.data, records.body_starts, records.body_ends))
            return
        bodies: list[bytes] = []
        begin = size = 0
        edges = zip(
            records.body_starts.tolist(), records.body_ends.tolist(), compressed.tolist(), strict=True
        )
        for number, (body_start, body_end, zipped) in enumerate(edges):
            body = records.data[body_start:body_end]
            if zipped:
                body = _inflated(records, number, body)
            if bodies and size + len(body) > INFLATED_BYTES:
                column = pa.array(bodies, pa.binary())
                yield self._batch(records.part(begin, number), lambda: column)  # noqa: B023 - called at once
                bodies, begin, size = [], number, 0
            bodies.append(body)
            size += len(body)
        yield self._batch(records.part(begin, len(records)), lambda: pa.array(bodies, pa.binary()))

    def _batch(self, records: Records, bodies: Callable[[], pa.Array]) -> pa.RecordBatch:
        heads, count = records.heads, len(records)
        properties = cache(records.properties)
        make: dict[str, Callable[[], pa.Array]] = {
            "value": bodies,
            "topic": lambda: text_of(records.topics()),
            "queueId": lambda: pa.array(heads["queue_id"].astype(np.int32)),
            "queueOffset": lambda: pa.array(heads["queue_offset"].astype(np.int64)),
            "physicalOffset": lambda: pa.array(heads["physical_offset"].astype(np.int64)),
            "timestamp": lambda: _timestamps(heads["store_timestamp"]),
            "bornTimestamp": lambda: _timestamps(heads["born_timestamp"]),
            "keys": lambda: text_of(properties().column(PROPERTY_KEYS)),
            "tags": lambda: text_of(properties().column(PROPERTY_TAGS)),
            "msgId": lambda: text_of(properties().column(PROPERTY_UNIQUE_KEY)),
            "reconsumeTimes": lambda: pa.array(heads["reconsume_times"].astype(np.int32)),
            "flag": lambda: pa.array(heads["flag"].astype(np.int32)),
            "sysFlag": lambda: pa.array(heads["sys_flag"].astype(np.int32)),
            "properties": lambda: pa.array(
                [list(decode_properties(p).items()) for p in properties().encoded.to_pylist()],
                pa.map_(pa.string(), pa.string()),
            ),
        }
        arrays = [
            _constant(self._constants[name], count) if name in self._constants else make[name]()
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def with_tags(records: Records, tags: frozenset[str]) -> Records:
    """The records that have one of these tags."""
    if not len(records):
        return records
    found = text_of(records.properties().column(PROPERTY_TAGS))
    return records.take(np.asarray(pc.is_in(found, value_set=pa.array(sorted(tags), pa.string()))))


class BodyError(ClearError, ValueError):
    """A body that cannot be shown as it was before it was compressed; the text says which message has it."""


class OffsetGap(RuntimeError):
    """A queue offset that a broker skipped although it has later ones."""

    def __init__(self, queue_offset: int) -> None:
        super().__init__(f"the message at queue offset {queue_offset} is missing")
        self.queue_offset = queue_offset


def _heads(data: bytes, starts: Any) -> Any:
    """The fixed fields of the records at `starts`, as one structured array.

    Rows copied out of a one-byte-step window cost a memcpy each; indexing byte by byte, 8 times that."""
    rows = windows(np.frombuffer(data, np.uint8), RECORD_HEAD.itemsize)[starts]
    return rows.view(RECORD_HEAD).reshape(-1)


def _shift_for_v6(data: bytes, starts: Any, heads: Any, body_starts: Any, body_sizes: Any, v6: Any) -> None:
    """Mend, in place, what lies behind an IPv6 address: each of the two hosts takes 12 bytes more."""
    for i in np.flatnonzero(v6).tolist():
        record = decode_record(data, int(starts[i]), inflate=False)
        heads["store_timestamp"][i] = record.store_timestamp
        heads["reconsume_times"][i] = record.reconsume_times
        flags = int(heads["sys_flag"][i])
        hosts = bool(flags & MessageSysFlag.BORN_HOST_V6) + bool(flags & MessageSysFlag.STORE_HOST_V6)
        body_starts[i] += HOST_V6_EXTRA * hosts
        body_sizes[i] = len(record.body)


def _inflated(records: Records, number: int, body: bytes) -> bytes:
    """One body that is compressed, inflated. Raises `BodyError`."""
    try:
        return decompress(body, int(records.heads["sys_flag"][number]))
    except CompressionError as error:
        name = records.data[records.topic_starts[number] : records.topic_ends[number]]
        topic = name.decode("utf-8", "replace")
        queue_id, offset = records.heads[["queue_id", "queue_offset"]][number]
        raise BodyError(f"topic {topic!r}, queue {queue_id}, offset {offset}: {error}") from error


def _constant(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    edges = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(edges), pa.py_buffer(encoded * count)]
    )


def _timestamps(milliseconds: Any) -> pa.Array:
    return pa.array(milliseconds.astype(np.int64) * 1_000).cast(pa.timestamp("us", tz="UTC"))


def text_of(values: pa.Array) -> pa.Array:
    """Binary as string; bytes that are not UTF-8 become U+FFFD, as in Java."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()])
