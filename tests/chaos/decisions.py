"""Load on controllers: broker sets that exist only as requests, and what each answer showed.

Two writers a set change its SyncStateSet, each as if it were the master, and now and then demand another
master; a reader asks who is master. They follow the leading controller as a broker does.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batonmq.net.client import RemotingClient
from batonmq.net.connection import Response
from batonmq.net.errors import ConnectFailed, NetError
from batonmq.protocol.bodies.controller import ElectMasterBody, SyncStateSetBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError, NotLeaderError, code_name
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.headers.namesrv import BrokerHeartbeat
from batonmq.protocol.json import decode, encode
from batonmq.protocol.registry import Header
from tests.chaos.decision_check import Decision
from tests.chaos.load import now_us
from tests.simulation.controller_model import (
    DECISION_REFUSALS,
    Alter,
    Altered,
    Elect,
    Elected,
    Read,
    Refused,
    SetState,
)
from tests.simulation.linearizability import Operation

CLUSTER = "chaos"
BROKER_SETS = 8
WRITERS = 2
REPLICAS = (1, 2, 3)
CALL_TIMEOUT_MS = 1_000
BEAT_S = 1.0
BROKER_TIMEOUT_MS = 600_000
"""Of the brokers' heartbeats: their silence is not what is tested here."""
PAUSE_S = 0.005
RETRY_S = 0.05
PATIENCE_S = 30.0
"""For what must be granted before a load can begin, and answered when it has ended."""
ELECT_SHARE = 0.03
"""Of the writes: an operator demands another master."""


class Leader:
    """Calls to whichever controller leads."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._client = RemotingClient(connect_timeout_ms=CALL_TIMEOUT_MS)
        self._leader: str | None = None
        self._finding: asyncio.Task[str] | None = None

    async def close(self) -> None:
        await self._client.close()

    async def call(
        self, header: Header, body: bytes = b"", *, accept: Container[int] = (ResponseCode.SUCCESS,)
    ) -> Response:
        """One call to the leader. Raises `NetError`, `MQError`; then the leader is looked for again."""
        leader = self._leader
        if leader is None:
            if self._finding is None or self._finding.done():
                self._finding = asyncio.create_task(self._find())
            try:
                leader = self._leader = await asyncio.shield(self._finding)
            except (NetError, MQError) as error:
                raise ConnectFailed("the leader", f"is not known: {error}") from error
        try:
            return await self._client.call(leader, header, body, timeout_ms=CALL_TIMEOUT_MS, accept=accept)
        except (NetError, NotLeaderError):
            if self._leader == leader:
                self._leader = None
            raise

    async def beat(self, header: BrokerHeartbeat) -> None:
        """A heartbeat to every controller, as brokers send it; one that is gone gets none."""

        async def send(address: str) -> None:
            try:
                await self._client.oneway(address, header)
            except NetError:
                return  # killed or cut off: the next heartbeat will tell

        await asyncio.gather(*map(send, self._addresses))

    async def _find(self) -> str:
        async def ask(address: str) -> str:
            answer = await self._client.call(address, wire.GetMetadata(), timeout_ms=CALL_TIMEOUT_MS)
            assert isinstance(answer.header, wire.GetMetadataReply)
            if not answer.header.controller_leader_address:
                raise NotLeaderError(ResponseCode.CONTROLLER_NOT_LEADER, f"{address} knows no leader")
            return answer.header.controller_leader_address

        asking = [asyncio.create_task(ask(address)) for address in self._addresses]
        try:
            failure: Exception | None = None
            for earliest in asyncio.as_completed(asking):
                try:
                    return await earliest
                except (NetError, MQError) as error:
                    failure = error
            assert failure is not None
            raise failure
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


@dataclass(slots=True)
class Known:
    """What a writer believes of its broker set."""

    epoch: int
    members: tuple[int, ...]
    master: int | None
    master_epoch: int


class DecisionLoad:
    """Broker sets on a group of controllers, between `start` and `finish`."""

    def __init__(self, name: str, addresses: Sequence[str], rng: random.Random) -> None:
        self.history: list[Decision] = []
        self.operations: list[Operation] = []
        """The same requests and those that were refused or not answered, for the sequential model."""
        self.initial: dict[str, SetState] = {}
        self.failures: Counter[str] = Counter()
        """Requests that were not granted or not answered, by reason."""
        self._sets = [f"{name}-{number}" for number in range(BROKER_SETS)]
        self._leader = Leader(addresses)
        self._beats = [Leader(addresses) for _ in REPLICAS]
        self._rng = rng
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._beater: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bring all sets up; then the load begins. Raises `TimeoutError` if that is refused for too long."""
        try:
            for failure in await asyncio.gather(*map(self._bring_up, self._sets), return_exceptions=True):
                if failure is not None:
                    raise failure
            for name in self._sets:
                first = await self._insist_on_look(name)
                self.initial[name] = state_of(first)
        except BaseException:
            await self.abandon()
            raise
        self._beater = asyncio.create_task(self._beat())
        for name in self._sets:
            for _ in range(WRITERS):
                rng = random.Random(self._rng.random())
                self._tasks.append(asyncio.create_task(self._write(name, rng)))
            self._tasks.append(asyncio.create_task(self._read(name)))

    async def finish(self) -> list[Decision]:
        """End the load; returns the state of every set as it is now."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        final = []
        for name in self._sets:
            final.append(await self._insist_on_look(name))
        await self.abandon()
        return final

    async def abandon(self) -> None:
        """Stop everything at once."""
        tasks = [*self._tasks, *([self._beater] if self._beater is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(self._leader.close(), *(beats.close() for beats in self._beats))

    async def _insist_on_look(self, name: str) -> Decision:
        before = self.failures.copy()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (decision := await self._look(name)) is None:
                    await asyncio.sleep(RETRY_S)
            return decision
        except TimeoutError:
            why = ", ".join(str(reason) for reason, _ in (self.failures - before).most_common(2))
            raise TimeoutError(
                f"nobody could say within {PATIENCE_S:g} s who is master of {name}: {why or 'no answer'}"
            ) from None

    # -- brokers that exist only as requests

    async def _bring_up(self, name: str) -> None:
        for broker_id in REPLICAS:
            await self._insist(wire.ApplyBrokerId(name, broker_id, f"{_address(broker_id)};{name}", CLUSTER))
            await self._insist(
                wire.RegisterBrokerToController(CLUSTER, name, broker_id, _address(broker_id), 0)
            )
            await self._beats[broker_id - 1].beat(_heartbeat(name, broker_id))
        await self._insist(wire.ElectMaster(CLUSTER, name, REPLICAS[0], False, 0))

    async def _insist(self, header: Header) -> None:
        refused: Exception | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await self._leader.call(
                            header, accept=(ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
                        )
                        return
                    except (NetError, MQError) as error:
                        refused = error
                        await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise TimeoutError(
                f"{type(header).__name__} was not granted within {PATIENCE_S:g} s: {refused or 'no answer'}"
            ) from None

    async def _beat(self) -> None:
        while True:
            for broker_id in REPLICAS:
                beats = self._beats[broker_id - 1]
                await asyncio.gather(*(beats.beat(_heartbeat(name, broker_id)) for name in self._sets))
            await asyncio.sleep(BEAT_S)

    # -- requests

    async def _write(self, name: str, rng: random.Random) -> None:
        known: Known | None = None
        while not self._stopping:
            if known is None or known.master is None:
                shown = await self._look(name)
                if shown is None:
                    await asyncio.sleep(RETRY_S)
                    continue
                known = Known(shown.epoch, shown.members, shown.master, shown.master_epoch)
                continue
            others = [broker_id for broker_id in known.members if broker_id != known.master]
            if others and rng.random() < ELECT_SHARE:
                await self._elect(name, rng.choice(others))
                known = None
            else:
                known = await self._alter(name, known, rng)
            await asyncio.sleep(PAUSE_S)

    async def _alter(self, name: str, known: Known, rng: random.Random) -> Known | None:
        """Ask for another set; what is known afterwards, None if that has to be looked up."""
        master = known.master
        assert master is not None
        choices = [members for members in _sets_with(master) if members != tuple(sorted(known.members))]
        members = rng.choice(choices)
        asked = now_us()
        request = Alter(master, known.master_epoch, members, known.epoch)
        try:
            answer = await self._leader.call(
                wire.AlterSyncStateSet(name, master, known.master_epoch, 0),
                encode(SyncStateSetBody(members, known.epoch)),
            )
        except (NetError, MQError) as error:
            self._failed(error)
            self._not_granted(name, "alter", asked, request, error)
            return None
        granted = decode(answer.body, SyncStateSetBody)
        shown = tuple(sorted(granted.sync_state_set))
        epoch = granted.sync_state_set_epoch
        answered = now_us()
        self.history.append(
            Decision(name, "alter", asked, answered, epoch, shown, known.master_epoch, master)
        )
        self.operations.append(Operation(name, "alter", asked, answered, request, Altered(shown, epoch)))
        return Known(epoch, shown, master, known.master_epoch)

    async def _elect(self, name: str, broker_id: int) -> None:
        asked = now_us()
        request = Elect(broker_id, designated=True)
        try:
            answer = await self._leader.call(wire.ElectMaster(CLUSTER, name, broker_id, True, 0))
        except (NetError, MQError) as error:
            self._failed(error)
            self._not_granted(name, "elect", asked, request, error)
            return
        head = answer.header
        assert isinstance(head, wire.ElectMasterReply)
        members = decode(answer.body, ElectMasterBody).sync_state_set
        shown = Decision(
            name,
            "elect",
            asked,
            now_us(),
            head.sync_state_set_epoch or 0,
            tuple(sorted(members)),
            head.master_epoch or 0,
            head.master_broker_id,
        )
        self.history.append(shown)
        granted = Elected(is_new=True, state=state_of(shown))
        self.operations.append(Operation(name, "elect", asked, shown.answered_us, request, granted))

    async def _read(self, name: str) -> None:
        while not self._stopping:
            shown = await self._look(name)
            if shown is not None:
                self.history.append(shown)
            await asyncio.sleep(PAUSE_S)

    async def _look(self, name: str) -> Decision | None:
        """Who is master, and the set in force; None if nobody could say."""
        asked = now_us()
        try:
            answer = await self._leader.call(wire.GetReplicaInfo(name))
        except (NetError, MQError) as error:
            self._failed(error)
            await asyncio.sleep(RETRY_S)
            return None
        head = answer.header
        assert isinstance(head, wire.GetReplicaInfoReply)
        body = decode(answer.body, SyncStateSetBody)
        shown = Decision(
            name,
            "read",
            asked,
            now_us(),
            body.sync_state_set_epoch,
            tuple(sorted(body.sync_state_set)),
            head.master_epoch or 0,
            head.master_broker_id,
        )
        self.operations.append(Operation(name, "read", asked, shown.answered_us, Read(), state_of(shown)))
        return shown

    def _not_granted(
        self, name: str, kind: str, asked: int, request: Alter | Elect, error: NetError | MQError
    ) -> None:
        """A refusal is an answer like others; what may have been decided unheard is an operation, too."""
        if isinstance(error, NetError):
            if error.sent:
                self.operations.append(Operation(name, kind, asked, None, request))
        elif error.code in DECISION_REFUSALS:
            self.operations.append(Operation(name, kind, asked, now_us(), request, Refused(error.code)))
        elif error.code != ResponseCode.CONTROLLER_NOT_LEADER:  # which is said before anything is appended
            self.operations.append(Operation(name, kind, asked, None, request))

    def _failed(self, error: Exception) -> None:
        name = code_name(error.code) if isinstance(error, MQError) else type(error).__name__
        self.failures[name] += 1


def state_of(shown: Decision) -> SetState:
    return SetState(shown.master, shown.master_epoch, shown.members, shown.epoch)


def own_elections(stores: Iterable[Path]) -> Iterator[Decision]:
    """Masters that controllers elected without being asked, by their event logs; without times."""
    yield from (decision for decision, asked in _logged(stores) if not asked and decision.master is not None)


def logged_decisions(stores: Iterable[Path]) -> Iterator[Decision]:
    """What our controllers wrote to their event logs, without times."""
    yield from (decision for decision, _ in _logged(stores))


def _logged(stores: Iterable[Path]) -> Iterator[tuple[Decision, bool]]:
    """Each decision, and whether somebody asked for it."""
    for path in (path for store in stores for path in sorted(store.glob("events.jsonl*"))):
        for line in path.read_text().splitlines():
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line before a kill -9
            if event["event"] == "sync-state-set":
                members, master = event["after"], None
            elif event["event"] == "election" and event["result"] == "new-master":
                members, master = [event["new_master"]], event["new_master"]
            else:
                continue
            decision = Decision(
                event["broker_name"],
                "elect" if master is not None else "alter",
                *(0, 0),
                event["sync_state_set_epoch"],
                tuple(sorted(members)),
                event["master_epoch"],
                master,
            )
            yield decision, event.get("cause", "broker") in ("broker", "admin")


def _sets_with(master: int) -> list[tuple[int, ...]]:
    """All SyncStateSets of which `master` is a member."""
    others = [broker_id for broker_id in REPLICAS if broker_id != master]
    return [
        tuple(sorted([master, *(other for bit, other in enumerate(others) if mask >> bit & 1)]))
        for mask in range(1 << len(others))
    ]


def _address(broker_id: int) -> str:
    return f"10.255.0.{broker_id}:10911"


def _heartbeat(name: str, broker_id: int) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        CLUSTER,
        _address(broker_id),
        name,
        broker_id=broker_id,
        epoch=1,
        max_offset=0,
        confirm_offset=0,
        heartbeat_timeout_mills=BROKER_TIMEOUT_MS,
        election_priority=100,
    )
