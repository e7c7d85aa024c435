"""Whole clusters under seeded faults: nothing acknowledged is lost, one master an epoch, equal logs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.scenario import run
from tests.simulation.story import shape_of

SEEDS = 120
REPLACING_SEEDS = range(12)
HAND_BACK_SEEDS = range(12)
EVER_FAILED: dict[tuple[int, int | None], str] = {
    # Mistakes of the simulator that looked like a group that does not heal:
    (1013, None): "a program that was stopping when all was repaired was never started again",
    (1032, None): "a broker that ran was started a second time, on the same directory",
    (45, None): "a consume queue unit torn by a power cut was taken for one of an old record",
    (20023, None): "a master resumed its epoch after a power cut: one epoch, two histories",
    (20040, None): "a master resumed its epoch with a confirm offset from before what was read",
    (20041, None): "as 20040",
    (20053, None): "as 20040",
    (7100232, None): "a message was appended within a filler that had come in part, so no reader found it",
    # The simulator looked where nobody was:
    (41278, 2): "a controller noticed broken connections late and held an election when all was healed",
    (139, None): "the client gave up when the master was killed while it created the topic",
    (7101061, None): "the client gave up when there was no master while it created the topic",
    (7101143, None): "all were killed while the client created the topic, and none was started again",
    (41316, 2): "a leader was looked for among controllers that still read their logs",
}
"""Seeds that once broke an invariant, with the replicas asked for, and what was wrong: they stay for ever."""


@pytest.mark.simulation
@pytest.mark.parametrize(("seed", "replicas"), [*((seed, None) for seed in range(SEEDS)), *EVER_FAILED])
def test_acknowledged_messages_survive(seed, replicas):
    story = run(seed, shape_of(seed, replicas))
    assert story.acked
    assert story.masters


@pytest.mark.simulation
def test_acknowledged_messages_survive_while_controllers_are_replaced():
    stories = [run(seed, replace(shape_of(seed), replace_controllers=True)) for seed in REPLACING_SEEDS]
    assert sum(story.replaced for story in stories) > len(stories) / 2
    assert all(story.acked and story.masters for story in stories)


@pytest.mark.simulation
@pytest.mark.parametrize("seed", HAND_BACK_SEEDS)
def test_the_preferred_replica_is_master_in_the_end(seed):
    story = run(seed, replace(shape_of(seed), hand_back=True))
    assert story.acked and len(story.masters) > 1


@pytest.mark.simulation
@pytest.mark.parametrize("seed", [1, 4, 5])
def test_a_seed_tells_the_same_story_again(seed):
    one, two = run(seed, shape_of(seed)), run(seed, shape_of(seed))
    assert one == two


@pytest.mark.simulation
def test_a_seed_tells_the_same_story_in_another_process():
    story = run(3, shape_of(3))
    program = (
        "from tests.simulation.story import shape_of; from tests.simulation.scenario import run;"
        "print(run(3, shape_of(3)).trace)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == story.trace


@pytest.mark.simulation
def test_a_story_leaves_no_file_open():
    run(1, shape_of(1))
    before = len(os.listdir("/proc/self/fd"))
    run(1, shape_of(1))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.simulation
def test_a_story_leaves_nothing_in_memory():
    run(1, shape_of(1))
    before = len(gc.get_objects())
    run(1, shape_of(1))
    assert len(gc.get_objects()) < before + 1000
