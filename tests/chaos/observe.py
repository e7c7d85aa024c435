"""An outsider who asks, from the clients' host, whether everything is whole.

It asks the controllers, or the name servers and masters of groups without controllers.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter

from batonmq.demo.cluster import LocalCluster
from batonmq.demo.group import GroupState
from batonmq.net.client import RemotingClient
from batonmq.net.errors import NetError
from batonmq.protocol.bodies.controller import SyncStateSetBody
from batonmq.protocol.bodies.replication import HARuntimeInfo
from batonmq.protocol.bodies.routes import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers.broker.replication import GetBrokerHAStatus
from batonmq.protocol.headers.controller import (
    GetMetadata,
    GetMetadataReply,
    GetReplicaInfo,
    GetReplicaInfoReply,
)
from batonmq.protocol.headers.namesrv import GetBrokerMemberGroup
from batonmq.protocol.json import decode
from tests.chaos.fixed import FixedBroker, FixedGroups

POLL_S = 0.05
ASK_TIMEOUT_MS = 1_000
STABLE_S = 1.0
"""Whole is what stays so for this long."""
LEVEL_BYTES = 64 * 1024
"""A slave without controllers follows when it lacks no more than this: some 0.2 s of the load."""


class Observer(ABC):
    """Asks again and again whether everything is whole."""

    def __init__(self) -> None:
        self._client = RemotingClient(connect_timeout_ms=ASK_TIMEOUT_MS)
        self._task: asyncio.Task[None] | None = None
        self._whole_from: float | None = None

    @property
    @abstractmethod
    def state(self) -> object:
        """The newest state, for a person."""

    @property
    @abstractmethod
    def master(self) -> str | None:
        """Host of the master: of the first broker set, if there are several."""

    @abstractmethod
    async def leader(self) -> str | None:
        """Host of the leading controller."""

    @abstractmethod
    async def _is_whole(self) -> bool: ...

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

    async def _watch(self) -> None:
        while True:
            if not await self._is_whole():
                self._whole_from = None
            elif self._whole_from is None:
                self._whole_from = time.monotonic()
            await asyncio.sleep(POLL_S)


class ControllerObserver(Observer):
    """Knows the group's newest state; asks all controllers at once, so that a dead one delays nothing."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._state: GroupState | None = None

    @property
    def state(self) -> GroupState | None:
        """As the newest answer said; the one of the highest epoch if several were given."""
        return self._state

    @property
    def master(self) -> str | None:
        if self._state is None or self._state.master_address is None:
            return None
        return self._cluster.broker_at(self._state.master_address).name

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

    async def _is_whole(self) -> bool:
        return await (self._is_group_whole() if self._cluster.replicas else self._do_all_agree())

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
        self._state = newest
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


class FixedObserver(Observer):
    """Groups without controllers are whole when every name server knows both members of each broker set, and
    each master has a slave that follows."""

    def __init__(self, cluster: FixedGroups) -> None:
        super().__init__()
        self._cluster = cluster
        self._missing: list[str] = []

    @property
    def state(self) -> list[str]:
        """What is missing."""
        return self._missing

    @property
    def master(self) -> str:
        return self._cluster.brokers[0].name

    async def leader(self) -> None:
        """There is none."""

    async def _is_whole(self) -> bool:
        asked = [
            *(
                self._missing_member(namesrv.address, name, pair)
                for namesrv in self._cluster.namesrvs
                for name, pair in self._cluster.sets.items()
            ),
            *(self._missing_slave(pair[0]) for pair in self._cluster.sets.values()),
        ]
        self._missing = [text for text in await asyncio.gather(*asked) if text]
        return not self._missing

    async def _missing_member(self, namesrv: str, name: str, pair: list[FixedBroker]) -> str:
        header = GetBrokerMemberGroup(cluster_name="DefaultCluster", broker_name=name)
        try:
            answer = await self._client.call(namesrv, header, timeout_ms=ASK_TIMEOUT_MS)
        except (NetError, MQError) as error:
            return f"{namesrv}: {error}"
        group = decode(answer.body, GetBrokerMemberGroupResponseBody).broker_member_group
        known = (group or BrokerMemberGroup()).broker_addrs
        wanted = {each.broker_id: each.address for each in pair}
        return "" if known == wanted else f"{namesrv} knows {known} of {name}"

    async def _missing_slave(self, master: FixedBroker) -> str:
        try:
            answer = await self._client.call(master.address, GetBrokerHAStatus(), timeout_ms=ASK_TIMEOUT_MS)
        except (NetError, MQError) as error:
            return f"{master.name}: {error}"
        info = decode(bytes(answer.body), HARuntimeInfo)
        level = [each for each in info.ha_connection_info if each.in_sync and abs(each.diff) < LEVEL_BYTES]
        return "" if info.master and level else f"{master.name} has no slave that follows"


def observer_of(cluster: LocalCluster | FixedGroups) -> Observer:
    return FixedObserver(cluster) if isinstance(cluster, FixedGroups) else ControllerObserver(cluster)
