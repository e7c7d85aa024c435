"""Groups without controllers under seeded faults."""

from __future__ import annotations

import pytest

from tests.simulation.classic import run
from tests.simulation.classic_mutations import MUTATIONS


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(16))
def test_acknowledged_messages_stay_on_the_promised_number_of_replicas(seed):
    story = run(seed)
    assert story.acked


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_notices_a_guard_that_is_gone(name):
    mutation, seeds = MUTATIONS[name]
    plot = mutation.shape or ""
    noticed = (mutation.violation(lambda seed=seed: run(seed, plot=plot)) for seed in seeds)
    assert any(noticed), f"no seed of {seeds} notices that {mutation.what}"


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [2, 6])
def test_a_slave_with_two_links_counts_once(seed):
    assert run(seed, plot="two links").acked


@pytest.mark.simulation
def test_a_seed_tells_the_same_story_again():
    assert run(6).events == run(6).events
