"""Raft under faults, one schedule a seed; `python -m tests.simulation.raft_sim --seeds N` runs any number."""

import pytest

from tests.simulation.raft_sim import run_seed

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("block", range(12))
def test_nothing_acknowledged_is_lost(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        simulation = run_seed(seed)
        assert simulation.elections and simulation.acknowledged


@pytest.mark.parametrize("seed", [3055, 4832])
def test_a_leader_that_was_paused_judges_its_lease_by_the_present(seed: int) -> None:
    """It answered reads from a lease that had run out: a read did not bring the time with it."""
    run_seed(seed)


def test_the_schedules_contain_what_they_should() -> None:
    """Guards the simulation itself: a schedule without faults or reads would prove nothing."""
    runs = [run_seed(seed) for seed in range(200, 220)]
    assert sum(run.elections for run in runs) > 2 * len(runs)
    assert sum(run.reads_answered for run in runs) > 10 * len(runs)
    assert sum(run.installs for run in runs) > 0
    assert sum(run.crashes for run in runs) > len(runs)
