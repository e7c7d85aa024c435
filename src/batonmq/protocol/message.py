"""The stored message record, the wire batch, message properties and message ids: bytes only.

A record is what the commit log holds, what replication carries and what a pull response is made of.
All numbers are big endian and signed, as Java writes them::

    0   total size        4      28  physical offset   8
    4   magic             4      36  sys flag          4
    8   body CRC          4      40  born timestamp    8    ms
    12  queue id          4      48  born host         8 or 20 (address, then port as 4 bytes)
    16  flag              4      ..  store timestamp   8    ms
    20  queue offset      8      ..  store host        8 or 20
                                 ..  reconsume times   4
                                 ..  prepared transaction offset 8
                                 ..  body length 4, body
                                 ..  topic length 1 (V1) or 2 (V2), topic
                                 ..  properties length 2, properties

The offsets after "born host" assume IPv4 where a name ends in ``_V4``. Source: RocketMQ's stored format,
`MessageVersion` V1 and V2; V2 is used for topics of more than 127 bytes.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from zlib import crc32

from batonmq.protocol.compression import COMPRESSED_FLAG, decompress

Buffer = bytes | bytearray | memoryview

MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
MAGIC_BLANK = -875286124
"""Magic of the filler that closes a commit log file: its size runs to the file's end."""
BLANK_SIZE = 8
"""Bytes that a filler needs at least: its size and its magic."""

MULTI_TAGS_FLAG = 0x1 << 1
TRANSACTION_NOT_TYPE = 0
TRANSACTION_PREPARED_TYPE = 0x1 << 2
TRANSACTION_COMMIT_TYPE = 0x2 << 2
TRANSACTION_ROLLBACK_TYPE = 0x3 << 2
TRANSACTION_MASK = 0x3 << 2
BORNHOST_V6_FLAG = 0x1 << 4
STOREHOST_V6_FLAG = 0x1 << 5
HOSTS_V6_FLAGS = BORNHOST_V6_FLAG | STOREHOST_V6_FLAG
NEED_UNWRAP_FLAG = 0x1 << 6
INNER_BATCH_FLAG = 0x1 << 7

QUEUE_OFFSET_POSITION = 20
PHYSICAL_OFFSET_POSITION = 28
SYS_FLAG_POSITION = 36
STORE_TIMESTAMP_POSITION_V4 = 56
BODY_POSITION_V4 = 88
"""Where the body begins when both hosts are IPv4."""
MIN_RECORD_SIZE = 91
"""An IPv4 record without body, topic and properties."""
MAX_PROPERTIES_BYTES = 32767

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT_STORE_OK = "WAIT"
PROPERTY_DELAY_LEVEL = "DELAY"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
PROPERTY_TRANSACTION_PREPARED = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP = "PGROUP"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_SWITCH = "TRACE_ON"
PROPERTY_UNIQUE_KEY = "UNIQ_KEY"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIME = "CONSUME_START_TIME"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
KEY_SEPARATOR = " "

_FIXED_V4 = struct.Struct(">5i2qiq8sq8siqi")
_HEAD = struct.Struct(">5i2qiq")
_TAIL = struct.Struct(">iqi")
_BATCH_HEAD = struct.Struct(">5i")
_SIZE_MAGIC = struct.Struct(">2i")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SHORT = struct.Struct(">h")
assert _FIXED_V4.size == BODY_POSITION_V4
assert _HEAD.size == 48


class MessageFormatError(ValueError):
    """Bytes that are not the record, batch or id they should be; the text says what is wrong."""


# --------------------------------------------------------------------------------------------- properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Properties as stored: ``name \\x01 value \\x02`` each, UTF-8, in the mapping's order.

    Raises `MessageFormatError` if a separator occurs inside, or the result exceeds 32767 bytes.
    """
    if not properties:
        return b""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise MessageFormatError("a property name or value holds a separator (\\x01 or \\x02)")
    data = text.encode()
    if len(data) > MAX_PROPERTIES_BYTES:
        raise MessageFormatError(
            f"properties take {len(data)} bytes, at most {MAX_PROPERTIES_BYTES} are allowed"
        )
    return data


def decode_properties(data: Buffer | str) -> dict[str, str]:
    """Inverse of `encode_properties`. Pieces without name, separator or value are passed over, as in Java."""
    text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    properties = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Value of one property in encoded `properties`, without decoding the rest; the last one counts."""
    needle = name + b"\x01"
    at = len(properties)
    while (at := properties.rfind(needle, 0, at)) >= 0:
        if at == 0 or properties[at - 1] == 2:
            begin = at + len(needle)
            end = properties.find(b"\x02", begin)
            value = properties[begin:] if end < 0 else properties[begin:end]
            if value:
                return value
    return None


# -------------------------------------------------------------------------------------------------- hosts


@lru_cache(maxsize=4096)
def pack_host(ip: str, port: int) -> bytes:
    """8 (IPv4) or 20 (IPv6) bytes: the address, then the port in 4."""
    return ipaddress.ip_address(ip).packed + _INT.pack(port)


def pack_address(address: str) -> bytes:
    """`pack_host` of ``ip:port``; an IPv6 address may stand in brackets."""
    ip, _, port = address.rpartition(":")
    return pack_host(ip.strip("[]"), int(port))


@lru_cache(maxsize=4096)
def unpack_host(data: bytes) -> tuple[str, int]:
    """``(ip, port)`` of 8 or 20 bytes; raises `MessageFormatError` for another length."""
    if len(data) not in (8, 20):
        raise MessageFormatError(f"a host takes 8 or 20 bytes, not {len(data)}")
    return str(ipaddress.ip_address(data[:-4])), int.from_bytes(data[-4:], "big", signed=True)


# ---------------------------------------------------------------------------------------------------- ids


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """Offset message id: store host and commit log offset in upper-case hex (32 or 56 digits)."""
    return (store_host + _LONG.pack(physical_offset)).hex().upper()


def decode_message_id(message_id: str) -> tuple[str, int, int]:
    """``(ip, port, physical_offset)`` of an offset message id; raises `MessageFormatError`."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        raise MessageFormatError(f"message id {message_id!r} is not hexadecimal") from None
    if len(data) not in (16, 28):
        raise MessageFormatError(f"message id {message_id!r} must have 32 or 56 digits")
    ip, port = unpack_host(data[:-8])
    if not 0 <= port < 65_536:  # a unique id is as long, and has the process id at this place
        raise MessageFormatError(f"message id {message_id!r} is no offset id: {port} is no port")
    return ip, port, int.from_bytes(data[-8:], "big", signed=True)


class UniqueIds:
    """Source of client-side unique message ids (property ``UNIQ_KEY``), in Java's layout.

    In hex: address (4 or 16 bytes), process id (2), a number that tells generators of one process apart (4),
    milliseconds since the local month began (4), counter (2).
    """

    __slots__ = ("_counter", "_month_begin_ms", "_next_month_ms", "_prefix")

    def __init__(self, ip: str, pid: int, salt: int) -> None:
        address = ipaddress.ip_address(ip).packed
        self._prefix = (address + struct.pack(">HI", pid & 0xFFFF, salt & 0xFFFFFFFF)).hex().upper()
        self._counter = 0
        self._month_begin_ms = self._next_month_ms = 0

    def next(self, now_ms: int) -> str:
        """A new id; `now_ms` is wall time. Ids differ unless 65536 are made in one ms."""
        if now_ms >= self._next_month_ms:
            self._month_begin_ms, self._next_month_ms = _month_bounds_ms(now_ms)
        since = max(0, now_ms - self._month_begin_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{since:08X}{self._counter:04X}"


def unique_id_time_ms(unique_id: str, now_ms: int) -> int:
    """When a unique id was made, in ms since the epoch, taking it to be less than a month old.

    Raises `MessageFormatError` for anything else than a unique id.
    """
    try:
        data = bytes.fromhex(unique_id)
    except ValueError:
        raise MessageFormatError(f"unique id {unique_id!r} is not hexadecimal") from None
    if len(data) not in (16, 28):
        raise MessageFormatError(f"unique id {unique_id!r} has {len(unique_id)} digits, 32 or 56 are right")
    begin, _ = _month_bounds_ms(now_ms)
    since = int.from_bytes(data[-6:-2], "big", signed=True)
    if begin + since >= now_ms:
        begin, _ = _month_bounds_ms(begin - 1)
    return begin + since


def _month_bounds_ms(now_ms: int) -> tuple[int, int]:
    begin = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = (begin.year + 1, 1) if begin.month == 12 else (begin.year, begin.month + 1)
    return int(begin.timestamp()) * 1000, int(begin.replace(year=year, month=month).timestamp()) * 1000


# ------------------------------------------------------------------------------------------------ encoding


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
    prepared_transaction_offset: int = 0
    batch: bool = False
    """`body` is a wire batch (`encode_batch`): it is stored as one record a message."""


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
    if len(born_host) == 8 and len(store_host) == 8:  # nearly always; one call instead of seven
        return _FIXED_V4.pack(
            BODY_POSITION_V4 + size + variable,
            magic,
            crc32(body) & 0x7FFFFFFF,
            message.queue_id,
            flag,
            queue_offset,
            physical_offset,
            message.sys_flag & ~HOSTS_V6_FLAGS,
            message.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            size,
        )
    sys_flag = message.sys_flag & ~HOSTS_V6_FLAGS
    if len(born_host) == 20:
        sys_flag |= BORNHOST_V6_FLAG
    if len(store_host) == 20:
        sys_flag |= STOREHOST_V6_FLAG
    return b"".join(
        (
            _HEAD.pack(
                72 + len(born_host) + len(store_host) + size + variable,
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
    return _SIZE_MAGIC.pack(size, MAGIC_BLANK)


def body_crc(body: Buffer) -> int:
    """CRC-32 without its sign bit, as the record keeps it."""
    return crc32(body) & 0x7FFFFFFF


# ------------------------------------------------------------------------------------------------ decoding


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
        return self.properties.get(PROPERTY_KEYS, "").split()


def decode_record(
    data: Buffer, position: int = 0, *, check_crc: bool = False, inflate: bool = True
) -> MessageExt:
    """Decode the record at `position`; what follows it is not looked at.

    `inflate` decompresses a compressed body and clears its bit in `sys_flag`. Raises `MessageFormatError`
    when the bytes are no whole record or the CRC is wrong (`check_crc`), `CompressionError` when the body
    does not inflate.
    """
    try:
        return _decode_record(memoryview(data), position, check_crc, inflate)
    except (struct.error, IndexError) as error:
        raise MessageFormatError(f"record at {position} is cut short: {error}") from error


def _decode_record(data: memoryview, position: int, check_crc: bool, inflate: bool) -> MessageExt:
    (size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp) = (
        _HEAD.unpack_from(data, position)
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise MessageFormatError(f"record at {position} has magic {magic}")
    end = position + size
    if size < MIN_RECORD_SIZE or end > len(data):
        raise MessageFormatError(f"record at {position} claims {size} of {len(data) - position} bytes")
    at = position + 48
    host_size = 20 if sys_flag & BORNHOST_V6_FLAG else 8
    born_host = bytes(data[at : at + host_size])
    at += host_size
    (store_timestamp,) = _LONG.unpack_from(data, at)
    at += 8
    host_size = 20 if sys_flag & STOREHOST_V6_FLAG else 8
    store_host = bytes(data[at : at + host_size])
    at += host_size
    reconsume_times, prepared_transaction_offset, body_size = _TAIL.unpack_from(data, at)
    at += 16
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
    if inflate and sys_flag & COMPRESSED_FLAG:
        body = decompress(raw_body, sys_flag)
        sys_flag &= ~COMPRESSED_FLAG
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


def scan_frames(data: Buffer, position: int = 0) -> list[int]:
    """Where the whole records from `position` on begin, and, as last number, where the last of them ends.

    Stops quietly before a record that is cut short or has another magic (a filler, zeros), so
    ``result[-1] < len(data)`` tells that something else follows.
    """
    end = len(data)
    starts = [position]
    unpack = _SIZE_MAGIC.unpack_from
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
    size, magic = _SIZE_MAGIC.unpack_from(data)
    whole = magic in (MAGIC_V1, MAGIC_V2) and MIN_RECORD_SIZE <= size <= len(data)
    return int(size) if whole else 0


def decode_records(data: Buffer, *, check_crc: bool = False, inflate: bool = True) -> list[MessageExt]:
    """All records of a pull response; raises `MessageFormatError` unless `data` is whole records only."""
    view = memoryview(data)
    starts = scan_frames(view)
    if starts[-1] != len(view):
        raise MessageFormatError(f"no whole record at {starts[-1]} of {len(view)} bytes")
    return [decode_record(view, at, check_crc=check_crc, inflate=inflate) for at in starts[:-1]]


# ---------------------------------------------------------------------------------------------- wire batch


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
