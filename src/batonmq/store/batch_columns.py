"""Where the messages of a large wire batch are, as arrays. No I/O.

For batches of many messages: some 100 µs are spent whatever is in them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np

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
    ends: list[int]
    """`after`."""


def batch_columns(data: bytes) -> BatchColumns | None:
    """None unless `data` is at least `LEAST_MESSAGES` whole messages, without an error."""
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
    return BatchColumns(first, tails, after, body_sizes, flags, after.tolist())


def items_at(data: bytes, places: np.ndarray, size: int) -> np.ndarray:
    """`size` bytes from each of `places` on, as an array of that many bytes an item."""
    everywhere = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))
    found: np.ndarray = everywhere[places]
    return found


def _edges_of_one_size(data: bytes) -> np.ndarray | None:
    """As `_starts`, if all messages have the size of the first one: found at once. Else None."""
    total = len(data)
    if total < _LEAST_SIZE:
        return None
    size: int = _unpack_size(data, 0)[0]
    if size < _LEAST_SIZE or total % size or total // size < LEAST_MESSAGES:
        return None
    sizes = np.ndarray((total // size,), ">i4", data, 0, (size,))
    return np.arange(0, total + 1, size) if (sizes == size).all() else None


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
