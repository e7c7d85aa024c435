"""Acting masters under seeded faults."""

from __future__ import annotations

import pytest

from tests.integration.acting.stories import STORIES
from tests.simulation.acting import run
from tests.simulation.acting_mutations import MUTATIONS
from tests.simulation.acting_stories import run_story

SEEDS = [*range(17), 34, 7120020]
"""34: the simulator stopped a broker that had not started; 7120020: a message that had waited at a slave
came 108 s early from its master, whose clock is behind."""


@pytest.mark.simulation
@pytest.mark.parametrize("seed", SEEDS)
def test_delayed_and_timed_messages_outlive_their_master(seed):
    story = run(seed)
    assert story.acked


@pytest.mark.simulation
def test_slaves_act_and_deliver_on_the_other_set():
    stories = [run(seed) for seed in range(4)]
    assert sum(story.acted for story in stories) > 2
    assert sum(story.escaped for story in stories) > 0


@pytest.mark.simulation
@pytest.mark.parametrize("name", STORIES)
def test_a_slave_continues_with(name):
    run_story(name)


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_notices_a_guard_that_is_gone(name):
    mutation, seeds = MUTATIONS[name]
    noticed = (mutation.violation(lambda seed=seed: run(seed)) for seed in seeds)
    assert any(noticed), f"no seed of {seeds} notices that {mutation.what}"


@pytest.mark.simulation
def test_a_seed_tells_the_same_story_again():
    assert run(5).events == run(5).events
