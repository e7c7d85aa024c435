"""The messages between a container and its worker processes, over a socket pair.

A message is JSON after a length of four bytes. The container sends calls (`Start`, `Stop`, `NameServers`,
`Ping`, `Close`). The worker answers each call with `Answer`, and reports a broker that stopped itself with
`Ended`.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, TypeAlias

import msgspec

from batonmq.container.core import BrokerIdentity
from batonmq.net.tls import TlsConfig

MAX_BYTES: Final = 1 << 20
_LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, tag="hello"):
    """The first message to a worker."""

    number: int
    """The worker's number, from 1."""
    tls: TlsConfig


class Start(msgspec.Struct, tag="start"):
    """Start the broker of this file. The file must still have this identity."""

    call: int
    path: str
    namesrv_addr: str
    identity: BrokerIdentity


class Stop(msgspec.Struct, tag="stop"):
    """Stop a broker."""

    call: int
    identity: BrokerIdentity


class NameServers(msgspec.Struct, tag="nameServers"):
    """From now on brokers register at these addresses."""

    call: int
    addresses: str


class Ping(msgspec.Struct, tag="ping"):
    """Answer at once: the event loop runs."""

    call: int


class Close(msgspec.Struct, tag="close"):
    """Stop all brokers, answer, and exit."""

    call: int


class Answer(msgspec.Struct, tag="answer"):
    """The answer to a call. `error` is None on success."""

    call: int
    error: str | None = None


class Ended(msgspec.Struct, tag="ended"):
    """A broker has stopped itself."""

    identity: BrokerIdentity
    cause: str


Order: TypeAlias = Hello | Start | Stop | NameServers | Ping | Close
Report: TypeAlias = Answer | Ended

_orders: Final = msgspec.json.Decoder(Order)
_reports: Final = msgspec.json.Decoder(Report)


def frame(message: Order | Report) -> bytes:
    """The bytes of a message."""
    body = msgspec.json.encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_order(reader: asyncio.StreamReader) -> Order | None:
    """The container's next call. None: the container is gone. Raises `ValueError` for an invalid message."""
    body = await _read(reader)
    return None if body is None else _orders.decode(body)


async def read_report(reader: asyncio.StreamReader) -> Report | None:
    """The worker's next message. None: the worker is gone. Raises `ValueError` for an invalid message."""
    body = await _read(reader)
    return None if body is None else _reports.decode(body)


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > MAX_BYTES:
            raise ValueError(f"a message of {length} bytes")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
