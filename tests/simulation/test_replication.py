"""Replicas alone under faults, one story a seed; `python -m tests.simulation replication` runs any number."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.replication import run, shape_of
from tests.simulation.replication_mutations import MUTATIONS, NOTICED, WITHIN_SEEDS, violation

pytestmark = pytest.mark.simulation

SEEDS = 120
EVER_FAILED: dict[int, str] = {
    1924: "the SyncStateSet could not change: a term began while its predecessor's proposal was prepared",
    **dict.fromkeys(
        (1181, 2038, 2620, 4212, 5616, 6518, 8008173, 8017732, 8020154, 8021614),
        "a false alarm: bytes were confirmed of a record that was not whole yet",
    ),
    2731: "a false alarm: the last message was given to a process that was paused",
}
"""Seeds that once broke an invariant, and what was wrong: they stay for ever."""


@pytest.mark.parametrize("block", range(4))
def test_what_was_confirmed_is_never_lost(block: int) -> None:
    size = SEEDS // 4
    stories = [run(seed) for seed in range(block * size, (block + 1) * size)]
    counts: Counter[str] = sum((story.counts for story in stories), Counter())
    assert counts["acknowledged"] > 30 * size
    assert counts["terms"] > 2 * size
    assert counts["kills"] > 2 * size
    assert counts["power cuts"] > size // 3
    assert counts["cut logs"] > 0


@pytest.mark.parametrize("seed", EVER_FAILED)
def test_what_once_failed_holds(seed: int) -> None:
    run(seed)


@pytest.mark.parametrize("name", NOTICED)
def test_a_guard_that_is_gone_is_noticed(name: str) -> None:
    noticed = (violation(name, seed) for seed in (*NOTICED[name], *range(WITHIN_SEEDS)))
    assert any(noticed), f"no seed below {WITHIN_SEEDS} notices that {MUTATIONS[name].what}"


def test_a_seed_tells_the_same_story_again() -> None:
    first, second = run(7), run(7)
    assert (first.events, first.trace) == (second.events, second.trace)


def test_seeds_cover_all_shapes() -> None:
    shapes = {shape_of(seed) for seed in range(200)}
    assert {shape.replicas for shape in shapes} == {2, 3, 5}
    assert {(shape.sync_flush, shape.batch) for shape in shapes} == {
        (sync, batch) for sync in (False, True) for batch in (64, 150, 500, 256 * 1024)
    }
