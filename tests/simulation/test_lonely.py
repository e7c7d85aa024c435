"""Acting masters with a topic that no other broker set has, under seeded faults."""

from __future__ import annotations

from functools import partial

import pytest

from tests.simulation.acting_mutations import LONELY
from tests.simulation.lonely import run_lonely

EVER_FAILED = {
    7130004: "what a master had delivered in the second before it was killed came again",
    7130009: "a master whose clock was behind left out of its checkpoint what was not due yet: it was lost",
    7130021: "the same",
}
"""Seeds that once broke an invariant, and what was wrong: they stay for ever."""


@pytest.mark.simulation
def test_what_no_other_master_takes_waits_and_comes_once() -> None:
    assert max(run_lonely(seed).waited for seed in range(3)) > 10


@pytest.mark.simulation
@pytest.mark.parametrize("seed", EVER_FAILED)
def test_what_no_other_master_takes_comes_once(seed: int) -> None:
    run_lonely(seed)


@pytest.mark.simulation
@pytest.mark.parametrize("name", LONELY)
def test_the_simulation_notices_a_guard_that_is_gone(name: str) -> None:
    mutation, seeds = LONELY[name]
    noticed = (mutation.violation(partial(run_lonely, seed)) for seed in seeds)
    assert any(noticed), f"no seed of {seeds} notices that {mutation.what}"
