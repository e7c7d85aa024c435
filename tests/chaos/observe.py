"""An outsider who asks the controllers, from the clients' host, whether everything is whole."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import GroupState
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.controller import (
    GetMetadata,
    GetMetadataReply,
    GetReplicaInfo,
    GetReplicaInfoReply,
)
from batonmq.protocol.json import decode

POLL_S = 0.05
ASK_TIMEOUT_MS = 1_000
STABLE_S = 1.0
"""Whole is what stays so for this long."""


class Observer:
    """Knows the group's newest state; asks all controllers at once, so that a dead one delays nothing."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._client = RemotingClient(connect_timeout_ms=ASK_TIMEOUT_MS)
        self._task: asyncio.Task[None] | None = None
        self._whole_from: float | None = None
        self.state: GroupState | None = None
        """As the newest answer said; the one of the highest epoch if several were given."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._client.close()

    async def whole_since(self, moment: float, timeout_s: float) -> float | None:
        """When, not before `moment` (`time.monotonic`), the group became whole and stayed so for `STABLE_S`.

        None: it did not within the timeout.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._task is not None and self._task.done():
                self._task.result()
            since = self._whole_from
            if since is not None and time.monotonic() - max(since, moment) >= STABLE_S:
                return max(since, moment)
            await asyncio.sleep(POLL_S)
        return None

    async def leader(self) -> str | None:
        """Host of the leading controller, as most of them see it."""
        votes = Counter(filter(None, await self._leaders()))
        address = max(votes, key=lambda name: votes[name], default=None)
        programs = self._cluster.controller_programs
        return next((program.name for program in programs if program.address == address), None)

    async def _leaders(self) -> list[str | None]:
        """Who leads, as each controller says it."""
        return await asyncio.gather(*map(self._ask_leader, self._cluster.controller_addresses))

    async def _ask_leader(self, address: str) -> str | None:
        try:
            answer = await self._client.call(address, GetMetadata(), timeout_ms=ASK_TIMEOUT_MS)
        except (NetError, MQError):
            return None
        assert isinstance(answer.header, GetMetadataReply)
        return answer.header.controller_leader_address

    async def _watch(self) -> None:
        while True:
            whole = await (self._is_group_whole() if self._cluster.replicas else self._do_all_agree())
            if not whole:
                self._whole_from = None
            elif self._whole_from is None:
                self._whole_from = time.monotonic()
            await asyncio.sleep(POLL_S)

    async def _do_all_agree(self) -> bool:
        """Without brokers: all controllers name the same leader."""
        leaders = set(await self._leaders())
        return len(leaders) == 1 and None not in leaders

    async def _is_group_whole(self) -> bool:
        answers = await asyncio.gather(*map(self._ask, self._cluster.controller_addresses))
        states = [state for state in answers if state is not None]
        if not states:
            return False
        newest = max(states, key=lambda state: state.master_epoch)
        self.state = newest
        return newest.master_address is not None and len(newest.sync_state_set) == self._cluster.replicas

    async def _ask(self, address: str) -> GroupState | None:
        try:
            answer = await self._client.call(
                address, GetReplicaInfo(broker_name=self._cluster.broker_name), timeout_ms=ASK_TIMEOUT_MS
            )
        except (NetError, MQError):
            return None  # not the leader, or gone: another one may know
        head = answer.header
        assert isinstance(head, GetReplicaInfoReply)
        members = decode(answer.body, SyncStateSetBody).sync_state_set if len(answer.body) else []
        return GroupState(head.master_address, head.master_epoch or 0, frozenset(members))
