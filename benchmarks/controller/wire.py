"""The load's own client: frames made ahead, one callback an answer. It must not be what is measured."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from batonmq.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode
from batonmq.protocol.frame import Command, FrameReader

Answered = Callable[[Command], None]

CLUSTER = "bench"
HEARTBEAT_DONE_AFTER_MS = 3_600_000
"""Timeout that heartbeats name where nobody repeats them."""


class Template:
    """A request of which only the opaque changes; JSON, as Java's brokers write it."""

    __slots__ = ("_fixed", "_head", "_length", "_tail", "code")

    def __init__(self, code: int, fields: Mapping[str, object], body: bytes = b"", flag: int = 0) -> None:
        self.code = int(code)
        head = msgspec.json.encode(
            {
                "code": int(code),
                "flag": flag,
                "language": "JAVA",
                "serializeTypeCurrentRPC": "JSON",
                "version": 477,
                "extFields": {key: _text(value) for key, value in fields.items()},
            }
        )
        self._head = head[:-1] + b',"opaque":'
        self._tail = b"}" + body
        self._length = len(self._head) + 1
        self._fixed = 4 + len(body)

    def frame(self, opaque: int) -> bytes:
        digits = b"%d" % opaque
        header = self._length + len(digits)
        return b"".join(
            (
                (self._fixed + header).to_bytes(4, "big"),
                header.to_bytes(4, "big"),
                self._head,
                digits,
                self._tail,
            )
        )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def heartbeat(
    name: str,
    broker_id: int,
    address: str,
    *,
    epoch: int = 1,
    timeout_ms: int = HEARTBEAT_DONE_AFTER_MS,
    oneway: bool = False,
) -> Template:
    fields = {
        "clusterName": CLUSTER,
        "brokerName": name,
        "brokerAddr": address,
        "brokerId": broker_id,
        "epoch": epoch,
        "maxOffset": 0,
        "confirmOffset": 0,
        "heartbeatTimeoutMills": timeout_ms,
        "electionPriority": 100,
    }
    return Template(RequestCode.BROKER_HEARTBEAT, fields, flag=FLAG_ONEWAY if oneway else 0)


def apply_id(name: str, broker_id: int, address: str) -> Template:
    return Template(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        {
            "clusterName": CLUSTER,
            "brokerName": name,
            "appliedBrokerId": broker_id,
            "registerCheckCode": f"{address};1",
        },
    )


def register(name: str, broker_id: int, address: str) -> Template:
    return Template(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        {
            "clusterName": CLUSTER,
            "brokerName": name,
            "brokerId": broker_id,
            "brokerAddress": address,
            "invokeTime": 0,
        },
    )


def elect(name: str, broker_id: int) -> Template:
    return Template(
        RequestCode.CONTROLLER_ELECT_MASTER,
        {
            "clusterName": CLUSTER,
            "brokerName": name,
            "brokerId": broker_id,
            "designateElect": False,
            "invokeTime": 0,
        },
    )


def alter(name: str, master_id: int, master_epoch: int, members: list[int], epoch: int) -> Template:
    return Template(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        {
            "brokerName": name,
            "masterBrokerId": master_id,
            "masterEpoch": master_epoch,
            "invokeTime": 0,
        },
        msgspec.json.encode({"syncStateSet": members, "syncStateSetEpoch": epoch}),
    )


def replica_info(name: str) -> Template:
    return Template(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": name})


class Line(asyncio.Protocol):
    """One connection to a controller. When it breaks, calls under way are dropped and `lost` is called."""

    def __init__(self, *, lost: Callable[[Line], None] | None = None) -> None:
        self.closed = False
        self._lost = lost
        self._reader = FrameReader()
        self._waiting: dict[int, Answered] = {}
        self._opaques = itertools.count(1)
        self._answering = False
        self._out: list[bytes] = []
        """What is asked while answers are taken. It leaves in one write: a write for each request was 78 % of
        the load's processor time, and the load was what the figures of a fast controller showed."""
        self._transport: asyncio.WriteTransport

    @classmethod
    async def to(cls, address: str, *, lost: Callable[[Line], None] | None = None) -> Line:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: cls(lost=lost), host, int(port))
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._waiting.clear()
        if self._lost is not None:
            self._lost(self)

    def data_received(self, data: bytes) -> None:
        self._answering = True
        for command in self._reader.feed(data):
            if command.flag & FLAG_RESPONSE:
                answered = self._waiting.pop(command.opaque, None)
                if answered is not None:
                    answered(command)
        self._answering = False
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def send(self, frame: bytes) -> None:
        if self._answering:
            self._out.append(frame)
        else:
            self._transport.write(frame)

    def ask(self, request: Template, answered: Answered) -> None:
        opaque = next(self._opaques)
        self._waiting[opaque] = answered
        self.send(request.frame(opaque))

    async def call(self, request: Template, timeout_s: float = 10.0) -> Command:
        """Raises `TimeoutError`, also when the connection broke."""
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self.ask(request, lambda answer: None if future.done() else future.set_result(answer))
        return await asyncio.wait_for(future, timeout_s)

    def close(self) -> None:
        self._transport.close()
