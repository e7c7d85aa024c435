"""The controllers of a story of replication: one state machine, and the replicas' way to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from batonmq.controller import events
from batonmq.controller.effects import Election, Outcome
from batonmq.controller.machine import ControllerMachine
from batonmq.controller.queries import sync_state_data
from batonmq.controller.replicas import BrokerSet
from batonmq.net.connection import Response
from batonmq.net.errors import CallTimeout, ConnectFailed
from batonmq.protocol.bodies.controller import BrokerReplicasInfo, ReplicasInfo, SyncStateSetBody
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from batonmq.protocol.json import decode, encode
from tests.simulation.cluster import SimClock

if TYPE_CHECKING:
    from tests.simulation.replication import World

CLUSTER: Final = "DefaultCluster"
NAME: Final = "broker-a"
CONTROLLERS: Final = "controllers"
"""Name of their end of a link."""
CALL_TIMEOUT_S: Final = 0.5
SCAN_S: Final = 0.25
LOST_NOTICES: Final = 0.1
"""Which part of the notices to replicas never comes."""


def host_of(number: int) -> str:
    """IP address of a replica."""
    return f"10.0.0.{number}"


def address_of(number: int) -> str:
    """Where clients reach a replica, ``host:port``."""
    return f"{host_of(number)}:10911"


class Controllers:
    """The controllers, which decide requests in the order in which they come."""

    def __init__(self, world: World) -> None:
        self.machine = ControllerMachine()
        self.sessions: dict[int, int] = {}
        """Connections that are open: session -> broker id."""
        self.down_until = 0.0
        self._world = world
        self._index = 0
        self._clock = SimClock(world.loop)
        for number in range(1, world.shape.replicas + 1):
            claim = events.ApplyBrokerId(CLUSTER, NAME, number, f"{address_of(number)};1")
            self.decide(claim)
            self.decide(events.RegisterBroker(CLUSTER, NAME, number, address_of(number)))

    @property
    def are_away(self) -> bool:
        """There is no leader just now."""
        return self.down_until > self._world.loop.now

    @property
    def broker_set(self) -> BrokerSet:
        return self.machine.broker_sets[NAME]

    def decide(self, event: events.AnyEvent) -> Outcome:
        self._index += 1
        [outcome] = self.machine.apply(self._index, events.encode(self._clock.now_ms(), (event,)))
        for effect in outcome.effects:
            if isinstance(effect, Election):
                self._world.note(f"controllers: {effect.cause}: master {effect.new_master} of epoch "
                                 f"{effect.master_epoch}, was {effect.old_master}")  # fmt: skip
                self._notify(effect.master_epoch)
        return outcome

    def _notify(self, epoch: int) -> None:
        """Notices to all replicas; some are lost."""
        world = self._world
        for replica in world.replicas:
            life = replica.life
            if (
                life is None
                or world.is_cut(CONTROLLERS, replica.name)
                or world.chance.random() < LOST_NOTICES
            ):
                continue
            world.loop.outside_at(world.loop.now + world.way_s(), life.notified, epoch)

    def closed(self, session: int) -> None:
        """The end of a connection is seen."""
        broker_id = self.sessions.pop(session, None)
        if broker_id is not None:
            self.decide(events.ChannelClosed(session, ((NAME, broker_id),), False))

    def change_leader(self) -> None:
        """Another controller leads: it knows the connections that there are to it."""
        known = tuple(
            (NAME, broker_id, session)
            for session, broker_id in self.sessions.items()
            if self._world.chance.random() < 0.8
        )
        self.decide(events.LeaderStarted("another", known))

    async def scan(self) -> None:
        """The leader's timer. Never ends."""
        while True:
            await asyncio.sleep(SCAN_S)
            if not self.are_away:
                self.decide(events.Scan(brokers=True, masters=True, allow_unclean=False))


class ControllersOfReplica:
    """A replica's way to the controllers: what `SetProposals` needs of `broker.replica.controllers`."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    async def call(self, request: Any, body: bytes = b"") -> Response:
        """Raises `NetError`, `MQError`."""
        outcome = await self._carry(lambda: self._decide(request, body))
        if outcome.code not in (0, ResponseCode.CONTROLLER_MASTER_STILL_EXIST):
            raise MQError(outcome.code, outcome.remark or "")
        answer = b"" if outcome.body is None else encode(outcome.body)
        return Response(outcome.header, answer, outcome.code, outcome.remark)

    async def broker_set(self) -> ReplicasInfo:
        machine = self._world.controllers.machine
        reply = await self._carry(lambda: sync_state_data(machine.broker_sets, [NAME], machine.now_ms))
        return decode(reply.body, BrokerReplicasInfo).replicas_info_table[NAME]

    async def _carry(self, decide: Callable[[], Any]) -> Any:
        """The caller may be dead before its request arrives, which has its effect all the same."""
        world = self._world
        answer: asyncio.Future[Any] = world.loop.create_future()

        def give(result: Any) -> None:
            if not world.is_cut(CONTROLLERS, self._name) and not answer.done():
                answer.set_result(result)

        def arrive() -> None:
            if not world.is_cut(self._name, CONTROLLERS) and not world.controllers.are_away:
                self._later(give, decide())

        if world.controllers.are_away:
            await asyncio.sleep(world.way_s())
            raise ConnectFailed(CONTROLLERS, "no leader")
        self._later(arrive)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await answer
        except TimeoutError:
            raise CallTimeout(CONTROLLERS, "no answer") from None

    def _later(self, what: Callable[..., None], *args: Any) -> None:
        """After the time of one way; some messages are lost, or come very late."""
        world = self._world
        way_s, bad = world.way_s(), world.chance.random()
        if bad < world.loss / 2:
            return
        if bad < world.loss:
            way_s += world.chance.expovariate(2.0)
        world.loop.outside_at(world.loop.now + way_s, what, *args)

    def _decide(self, request: Any, body: bytes) -> Outcome:
        controllers = self._world.controllers
        if isinstance(request, wire.GetReplicaInfo):
            group = controllers.broker_set
            header = wire.GetReplicaInfoReply(group.master_id, group.master_address, group.master_epoch)
            return Outcome(
                header=header, body=SyncStateSetBody(group.sync_state_set, group.sync_state_set_epoch)
            )
        event: events.AnyEvent
        if isinstance(request, wire.AlterSyncStateSet):
            wanted = decode(body, SyncStateSetBody)
            event = events.AlterSyncStateSet(
                NAME,
                request.master_broker_id,
                request.master_epoch,
                tuple(wanted.sync_state_set),
                wanted.sync_state_set_epoch,
                request.fence_refused is True,
            )
        elif isinstance(request, wire.ElectMaster):
            event = events.ElectMaster(NAME, request.broker_id, request.designate_elect, False, "asked")
        else:
            assert isinstance(request, wire.RegisterBrokerToController)
            event = events.RegisterBroker(CLUSTER, NAME, request.broker_id, request.broker_address)
        return controllers.decide(event)
