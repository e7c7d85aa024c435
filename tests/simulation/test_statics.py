"""Static topics whose queues move between two broker sets, under seeded faults."""

from __future__ import annotations

import pytest

from tests.simulation.static_mutations import MUTATIONS, NOTICED, WITHIN_SEEDS, violation
from tests.simulation.statics import run

SEEDS = (0, 2, 3, 5, 2011)
"""In 2011 a broker set gets another master before a move that failed is carried out again. Few, since each
takes 4 to 5 s; ``python -m tests.simulation static`` runs any number."""


@pytest.mark.simulation
def test_messages_stay_where_they_were_acknowledged_and_in_order_through_moves() -> None:
    stories = [run(seed) for seed in SEEDS]
    assert all(len(story.acked) > 300 and story.moves > 3 for story in stories)
    assert sum(story.again for story in stories) > 5
    assert any(offset < 0 for story in stories for _, offset in story.acked.values())


@pytest.mark.simulation
@pytest.mark.parametrize("name", NOTICED)
def test_the_simulation_notices_a_guard_that_is_gone(name: str) -> None:
    noticed = (violation(name, seed) for seed in (*NOTICED[name], *range(WITHIN_SEEDS)))
    assert any(noticed), f"no seed below {WITHIN_SEEDS} notices that {MUTATIONS[name].what}"


@pytest.mark.simulation
def test_a_seed_tells_the_same_story_again() -> None:
    assert run(1).events == run(1).events
