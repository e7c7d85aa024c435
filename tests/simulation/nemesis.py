"""Which faults, strikes and plots make a story, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.simulation.cluster import Node, SimCluster
from tests.simulation.plots import Plots
from tests.simulation.story import Shape, Story
from tests.simulation.witness import Witness

WELL_S = 15.0
"""In that time a group is well again after most plots."""


class Nemesis(Plots):
    """Faults at random, and plots when the group is well."""

    def __init__(self, cluster: SimCluster, witness: Witness, story: Story, shape: Shape) -> None:
        super().__init__(cluster, witness, story, shape)
        self._epoch = 0
        self._plots: dict[str, tuple[int, Callable[[Node], Awaitable[None]]]] = {
            "join": (10, self._join),
            "ahead": (6, self._ahead),
            "blink": (6, self._blink),
            "relapse": (4, self._relapse),
            "torn": (4, self._torn),
            "switch": (4, self._switch),
            "young": (4, self._young),
            "again": (3, self._again),
            "depose": (3, self._depose),
            "refused": (3, self._refused),
            "late": (3, self._late_word),
            "forget": (3, self._forget),
            "roll": (3, self._roll),
            "blackout": (3, self._blackout),
            "new disk": (3, self._replace_disk),
            "topic": (3, self._new_topic),
            "stranger": (2, self._stranger),
            "stalled": (0, self._stalled),
            "full": (0, self._full),
            "controller": (60 if shape.replace_controllers else 0, self._replace_controller),
        }

    def add_plot(self, name: str, weight: int, plot: Callable[[Node], Awaitable[None]]) -> None:
        """A plot of a story with other traffic than sends and reads."""
        self._plots[name] = (weight, plot)

    async def run(self) -> None:
        """Faults for as long as the story's shape says."""
        cluster = self.cluster
        end = cluster.loop.now + self.shape.faults_s
        while cluster.loop.now < end:
            wanted = self._begin()
            pick = self.random
            if self.shape.plot:
                cluster.heal()
                if await self._until(cluster.whole, WELL_S):
                    await asyncio.sleep(pick.expovariate(1 / 0.3))
                    if wanted and cluster.whole():
                        await self._plots[self.shape.plot][1](cluster.masters()[0])
            elif pick.random() < 0.3:
                # A group that is well again has most to lose.
                cluster.heal()
                await self._until(cluster.whole, pick.uniform(1, 6))
                await asyncio.sleep(pick.expovariate(1 / 0.3))
                if not wanted:
                    continue
                if pick.random() < 0.4 and cluster.whole():
                    await self._one_of(list(self._plots.values()))(cluster.masters()[0])
                else:
                    self.strike()
            else:
                await asyncio.sleep(pick.expovariate(1 / 1.5))
                if wanted:
                    self._one_fault()
        for _ in range(
            0 if self.shape.plot else self.random.randint(0, 5)
        ):  # what has to be healed may be a lot
            if self._begin():
                self._one_fault()
            await asyncio.sleep(self.random.expovariate(1 / 0.1))
        self.over = True

    def look(self) -> None:
        """After an election there may be another strike soon."""
        epoch = self.witness.newest_epoch
        if epoch > self._epoch:
            self._epoch = epoch
            if not self.over and not self.shape.plot and self._begin(epoch) and self.random.random() < 0.3:
                self._strike_soon(1.0)
