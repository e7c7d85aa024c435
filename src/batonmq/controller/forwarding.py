"""Forwards requests of brokers that do not reach the leading controller.

A request is forwarded once: the leader gets the broker's request itself, and a controller that is not leader
refuses it, so there are no loops. Nothing is sent twice: a broker that gets no answer does not know the
outcome, as with a direct request. RocketMQ's brokers do not use this; they get CONTROLLER_NOT_LEADER from a
controller that is not leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Final

from batonmq.common.racing import Abandoned, unless
from batonmq.controller.heartbeats import FORWARDED_SINCE
from batonmq.net.dispatch import Reply, Request
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import FrameError, MQError
from batonmq.protocol.forwarding import decode_single, encode
from batonmq.protocol.headers.namesrv import BrokerHeartbeat

if TYPE_CHECKING:
    from batonmq.net.client import RemotingClient
    from batonmq.protocol.headers.controller import ForwardToLeader

MAX_UNDER_WAY: Final = 4_096
"""Most requests that wait for the leader's answer; further ones are refused with SYSTEM_BUSY."""


class Forwarding:
    """`forward` handles FORWARD_TO_LEADER on one controller."""

    def __init__(
        self,
        client: RemotingClient,
        leader_address: Callable[[], str | None],
        leader_version: Callable[[], int],
        codes: Container[int],
        timeout_ms: int,
    ) -> None:
        """`leader_address`: the leader's address for brokers; None while unknown. `leader_version`: of the
        entries that the leader reads. `codes`: the requests that are forwarded."""
        self._client = client
        self._leader_address = leader_address
        self._leader_version = leader_version
        self._codes = codes
        self.timeout_ms = timeout_ms
        self._under_way = 0
        self._changed = asyncio.Event()
        """Set, and replaced, when another controller may lead."""
        self.forwarded = 0
        """Number of requests that the leader has answered."""

    def leader_changed(self) -> None:
        """Requests that wait for the former leader are given up: their senders look for the new one."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def forward(self, request: Request, header: ForwardToLeader) -> Reply:
        """Raises `MQError`: CONTROLLER_INVALID_REQUEST for a body that is not one frame of such a request,
        CONTROLLER_NOT_LEADER if the leader is unknown or cannot be reached, SYSTEM_BUSY."""
        try:
            command = decode_single(request.command.body)
        except FrameError as error:
            raise MQError(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"no request to pass on: {error}"
            ) from None
        if command.code not in self._codes:
            raise MQError(
                ResponseCode.CONTROLLER_INVALID_REQUEST, f"request type {command.code} is not passed on"
            )
        address = self._leader_address()
        if address is None:
            raise MQError(ResponseCode.CONTROLLER_NOT_LEADER, "this controller knows no leader")
        if command.code == BrokerHeartbeat.code:
            if self._leader_version() < FORWARDED_SINCE:
                # It would take this controller's connection for the broker's, ignore the broker's own as
                # older, and count the broker as down.
                raise MQError(
                    ResponseCode.SYSTEM_BUSY, "the leading controller knows no forwarded heartbeats"
                )
            command.ext["forwarded"] = "true"  # also if its sender left it out, for the same reason
        if self._under_way >= MAX_UNDER_WAY:
            raise MQError(ResponseCode.SYSTEM_BUSY, f"{MAX_UNDER_WAY} requests wait for the leader's answer")
        command.flag = 0  # an answer is needed, even if the frame is marked as one-way
        self._under_way += 1
        try:
            call = self._client.invoke(address, command, timeout_ms=self.timeout_ms)
            answer = await unless(self._changed, call)
        except Abandoned:
            raise MQError(
                ResponseCode.CONTROLLER_NOT_LEADER, f"no answer from the former leading controller {address}"
            ) from None
        except NetError as error:
            raise MQError(
                ResponseCode.CONTROLLER_NOT_LEADER, f"no answer from the leading controller: {error}"
            ) from error
        finally:
            self._under_way -= 1
        self.forwarded += 1
        return Reply(body=encode(answer))
