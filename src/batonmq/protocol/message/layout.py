"""The layout of a stored record: the one table that every reader and writer takes its offsets from.

A record is what the commit log holds, what replication carries and what a pull response is made of. All
numbers are big endian and signed, as Java writes them. `FIELDS` lists what comes before the body, for IPv4
hosts; names that end in ``_V4`` assume them too. After the body come::

    topic length 1 (V1) or 2 (V2), topic
    properties length 2, properties

A host is its address, 4 or 16 bytes, and its port in 4. Source: RocketMQ's stored format, `MessageVersion` V1
and V2; V2 is used for topics of more than 127 bytes.
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Final

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477
MAGIC_BLANK: Final = -875286124
"""Magic of the filler that closes a commit log file: its size runs to the file's end."""
BLANK_SIZE: Final = 8
"""Bytes that a filler needs at least: its size and its magic."""

FIELDS: Final = {
    "size": "i",
    "magic": "i",
    "body_crc": "i",
    "queue_id": "i",
    "flag": "i",
    "queue_offset": "q",
    "physical_offset": "q",
    "sys_flag": "i",
    "born_timestamp": "q",
    "born_host": "8s",
    "store_timestamp": "q",
    "store_host": "8s",
    "reconsume_times": "i",
    "prepared_transaction_offset": "q",
    "body_size": "i",
}
"""Name -> `struct` code, in the record's order. `size` counts the whole record; times are in ms."""

HOST_V6_EXTRA: Final = 12
"""Bytes that a host with an IPv6 address takes more; `sys_flag` says which of the two hosts do."""

_SIZES: Final = [struct.calcsize(">" + code) for code in FIELDS.values()]
POSITIONS: Final = dict(zip(FIELDS, accumulate(_SIZES, initial=0), strict=False))
"""Name -> where the field begins in a record with IPv4 hosts."""
BODY_POSITION_V4: Final = sum(_SIZES)
MIN_RECORD_SIZE: Final = BODY_POSITION_V4 + 1 + 2
"""A record with IPv4 hosts and without body, topic and properties."""


def fields_struct(*names: str) -> struct.Struct:
    """Reads these fields, in the record's order, from the beginning of a record with IPv4 hosts."""
    names_left = list(names)
    format_ = ">"
    for name, code in FIELDS.items():
        if not names_left:
            break
        if name == names_left[0]:
            format_ += code
            names_left.pop(0)
        else:
            format_ += f"{struct.calcsize('>' + code)}x"
    if names_left:
        raise ValueError(f"{names_left[0]!r} is not a field, or not in the record's order")
    return struct.Struct(format_)


def span_struct(first: str, last: str) -> struct.Struct:
    """Reads the fields from `first` to `last`, from the beginning of the first."""
    names = list(FIELDS)
    codes = list(FIELDS.values())[names.index(first) : names.index(last) + 1]
    return struct.Struct(">" + "".join(codes))


SIZE_MAGIC: Final = span_struct("size", "magic")


MAX_RECONSUME_TIMES = (1 << 31) - 1


def once_more(reconsume_times: int) -> int:
    """One attempt more. Senders may say any number: the greatest that a record holds stays as it is."""
    return min(reconsume_times + 1, MAX_RECONSUME_TIMES)
