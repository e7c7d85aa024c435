"""The state of one broker set, as the controllers report it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import GetReplicaInfo, GetReplicaInfoReply
from batonmq.protocol.json import decode

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class GroupState:
    """The master, and the replicas that hold all acknowledged messages."""

    master_address: str | None
    master_epoch: int
    sync_state_set: frozenset[int]


class Group:
    """Asks the controllers about one broker set; call `close` at the end."""

    def __init__(self, controllers: Sequence[str], broker_name: str) -> None:
        self._controllers = controllers
        self._broker_name = broker_name
        self._client = RemotingClient()

    async def close(self) -> None:
        await self._client.close()

    async def state(self) -> GroupState | None:
        """The state now; None while no controller answers."""
        for address in self._controllers:
            try:
                answer = await self._client.call(
                    address, GetReplicaInfo(broker_name=self._broker_name), timeout_ms=1_000
                )
            except (NetError, MQError):
                continue  # not the leader, or not running: another one may answer
            head = answer.header
            assert isinstance(head, GetReplicaInfoReply)
            members = decode(answer.body, SyncStateSetBody).sync_state_set if len(answer.body) else []
            return GroupState(head.master_address, head.master_epoch or 0, frozenset(members))
        return None

    async def wait_for(
        self, condition: Callable[[GroupState], bool], timeout_s: float, what: str
    ) -> GroupState:
        """The first state for which `condition` holds. Raises `TimeoutError`, which names `what`."""
        seen: GroupState | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    seen = await self.state()
                    if seen is not None and condition(seen):
                        return seen
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise TimeoutError(
                f"no {what} within {timeout_s:g} s; the controllers last said: {seen}"
            ) from None
