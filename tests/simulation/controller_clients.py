"""Clients of simulated controllers, and the history of what they asked and the answers.

Brokers report, alter their SyncStateSets and look who is master; operators demand elections; new brokers
claim ids. They are often wrong about the state, ask controllers that do not lead, and do not wait for each
other.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from batonmq.net.client import RemotingClient
from batonmq.net.connection import Response
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterBody,
    SyncStateSetBody,
    decode_sync_state_set,
)
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import encode
from tests.simulation.controller_model import (
    DECISION_REFUSALS,
    UNKNOWN_REPLICA,
    Alter,
    Altered,
    ApplyId,
    Elect,
    Elected,
    Fenced,
    Ids,
    NextId,
    Read,
    Refused,
    SetState,
)
from tests.simulation.linearizability import Operation

CLUSTER = "c"
BROKER_SETS, ID_SETS = ("s0", "s1"), ("ids0",)
PROBED = "probed"
"""A broker set that one client alone asks for: nobody comes first."""
REPLICAS = (1, 2, 3)
PAUSE_S = 0.03
HEARTBEAT_TIMEOUT_MS = 10_000_000
"""Brokers are down only where their connection breaks: silence is not what is tested here."""
NEVER_HAPPENED = frozenset({ResponseCode.CONTROLLER_NOT_LEADER})
"""Refusals that promise that nothing was or will be changed."""
REFUSALS = DECISION_REFUSALS | {ResponseCode.CONTROLLER_BROKER_ID_INVALID}
"""Answers that the state machine gave."""


class History:
    """What was asked and answered; `begin` gives the time of now on the observer's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.begin = now
        self.operations: list[Operation] = []
        self.answers: Counter[str] = Counter()
        self.announced: set[tuple[str, int]] = set()
        """(Broker set, master epoch) of elections announced to a client."""
        self.unsafe: list[tuple[str, SetState, float]] = []
        """What getSyncStateSet showed, and when."""

    def end(self, key: Any, client: str, called: float, asked: Any, answer: Any) -> None:
        self.answers[type(asked).__name__] += 1
        self.operations.append(Operation(key, client, called, self.begin(), asked, answer))

    def unknown(self, key: Any, client: str, called: float, asked: Any) -> None:
        self.answers["unknown"] += 1
        if not isinstance(asked, Elect):  # an election that took effect is known from the log
            self.operations.append(Operation(key, client, called, None, asked))
        if isinstance(asked, Alter) and asked.fence:
            self.operations.append(Operation(key, client, called, None, Fenced(asked)))


class Client:
    """One client: a connection to each controller, one request at a time."""

    def __init__(
        self,
        name: str,
        controllers: Sequence[str],
        history: History,
        rng: random.Random,
        *,
        timeout_ms: int,
        only_reads: bool = False,
    ) -> None:
        self.name = name
        self.asking = True
        self._controllers = controllers
        self._history = history
        self._rng = rng
        self._timeout_ms = timeout_ms
        self._only_reads = only_reads
        self._client = RemotingClient(connect_timeout_ms=timeout_ms)
        self._leader = controllers[0]
        self._known: dict[str, SetState] = {}
        self._next_ids: dict[str, int] = {}

    async def work(self) -> None:
        """Ask one thing after the other until `asking` is withdrawn."""
        rng = self._rng
        while self.asking:
            kind = rng.random()
            if self._only_reads:
                # Everywhere, so also where somebody leads no more and does not know it.
                await self.read(rng.choice(BROKER_SETS), rng.choice(self._controllers))
            elif kind < 0.12:
                await self._ids(rng.choice(ID_SETS))
            else:
                name = rng.choice(BROKER_SETS)
                known = self._known.get(name)
                if known is None or kind < 0.5:
                    await self.read(name, self._address())
                elif kind < 0.58:
                    await self._look(name)
                elif kind < 0.66:
                    await self._elect(name)
                else:
                    await self._alter(name, known, self._wish(known), self._address())
            await asyncio.sleep(rng.expovariate(1 / PAUSE_S))

    async def overtake(self, name: str, new: str, old: str) -> None:
        """Change at the new leader what the old one knows, then ask the old one."""
        await self.change(name, new)
        await self.read(name, old)

    async def change(self, name: str, address: str) -> None:
        """Alter the set so that it must be granted, if nobody else came first."""
        known = self._known.get(name)
        if known is None or known.master is None:
            return
        wishes = [tuple(sorted({known.master, each})) for each in REPLICAS]
        members = self._rng.choice([each for each in wishes if each != known.members])
        asked = Alter(known.master, known.master_epoch, members, known.set_epoch)
        await self._alter(name, known, asked, address)

    def _address(self) -> str:
        """Mostly the one that seems to lead."""
        return self._leader if self._rng.random() < 0.7 else self._rng.choice(self._controllers)

    # -- what is asked -------------------------------------------------------------------------------------

    async def read(self, name: str, address: str) -> SetState | None:
        """None: it was not answered."""
        called = self._history.begin()
        try:
            response = await self._call(address, wire.GetReplicaInfo(name))
        except (NetError, MQError):
            return None  # a read changes nothing: without an answer it says nothing
        header = response.header
        assert isinstance(header, wire.GetReplicaInfoReply)
        body = decode_sync_state_set(bytes(response.body))
        state = SetState(
            header.master_broker_id, header.master_epoch or 0, body.sync_state_set, body.sync_state_set_epoch
        )
        self._history.end(name, self.name, called, Read(), state)
        self._known[name] = state
        return state

    async def _look(self, name: str) -> None:
        """getSyncStateSet: an unsafe read."""
        try:
            response = await self._call(self._address(), wire.GetSyncStateData(), f'["{name}"]'.encode())
        except (NetError, MQError):
            return
        shown = msgspec.json.decode(response.body, type=BrokerReplicasInfo).replicas_info_table[name]
        state = SetState(
            shown.master_broker_id,
            shown.master_epoch or 0,
            tuple(sorted(replica.broker_id for replica in shown.in_sync_replicas)),
            shown.sync_state_set_epoch or 0,
        )
        self._history.unsafe.append((name, state, self._history.begin()))

    def _wish(self, known: SetState) -> Alter:
        """Mostly what may be granted, if nobody else came first."""
        rng = self._rng
        master = known.master if known.master is not None else rng.choice(REPLICAS)
        members = tuple(sorted({master, *rng.sample(REPLICAS, rng.randint(0, 2))}))
        asked = Alter(master, known.master_epoch, members, known.set_epoch)
        if rng.random() < 0.1:
            return asked._replace(set_epoch=max(0, asked.set_epoch - 1))
        if rng.random() < 0.05:
            return asked._replace(master_epoch=max(0, asked.master_epoch - 1))
        if rng.random() < 0.1:
            return asked._replace(members=(*members, UNKNOWN_REPLICA))
        return asked

    async def _alter(self, name: str, known: SetState, asked: Alter, address: str) -> None:
        header = wire.AlterSyncStateSet(
            name, asked.master, asked.master_epoch, fence_refused=asked.fence or None
        )
        body = encode(SyncStateSetBody(asked.members, asked.set_epoch))
        called = self._history.begin()
        response = await self._write(name, called, asked, address, header, body)
        if response is None:
            self._known.pop(name)
            return
        shown = decode_sync_state_set(bytes(response.body))
        header = response.header
        assert isinstance(header, wire.AlterSyncStateSetReply)
        assert header.new_sync_state_set_epoch == shown.sync_state_set_epoch
        answer = Altered(shown.sync_state_set, shown.sync_state_set_epoch)
        self._history.end(name, self.name, called, asked, answer)
        self._known[name] = known._replace(members=answer.members, set_epoch=answer.set_epoch)

    async def _elect(self, name: str) -> None:
        asked = Elect(self._rng.choice(REPLICAS), self._rng.random() < 0.7)
        header = wire.ElectMaster(CLUSTER, name, asked.broker_id, asked.designated)
        called = self._history.begin()
        response = await self._write(
            name,
            called,
            asked,
            self._address(),
            header,
            accept=(0, ResponseCode.CONTROLLER_MASTER_STILL_EXIST),
        )
        if response is None:
            return
        shown = response.header
        assert isinstance(shown, wire.ElectMasterReply)
        members = msgspec.json.decode(response.body, type=ElectMasterBody).sync_state_set
        state = SetState(
            shown.master_broker_id, shown.master_epoch or 0, members, shown.sync_state_set_epoch or 0
        )
        is_new = response.code == 0
        if is_new:
            self._history.announced.add((name, state.master_epoch))
        self._history.end(name, self.name, called, asked, Elected(is_new, state))
        self._known[name] = state

    async def _ids(self, name: str) -> None:
        next_id = self._next_ids.get(name)
        key, called = Ids(name), self._history.begin()
        if next_id is None or self._rng.random() < 0.5:
            try:
                response = await self._call(self._address(), wire.GetNextBrokerId(name, CLUSTER))
            except (NetError, MQError):
                return
            header = response.header
            assert isinstance(header, wire.GetNextBrokerIdReply)
            self._history.end(key, self.name, called, NextId(), header.next_broker_id)
            self._next_ids[name] = header.next_broker_id
            return
        # The address names the claimant: a repeated claim is the same claim.
        asked = ApplyId(next_id, f"{self.name}:1;{next_id}")
        header = wire.ApplyBrokerId(name, next_id, asked.check_code, CLUSTER)
        if await self._write(key, called, asked, self._address(), header) is not None:
            self._history.end(key, self.name, called, asked, "taken")
        if self._rng.random() < 0.7:
            self._next_ids.pop(name)

    # -- how -----------------------------------------------------------------------------------------------

    async def _write(
        self,
        key: Any,
        called: float,
        asked: Any,
        address: str,
        header: Any,
        body: bytes = b"",
        accept: Any = (0,),
    ) -> Response | None:
        """The answer, or None after a note of the refusal, or of an outcome that nobody knows."""
        try:
            return await self._call(address, header, body, accept)
        except MQError as error:
            if error.code in REFUSALS:
                self._history.end(key, self.name, called, asked, Refused(error.code))
            elif error.code not in NEVER_HAPPENED:
                self._history.unknown(key, self.name, called, asked)
        except ConnectFailed:
            pass  # it was never sent
        except NetError:
            self._history.unknown(key, self.name, called, asked)
        return None

    async def _call(self, address: str, header: Any, body: bytes = b"", accept: Any = (0,)) -> Response:
        try:
            return await self._client.call(address, header, body, timeout_ms=self._timeout_ms, accept=accept)
        except MQError as error:
            if error.code == ResponseCode.CONTROLLER_NOT_LEADER:
                await self._find_leader()
            raise
        except NetError:
            await self._find_leader()
            raise

    async def _find_leader(self) -> None:
        address = self._rng.choice(self._controllers)
        try:
            response = await self._client.call(address, wire.GetMetadata(), timeout_ms=self._timeout_ms)
        except (NetError, MQError):
            self._leader = address
            return
        header = response.header
        assert isinstance(header, wire.GetMetadataReply)
        self._leader = header.controller_leader_address or address


class Brokers:
    """All replicas of all broker sets, as far as controllers see them: registered, and sending heartbeats to
    every controller over one connection each."""

    def __init__(self, controllers: Sequence[str]) -> None:
        self._controllers = controllers
        self._client = RemotingClient(connect_timeout_ms=300)

    async def register(self, leader: str) -> dict[str, SetState]:
        """Make the broker sets known, with a first master; returns what they then are."""
        states: dict[str, SetState] = {}
        for name in (*BROKER_SETS, PROBED):
            for broker_id in REPLICAS:
                address = f"{name}-{broker_id}:1"
                await self._client.call(leader, wire.ApplyBrokerId(name, broker_id, f"{address};1", CLUSTER))
                await self._client.call(
                    leader, wire.RegisterBrokerToController(CLUSTER, name, broker_id, address)
                )
                await self._client.call(leader, _beat(name, broker_id))
            response = await self._client.call(leader, wire.ElectMaster(CLUSTER, name, 1))
            header = response.header
            assert isinstance(header, wire.ElectMasterReply)
            states[name] = SetState(1, header.master_epoch or 0, (1,), header.sync_state_set_epoch or 0)
        return states

    async def beat(self, pause_s: float) -> None:
        """For ever."""
        while True:
            for address in self._controllers:
                for name in (*BROKER_SETS, PROBED):
                    for broker_id in REPLICAS:
                        try:
                            await self._client.oneway(address, _beat(name, broker_id))
                        except NetError:
                            break  # this controller is down or cut off
            await asyncio.sleep(pause_s)


def _beat(name: str, broker_id: int) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        CLUSTER, f"{name}-{broker_id}:1", name, broker_id, 1, 0, 0, HEARTBEAT_TIMEOUT_MS, 100
    )
