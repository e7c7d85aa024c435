"""Strict queue locks and masters that return, under seeded faults."""

from __future__ import annotations

import logging

import pytest

from tests.simulation.returning import run
from tests.simulation.returning_mutations import MUTATIONS


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(12))
def test_a_queue_has_one_owner_and_a_master_that_returns_keeps_accepted_offsets(seed):
    story = run(seed)
    assert story.granted and story.acting and story.returned and story.commits


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_simulation_notices_a_guard_that_is_gone(name):
    mutation, seeds = MUTATIONS[name]
    noticed = (mutation.violation(lambda seed=seed: run(seed)) for seed in seeds)
    assert any(noticed), f"no seed of {seeds} notices that {mutation.what}"


@pytest.mark.simulation
def test_a_seed_tells_the_same_story_again():
    assert run(4).events == run(4).events
