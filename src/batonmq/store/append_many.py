"""The records of a large wire batch, made as arrays. No I/O.

One message after the other takes 1.5 µs, most of it for the fields of records and consume queue units. As
columns of arrays they take a third, of which a half are the CRCs, and some 100 µs whatever is in them. So
they are for batches of many messages.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.ids import HOST_V4_SIZE
from batonmq.protocol.message.layout import BODY_POSITION_V4, FIELDS
from batonmq.protocol.message.record import StoredMessage, topic_field
from batonmq.store.config import UNIT_SIZE
from batonmq.store.consumequeue import ConsumeQueue
from batonmq.store.dispatch import PendingUnits
from batonmq.store.scan import TAGS_START, tags_code

LEAST_MESSAGES: Final = 100
"""Batches with fewer are encoded message by message."""
_WIRE_HEAD_SIZE: Final = 20
"""Size, magic, CRC, flag and size of the body, 4 bytes each, of a message in a wire batch."""
_FLAG_AT: Final = 12
_BODY_SIZE_AT: Final = 16
_LEAST_SIZE: Final = _WIRE_HEAD_SIZE + 2
"""Bytes of such a message without body and properties."""
_RECORD_HEAD: Final = np.dtype(
    [
        (name, f"V{code[:-1]}" if code.endswith("s") else {"i": ">i4", "q": ">i8"}[code])
        for name, code in FIELDS.items()
    ]
)
_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _RECORD_HEAD.itemsize == BODY_POSITION_V4 and _UNIT.itemsize == UNIT_SIZE
_HOSTS_V6: Final[int] = MessageSysFlag.HOSTS_V6
_unpack_size: Final = struct.Struct(">i").unpack_from


class Records(NamedTuple):
    """The records of one batch."""

    data: bytes
    """What to write."""
    offsets: tuple[int, ...]
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
    starts = _starts(data)
    count = len(starts) - 1
    if count < LEAST_MESSAGES:
        return None
    magic, topic = topic_field(message.topic)
    edges = np.array(starts, np.int64)
    first, after = edges[:-1], edges[1:]
    total = len(data)
    # Messages begin anywhere: each array has a field at every place of the batch, as a view.
    places = total - _LEAST_SIZE + 1
    flags = np.ndarray((places,), ">i4", data, _FLAG_AT, (1,))[first]
    body_sizes = np.ndarray((places,), ">i4", data, _BODY_SIZE_AT, (1,))[first].astype(np.int64)
    lengths = np.ndarray((total - 1,), ">i2", data, 0, (1,))
    tails = first + _WIRE_HEAD_SIZE + body_sizes
    if (body_sizes < 0).any() or (tails + 2 > after).any() or (lengths[tails] != after - tails - 2).any():
        return None
    if not np.frombuffer(data, np.uint8)[after - 1].all():
        return None  # see `append._ended`
    sizes = after - first + (BODY_POSITION_V4 - _WIRE_HEAD_SIZE + len(topic))
    ends = position + np.cumsum(sizes)
    end = int(ends[-1])
    if end - position > room:
        return None
    offsets = ends - sizes
    begin_of, tail_of = (first + _WIRE_HEAD_SIZE).tolist(), tails.tolist()
    bodies = [data[begin:tail] for begin, tail in zip(begin_of, tail_of, strict=True)]
    properties = [data[tail:stop] for tail, stop in zip(tail_of, starts[1:], strict=True)]
    queue_offset = queue.next_offset

    records = np.empty(count, _RECORD_HEAD)
    records["size"] = sizes
    records["magic"] = magic
    records["body_crc"] = np.array([crc32(body) for body in bodies], np.int64) & 0x7FFFFFFF
    records["queue_id"] = message.queue_id
    records["flag"] = flags
    records["queue_offset"] = np.arange(queue_offset, queue_offset + count)
    records["physical_offset"] = offsets
    records["sys_flag"] = message.sys_flag & ~_HOSTS_V6
    records["born_timestamp"] = message.born_timestamp
    records["born_host"] = np.void(message.born_host)
    records["store_timestamp"] = now
    records["store_host"] = np.void(message.store_host)
    records["reconsume_times"] = message.reconsume_times
    records["prepared_transaction_offset"] = message.prepared_transaction_offset
    records["body_size"] = body_sizes
    parts = [topic] * (4 * count)
    parts[0::4] = _each(records)
    parts[1::4] = bodies
    parts[3::4] = properties

    units = np.empty(count, _UNIT)
    units["physical_offset"] = offsets
    units["size"] = sizes
    code = queue.unit_code
    if code is None and TAGS_START not in b"".join(properties):
        units["tags_code"] = 0
    elif code is None:
        units["tags_code"] = [tags_code(text[2:]) for text in properties]
    else:
        units["tags_code"] = [code(text[2:], now) for text in properties]
    pending = end, queue, queue_offset, units.tobytes()
    return Records(b"".join(parts), tuple(offsets.tolist()), pending, end)


def _starts(data: bytes) -> list[int]:
    """Where the messages of a wire batch begin, going by their sizes, and where the last one ends. Empty if
    that is not the end of `data`, or if there seem to be few of them."""
    starts = [0]
    position, total = 0, len(data)
    last = total - _LEAST_SIZE
    # Going by the first message, so that a batch of few takes no time here.
    if last < 0 or _unpack_size(data, 0)[0] * LEAST_MESSAGES > total:
        return []
    while position <= last:
        size: int = _unpack_size(data, position)[0]
        if size < _LEAST_SIZE:
            return []
        position += size
        starts.append(position)
    return starts if position == total else []


def _each(items: np.ndarray) -> list[bytes]:
    """The bytes of each item of an array."""
    found: list[bytes] = items.view(f"V{items.itemsize}").tolist()
    return found
