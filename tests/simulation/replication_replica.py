"""A replica in a story of replication: the part of a broker that replication belongs to, and its restarts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from batonmq.broker.replica.controller_answers import role_of
from batonmq.broker.replica.core import ReplicasCore, Role, Step
from batonmq.broker.replica.identity import Identity
from batonmq.broker.replica.set_proposals import SetProposals
from batonmq.controller import events
from batonmq.ha.autoswitch.service import HAService, StaleEpoch
from batonmq.net.errors import NetError
from batonmq.protocol.codes import ResponseCode
from batonmq.protocol.errors import MQError
from batonmq.protocol.headers import controller as wire
from tests.simulation.cluster import SimClock
from tests.simulation.host import Host
from tests.simulation.memory_log import MemoryLog
from tests.simulation.replication_controllers import (
    CLUSTER,
    CONTROLLERS,
    NAME,
    ControllersOfReplica,
    address_of,
    host_of,
)

if TYPE_CHECKING:
    from tests.simulation.replication import World

PORT: Final = 10_912
BEAT_S, BEAT_TIMEOUT_MS = 0.3, 1_500
REFRESH_S: Final = 1.0
RETRY_S: Final = 0.1


class Life:
    """One process of a replica: the part of a broker that replication belongs to."""

    def __init__(self, replica: Replica, host: Host) -> None:
        world = replica.world
        self._replica, self._world, self.host = replica, world, host
        self.session = world.next_session()
        """Its connection to the controllers."""
        shape, config = world.shape, world.config
        self.ha = HAService(
            replica.log,
            config,
            SimClock(world.loop),
            epoch_file=replica.epoch_path,
            port=PORT,
            host=host.address,
            sync_flush=shape.sync_flush,
            flush_interval_ms=50 if shape.sync_flush else 300,
        )
        self.ha.local_id = replica.number
        self.ha.on_progress = self._progress
        identity = Identity(CLUSTER, NAME, replica.number)
        self.core = ReplicasCore(CLUSTER, NAME, identity, self.ha.last_epoch)
        self._controllers = ControllersOfReplica(world, replica.name)
        settings = SimpleNamespace(broker_name=NAME, check_sync_state_set_period=1_000)
        broker: Any = SimpleNamespace(settings=SimpleNamespace(broker=settings), clock=SimClock(world.loop))
        ways: Any = self._controllers
        self.proposals = SetProposals(broker, self.ha, self.core, ways, on_role=self._on_role)
        self.serving = False
        """Whether it takes messages."""
        self._pending: deque[int] = deque()
        """Where the messages end that wait for their acknowledgement."""
        self._noticed = asyncio.Event()
        self._role_wanted = asyncio.Event()
        self._flushing = False

    async def run(self) -> None:
        """Begin to work."""
        await self.ha.start()
        self.ha.on_sync_state_change = self.proposals.changed.set
        for work in (self._register, self._follow_roles, self.proposals.run, self._beat):
            self.start(work())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that fails ends the story."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._world.ended)

    # -- the role

    def reconnect(self) -> None:
        """The connection to the controllers broke. They see that; the next heartbeat has another one."""
        session, self.session = self.session, self._world.next_session()
        self._world.controllers.closed(session)

    def notified(self, epoch: int) -> None:
        """A notice from the controllers."""
        if self.host.alive and epoch > self.core.master_epoch:
            self._noticed.set()

    async def _register(self) -> None:
        core, number = self.core, self._replica.number
        while True:
            try:
                match core.next_step():
                    case Step.REGISTER:
                        response = await self._controllers.call(
                            wire.RegisterBrokerToController(CLUSTER, NAME, number, address_of(number))
                        )
                        header: Any = response.header
                        if not core.registered(role_of(header, response.body)):
                            raise MQError(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, "a former epoch")
                    case Step.ELECT:
                        response = await self._controllers.call(wire.ElectMaster(CLUSTER, NAME, number))
                        header = response.header
                        self._on_role(role_of(header, response.body, header.sync_state_set_epoch))
                    case _:
                        await self._refresh_role()
            except (NetError, MQError):
                await asyncio.sleep(RETRY_S)
                continue
            if core.next_role() is not None:
                self._role_wanted.set()
            if core.next_step() is Step.RUN:
                try:
                    async with asyncio.timeout(REFRESH_S):
                        await self._noticed.wait()
                except TimeoutError:
                    continue
                finally:
                    self._noticed.clear()

    async def _refresh_role(self) -> None:
        core = self.core
        response = await self._controllers.call(wire.GetReplicaInfo(NAME))
        header: Any = response.header
        role = role_of(header, response.body)
        self._on_role(role)
        if role is not None and core.role is not None and role.epoch == core.role.epoch and core.is_master:
            self.ha.agree(role.sync_state_set)

    def _on_role(self, role: Role | None) -> None:
        self.core.role_reported(role)
        if self.core.next_role() is not None:
            self._role_wanted.set()

    async def _follow_roles(self) -> None:
        core = self.core
        while True:
            await self._role_wanted.wait()
            self._role_wanted.clear()
            role = core.next_role()
            if role is None:
                continue
            try:
                await self._take(role)
            except StaleEpoch as error:
                self._replica.note(f"refuses epoch {role.epoch}: {error}")
                core.role_failed(role)
            else:
                core.role_taken(role)
                self.proposals.changed.set()
            if core.next_role() is not None:
                self._role_wanted.set()

    async def _take(self, role: Role) -> None:
        """As `RoleSwitch`: a slave takes no messages from the beginning, a master from the end of the
        switch."""
        replica = self._replica
        if role.master_id == replica.number:
            await self.ha.become_master(role.epoch, role.sync_state_set)
            self._world.witness.begins_term(replica.number, role.epoch, replica.log)
            self.serving = True
        else:
            self.serving = False
            self._pending.clear()
            master = f"{host_of(role.master_id)}:{PORT}"
            await self.ha.become_slave(master, role.master_id, role.epoch)
        replica.note(f"is {self.ha.role.name} of epoch {role.epoch}, log {replica.log.max_offset}")

    async def _beat(self) -> None:
        """Heartbeats. One that the way loses is missed by nobody."""
        world, replica = self._world, self._replica
        while True:
            lost = world.is_cut(replica.name, CONTROLLERS) or world.controllers.are_away
            if self.core.may_heartbeat and not lost:
                world.controllers.sessions[self.session] = replica.number
                beat = events.Beat(
                    CLUSTER,
                    NAME,
                    replica.number,
                    address_of(replica.number),
                    self.session,
                    BEAT_TIMEOUT_MS,
                    self.ha.last_epoch,
                    replica.log.max_offset,
                    replica.log.confirm_offset,
                    0,
                )
                world.controllers.decide(events.Heartbeats((beat,)))
            await asyncio.sleep(BEAT_S)

    # -- messages

    def put(self, number: int, size: int) -> None:
        """A producer sends."""
        self._pending.append(self._replica.log.put(number, size))
        self.ha.wake()
        if self._world.shape.sync_flush and not self._flushing:
            self._flushing = True
            self.start(self._flush())
        self._acknowledge()

    async def _flush(self) -> None:
        loop, log = asyncio.get_running_loop(), self._replica.log
        while log.flushed_offset < log.max_offset:
            await loop.run_in_executor(None, log.flush)
            self.ha.wake()
            self._acknowledge()
        self._flushing = False

    def _progress(self) -> None:
        self._acknowledge()

    def _acknowledge(self) -> None:
        log, pending = self._replica.log, self._pending
        acked = log.confirm_offset
        if self._world.shape.sync_flush:
            acked = min(acked, log.flushed_offset)
        while pending and pending[0] <= acked:
            self._world.witness.acknowledges(pending.popleft())


class Replica:
    """One replica over all its restarts."""

    def __init__(self, world: World, number: int, directory: Path) -> None:
        self.world, self.number, self.name = world, number, f"r{number}"
        self.epoch_path = directory / f"epochs-{number}"
        self.log = MemoryLog(world.witness.confirms)
        self.life: Life | None = None

    def note(self, text: str) -> None:
        self.world.note(f"{self.name} {text}")

    def start(self) -> None:
        world = self.world
        host = world.loop.network.start(self.name, host_of(self.number))
        host.disk_s = world.disk_s
        host.before_work = self._before_work
        self.life = life = world.loop.network.run_on(host, lambda: Life(self, host))
        world.loop.network.run_on(host, lambda: life.start(life.run()))
        self.note(f"starts with {self.log.max_offset} bytes, epochs {life.ha.epochs}")

    def stop(self, *, power_cut: bool) -> None:
        """Kill the process, or the machine: then nobody sees the connections close."""
        life = self.life
        if life is None:
            return
        world = self.world
        self.life = None
        world.story.counts["power cuts" if power_cut else "kills"] += 1
        world.loop.network.crash(life.host, silent=power_cut)
        self.log.recover(world.chance, power_cut=power_cut)
        self.note(f"{'loses power' if power_cut else 'is killed'}, {self.log.max_offset} bytes are left")
        if not power_cut and not world.is_cut(self.name, CONTROLLERS):
            closes_at = world.loop.now + world.way_s()
            world.loop.outside_at(closes_at, world.controllers.closed, life.session)
        world.loop.outside_at(world.loop.now + world.chance.expovariate(2.0), self.restart)

    def restart(self) -> None:
        if self.life is None:
            self.start()

    def _before_work(self, host: Host, what: str) -> None:
        """Now and then a process dies just before, or just after, it wrote its epochs or flushed."""
        life, world = self.life, self.world
        if not world.healed and life is not None and life.host is host and world.chance.random() < 0.01:
            self.note(f"dies at: {what}")
            self.stop(power_cut=world.shape.sync_flush and world.chance.random() < 0.5)
