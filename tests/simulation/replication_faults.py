"""What breaks in a story of replication."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from batonmq.controller import events
from tests.simulation.replication_controllers import CONTROLLERS, NAME

if TYPE_CHECKING:
    from tests.simulation.replication import World
    from tests.simulation.replication_replica import Replica

FAULTS_S: Final = 2.5
"""How long, in virtual seconds."""
FAULTS_PER_S: Final = 8.0
"""Half as many for twice as long find as many missing guards in the same processor time."""


class Faults:
    """Breaks things in a `World`. What was broken is repaired later; the rest at the end of the story."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self) -> None:
        world = self._world
        chance, end = world.chance, world.loop.now + FAULTS_S
        kinds = (
            *(self._kill,) * 4,
            *(self._cut,) * 4,
            *(self._pause,) * 3,
            *(self._lose_answers,) * 2,
            self._reset,
            self._reconnect,
            self._slow_line,
            self._slow_disks,
            self._controllers_away,
            self._change_leader,
            self._designate,
        )
        while world.loop.now < end:
            await asyncio.sleep(chance.expovariate(FAULTS_PER_S))
            chance.choice(kinds)()

    def _any(self) -> Replica:
        """The master more often than another: faults of others change less."""
        group = self._world.controllers.broker_set
        if group.master_id is not None and self._world.chance.random() < 0.4:
            return self._world.replicas[group.master_id - 1]
        return self._world.chance.choice(self._world.replicas)

    def _kill(self) -> None:
        self._any().stop(power_cut=self._world.shape.sync_flush and self._world.chance.random() < 0.5)

    def _cut(self) -> None:
        ends = self._world.chance.sample(
            [CONTROLLERS, *(replica.name for replica in self._world.replicas)], 2
        )
        one, other = ends
        both = self._world.chance.random() < 0.7
        self._world.loop.network.cut(one, other, both=both)
        self._world.note(f"{one} {'and' if both else 'to'} {other} are cut off")
        self._world.loop.outside_at(
            self._world.loop.now + self._world.chance.expovariate(1.0), self._mend, one, other
        )

    def _mend(self, one: str, other: str) -> None:
        self._world.loop.network.cuts -= {(one, other), (other, one)}

    def _pause(self) -> None:
        replica = self._any()
        if replica.life is not None:
            seconds = self._world.chance.expovariate(2.0)
            replica.life.host.paused_until = self._world.loop.now + seconds
            replica.note(f"pauses for {seconds:.3f} s")

    def _reset(self) -> None:
        """A connection is reset, or nothing comes through it for a while."""
        life = self._any().life
        if life is not None and life.host.endpoints:
            endpoint = self._world.chance.choice(list(life.host.endpoints))
            if self._world.chance.random() < 0.5:
                self._world.loop.network.reset(endpoint)
            else:
                self._world.loop.network.stall(endpoint, self._world.chance.expovariate(2.0))

    def _reconnect(self) -> None:
        """Controllers and replica lose their connection, and have another at once."""
        replica = self._any()
        if replica.life is not None:
            replica.note("connects to the controllers again")
            replica.life.reconnect()

    def _slow_line(self) -> None:
        """Packets of one frame arrive one by one."""
        replica = self._any()
        self._world.loop.network.slow[replica.name] = self._world.chance.choice((20e3, 200e3))
        replica.note("has a slow line")

    def _slow_disks(self) -> None:
        self._world.disk_s = self._world.chance.choice((0.002, 0.02, 0.2))
        for replica in self._world.replicas:
            if replica.life is not None:
                replica.life.host.disk_s = self._world.disk_s

    def _controllers_away(self) -> None:
        self._world.controllers.down_until = self._world.loop.now + self._world.chance.expovariate(1.0)

    def _change_leader(self) -> None:
        self._world.controllers.change_leader()

    def _lose_answers(self) -> None:
        self._world.loss = self._world.chance.choice((0.0, 0.1, 0.4))

    def _designate(self) -> None:
        """An operator asks for another master."""
        number = self._any().number
        self._world.note(f"operator: electMaster {number}")
        self._world.controllers.decide(events.ElectMaster(NAME, number, True, False, "operator"))
