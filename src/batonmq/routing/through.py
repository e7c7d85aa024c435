"""A call to the leading controller through another controller, for callers that do not reach the leader."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from batonmq.net.connection import SUCCESS_ONLY, Response, read_response
from batonmq.net.errors import ConnectionLost
from batonmq.protocol.errors import FrameError
from batonmq.protocol.forwarding import decode_single, encode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.controller import ForwardToLeader

if TYPE_CHECKING:
    from batonmq.net.client import RemotingClient
    from batonmq.protocol.registry import Header


async def call_through(
    client: RemotingClient,
    address: str,
    header: Header,
    body: bytes = b"",
    *,
    timeout_ms: float,
    accept: Container[int] = SUCCESS_ONLY,
) -> Response:
    """Call the leader through the controller at `address` (``host:port``).

    Raises `NetError` if that controller does not answer, and `MQError`: CONTROLLER_NOT_LEADER if it does not
    reach the leader, or what the leader answered, if its code is not in `accept`.
    """
    frame = encode(Command(header.code, header.to_ext(), body))
    answer = await client.call(address, ForwardToLeader(), frame, timeout_ms=timeout_ms)
    try:
        command = decode_single(answer.body)
    except FrameError as error:
        raise ConnectionLost(address, f"what it passed on is not an answer: {error}") from error
    return read_response(type(header), command, accept)
