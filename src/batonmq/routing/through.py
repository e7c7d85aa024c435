"""A call to the leading controller through another controller, for callers that do not reach the leader."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from batonmq.net.connection import SUCCESS_ONLY, Response, read_response
from batonmq.net.errors import ConnectionLost
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import FrameError, MQError, NotLeaderError
from batonmq.protocol.forwarding import decode_single, encode
from batonmq.protocol.frame import Command
from batonmq.protocol.headers.controller import ForwardToLeader

if TYPE_CHECKING:
    from batonmq.net.client import RemotingClient
    from batonmq.protocol.registry import Header


class NotPassedOn(NotLeaderError):
    """The controller that was asked did not pass the request on, or got no answer from the leader.
    `refused_as`: the code of its own answer."""

    def __init__(self, error: MQError) -> None:
        super().__init__(ResponseCode.CONTROLLER_NOT_LEADER, error.remark)
        self.refused_as = error.code


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

    Raises `NetError` if that controller does not answer, and `MQError`: `NotPassedOn`, or what the leader
    answered, if its code is not in `accept`.
    """
    frame = encode(Command(header.code, header.to_ext(), body))
    try:
        answer = await client.call(address, ForwardToLeader(), frame, timeout_ms=timeout_ms)
    except MQError as error:
        raise NotPassedOn(error) from error
    try:
        command = decode_single(answer.body)
    except FrameError as error:
        raise ConnectionLost(address, f"what it passed on is not an answer: {error}") from error
    return read_response(type(header), command, accept)
