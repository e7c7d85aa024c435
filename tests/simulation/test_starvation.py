"""Starved processes are not taken for hung ones, and hung ones are noticed within two seconds."""

from __future__ import annotations

import pytest

from tests.simulation.starvation import run
from tests.simulation.starvation_mutations import MUTATIONS, violation

SEEDS = 12
PATIENCE = 8
"""Seeds tried before a mutation counts as unnoticed."""


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(SEEDS))
def test_starved_masters_stay_and_hung_replicas_are_noticed(seed: int) -> None:
    story = run(seed)
    assert story.pauses and story.stops and story.stalls


@pytest.mark.simulation
@pytest.mark.parametrize("name", list(MUTATIONS))
def test_a_missing_guard_is_noticed(name: str) -> None:
    assert any(violation(name, seed) for seed in range(PATIENCE)), MUTATIONS[name].what
