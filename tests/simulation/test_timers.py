"""Timed messages under seeded faults: none early, none lost; and the guards that this depends on."""

from __future__ import annotations

import pytest

from tests.simulation.story import shape_of
from tests.simulation.timer_mutations import MUTATIONS, violation
from tests.simulation.timers import run_timers

SEEDS = 8
PATIENCE = 12
"""Seeds tried before a mutation counts as unnoticed."""


@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(SEEDS))
def test_timed_messages_come_and_none_early(seed: int) -> None:
    timers = run_timers(seed, shape_of(seed))
    assert len(timers.acked) > 20
    assert timers.delivered.keys() >= timers.acked.keys()
    assert timers.rolled
    # A producer that got no answer sends again; that is another message to the broker.
    assert timers.repeated <= len(timers.acked) // 10 + 3


@pytest.mark.simulation
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_guard_is_noticed(name: str) -> None:
    assert any(violation(name, seed) for seed in range(PATIENCE)), MUTATIONS[name].what
