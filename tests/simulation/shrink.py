"""The smallest story that still breaks the same invariant: fewer faults, then fewer replicas and controllers.

Each fault has its own generator (`faults.py`), so most of the others stay what they were when one is left
out. What the clients and the network do still changes, so a smaller story may need other faults than the
first guess: the search tries halves, then quarters, down to single faults (Zeller's delta debugging, ddmin).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.simulation.scenario import run
from tests.simulation.story import Shape, Story, Violation


@dataclass(frozen=True)
class Broken:
    """A story that broke an invariant."""

    shape: Shape
    faults: tuple[str, ...]
    """Keys of those that took place (`Story.faults`)."""
    text: str
    """What the violation says, with the last events."""

    @property
    def kind(self) -> str:
        """The violation without names and numbers: two stories of one kind break the same invariant."""
        first_line = self.text.partition("\n")[0].partition(": ")[2]
        return re.sub(r"\d+", "#", first_line)


def broken(seed: int, shape: Shape) -> Broken | None:
    """Run one story; None if all invariants hold."""
    story = Story(seed)
    try:
        run(seed, shape, story=story)
    except Violation as violation:
        return Broken(shape, tuple(story.faults), str(violation))
    return None


def shrink(seed: int, found: Broken, say: Callable[[str], None] = lambda text: None) -> Broken:
    """The smallest story of the same kind as `found` that the search comes to. `say` gets each step."""

    def smaller(shape: Shape) -> Broken | None:
        other = broken(seed, shape)
        return other if other is not None and other.kind == found.kind else None

    best = smaller(replace(found.shape, kept=frozenset(found.faults))) or found
    while True:
        before = best
        best = _fewer_faults(best, smaller, say)
        for shape in _simpler(best.shape):
            if (other := smaller(shape)) is not None:
                best = other
                say(f"{shape.replicas} replicas, {shape.controllers} controllers")
        if best is before:
            return best


def _fewer_faults(
    best: Broken, smaller: Callable[[Shape], Broken | None], say: Callable[[str], None]
) -> Broken:
    parts = 2
    while best.faults:
        for kept in _without_a_part(best.faults, parts):
            if (other := smaller(replace(best.shape, kept=frozenset(kept)))) is not None:
                best = other
                say(f"{len(best.faults)} faults")
                parts = max(2, parts - 1)
                break
        else:
            if parts >= len(best.faults):
                return best
            parts = min(len(best.faults), 2 * parts)
    return best


def _without_a_part(faults: Sequence[str], parts: int) -> Iterator[Sequence[str]]:
    """`faults` without each of `parts` parts in turn."""
    size = -(-len(faults) // parts)
    for start in range(0, len(faults), size):
        yield [*faults[:start], *faults[start + size :]]


def _simpler(shape: Shape) -> Iterator[Shape]:
    for replicas in range(2, shape.replicas):
        yield replace(shape, replicas=replicas)
    for controllers in (1, 3):
        if controllers < shape.controllers and not shape.replace_controllers:
            yield replace(shape, controllers=controllers)
