"""Smaller stories that break the same invariant, and stories that branch off from others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.guided import Plan, Search
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenario import run
from tests.simulation.search import branches_of, kept_of, options_of
from tests.simulation.shrink import Broken, broken, shrink
from tests.simulation.story import Shape, State, shape_of


@pytest.mark.simulation
def test_a_story_of_all_its_faults_is_the_same_story():
    whole = run(2, shape_of(2))
    again = run(2, replace(shape_of(2), kept=frozenset(whole.faults)))
    assert again == whole


@pytest.mark.simulation
def test_faults_that_are_left_out_do_not_take_place():
    shape = shape_of(2)
    assert run(2, replace(shape, kept=frozenset())).faults == []
    # The fourth alone: it makes the choices that it makes in the whole story.
    assert run(2, replace(shape, kept=frozenset({"4"}))).faults == ["4"]


@pytest.mark.simulation
def test_a_branch_is_the_same_story_up_to_its_fault():
    shape, at = shape_of(2), 6
    whole, branch = run(2, shape), run(2, replace(shape, branches=((at, 99),)))
    common = 0
    while common < len(branch.events) and branch.events[common] == whole.events[common]:
        common += 1
    assert common > 8  # the starts of all programs, and the first faults
    assert branch.trace != whole.trace
    assert branch.faults[: at - 1] == whole.faults[: at - 1]


@pytest.mark.simulation
def test_a_failing_story_shrinks_to_one_of_the_same_kind():
    mutation = MUTATIONS["no-truncation"]
    steps: list[str] = []
    with mutation.in_force():
        found = broken(4, shape_of(4))
        assert found is not None
        smallest = shrink(4, found, steps.append)
        assert broken(4, smallest.shape) == smallest, "it does not repeat"
    assert steps and len(smallest.faults) <= 3 < len(found.faults)
    assert smallest.kind == found.kind


@pytest.mark.simulation
def test_a_story_that_breaks_nothing_is_not_broken():
    assert broken(0, shape_of(0)) is None


def test_two_violations_are_of_one_kind_if_only_names_and_numbers_differ():
    texts = (
        "seed 7: acknowledged m61 is lost: not at 1:27\n  0.0 start",
        "seed 19: acknowledged m5 is lost: not at 0:3",
    )
    one, other = (Broken(Shape(), (), text) for text in texts)
    assert one.kind == other.kind == "acknowledged m# is lost: not at #:#"
    assert Broken(Shape(), (), "seed 7: epoch 3 has two masters: broker0 and broker1").kind != one.kind


def states(*epochs: int) -> set[State]:
    return {(epoch, 3, "MASTER-0 SLAVE-0+") for epoch in epochs}


def test_stories_that_reach_new_states_are_kept_and_branched_from():
    search = Search(5)
    plan = search.plan()
    assert plan == Plan(0, shape_of(0))
    assert search.learn(plan, ["1", "epoch 2", "2", "3"], states(1, 2)) == 2
    assert search.learn(Plan(7, shape_of(7)), ["1"], states(2)) == 0
    (kept,) = search.kept
    assert kept.plan == plan and kept.faults == 3
    branches = [plan for plan in (search.plan() for _ in range(40)) if plan.shape.branches]
    assert 20 <= len(branches) < 40 and kept.branched == len(branches)
    assert {plan.seed for plan in branches} == {0}
    assert {plan.shape.branches[0][0] for plan in branches} == {1, 2, 3}


def test_a_branch_of_a_branch_keeps_the_earlier_ones():
    search = Search(5)
    parent = Plan(3, replace(shape_of(3), branches=((2, 11), (9, 12))))
    search.learn(parent, [str(number) for number in range(1, 6)], states(1))
    for plan in (search.plan() for _ in range(40)):
        if plan.shape.branches:
            *earlier, (at, _) = plan.shape.branches
            assert earlier == [branch for branch in parent.shape.branches if branch[0] < at]


def test_the_same_state_of_another_number_of_replicas_is_another_state():
    search = Search(1)
    assert search.learn(Plan(0, Shape(replicas=2)), [], states(1)) == 1
    assert search.learn(Plan(1, Shape(replicas=3)), [], states(1)) == 1


def test_without_guidance_the_seeds_come_in_turn():
    search = Search(1, guided=False, first=30)
    for seed in range(30, 40):
        plan = search.plan()
        assert plan == Plan(seed, shape_of(seed))
        search.learn(plan, ["1"], states(seed))


def test_the_options_that_are_printed_name_the_story():
    shape = replace(
        shape_of(4),
        kept=frozenset({"12", "epoch 3"}),
        branches=((3, 17), (8, 5)),
        controllers=1,
        sync_flush=True,
    )
    options = options_of(4, shape)
    assert options == (
        "--first 4 --verbose --replicas 3 --controllers 1 --sync-flush "
        "--branches 3:17,8:5 --kept '12,epoch 3'"
    )
    assert branches_of("3:17,8:5") == shape.branches and kept_of("12,epoch 3") == shape.kept
    assert branches_of("") == () and kept_of(None) is None and kept_of("") == frozenset()
