"""Raft under faults, one schedule a seed; `python -m tests.simulation.raft_sim --seeds N` runs any number."""

import pytest

from tests.simulation.raft_sim import run_seed

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("block", range(12))
def test_nothing_acknowledged_is_lost(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        simulation = run_seed(seed)
        assert simulation.elections and simulation.acknowledged


def test_the_schedules_contain_what_they_should() -> None:
    """Guards the simulation itself: a schedule without faults or reads would prove nothing."""
    runs = [run_seed(seed) for seed in range(200, 220)]
    assert sum(run.elections for run in runs) > 2 * len(runs)
    assert sum(run.reads_answered for run in runs) > 10 * len(runs)
    assert sum(run.installs for run in runs) > 0
    assert sum(run.crashes for run in runs) > len(runs)
