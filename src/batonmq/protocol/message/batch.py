"""The wire batch: several messages for one queue in one body."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.properties import MAX_PROPERTIES_BYTES
from batonmq.protocol.message.record import StoredMessage

_BATCH_HEAD = struct.Struct(">5i")
_SHORT = struct.Struct(">h")


@dataclass(slots=True, kw_only=True)
class BatchItem:
    """One message of a wire batch: all that it does not share with the rest."""

    body: Buffer
    properties: bytes = b""
    flag: int = 0


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Body of a batch send: per message size, magic 0, CRC 0, flag, body, properties."""
    parts: list[Buffer] = []
    for item in items:
        body_size, properties_size = len(item.body), len(item.properties)
        if properties_size > MAX_PROPERTIES_BYTES:
            raise MessageFormatError(f"properties of {properties_size} bytes, at most {MAX_PROPERTIES_BYTES}")
        parts.append(_BATCH_HEAD.pack(22 + body_size + properties_size, 0, 0, item.flag, body_size))
        parts.append(item.body)
        parts.append(_SHORT.pack(properties_size))
        parts.append(item.properties)
    return b"".join(parts)


def scan_batch(data: Buffer) -> list[tuple[int, int, int, int]]:
    """(flag, where the body begins, where it ends, where the message ends) of each message.

    From the body's end to the message's end lie the properties behind their length of 2 bytes. Raises
    `MessageFormatError` unless `data` is whole messages and at least one.
    """
    items = []
    position, total = 0, len(data)
    unpack_head, unpack_short = _BATCH_HEAD.unpack_from, _SHORT.unpack_from
    try:
        while position < total:
            size, _, _, flag, body_size = unpack_head(data, position)
            body = position + 20
            tail, end = body + body_size, position + size
            if body_size < 0 or end > total or tail + 2 > total:
                raise MessageFormatError(f"batch message at {position} does not fit into {total} bytes")
            if tail + 2 + unpack_short(data, tail)[0] != end:
                raise MessageFormatError(f"batch message at {position}: parts do not add up to {size} bytes")
            items.append((flag, body, tail, end))
            position = end
    except struct.error as error:
        raise MessageFormatError(f"batch message at {position} is cut short: {error}") from error
    if not items:
        raise MessageFormatError("the batch is empty")
    return items


def first_properties(data: Buffer) -> bytes:
    """The encoded properties of the first message; does not look at the others."""
    size, _, _, _, body_size = _BATCH_HEAD.unpack_from(data)
    return bytes(data[_BATCH_HEAD.size + body_size + _SHORT.size : size])


def decode_batch(data: Buffer) -> Iterator[BatchItem]:
    """The messages of a wire batch; raises `MessageFormatError` as `scan_batch` does."""
    view = memoryview(data)
    for flag, body, tail, end in scan_batch(view):
        yield BatchItem(body=bytes(view[body:tail]), properties=bytes(view[tail + 2 : end]), flag=flag)


def split_batch(message: StoredMessage) -> Sequence[StoredMessage]:
    """The messages of a `StoredMessage` with `batch` set, each on its own. As in RocketMQ, none keeps a
    prepared transaction offset."""
    return [
        StoredMessage(
            topic=message.topic,
            queue_id=message.queue_id,
            body=item.body,
            properties=item.properties,
            flag=item.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
        )
        for item in decode_batch(message.body)
    ]
