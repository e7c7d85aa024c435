"""Stories that branch off from others which reached new states (coverage-guided search).

A state is the master epoch, the SyncStateSet and what each replica is (`Witness`). A story that reaches a
state for the first time is kept. New stories repeat a kept one up to a random fault and go on with the faults
of another seed from there, so rare states are starting points instead of chances.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from tests.simulation.story import Shape, State, shape_of

FRESH = 0.3
"""Share of stories that branch off from no other."""


@dataclass(frozen=True)
class Plan:
    """A story to run."""

    seed: int
    shape: Shape


@dataclass
class Kept:
    """A story that reached new states."""

    plan: Plan
    faults: int
    branched: int = 0
    """How many stories branched off from it."""


@dataclass
class Search:
    """Chooses stories. `guided` False: seeds in turn, for comparison."""

    seed: int
    guided: bool = True
    first: int = 0
    kept: list[Kept] = field(default_factory=list)
    seen: Counter[tuple[int, State]] = field(default_factory=Counter)
    """(Replicas, state) -> stories that went through it."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._next = self.first

    def plan(self) -> Plan:
        """The next story: a new seed, or a branch of a story that was kept."""
        if not self.guided or not self.kept or self._random.random() < FRESH:
            self._next += 1
            return Plan(self._next - 1, shape_of(self._next - 1))
        # Those with few branches first.
        parent = min(self._random.sample(self.kept, min(3, len(self.kept))), key=lambda kept: kept.branched)
        parent.branched += 1
        at = self._random.randint(1, max(1, parent.faults))
        shape = parent.plan.shape
        earlier = [branch for branch in shape.branches if branch[0] < at]
        branches = (*earlier, (at, self._random.getrandbits(32)))
        return Plan(parent.plan.seed, replace(shape, branches=branches))

    def learn(self, plan: Plan, faults: list[str], states: set[State]) -> int:
        """A story has ended; returns how many of its states are new."""
        found = {(plan.shape.replicas, state) for state in states}
        new = sum(1 for state in found if state not in self.seen)
        self.seen.update(found)
        if new:
            self.kept.append(Kept(plan, sum(1 for key in faults if key.isdigit())))
        return new
