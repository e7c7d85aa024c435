"""Packed hosts, and message ids: those that brokers make of a place, and those that senders make."""

from __future__ import annotations

import ipaddress
import struct
from datetime import datetime
from functools import lru_cache
from typing import Final

from batonmq.common.addresses import host_and_port
from batonmq.protocol.message.errors import MessageFormatError

HOST_V4_SIZE: Final = 8
HOST_V6_SIZE: Final = 20
"""Bytes of a packed host: address and port."""
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


@lru_cache(maxsize=4096)
def pack_host(ip: str, port: int) -> bytes:
    """8 (IPv4) or 20 (IPv6) bytes: the address, then the port in 4."""
    return ipaddress.ip_address(ip).packed + _INT.pack(port)


def pack_address(address: str) -> bytes:
    """`pack_host` of ``ip:port``; an IPv6 address may stand in brackets."""
    return pack_host(*host_and_port(address))


@lru_cache(maxsize=4096)
def unpack_host(data: bytes) -> tuple[str, int]:
    """``(ip, port)`` of 8 or 20 bytes; raises `MessageFormatError` for another length."""
    if len(data) not in (HOST_V4_SIZE, HOST_V6_SIZE):
        raise MessageFormatError(f"a host takes 8 or 20 bytes, not {len(data)}")
    return str(ipaddress.ip_address(data[:-4])), int.from_bytes(data[-4:], "big", signed=True)


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

    In hex: address (4 or 16 bytes), process id (2), a number of this generator (4),
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
    since = int.from_bytes(data[-6:-2], "big")
    if begin + since >= now_ms:
        begin, _ = _month_bounds_ms(begin - 1)
    return begin + since


def _month_bounds_ms(now_ms: int) -> tuple[int, int]:
    begin = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    year, month = (begin.year + 1, 1) if begin.month == 12 else (begin.year, begin.month + 1)
    return int(begin.timestamp()) * 1000, int(begin.replace(year=year, month=month).timestamp()) * 1000
