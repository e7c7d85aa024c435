"""Pop consumers under seeded faults: nothing is lost, nothing acknowledged comes again, order holds."""

from __future__ import annotations

import logging

import pytest

from tests.simulation.pop_mutations import MUTATIONS, violation
from tests.simulation.pop_story import run
from tests.simulation.story import shape_of

SEEDS = 40


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(SEEDS))
def test_popped_messages_are_consumed_once_and_none_is_lost(seed):
    story = run(seed, shape_of(seed))
    assert story.acked


@pytest.mark.simulation
@pytest.mark.parametrize(
    "name",
    [
        "answered-at-once",
        "not-read",
        "floor-at-end",
        "acks-ignored",
        "late-acks",
        "table-positions",
        "revive-all",
    ],
)
def test_a_missing_guard_is_noticed(name):
    assert any(violation(name, seed) for seed in range(1, 9)), MUTATIONS[name].what
