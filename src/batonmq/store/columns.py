"""The values of one property in many records at once, as an array. No I/O.

A filter passes over most messages. Reading their properties one by one takes 0.8 µs each, most of it for
calls; as rows of an array half as much.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.message.layout import BODY_POSITION_V4, MAGIC_V1, MIN_RECORD_SIZE, POSITIONS
from batonmq.store.consumequeue import UNIT

LEAST_UNITS: Final = 64
"""With fewer, one by one is as fast."""
LONGEST_PROPERTIES: Final = 512
"""Bytes; records with more are looked at one by one."""
_VALUE: Final = 8
"""Bytes of the longest value that is looked at here; it is a number then."""
_UNITS: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
assert _UNITS.itemsize == UNIT.size
_MAGIC_AT, _SYS_FLAG_AT, _BODY_SIZE_AT = POSITIONS["magic"], POSITIONS["sys_flag"], POSITIONS["body_size"]
_HOSTS_V6: Final = int(MessageSysFlag.HOSTS_V6)
_KEPT: Final = np.array([(1 << 8 * n) - 1 for n in range(_VALUE)] + [(1 << 64) - 1], np.uint64)
"""Length of a value -> its bits in the number of its first eight bytes, the first byte lowest."""

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def candidates(
    units: bytes, data: mmap.mmap, base: int, end: int, mark: bytes, passes: Callable[[bytes | None], bool]
) -> list[int] | None:
    """Which of the `units` of a consume queue have to be looked at, ascending: those whose record has a value
    that passes, and those of which this cannot be said here. None if arrays do not help.

    `data` is a commit log file whose first byte has offset `base`; records reach to offset `end` at most.
    `mark`: `property_start` of the property; `passes`: the filter's answer for its value.
    """
    count = len(units) // UNIT.size
    if count < LEAST_UNITS:
        return None
    rows = np.frombuffer(units, _UNITS, count)
    begins = rows["offset"].astype(np.int64) - base
    sizes = rows["size"].astype(np.int64)
    last = min(end - base, len(data))
    if int(begins.min()) < 0 or int(sizes.min()) < MIN_RECORD_SIZE or int((begins + sizes).max()) > last:
        return None
    text = np.frombuffer(data, np.uint8)
    heads = _rows(text, begins, BODY_POSITION_V4)
    body_sizes = _int_at(heads, _BODY_SIZE_AT)
    plain = (_int_at(heads, _MAGIC_AT) == MAGIC_V1) & (_int_at(heads, _SYS_FLAG_AT) & _HOSTS_V6 == 0)
    topics_at, ends = begins + BODY_POSITION_V4 + body_sizes, begins + sizes
    plain &= (body_sizes >= 0) & (topics_at < ends)
    topics_at[~plain] = begins[~plain]
    lengths = ends - (topics_at + 3 + text[topics_at])
    plain &= (lengths >= 0) & (lengths <= LONGEST_PROPERTIES)
    lengths[~plain] = 0
    width = int(lengths.max()) + 1
    if int(ends.min()) < width:
        return None
    numbers, clear = _values(_rows(text, ends - width, width), width - lengths, mark)
    clear &= plain
    look = ~clear
    wanted = [number for number in np.unique(numbers[clear]).tolist() if passes(_text(number))]
    if wanted:
        look |= clear & np.isin(numbers, np.array(wanted, np.uint64))
    return np.flatnonzero(look).tolist()


def _rows(text: Bytes, begins: Ints, width: int) -> Bytes:
    """`width` bytes from each of `begins` on, one row each."""
    windows = as_strided(text, (len(text) - width + 1, width), (1, 1), writeable=False)
    return windows[begins]


def _int_at(rows: Bytes, at: int) -> Ints:
    return np.ascontiguousarray(rows[:, at : at + 4]).view(">i4")[:, 0].astype(np.int64)


def _values(tails: Bytes, first: Ints, mark: bytes) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The last value of a property in each row of `tails`, whose properties begin in column `first` (1 or
    more) and reach to the end: as a number of its bytes, 0 if it is missing; and where that is certain."""
    count, width = tails.shape
    # Behind the last row comes what ends every value.
    text = np.concatenate((tails.reshape(-1), np.full(len(mark) + _VALUE + 1, 2, np.uint8)))
    size = count * width
    found = text[:size] == mark[0]
    for place, byte in enumerate(mark[1:], 1):
        found &= text[place : place + size] == byte
    at = np.flatnonzero(found)
    rows, columns = np.divmod(at, width)
    begin = first[rows]
    valid = ((columns > begin) & (text[at - 1] == 2)) | (columns == begin)
    valid &= columns + len(mark) <= width
    at, rows = at[valid], rows[valid]
    values_at = np.full(count, -1, np.int64)
    values_at[rows] = at + len(mark)  # of several in a row the last counts
    rows = np.flatnonzero(values_at >= 0)
    values_at = values_at[rows]
    window = _rows(text, values_at, _VALUE + 1)
    ends = window == 2
    sizes = np.where(ends.any(axis=1), ends.argmax(axis=1), _VALUE + 1)
    sizes = np.minimum(sizes, (rows + 1) * width - values_at)
    numbers = np.zeros(count, np.uint64)
    numbers[rows] = (
        np.ascontiguousarray(window[:, :_VALUE]).view("<u8")[:, 0] & _KEPT[np.minimum(sizes, _VALUE)]
    )
    certain = np.ones(count, np.bool_)
    # An empty value gives way to one before it, and one with a byte 0 could be taken for a shorter one.
    zeros = (window == 0).argmax(axis=1)
    certain[rows] = (sizes > 0) & (sizes <= _VALUE) & ((zeros >= sizes) | (window[:, 0] != 0) & (zeros == 0))
    return numbers, certain


def _text(number: int) -> bytes | None:
    return number.to_bytes(_VALUE, "little").rstrip(b"\0") if number else None
