"""Where the messages of a large wire batch are, as arrays. No I/O.

For batches of many messages: some 100 µs are spent whatever is in them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

from batonmq.protocol.buffers import Buffer
from batonmq.store.dtypes import BATCH_HEAD

LEAST_MESSAGES: Final = 100
"""Batches with fewer are read message by message (`protocol.message.batch.scan_batch`)."""
_LEAST_SIZE: Final = BATCH_HEAD.itemsize + 2
"""Bytes of such a message without body and properties."""
_unpack_size: Final = struct.Struct(">i").unpack_from


class BatchColumns(NamedTuple):
    """One item a message, in all arrays and lists."""

    first: np.ndarray
    """Where each message begins, int64."""
    tails: np.ndarray
    """Where its body ends and its properties begin, behind their length of 2 bytes; int64."""
    after: np.ndarray
    """Where it ends, int64."""
    body_sizes: np.ndarray
    """int64."""
    flags: np.ndarray
    """int32."""
    step: int = 0
    """Bytes of each message if all have equal sizes, of their bodies and properties too; else 0."""


def batch_columns(data: Buffer) -> BatchColumns | None:
    """None unless `data` is at least `LEAST_MESSAGES` whole messages, without an error."""
    alike = _alike(data)
    if alike is not None:
        return alike
    edges = _edges_of_one_size(data)
    if edges is None:
        edges = np.array(_starts(data), np.int64)
    if len(edges) <= LEAST_MESSAGES:
        return None
    first, after = edges[:-1], edges[1:]
    total = len(data)
    # Messages begin anywhere: each array has a field at every place of the batch, as a view.
    heads = np.ndarray((total - _LEAST_SIZE + 1,), BATCH_HEAD, data, 0, (1,))
    flags = heads["flag"][first]
    body_sizes = heads["body_size"][first].astype(np.int64)
    lengths = np.ndarray((total - 1,), ">i2", data, 0, (1,))
    tails = first + BATCH_HEAD.itemsize + body_sizes
    if (body_sizes < 0).any() or (tails + 2 > after).any() or (lengths[tails] != after - tails - 2).any():
        return None
    return BatchColumns(first, tails, after, body_sizes, flags)


def tails_as_rows(data: Buffer, columns: BatchColumns) -> np.ndarray | None:
    """The properties of all messages, behind their lengths, as one row of bytes a message; None unless all
    have one size."""
    sizes = columns.after - columns.tails
    width = int(sizes[0])
    if columns.step:
        place = int(columns.tails[0])
        return np.ndarray((len(sizes), width), np.uint8, data, place, (columns.step, 1))
    if (sizes != width).any():
        return None
    return items_at(data, columns.tails, width).view(np.uint8).reshape(-1, width)


def items_at(data: Buffer, places: np.ndarray, size: int) -> np.ndarray:
    """`size` bytes from each of `places` on, as an array of that many bytes an item."""
    everywhere = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
    found: np.ndarray = everywhere[places]
    return found


def _alike(data: Buffer) -> BatchColumns | None:
    """As `batch_columns`, if all messages have the sizes of the first one: its parts are `step` apart, so
    nothing has to be looked up."""
    total = len(data)
    size: int = _unpack_size(data, 0)[0] if total >= _LEAST_SIZE else 0
    if size < _LEAST_SIZE or total % size or total // size < LEAST_MESSAGES:
        return None
    count = total // size
    heads = np.ndarray((count,), BATCH_HEAD, data, 0, (size,))
    body = int(heads["body_size"][0])
    tail = BATCH_HEAD.itemsize + body
    if not 0 <= body <= size - _LEAST_SIZE:
        return None
    lengths = np.ndarray((count,), ">i2", data, tail, (size,))
    equal = (heads["size"] == size).all() and (heads["body_size"] == body).all()
    if not equal or (lengths != size - tail - 2).any():
        return None
    first = np.arange(0, total, size)
    return BatchColumns(first, first + tail, first + size, np.full(count, body), heads["flag"], size)


def _edges_of_one_size(data: Buffer) -> np.ndarray | None:
    """As `_starts`, if all messages have the size of the first one: found at once. Else None."""
    total = len(data)
    if total < _LEAST_SIZE:
        return None
    size: int = _unpack_size(data, 0)[0]
    if size < _LEAST_SIZE or total % size or total // size < LEAST_MESSAGES:
        return None
    sizes = np.ndarray((total // size,), ">i4", data, 0, (size,))
    return np.arange(0, total + 1, size) if (sizes == size).all() else None


def _starts(data: Buffer) -> list[int]:
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
