"""The records of a large wire batch, made as arrays. No I/O.

One message after the other takes 1.5 µs, most of it for the fields of records and consume queue units. As
columns of arrays they take a quarter, and some 100 µs whatever is in them. So they are for batches of many
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.ids import HOST_V4_SIZE
from batonmq.protocol.message.layout import BODY_POSITION_V4
from batonmq.protocol.message.record import StoredMessage, topic_field
from batonmq.store.batch_columns import BatchColumns, batch_columns, tails_as_rows
from batonmq.store.consumequeue import ConsumeQueue
from batonmq.store.dispatch import PendingUnits
from batonmq.store.dtypes import BATCH_HEAD, RECORD_HEAD, UNIT_ROW
from batonmq.store.scan import TAGS_START, tags_code

_HOSTS_V6: Final[int] = MessageSysFlag.HOSTS_V6


class Records(NamedTuple):
    """The records of one batch."""

    data: Buffer
    """What to write."""
    offsets: Sequence[int]
    """Where each begins in the commit log."""
    units: PendingUnits
    end: int
    """Commit log offset after the last record."""


def encode_many(
    message: StoredMessage, data: bytes, queue: ConsumeQueue, position: int, room: int, now: int
) -> Records | None:
    """The records of `message`, a wire batch with the body `data`, from commit log offset `position` on. They
    get the next offsets of `queue`, which the caller counts. `room`: bytes that they may take at most.

    None unless the batch is long and plain: without an error, and without anything to be changed. It must be
    encoded message by message then.
    """
    if len(message.born_host) != HOST_V4_SIZE or len(message.store_host) != HOST_V4_SIZE:
        return None
    columns = batch_columns(data)
    if columns is None:
        return None
    first, tails, after, body_sizes, flags, _ = columns
    count = len(first)
    magic, topic = topic_field(message.topic)
    if _ends_with_zero(data, columns):
        return None
    sizes = after - first + (BODY_POSITION_V4 - BATCH_HEAD.itemsize + len(topic))
    ends = position + np.cumsum(sizes)
    end = int(ends[-1])
    if end - position > room:
        return None
    offsets = ends - sizes
    rows = tails_as_rows(data, columns)
    queue_offset = queue.next_offset
    common = _common_head(message, magic, columns, int(sizes[0]), now)
    layout = _layout(data, columns, topic, common)
    if layout is None:
        begin_of, tail_of = (first + BATCH_HEAD.itemsize).tolist(), tails.tolist()
        bodies = [data[begin:tail] for begin, tail in zip(begin_of, tail_of, strict=True)]
        records = np.full(count, common)
        records["size"] = sizes
        records["body_size"] = body_sizes
    else:
        bodies, records = _each(layout.bodies), layout.heads
    records["body_crc"] = np.fromiter(map(crc32, bodies), np.int64, count) & 0x7FFFFFFF
    records["flag"] = flags
    records["queue_offset"] = np.arange(queue_offset, queue_offset + count)
    records["physical_offset"] = offsets
    properties: list[bytes] = []
    pieces: Buffer
    if rows is not None:
        texts = rows.tobytes()
        of_one_size = np.frombuffer(texts, f"V{rows.shape[1]}")
        pieces = _joined_rows(records, bodies, topic, of_one_size) if layout is None else layout.data
    else:
        stops = after.tolist()
        properties = [data[tail:stop] for tail, stop in zip(tail_of, stops, strict=True)]
        texts = b"".join(properties)
        pieces = _joined(records, bodies, topic, properties)

    units = np.zeros(count, UNIT_ROW)
    units["offset"] = offsets
    units["size"] = sizes
    code = queue.unit_code
    if code is not None or TAGS_START in texts:
        if rows is not None:
            properties = _each(of_one_size)
        if code is None:
            units["code"] = [tags_code(text[2:]) for text in properties]
        else:
            units["code"] = [code(text[2:], now) for text in properties]
    pending = end, queue, queue_offset, units.tobytes()
    places = tuple(offsets.tolist()) if layout is None else range(position, end, int(sizes[0]))
    return Records(pieces, places, pending, end)


def _ends_with_zero(data: bytes, columns: BatchColumns) -> bool:
    """Whether a message does: see `append._ended`."""
    if columns.step:
        ends = np.ndarray((len(columns.first),), np.uint8, data, columns.step - 1, (columns.step,))
    else:
        ends = np.frombuffer(data, np.uint8)[columns.after - 1]
    return not ends.all()


def _common_head(
    message: StoredMessage, magic: int, columns: BatchColumns, size: int, now: int
) -> np.ndarray:
    """One `RECORD_HEAD`: what all records of the batch have in common, and the sizes of the first one."""
    head = np.zeros((), RECORD_HEAD)
    head["size"] = size
    head["magic"] = magic
    head["queue_id"] = message.queue_id
    head["sys_flag"] = message.sys_flag & ~_HOSTS_V6
    head["born_timestamp"] = message.born_timestamp
    head["born_host"] = np.void(message.born_host)
    head["store_timestamp"] = now
    head["store_host"] = np.void(message.store_host)
    head["reconsume_times"] = message.reconsume_times
    head["prepared_transaction_offset"] = message.prepared_transaction_offset
    head["body_size"] = columns.body_sizes[0]
    return head


class _Layout(NamedTuple):
    """The records of messages that all have one size, in one piece of memory: all but their heads."""

    data: Buffer
    heads: np.ndarray
    """Filled in with what all have in common; a view of `data`."""
    bodies: np.ndarray


def _layout(data: bytes, columns: BatchColumns, topic: bytes, common: np.ndarray) -> _Layout | None:
    """None unless all messages have equal sizes. Then each part of all messages is copied at once, which
    saves a third of `encode_many`. `common`: one `RECORD_HEAD`."""
    count, size, head = len(columns.first), columns.step, RECORD_HEAD.itemsize
    body = int(columns.body_sizes[0])
    if not size or not body:
        return None
    tail = size - BATCH_HEAD.itemsize - body
    end = head + body + len(topic)
    made = np.empty(count * (end + tail), np.uint8)

    def part(of: object, at: int, width: int, step: int) -> np.ndarray:
        return np.ndarray((count,), f"V{width}", of, at, (step,))  # type: ignore[arg-type]

    bodies = part(data, BATCH_HEAD.itemsize, body, size)
    heads = np.ndarray((count,), RECORD_HEAD, made, 0, (end + tail,))
    part(made, 0, head, end + tail)[:] = common.view(f"V{head}")
    part(made, head, body, end + tail)[:] = bodies
    part(made, head + body, len(topic), end + tail)[:] = np.void(topic)
    part(made, end, tail, end + tail)[:] = part(data, size - tail, tail, size)
    return _Layout(made.data, heads, bodies)


def _joined(records: np.ndarray, bodies: list[bytes], topic: bytes, properties: list[bytes]) -> bytes:
    parts = [topic] * (4 * len(bodies))
    parts[0::4] = _each(records)
    parts[1::4] = bodies
    parts[3::4] = properties
    return b"".join(parts)


def _joined_rows(records: np.ndarray, bodies: list[bytes], topic: bytes, properties: np.ndarray) -> bytes:
    """As `_joined`, for properties of one size: what is between two bodies is one piece, so there are half as
    many. That saves a third of `encode_many`."""
    count, head = len(bodies), RECORD_HEAD.itemsize
    between = np.empty(count, [("topic", f"V{len(topic)}"), ("tail", properties.dtype), ("head", f"V{head}")])
    between["topic"] = np.void(topic)
    between["tail"] = properties
    between["head"][:-1] = records.view(f"V{head}")[1:]
    parts = [b""] * (2 * count + 1)
    parts[0] = records[:1].tobytes()
    parts[1::2] = bodies
    parts[2::2] = _each(between)
    parts[-1] = parts[-1][:-head]
    return b"".join(parts)


def _each(items: np.ndarray) -> list[bytes]:
    """The bytes of each item of an array."""
    found: list[bytes] = items.view(f"V{items.itemsize}").tolist()
    return found
