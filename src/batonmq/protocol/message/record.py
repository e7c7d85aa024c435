"""The stored message record (`layout.py`): encoding and decoding. Bytes only."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from zlib_ng.zlib_ng import crc32

from batonmq.protocol.buffers import Buffer
from batonmq.protocol.codes import MessageSysFlag
from batonmq.protocol.compression import decompress
from batonmq.protocol.message.errors import MessageFormatError
from batonmq.protocol.message.ids import HOST_V4_SIZE, HOST_V6_SIZE, encode_message_id, unpack_host
from batonmq.protocol.message.layout import (
    BODY_POSITION_V4,
    HOST_V6_EXTRA,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    POSITIONS,
    SIZE_MAGIC,
    span_struct,
)
from batonmq.protocol.message.properties import (
    MAX_PROPERTIES_BYTES,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQUE_KEY,
    decode_properties,
    encode_properties,
    split_keys,
)

_COMPRESSED = MessageSysFlag.COMPRESSED
_BORN_HOST_V6 = MessageSysFlag.BORN_HOST_V6
_STORE_HOST_V6 = MessageSysFlag.STORE_HOST_V6
_HOSTS_V6 = MessageSysFlag.HOSTS_V6

_FIXED_V4 = span_struct("size", "body_size")
_HEAD = span_struct("size", "born_timestamp")
_TAIL = span_struct("reconsume_times", "body_size")
_BORN_HOST = POSITIONS["born_host"]
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")
_MAGIC = struct.Struct(">i")
_PHYSICAL_OFFSET = POSITIONS["physical_offset"]


@dataclass(slots=True, kw_only=True)
class StoredMessage:
    """A message, or a wire batch of messages for one queue, on its way into the store."""

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes = b""
    """Encoded (`encode_properties`); unused if `batch`, where each message has its own."""
    flag: int = 0
    """The application's own number."""
    sys_flag: int = 0
    """Compression and transaction bits; the IPv6 bits are set by the encoder."""
    born_timestamp: int = 0
    """Sender's wall time, ms."""
    born_host: bytes = b"\x7f\0\0\x01\0\0\0\0"
    """`pack_host` of the sender."""
    store_host: bytes = b"\x7f\0\0\x01\0\0\0\0"
    """`pack_host` of the broker."""
    reconsume_times: int = 0
    """See `layout.once_more`."""
    prepared_transaction_offset: int = 0
    batch: bool = False
    """`body` is a wire batch (`encode_batch`): it is stored as one record a message."""
    accepted: bool = False
    """It is made of a record: `maxMessageSize`, which may have become smaller since, does not concern it."""


def moved(
    message: StoredMessage, topic: str, queue_id: int, properties: bytes, sys_flag: int
) -> StoredMessage:
    """A copy of a message that is stored elsewhere first; a quick `dataclasses.replace`."""
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=properties,
        flag=message.flag,
        sys_flag=sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        batch=message.batch,
        accepted=message.accepted,
    )


@lru_cache(maxsize=65536)
def topic_field(topic: str) -> tuple[int, bytes]:
    """``(magic, length and topic)`` of a record for `topic`; raises `MessageFormatError` when too long."""
    data = topic.encode()
    if len(data) <= 127:
        return MAGIC_V1, bytes((len(data),)) + data
    if len(data) > 32767:
        raise MessageFormatError(f"topic of {len(data)} bytes")
    return MAGIC_V2, _SHORT.pack(len(data)) + data


def encode_record(
    message: StoredMessage, *, queue_offset: int, physical_offset: int, store_timestamp: int
) -> bytes:
    """One stored record of a `message` that is no batch; raises `MessageFormatError` if it cannot be one."""
    if message.batch:
        raise MessageFormatError("a batch is stored as several records")
    magic, topic = topic_field(message.topic)
    body, properties = message.body, message.properties
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageFormatError(f"properties take {len(properties)} bytes, at most {MAX_PROPERTIES_BYTES}")
    variable = len(topic) + 2 + len(properties)
    return b"".join(
        (
            encode_preamble(
                message, magic, body, variable, message.flag, queue_offset, physical_offset, store_timestamp
            ),
            body,
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def encode_preamble(
    message: StoredMessage,
    magic: int,
    body: Buffer,
    variable: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> bytes:
    """A record's bytes up to its body. `variable` counts the bytes after the body, length fields included;
    `body` and `flag` are those of the record, which in a batch differ from the message's."""
    born_host, store_host = message.born_host, message.store_host
    size = len(body)
    if len(born_host) == len(store_host) == HOST_V4_SIZE:  # nearly always; one call instead of seven
        return _FIXED_V4.pack(
            BODY_POSITION_V4 + size + variable,
            magic,
            crc32(body) & 0x7FFFFFFF,
            message.queue_id,
            flag,
            queue_offset,
            physical_offset,
            message.sys_flag & ~_HOSTS_V6,
            message.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            size,
        )
    sys_flag = message.sys_flag & ~_HOSTS_V6
    extra = 0
    if len(born_host) == HOST_V6_SIZE:
        sys_flag |= _BORN_HOST_V6
        extra = HOST_V6_EXTRA
    if len(store_host) == HOST_V6_SIZE:
        sys_flag |= _STORE_HOST_V6
        extra += HOST_V6_EXTRA
    return b"".join(
        (
            _HEAD.pack(
                BODY_POSITION_V4 + extra + size + variable,
                magic,
                crc32(body) & 0x7FFFFFFF,
                message.queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                message.born_timestamp,
            ),
            born_host,
            _LONG.pack(store_timestamp),
            store_host,
            _TAIL.pack(message.reconsume_times, message.prepared_transaction_offset, size),
        )
    )


def encode_blank(size: int) -> bytes:
    """The filler's first 8 bytes, for `size` bytes up to the end of the file; the rest stays zero."""
    return SIZE_MAGIC.pack(size, MAGIC_BLANK)


def body_crc(body: Buffer) -> int:
    """CRC-32 without its sign bit, as the record keeps it."""
    return crc32(body) & 0x7FFFFFFF


@dataclass(slots=True, kw_only=True)
class MessageExt:
    """A decoded record."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0
    sys_flag: int = 0
    body_crc: int = 0
    born_timestamp: int = 0
    born_host: bytes = b""
    """Packed; see `born_address`."""
    store_timestamp: int = 0
    store_host: bytes = b""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    store_size: int = 0
    """Bytes of the whole record."""

    @property
    def born_address(self) -> tuple[str, int]:
        """``(ip, port)`` of the sender."""
        return unpack_host(self.born_host)

    @property
    def store_address(self) -> tuple[str, int]:
        """``(ip, port)`` of the broker that stored it."""
        return unpack_host(self.store_host)

    @property
    def offset_message_id(self) -> str:
        """Id made of the broker's address and the commit log offset."""
        return encode_message_id(self.store_host, self.physical_offset)

    @property
    def message_id(self) -> str:
        """The sender's unique id if there is one, else the offset id: what Java's clients show as msgId."""
        return self.properties.get(PROPERTY_UNIQUE_KEY) or self.offset_message_id

    @property
    def tags(self) -> str | None:
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties.get(PROPERTY_KEYS, ""))


def message_of(
    record: MessageExt, *, topic: str, queue_id: int, properties: Mapping[str, str]
) -> StoredMessage:
    """A copy of `record` for another queue, with these properties. `record` must be decoded without inflating
    its body. Raises `MessageFormatError` for properties that are too long."""
    return StoredMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=encode_properties(properties),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
        accepted=True,
    )


def decode_record(
    data: Buffer, position: int = 0, *, check_crc: bool = False, inflate: bool = True
) -> MessageExt:
    """Decode the record at `position`; the bytes after it do not matter.

    `inflate` decompresses a compressed body and clears its bit in `sys_flag`. Raises `MessageFormatError`
    when the bytes are no whole record or the CRC is wrong (`check_crc`), `CompressionError` when the body
    does not inflate.
    """
    try:
        return _decode_record(memoryview(data), position, check_crc, inflate)
    except (struct.error, IndexError) as error:
        raise MessageFormatError(f"record at {position} is cut short: {error}") from error


def _decode_record(data: memoryview, position: int, check_crc: bool, inflate: bool) -> MessageExt:
    (
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body_size,
    ) = _FIXED_V4.unpack_from(data, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise MessageFormatError(f"record at {position} has magic {magic}")
    end = position + size
    if size < MIN_RECORD_SIZE or end > len(data):
        raise MessageFormatError(f"record at {position} claims {size} of {len(data) - position} bytes")
    at = position + BODY_POSITION_V4
    if sys_flag & _HOSTS_V6:
        at = position + _BORN_HOST
        host_size = HOST_V6_SIZE if sys_flag & _BORN_HOST_V6 else HOST_V4_SIZE
        born_host = bytes(data[at : at + host_size])
        at += host_size
        (store_timestamp,) = _LONG.unpack_from(data, at)
        at += 8
        host_size = HOST_V6_SIZE if sys_flag & _STORE_HOST_V6 else HOST_V4_SIZE
        store_host = bytes(data[at : at + host_size])
        at += host_size
        reconsume_times, prepared_transaction_offset, body_size = _TAIL.unpack_from(data, at)
        at += _TAIL.size
    if body_size < 0 or at + body_size + 3 > end:
        raise MessageFormatError(f"record at {position} of {size} bytes claims a body of {body_size}")
    raw_body = data[at : at + body_size]
    at += body_size
    if magic == MAGIC_V1:
        topic_size = data[at]
        at += 1
    else:
        (topic_size,) = _SHORT.unpack_from(data, at)
        at += 2
    topic = str(data[at : at + topic_size], "utf-8", "replace")
    at += topic_size
    (properties_size,) = _SHORT.unpack_from(data, at)
    at += 2
    if topic_size < 0 or properties_size < 0 or at + properties_size != end:
        raise MessageFormatError(f"record at {position}: its parts do not add up to its {size} bytes")
    if check_crc and body_crc(raw_body) != crc:
        raise MessageFormatError(f"record at {position}: the body's CRC is wrong")
    if inflate and sys_flag & _COMPRESSED:
        body = decompress(raw_body, sys_flag)
        sys_flag &= ~_COMPRESSED
    else:
        body = bytes(raw_body)
    return MessageExt(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        properties=decode_properties(data[at:end]) if properties_size else {},
        flag=flag,
        sys_flag=sys_flag,
        body_crc=crc,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
        store_size=size,
    )


def inflate(message: MessageExt) -> None:
    """Decompress the body of a `message` that was decoded without that, and clear its bit in `sys_flag`.

    Does nothing for other bodies. Raises `CompressionError`, and leaves the message as it is.
    """
    if message.sys_flag & _COMPRESSED:
        message.body = decompress(message.body, message.sys_flag)
        message.sys_flag &= ~_COMPRESSED


def scan_frames(data: Buffer, position: int = 0) -> list[int]:
    """Where the whole records from `position` on begin, and, as last number, where the last of them ends.

    Stops before a record that is cut short or has another magic (a filler, zeros), so
    ``result[-1] < len(data)`` means that something else follows.
    """
    end = len(data)
    starts = [position]
    unpack = SIZE_MAGIC.unpack_from
    last = end - MIN_RECORD_SIZE
    while position <= last:
        size, magic = unpack(data, position)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < MIN_RECORD_SIZE or position + size > end:
            break
        position += size
        starts.append(position)
    return starts


def first_record_size(data: Buffer) -> int:
    """Size of the record at the beginning; 0 where there is none, or not the whole of it."""
    if len(data) < MIN_RECORD_SIZE:
        return 0
    size, magic = SIZE_MAGIC.unpack_from(data)
    whole = magic in (MAGIC_V1, MAGIC_V2) and MIN_RECORD_SIZE <= size <= len(data)
    return int(size) if whole else 0


def next_record(data: Buffer, offset: int) -> int | None:
    """Where in `data`, a piece of a commit log from the physical `offset` on, the first record or filler
    begins; None if none does. Its magic and the physical offset that it names show it, those of a filler its
    magic and its size: `data` ends with it."""
    text = bytes(data)
    found = len(text)
    for magic in (MAGIC_V1, MAGIC_V2):
        mark, at = _MAGIC.pack(magic), 3
        while (at := text.find(mark, at + 1, found + _MAGIC.size)) >= 0:
            start = at - _MAGIC.size
            here = start + _PHYSICAL_OFFSET + _LONG.size <= len(text)
            if here and _LONG.unpack_from(text, start + _PHYSICAL_OFFSET)[0] == offset + start:
                found = min(found, start)
                break
    mark, at = _MAGIC.pack(MAGIC_BLANK), 3
    while (at := text.find(mark, at + 1, found + _MAGIC.size)) >= 0:
        start = at - _MAGIC.size
        if SIZE_MAGIC.unpack_from(text, start)[0] == len(text) - start:
            found = min(found, start)
            break
    return found if found < len(text) else None


def decode_records(data: Buffer, *, check_crc: bool = False, inflate: bool = True) -> list[MessageExt]:
    """All records of a pull response; raises `MessageFormatError` unless `data` is whole records only."""
    view = memoryview(data)
    starts = scan_frames(view)
    if starts[-1] != len(view):
        raise MessageFormatError(f"no whole record at {starts[-1]} of {len(view)} bytes")
    return [decode_record(view, at, check_crc=check_crc, inflate=inflate) for at in starts[:-1]]
