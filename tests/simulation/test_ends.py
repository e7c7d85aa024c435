"""Whole clusters whose readers ask where queues end (`ends.py`), and guards taken out of them."""

from __future__ import annotations

import pytest

from tests.simulation.ends import run_ends
from tests.simulation.ends_mutations import MUTATIONS, violation
from tests.simulation.story import shape_of

SEEDS = [*range(8), 11, 63]
"""11: a former master that does not know it; 63: a slave answers while it becomes master."""
NOTICED = {"without-role": (3, 12), "any-end": (24, 36, 44)}
"""Seeds that notice that a guard is missing. When the timing of brokers changes, others of the first
`WITHIN_SEEDS` do."""
WITHIN_SEEDS = 60


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_the_end_of_a_queue_never_goes_back(seed):
    story = run_ends(seed, shape_of(seed))
    assert story.masters
    assert len(story.seen) > 20


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_guard_is_noticed(name):
    seeds = (*NOTICED[name], *range(WITHIN_SEEDS))
    assert any(violation(name, seed) for seed in seeds), MUTATIONS[name].what
